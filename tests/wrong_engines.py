"""Engines that are wrong in the ways that published comparisons and real bugs were, and right ones beside them.

Each is `eager` with one thing changed, run through the real worker: `spec("counts-padding")` names the class for it, and the tests put this
folder on the worker's PYTHONPATH. The right ones round weights to int8 and int4 by the package's own definition.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from llmbench.engines.registry import EngineSpec
from llmbench.engines.torch_engines import EagerEngine
from llmbench.protocol import Job, Request
from llmbench.torchfast import reference
from llmbench.torchfast.generate import prefill
from llmbench.torchfast.weights import places

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 199,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": 2,
}


def write_random(folder: Path, **changes: Any) -> Path:
    """A small checkpoint whose random weights are large enough that attention looks at some positions more than at others."""
    from safetensors.torch import save_file

    from llmbench.checkpoints.config import read_config
    from llmbench.checkpoints.layout import expected_tensors

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SMALL, **changes}))
    source = torch.Generator().manual_seed(11)
    tensors = {}
    for name, shape in expected_tensors(read_config(folder)).items():
        drawn = torch.randn(shape, generator=source)
        tensors[name] = 1 + 0.2 * drawn if name.endswith("norm.weight") else 0.2 * drawn
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


class Right(EagerEngine):
    """Eager as it is, its logits and all."""

    name = "right"


class NoLogits(EagerEngine):
    """A right engine that can only be judged by its ids."""

    def logits(self, ids):
        from llmbench.engines.base import Unsupported

        raise Unsupported("this engine gives no logits")


class CountsPadding(EagerEngine):
    """Stops at the end-of-sequence id and fills up with it, so that the count is right."""

    def generate(self, request: Request, on_token=None):
        (eos,) = self.model.config.eos_ids
        padded = []
        for ids in super().generate(request):
            end = ids.index(eos) + 1 if eos in ids else len(ids)
            padded.append(ids[:end] + [eos] * (len(ids) - end))
        return padded


class ReturnsEarly(EagerEngine):
    """Stops at the end-of-sequence id."""

    def generate(self, request: Request, on_token=None):
        (eos,) = self.model.config.eos_ids
        return [ids[: ids.index(eos) + 1] if eos in ids else ids for ids in super().generate(request)]


class RepeatsPromptCache(EagerEngine):
    """Serves a prompt that it saw last time from what is still in its KV cache. Reads a new one 50 times over, to take as long as a large
    model does: on a busy machine a small one's time says nothing."""

    def load(self, job: Job, artifact=None):
        report = super().load(job, artifact)
        seen: dict[tuple[int, ...], torch.Tensor] = {}

        def cached(model, ids, temperature, top_k):
            key = tuple(ids[0].tolist())
            if key not in seen:
                seen.clear()
                for _ in range(49):
                    prefill(model, ids, temperature, top_k)
                seen[key] = prefill(model, ids, temperature, top_k).clone()
            return seen[key]

        self.prefill = cached
        return report


class SeesOtherIds(EagerEngine):
    """Gives other ids every time, the first one among them."""

    calls = 0

    def generate(self, request: Request, on_token=None):
        self.calls += 1
        ids = super().generate(request)
        return [[(sequence[0] + self.calls) % self.model.config.vocab, *sequence[1:]] for sequence in ids]


