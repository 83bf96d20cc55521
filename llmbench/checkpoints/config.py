"""A checkpoint's shape: what config.json says, as one dataclass for all supported families.

Standard library only: the parent reads it for the card and the limits, the worker to build the model. `read_config` refuses what can't be
run by name, so that no later part meets a shape it doesn't know. Keys that a file leaves out get the defaults of transformers' class.
`read_outline` is for what needs no shape: of a family that only transformers' own model knows, it gives the little that a request needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmbench.checkpoints.errors import CheckpointError, shown
from llmbench.checkpoints.files import read_json


@dataclass(frozen=True)
class RopeScaling:
    """Llama-3's frequency scaling (rope_type "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class ModelConfig:
    """One decoder-only Transformer. Lengths in elements, context in tokens."""

    architecture: str  # config.json's class, "LlamaForCausalLM"
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int  # width of the feed-forward layer
    vocab: int
    context: int
    norm: str = "rms"  # "rms": RMSNorm; "layer": LayerNorm with bias
    norm_eps: float = 1e-5
    activation: str = "silu"  # "silu" (gated, gate and up) or "gelu_new" (plain, fc1 and fc2)
    rope_theta: float = 10000.0
    rotary_dim: int = 0  # leading elements of a head that are rotated: head_dim, or less (phi-2)
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None  # tokens that a query sees, itself included
    tied: bool = False  # lm_head is the embedding table
    parallel_block: bool = False  # phi-2: attention and feed-forward side by side from one norm
    attention_bias: bool = False  # q, k, v and the output projection
    mlp_bias: bool = False
    lm_head_bias: bool = False
    fused_names: bool = False  # phi-3: qkv_proj and gate_up_proj in the checkpoint
    dtype: str = "float32"  # what the checkpoint is meant to run in
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outline:
    """Of a model that llmbench's own code can't build: what a request has to fit into. Nothing that limits or sizes could follow from."""

    architecture: str
    vocab: int
    context: int | None  # null where config.json names no greatest length
    why: str  # why there is no ModelConfig, one line
    dtype: str = "float32"
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()


class ForeignModel(CheckpointError):
    """A sound config.json of a model that llmbench's own code doesn't know; transformers' may."""


@dataclass(frozen=True)
class _Family:
    """What transformers' configuration class of one architecture takes where a key is absent."""

    norm_eps: float
    partial_rotary: float = 1.0
    kv_heads: int | None = None  # None: as many as heads
    eos: int | None = 2


FAMILIES = {
    "LlamaForCausalLM": _Family(norm_eps=1e-6),
    "MistralForCausalLM": _Family(norm_eps=1e-6, kv_heads=8),
    "Phi3ForCausalLM": _Family(norm_eps=1e-5, eos=32000),
    "PhiForCausalLM": _Family(norm_eps=1e-5, partial_rotary=0.5),
}
MISTRAL_WINDOW = 4096

#: Names under which config.json may give a dtype that llmbench stores weights in.
DTYPES = ("float32", "bfloat16", "float16")
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",  # the same formula under another name
}


def read_config(path: Path) -> ModelConfig:
    """The shape in <path>/config.json. Raises CheckpointError: one line naming the file, the key and the value."""
    path = Path(path)
    return parse_config(read_json(path, "config.json"), str(path / "config.json"))


def read_outline(path: Path) -> ModelConfig | Outline:
    """The shape in <path>/config.json; of a model that only transformers may know, its outline. Raises CheckpointError as `read_config` does."""
    path = Path(path)
    return parse_outline(read_json(path, "config.json"), str(path / "config.json"))


def parse_outline(raw: dict[str, Any], where: str) -> ModelConfig | Outline:
    """The same of a parsed config.json. `where` names the file in the CheckpointError."""
    try:
        return parse_config(raw, where)
    except ForeignModel as error:
        return _outline(_Reader(raw, where), error.reason.replace(where, "config.json"))  # run files name no folders


