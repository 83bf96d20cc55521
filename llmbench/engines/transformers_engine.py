"""The engine `transformers`: the library's own `generate` with a static cache, as its documentation advises, eager or with compile=true.

It runs any causal language model that transformers can build, llmbench's four families included, and is what a user of that library gets:
its loop, its sampling, its attention, its cache. The torch engines run the same models in llmbench's loop (option model=transformers).
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from llmbench.engines.base import Unavailable, Unsupported
from llmbench.engines.compilers import missing_compiler
from llmbench.engines.faults import told_as
from llmbench.engines.torch_engines import TorchEngine
from llmbench.protocol import EngineReport, Job, Request, Status


class TransformersEngine(TorchEngine):
    """model.generate(cache_implementation="static")."""

    name = "transformers"
    options = ("compile",)

    def __init__(self) -> None:
        super().__init__()
        self._compiled = False
        self._compile_config: Any = None

    def supports(self, job: Job) -> None:
        super().supports(job)
        compiled = job.variant.options.get("compile", False)
        if not isinstance(compiled, bool):
            raise Unsupported(f"transformers' option compile is {compiled!r}; it is true or false")
        if compiled and (missing := missing_compiler(self._device(job.device).type)) is not None:
            raise Unavailable("; ".join(missing))

    def _is_foreign(self, job: Job) -> bool:
        return True

    def load(self, job: Job, artifact: Path | None = None) -> EngineReport:
        """Loads the weights; the cache is made by the first generation. With compile=true the forward pass is compiled by Inductor then."""
        from transformers import CompileConfig, GenerationConfig

        report = super().load(job, artifact)
        # generate fills what it isn't told from the checkpoint's settings: an end of sequence, penalties, sampling.
        self._loaded().inner.generation_config = GenerationConfig()
        self._compiled = bool(job.variant.options.get("compile", False))
        settings: dict[str, str | int | float | bool] = {**report.settings, "loop": "generate", "compile": self._compiled}
        if self._compiled:
            settings["mode"] = "reduce-overhead" if self.device.type == "cuda" else "default"
            # generate compiles of its own accord only on accelerators; `_compile_all_devices` is its way to say otherwise.
            self._compile_config = CompileConfig(fullgraph=True, mode=settings["mode"], dynamic=False)
            self._compile_config._compile_all_devices = True
        return dataclasses.replace(report, settings=settings)

    def generate(self, request: Request, on_token: Callable[[int], None] | None = None) -> list[list[int]]:
        """As the protocol says; eos is taken out of the generation's settings, so that nothing ends early."""
        wrapped = self._loaded()
        prompt = self._ids(list(request.prompt_ids), request.batch_size, request.total_tokens)
        sampling = request.sampling
        chosen: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            chosen = {"do_sample": True, "temperature": sampling.temperature, "top_k": sampling.top_k or 0, "top_p": 1.0}
        streamer = None if on_token is None else _Counter(on_token)
        with told_as(Status.FAILED), torch.no_grad():
            torch.manual_seed(sampling.seed)
            for layer in wrapped.cache.layers:
                layer.reset()
            found = wrapped.inner.generate(
                prompt,
                generation_config=self._generation_config(request, chosen),
                streamer=streamer,
                attention_mask=torch.ones_like(prompt),
                **{wrapped.cache_name: wrapped.cache},
            )
            return found[:, prompt.shape[1] :].tolist()  # type: ignore[no-any-return]

    def _generation_config(self, request: Request, chosen: dict[str, Any]) -> Any:
        from transformers import GenerationConfig

        return GenerationConfig(
            max_new_tokens=request.max_new_tokens,
            eos_token_id=None,
            pad_token_id=0,  # of no effect without an end, and asked for by name otherwise
            use_cache=True,
            disable_compile=not self._compiled,
            compile_config=self._compile_config,
            **chosen,
        )

    def logits(self, ids: list[int]) -> Any:
        if self._compiled:
            raise Unsupported("transformers keeps its compiled step to itself, so its ids have to do")
        return super().logits(ids)

    def close(self) -> None:
        super().close()
        torch._dynamo.reset()
        gc.collect()


class _Counter:
    """A streamer, as `generate` calls one: first with the prompt, then with each step's ids on the host."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self._on_token, self._count = on_token, -1

    def put(self, ids: object) -> None:
        self._count += 1
        if self._count:
            self._on_token(self._count)

    def end(self) -> None:
        pass