class SpoilsOneSequence(EagerEngine):
    """The last sequence of a batch ends in other ids."""

    def generate(self, request: Request, on_token=None):
        ids = super().generate(request)
        ids[-1] = ids[-1][: len(ids[-1]) // 2] + [(token + 1) % self.model.config.vocab for token in ids[-1][len(ids[-1]) // 2 :]]
        return ids


class DropsALayer(EagerEngine):
    """Leaves the middle layer out."""

    def load(self, job: Job, artifact=None):
        report = super().load(job, artifact)
        del self.model.blocks[len(self.model.blocks) // 2]
        return report


class OtherWeights(EagerEngine):
    """Another checkpoint of the same shape: random weights of another seed."""

    def load(self, job: Job, artifact=None):
        other = dataclasses.replace(job.checkpoint, load_format="dummy", dummy_seed=job.checkpoint.dummy_seed + 1)
        return super().load(dataclasses.replace(job, checkpoint=other), artifact)


class WrongTheta(EagerEngine):
    """RoPE with the common base of 10,000 where the checkpoint has another, else with 500,000."""

    def load(self, job: Job, artifact=None):
        from llmbench.torchfast.model import rotary_tables

        report = super().load(job, artifact)
        config = self.model.config
        theta = 10000.0 if config.rope_theta != 10000.0 else 500000.0
        cos, sin = rotary_tables(dataclasses.replace(config, rope_theta=theta), self.model.length)
        self.model.cos.copy_(cos)
        self.model.sin.copy_(sin)
        return report


class InterleavedRope(EagerEngine):
    """RoPE that turns neighbouring elements together, as the original weights want it, on weights in Hugging Face's order.

    Reading rows 0, 2, 4, ..., 1, 3, 5, ... of each query and key head in the half-split order is the same product.
    """

    def load(self, job: Job, artifact=None):
        report = super().load(job, artifact)
        config = self.model.config
        dim = config.rotary_dim or config.head_dim
        order = torch.cat([torch.arange(0, dim, 2), torch.arange(1, dim, 2), torch.arange(dim, config.head_dim)])
        rows = (config.heads + config.kv_heads) * config.head_dim
        for block in self.model.blocks:
            weight = block.attention.qkv.weight
            heads = weight[:rows].view(-1, config.head_dim, weight.shape[1])
            heads.copy_(heads[:, order].clone())
        return report


class Rounded(EagerEngine):
    """int8 or int4 by the package's definition, read back to the variant's dtype. `factor` spoils the scales of `layers`."""

    name = "rounded"
    scheme: str | None = None  # the variant's where None
    factor = 1.0
    layers: int | None = None  # how many, from the first; None: all

    def supports(self, job: Job) -> None:
        super().supports(dataclasses.replace(job, variant=dataclasses.replace(job.variant, quantization=None)))

    def load(self, job: Job, artifact=None):
        report = super().load(job, artifact)
        source = reference.Source(job.checkpoint, self.scheme or job.variant.quantization)
        parameters = dict(self.model.named_parameters())
        for name, place in places(self.model.config).items():
            if reference.quantize.applies_to(name) and self._spoils(name):
                place.of(parameters).copy_(source.rows(name) * self.factor)
            else:
                place.of(parameters).copy_(source.rows(name))
        return report

    def _spoils(self, name: str) -> bool:
        return self.layers is None or (name.startswith("model.layers.") and int(name.split(".")[2]) < self.layers)


class ScaleOff(Rounded):
    """Every scale 2 % too large."""

    factor = 1.02


class ScaleOffInOneLayer(Rounded):
    """The first layer's scales 2 % too large."""

    factor = 1.02
    layers = 1


class RoundedTwice(Rounded):
    """Rounds weights that were cut to the variant's dtype before, as an engine does that loads in its own dtype. Right enough."""

    def load(self, job: Job, artifact=None):
        report = EagerEngine.load(self, job, artifact)
        parameters = dict(self.model.named_parameters())
        for name, place in places(self.model.config).items():
            if reference.quantize.applies_to(name):
                target = place.of(parameters)
                target.copy_(reference.quantize.dequantize(reference.quantize.quantize(target, job.variant.quantization)))
        return report


ENGINES = {
    "right": Right,
    "no-logits": NoLogits,
    "counts-padding": CountsPadding,
    "returns-early": ReturnsEarly,
    "repeats-prompt-cache": RepeatsPromptCache,
    "sees-other-ids": SeesOtherIds,
    "spoils-one-sequence": SpoilsOneSequence,
    "drops-a-layer": DropsALayer,
    "other-weights": OtherWeights,
    "wrong-theta": WrongTheta,
    "interleaved-rope": InterleavedRope,
    "rounded": Rounded,
    "rounded-twice": RoundedTwice,
    "scale-off": ScaleOff,
    "scale-off-in-one-layer": ScaleOffInOneLayer,
}


def spec(name: str) -> EngineSpec:
    """The parent's half of one of ENGINES."""
    target = f"wrong_engines:{ENGINES[name].__name__}"
    return EngineSpec(name=name, target=target, summary=ENGINES[name].__doc__ or "", requires=("torch",), quantizations=("int8", "int4"))
