"""What a GPU machine without network can tell in a few minutes: `make gpu-check`, or python3 benchmarks/gpu_check.py --minutes 8.

Random weights at real shapes, so nothing is downloaded: first whether logits and ids hold on this GPU, then eager and torch-compile on Phi-2
and Llama-2-7B in bfloat16 with CUDA graphs, then without graphs, in float16, at batch 8 and with a long prompt. Each step is an `llmbench
compare` of its own and its run file grows block by block, so whatever ends this early leaves what was measured. It ends itself at the budget.

Beside each rate stands its use of the memory's bandwidth, and gpt-fast's published figure for it: Llama-2-7B in bfloat16 on an A100 gives 104.9
tokens/s, about 67 % of what reading the weights at the datasheet's 2,039 GB/s allows (gpt-fast's README).

Results go to $OUT, else ./results/gpu-check: run files, PNGs, and summary.txt with all that is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Modules that measuring random weights needs -> how to get them; whatever else llmbench depends on is for other checkpoints.
NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "matplotlib": "matplotlib",
    "scipy": "scipy",
    "rich": "rich",
    "typer": "typer",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "filelock": "filelock",
}
GPT_FAST = "gpt-fast, published: Llama-2-7B in bfloat16 on an A100: 104.9 tokens/s, about 67 % of the bandwidth limit"
#: A step isn't begun with less than this left, and is interrupted this long before the end, to write its file.
LEAST_S, RESERVE_S = 25.0, 12.0
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class Step:
    """One comparison."""

    name: str
    model: str
    arguments: tuple[str, ...] = ()
    engines: str = "eager,torch-compile"
    dtype: str = "bfloat16"
    new_tokens: int = 200
    accuracy: bool = False


STEPS = (
    Step("accuracy", "smollm2-135m", new_tokens=64, accuracy=True),
    Step("phi-2", "phi-2"),
    Step("llama-2-7b", "llama-2-7b"),
    Step("no CUDA graphs", "llama-2-7b", engines="torch-compile-no-cudagraphs"),
    Step("float16", "llama-2-7b", dtype="float16"),
    Step("batch 8", "llama-2-7b", ("--batch-size", "8")),
    Step("long prompt", "llama-2-7b", ("--input-len", "1024"), new_tokens=64),
)


class Say:
    """Prints, and keeps what it printed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)

    def __call__(self, text: str) -> None:
        print(text, flush=True)
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")


def missing() -> list[str]:
    """The packages that this interpreter lacks and the steps need."""
    return [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]


def command(step: Step, tiny: Path | None, engines: str | None, budget_s: float, chart: Path) -> list[str]:
    """The step as a command line. tiny: a folder with a tiny config.json that stands for every model."""
    new_tokens = min(step.new_tokens, 8) if tiny else step.new_tokens
    found = [sys.executable, "-m", "llmbench", "compare", "--model", str(tiny or step.model), "--load-format", "dummy", "--offline"]
    found += ["--engines", engines or step.engines, "--dtype", step.dtype, "--max-new-tokens", str(new_tokens), "--chart", str(chart)]
    found += ["--rounds", "1", "--num-iters", "3", "--time-budget", f"{budget_s:.0f}s"]
    if "--input-len" not in step.arguments:
        found += ["--input-len", "6"]  # as long as "Hello, my name is" for these models' tokenizers
    return [*found, *step.arguments, *([] if step.accuracy else ["--no-accuracy"])]


def carry_out(arguments: list[str], home: Path, log: Path, limit_s: float) -> int:
    """Runs a command until it ends, or is interrupted after limit_s seconds and then has RESERVE_S to keep what it has. Its exit code."""
    environment = {**os.environ, "LLMBENCH_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    with log.open("a", encoding="utf-8") as stream:
        process = subprocess.Popen(
            arguments, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
        for number in (signal.SIGTERM, signal.SIGKILL):  # SIGINT is ignored by what a shell runs in the background
            try:
                return process.wait(limit_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                limit_s = RESERVE_S
            except KeyboardInterrupt:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                process.wait(RESERVE_S)
                raise
        return process.wait()


def lines_of(path: Path) -> list[str]:
    """One line for each row of a run file: rates, share of the limit, verdict of the accuracy check."""
    from llmbench.results.files import load
    from llmbench.results.summary import summarise

    run = load(path)
    found = [
        f"  {run.machine.device_name}, {run.model.name}, {run.dtype}, batch {run.request.batch_size}, {run.request.max_new_tokens} tokens"
    ]
    for row, summary in zip(run.rows, summarise(run), strict=True):
        rate = f"{summary.tokens_per_s:.1f} tokens/s" if summary.tokens_per_s else "no rate"
        use = f"{100 * summary.bandwidth_use:.0f} % of the limit" if summary.bandwidth_use else "no limit known"
        checked = next((block.accuracy for block in row.blocks if block.accuracy is not None), None)
        verdict = "" if checked is None else f", {'accurate' if checked.passed else 'INACCURATE'} by {checked.method}"
        why = f": {row.reason}" if row.reason else ""
        found.append(f"  {row.variant.label}: {row.status.words}{why}; {rate}, {use}{verdict}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Eager and torch-compile on this GPU with random weights, within a budget of minutes.")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which it ends by itself")
    parser.add_argument("--tiny", action="store_true", help="a tiny model in place of all others, on the CPU too: a test of this script")
    parser.add_argument("--engines", help="these in place of each step's")
    parser.add_argument("--only", help="only the steps of these names, as accuracy,phi-2")
    options = parser.parse_args()
    end_s = time.monotonic() + 60 * options.minutes
    lacking = missing()
    if lacking:
        print(f"gpu-check: this Python lacks {', '.join(lacking)}: {sys.executable} -m pip install {' '.join(lacking)}", file=sys.stderr)
        return 1
    chosen = [step for step in STEPS if options.only is None or step.name in options.only.split(",")]
    if not chosen:
        print(f"gpu-check: --only {options.only}: there are {', '.join(step.name for step in STEPS)}", file=sys.stderr)
        return 2
    if not options.tiny and not _has_gpu():
        print("gpu-check: torch sees no CUDA device here; --tiny runs the script on the CPU", file=sys.stderr)
        return 1
    home = Path(os.environ.get("OUT") or "results/gpu-check").resolve()
    home.mkdir(parents=True, exist_ok=True)
    tiny = _tiny(home) if options.tiny else None
    say = Say(home / "summary.txt")
    failed = 0
    for step in chosen:
        left_s = end_s - time.monotonic() - RESERVE_S
        if left_s < LEAST_S:
            say(f"{step.name}: not begun, {left_s + RESERVE_S:.0f} s are left of {options.minutes:g} minutes")
            continue
        before = set((home / "results").glob("*.json"))
        chart = home / f"{step.name.replace(' ', '-')}.png"
        code = carry_out(command(step, tiny, options.engines, left_s, chart), home, home / "log.txt", left_s)
        new = sorted(set((home / "results").glob("*.json")) - before)
        words = {0: "done", 3: "done, some rows failed", 130: "cut off at the budget"}.get(
            code, f"ended with exit code {code}, see log.txt"
        )
        say(f"{step.name}: {words}")
        for path in new:
            for line in lines_of(path):
                say(line)
        failed += code not in (0, 130) or not new
    say(GPT_FAST)
    say(f"run files, charts and summary.txt: {home}")
    return 3 if failed else 0


def _has_gpu() -> bool:
    code = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def _tiny(home: Path) -> Path:
    folder = home / "models" / "tiny"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
