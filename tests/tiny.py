"""A checkpoint folder with a shape and no weights, for what the fake engine runs on, and the command line as users call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


def tiny_folder(folder: Path) -> Path:
    """folder/tiny, with config.json alone."""
    path = folder / "tiny"
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def environment(home: Path, **variables: str) -> dict[str, str]:
    """This process's environment with LLMBENCH_HOME and no hub."""
    return {**os.environ, "LLMBENCH_HOME": str(home), "HF_HUB_OFFLINE": "1", "TERM": "dumb", "PYTHONWARNINGS": "ignore", **variables}


def llmbench(home: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m llmbench ...` to its end."""
    command = [sys.executable, "-m", "llmbench", *map(str, arguments)]
    return subprocess.run(command, env=environment(home, **variables), cwd=home, capture_output=True, text=True, timeout=300)


def compare(home: Path, engines: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """`llmbench compare` of the given variants on the tiny shape, 8 new tokens."""
    model = tiny_folder(home)
    fixed = ("--model", model, "--load-format", "dummy", "--engines", engines, "--input-len", 4, "--max-new-tokens", 8)
    return llmbench(home, "compare", *fixed, *arguments, **variables)


def interruptible() -> None:
    """To run between fork and exec: a shell's background job hands down an ignored SIGINT, and then nobody could press Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_files(home: Path) -> list[Path]:
    """What results/ keeps, oldest first."""
    return sorted((home / "results").glob("*.json"))