def _outline(read: _Reader, why: str) -> Outline:
    if read.raw.get("quantization_config") is not None:
        raise read.error("quantization_config", "is given: checkpoints stored quantized are not supported; take the unquantized one")
    # Models that see and hear keep their text part's settings one level down.
    inner: dict[str, Any] = next((read.raw[key] for key in ("text_config", "llm_config") if isinstance(read.raw.get(key), dict)), {})
    text = _Reader({**read.raw, **inner}, read.where)
    length = next(
        (key for key in ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx") if text.raw.get(key) is not None), None
    )
    return Outline(
        architecture=read.raw["architectures"][0],
        vocab=text.integer("vocab_size", 2**22),
        context=None if length is None else text.integer(length, 2**27),
        why=why,
        dtype=text.dtype(),
        bos_id=text.bos(),
        eos_ids=text.eos(None),
    )


def parse_config(raw: dict[str, Any], where: str) -> ModelConfig:
    """The shape in a parsed config.json, as transformers 4.x and 5.x write it. `where` names the file in the CheckpointError."""
    read = _Reader(raw, where)
    architecture = read.architecture()
    family = FAMILIES[architecture]
    phi = architecture == "PhiForCausalLM"
    if raw.get("quantization_config") is not None:
        raise read.error("quantization_config", "is given: checkpoints stored quantized are not supported; take the unquantized one")
    if raw.get("qk_layernorm", False) not in (False, None):
        raise read.foreign("qk_layernorm", f"is {shown(raw['qk_layernorm'])}: norms on queries and keys are not supported")

    hidden = read.integer("hidden_size", 2**17)
    heads = read.integer("num_attention_heads", 2**12)
    kv_default = family.kv_heads if "num_key_value_heads" not in raw and family.kv_heads else heads
    kv_heads = read.integer("num_key_value_heads", 2**12, kv_default)
    if heads % kv_heads:
        raise read.error("num_key_value_heads", f"is {kv_heads}, which does not divide num_attention_heads {heads}")
    if raw.get("head_dim") is None and hidden % heads:
        raise read.error("hidden_size", f"is {hidden}, which num_attention_heads {heads} does not divide, and no head_dim is given")
    head_dim = read.integer("head_dim", 4096, max(hidden // heads, 1))

    activation = raw.get("hidden_act", "gelu_new" if phi else "silu")
    wanted = "gelu_new" if phi else "silu"
    if not isinstance(activation, str):
        raise read.error("hidden_act", f"is {shown(activation)}, not a name")
    if ACTIVATIONS.get(activation) != wanted:
        raise read.foreign("hidden_act", f"is {shown(activation)}; {architecture} is supported with {wanted}")

    rope = read.rope()
    rotary_dim = int(head_dim * read.fraction(rope, "partial_rotary_factor", family.partial_rotary))
    if rotary_dim < 2 or rotary_dim % 2:
        raise read.error("partial_rotary_factor", f"and head_dim {head_dim} give {rotary_dim} rotated elements; it takes an even number")

    window = None
    if architecture in ("MistralForCausalLM", "Phi3ForCausalLM"):
        default = MISTRAL_WINDOW if architecture == "MistralForCausalLM" and "sliding_window" not in raw else None
        window = read.optional_integer("sliding_window", 2**31, default)

    vocab = read.integer("vocab_size", 2**22)
    context = read.integer("max_position_embeddings", 2**27)
    llama = architecture == "LlamaForCausalLM"
    return ModelConfig(
        architecture=architecture,
        hidden=hidden,
        layers=read.integer("num_hidden_layers", 1024),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=read.integer("intermediate_size", 2**20),
        vocab=vocab,
        context=context,
        norm="layer" if phi else "rms",
        norm_eps=read.number(raw, "layer_norm_eps" if phi else "rms_norm_eps", 1e-12, 0.1, family.norm_eps),
        activation=wanted,
        rope_theta=read.number(rope, "rope_theta", 1.0, 1e12, 10000.0),
        rotary_dim=rotary_dim,
        rope_scaling=read.scaling(rope, context),
        sliding_window=window,
        tied=read.flag("tie_word_embeddings", False),
        parallel_block=phi,
        attention_bias=phi or (llama and read.flag("attention_bias", False)),
        mlp_bias=phi or (llama and read.flag("mlp_bias", False)),
        lm_head_bias=phi,
        fused_names=architecture == "Phi3ForCausalLM",
        dtype=read.dtype(),
        bos_id=read.bos(),
        eos_ids=read.eos(family.eos),
    )


class _Reader:
    """Typed access to a parsed config.json; every refusal names the file, the key and the value."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def error(self, key: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {key} {what}")

    def foreign(self, key: str, what: str) -> ForeignModel:
        return ForeignModel(f"{self.where}: {key} {what}")

    def architecture(self) -> str:
        names = self.raw.get("architectures")
        supported = ", ".join(FAMILIES)
        if not isinstance(names, list) or not names:
            raise self.error("architectures", f"is {shown(names)}; it has to name one of {supported}")
        if not isinstance(names[0], str) or re.fullmatch(r"[A-Za-z]\w{0,99}", names[0], re.ASCII) is None:
            raise self.error("architectures", f"is {shown(names[0])}, which is no class's name; supported are {supported}")
        if names[0] not in FAMILIES:
            raise self.foreign("architectures", f"is {shown(names[0])}, which is not supported; supported are {supported}")
        return names[0]

    def integer(self, key: str, most: int, default: int | None = None) -> int:
        value = self.raw.get(key)
        if value is None:
            if default is None:
                raise self.error(key, "is missing")
            value = default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"is {shown(value)}, not a whole number")
        if not 1 <= value <= most:
            raise self.error(key, f"is {shown(value)}; it has to lie between 1 and {most}")
        return value

    def optional_integer(self, key: str, most: int, default: int | None) -> int | None:
        if self.raw.get(key) is None and default is None:
            return None
        return self.integer(key, most, default)

    def number(self, source: dict[str, Any], key: str, least: float, most: float, default: float | None = None) -> float:
        value = source.get(key)
        if value is None:
            if default is None:
                raise self.error(key, "is missing")
            value = default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, f"is {shown(value)}, not a number")
        if not least <= value <= most:
            raise self.error(key, f"is {shown(value)}; it has to lie between {least:g} and {most:g}")
        return float(value)

    def fraction(self, source: dict[str, Any], key: str, default: float) -> float:
        return self.number(source, key, 1e-6, 1.0, default)

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {shown(value)}, not true or false")
        return value

    def rope(self) -> dict[str, Any]:
        """Theta, partial rotary factor and scaling in one place: transformers 5 nests them, 4 had them at the top level."""
        merged = {key: self.raw[key] for key in ("rope_theta", "partial_rotary_factor") if self.raw.get(key) is not None}
        for key in ("rope_scaling", "rope_parameters"):
            value = self.raw.get(key)
            if value is None:
                continue
            if not isinstance(value, dict):
                raise self.error(key, f"is {shown(value)}, not an object")
            merged.update({name: entry for name, entry in value.items() if entry is not None})
        return merged

    def scaling(self, rope: dict[str, Any], context: int) -> RopeScaling | None:
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "default":
            return None
        if isinstance(kind, str) and kind != "llama3":
            raise self.foreign("rope_scaling", f"of type {shown(kind)} is not supported; supported are default and llama3")
        if kind != "llama3":
            raise self.error("rope_scaling", f"of type {shown(kind)} is not supported; supported are default and llama3")
        scaling = RopeScaling(
            factor=self.number(rope, "factor", 1.0, 1e6),
            low_freq_factor=self.number(rope, "low_freq_factor", 1e-6, 1e6),
            high_freq_factor=self.number(rope, "high_freq_factor", 1e-6, 1e6),
            original_context=int(self.number(rope, "original_max_position_embeddings", 1, 2**27, context)),
        )
        if scaling.low_freq_factor >= scaling.high_freq_factor:
            raise self.error("high_freq_factor", f"is {scaling.high_freq_factor}, not above low_freq_factor {scaling.low_freq_factor}")
        return scaling

    def dtype(self) -> str:
        key = "dtype" if self.raw.get("dtype") is not None else "torch_dtype"
        value = self.raw.get(key)
        if value is None:
            return "float32"
        name = value.removeprefix("torch.") if isinstance(value, str) else value
        if name not in DTYPES:
            raise self.error(key, f"is {shown(value)}; supported are {', '.join(DTYPES)}")
        return str(name)

    def _id(self, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 2**31:
            raise self.error(key, f"is {shown(value)}, not a token id")
        return value

    def bos(self) -> int | None:
        value = self.raw.get("bos_token_id", 1)
        return None if value is None else self._id("bos_token_id", value)

    def eos(self, default: int | None) -> tuple[int, ...]:
        value = self.raw.get("eos_token_id", default)
        if value is None:
            return ()
        if isinstance(value, list):
            if len(value) > 1024:
                raise self.error("eos_token_id", f"is {shown(value)}, too many")
            return tuple(self._id("eos_token_id", entry) for entry in value)
        return (self._id("eos_token_id", value),)
