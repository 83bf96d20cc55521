"""A causal language model as transformers builds it, behind the calls of llmbench's own Transformer: for every family that one doesn't know.

`prefill` and `step` are what torchfast.generate's functions call, so each torch engine runs such a model with the loop, the sampling and the
static KV cache length that it uses for the own one. No code of a checkpoint is run: trust_remote_code is off, weights come from safetensors
or are drawn, and the attention is named here, since config.json could name a kernel to be fetched.
"""

from __future__ import annotations

import inspect
import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from llmbench.engines.base import EngineError, Unavailable, Unsupported
from llmbench.protocol import CheckpointRef, Status
from llmbench.torchfast.weights import DTYPES


class HuggingFaceModel(nn.Module):
    """One of transformers' models with a static cache for a fixed batch. `length`: positions that the cache holds."""

    def __init__(self, model: Any, batch: int, length: int) -> None:
        """Makes the cache and fills it once with a few tokens, so that its memory is taken before anything is compiled or timed."""
        super().__init__()
        self.inner = model
        self.vocab: int = model.config.get_text_config(decoder=True).vocab_size
        self.batch, self.length = batch, length
        parameters = inspect.signature(model.forward).parameters
        # transformers 5.40 renames the argument, and the newer models have the new name already.
        self.cache_name = next((name for name in ("cache", "past_key_values") if name in parameters), None)
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self.cache = self._make_cache()
        self._positions = False
        if "position_ids" in parameters:
            self._positions = self._numbers_from_zero()
        else:
            with torch.no_grad():
                self.prefill(torch.zeros((batch, 1), dtype=torch.int64, device=model.device))

    @torch.no_grad()
    def _numbers_from_zero(self) -> bool:
        """Whether the model's own positions are 0, 1, 2, ..., as most are; some begin at 2, or count other things.

        Then it is told them: to find them for itself, an older model asks the cache for its length as a number, which is only known on the
        device, and so can't be compiled.
        """
        # From the middle of the vocabulary: the ids of padding and the like lie at its ends, and a pad has no position.
        ids = (self.vocab // 2 + torch.arange(min(4, self.length), device=self.inner.device)) % self.vocab
        ids = ids.expand(self.batch, -1)
        own = self.prefill(ids, last_only=False)
        self._positions = True
        try:
            return bool(torch.allclose(self.prefill(ids, last_only=False), own, rtol=1e-3, atol=1e-3 * float(own.float().std())))
        except (IndexError, RuntimeError, TypeError, ValueError):
            return False

    def _make_cache(self) -> Any:
        from transformers import StaticCache
        from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

        name = type(self.inner).__name__
        if self.cache_name is None:
            raise Unsupported(f"transformers' {name} takes no cache of keys and values that could be made beforehand")
        try:
            cache = StaticCache(config=self.inner.config, max_cache_len=self.length)
        except (KeyError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
            raise Unsupported(f"transformers makes no static cache for {name}: {type(error).__name__}: {error}"[:300]) from error
        # A sliding window's layer counts its tokens in a Python integer, which a compiled step would be compiled for anew at each token. A layer
        # of full length gives the same result, as the mask cuts the window out.
        cache.layers = [StaticLayer(self.length) if type(layer) is StaticSlidingWindowLayer else layer for layer in cache.layers]
        return cache

    def prefill(self, ids: Tensor, last_only: bool = True) -> Tensor:
        """Logits [B, T, vocab] after ids [B, T], [B, 1, vocab] with last_only; fills the cache from position 0."""
        for layer in self.cache.layers:
            layer.reset()
        logits = self._forward(ids, torch.arange(ids.shape[1], device=ids.device), self._last_only if last_only else {})
        return logits[:, -1:] if last_only else logits

    def step(self, ids: Tensor, input_pos: Tensor) -> Tensor:
        """Logits [B, 1, vocab] after ids [B, 1] at position input_pos [1], which is one past the last that the cache was given: it counts for
        itself where to write."""
        return self._forward(ids, input_pos, {})

    def _forward(self, ids: Tensor, positions: Tensor, more: dict[str, Any]) -> Tensor:
        if self._positions:
            more = {**more, "position_ids": positions[None].expand(ids.shape[0], -1)}
        return self.inner(input_ids=ids, **{str(self.cache_name): self.cache}, use_cache=True, return_dict=True, **more).logits

    def weights_bytes(self) -> int:
        return sum(parameter.numel() * parameter.element_size() for parameter in self.inner.parameters())

    def kv_cache_bytes(self) -> int:
        """Keys, values and states of all layers."""
        found = {id(value): value for layer in self.cache.layers for value in _tensors(vars(layer))}
        return sum(value.numel() * value.element_size() for value in found.values())

    def settings(self) -> dict[str, str | int | float | bool]:
        """What was chosen for this model, for EngineReport.settings."""
        return {
            "model": "transformers",
            "model_class": type(self.inner).__name__,
            "attention": str(self.inner.config._attn_implementation),
            "kv_cache_length": self.length,
        }


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for entry in value for tensor in _tensors(entry)] if isinstance(value, (list, tuple)) else []


def build(checkpoint: CheckpointRef, dtype: str, device: str | torch.device) -> Any:
    """transformers' model of a checkpoint in eval mode, float weights in `dtype`, on `device`.

    Raises Unavailable without transformers, Unsupported for an architecture that it has no causal language model for, EngineError (load
    failed) where config.json or the weights don't fit the model.
    """
    factory, config = model_class(checkpoint)
    name = factory.__name__
    attention = "sdpa" if getattr(factory, "_supports_sdpa", False) else "eager"
    if checkpoint.load_format == "dummy":
        from transformers.initialization import no_init_weights

        with no_init_weights(), torch.device(device):
            model = factory._from_config(config, dtype=DTYPES[dtype], attn_implementation=attention)
        model.tie_weights()
        fill(model, checkpoint.dummy_seed)
    else:
        model, found = factory.from_pretrained(
            checkpoint.path,
            config=config,
            dtype=DTYPES[dtype],
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
        for kind, what in (("missing_keys", "lacks the tensor"), ("mismatched_keys", "has another shape of the tensor")):
            if found[kind]:
                raise EngineError(f"the checkpoint {what} {sorted(map(str, found[kind]))[0]} of {name}", Status.LOAD_FAILED)
        model.to(device)
    return model.requires_grad_(False).eval()


def model_class(checkpoint: CheckpointRef) -> tuple[Any, Any]:
    """transformers' class and config for a checkpoint's architecture. Raises as `build` does."""
    try:
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise Unavailable("this family needs transformers' model: pip install 'llmbench[transformers]'") from None
    # Its notes on configs and caches are not for users who don't write transformers code; errors are raised all the same.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    path = Path(checkpoint.path)
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # it checks fields by exceptions of many kinds
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise Unsupported(f"transformers {transformers.__version__} can't read this config.json: {first}"[:300]) from error
    wanted = (config.architectures or [""])[0]
    candidates = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), ())
    candidates = candidates if isinstance(candidates, (list, tuple)) else (candidates,)
    for candidate in candidates:
        if candidate.__name__ == wanted:
            return candidate, config
    known = " or ".join(candidate.__name__ for candidate in candidates)
    hint = f"; for {config.model_type} it has {known}" if known else ""
    raise Unsupported(f"transformers {transformers.__version__} has no causal language model {wanted}{hint}")


@torch.no_grad()
def fill(model: nn.Module, seed: int) -> None:
    """Fills the model with llmbench.checkpoints.dummy's values by parameter name: for the families that llmbench's own model knows, these are
    the same weights as there. Weights of norms lie around one."""
    from llmbench.checkpoints.dummy import chunks

    norms = {id(module.weight) for module in model.modules() if "norm" in type(module).__name__.lower() and _weight(module) is not None}
    for name, parameter in model.named_parameters():
        flat, at = parameter.detach().reshape(-1), 0
        for values in chunks(name, flat.numel(), seed):
            piece = torch.from_numpy(values if values.flags.writeable else values.copy())
            if id(parameter) in norms and not name.endswith("norm.weight"):  # those have it already
                piece = piece + 1
            flat[at : at + len(values)].copy_(piece)
            at += len(values)


def _weight(module: nn.Module) -> Tensor | None:
    weight = getattr(module, "weight", None)
    return weight if isinstance(weight, Tensor) else None
