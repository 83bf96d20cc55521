"""The API that these adapters are written against, recorded in signatures.json, and how an installed tensorrt_llm differs from it.

Standard library only. The record is of parameters, kinds and defaults as source text; annotations are left out, since they differ between
releases without meaning anything here. Leading underscores mark what is not API: those are not compared.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmbench.engines.base import EngineError

#: Where each recorded class or function is imported from.
PLACES = {
    "build": "tensorrt_llm.builder",
    "get_engine_version": "tensorrt_llm.builder",
    "Engine": "tensorrt_llm.builder",
    "BuildConfig": "tensorrt_llm.builder",
    "PluginConfig": "tensorrt_llm.plugin.plugin",
    "LLaMAForCausalLM": "tensorrt_llm.models",
    "PhiForCausalLM": "tensorrt_llm.models",
    "Phi3ForCausalLM": "tensorrt_llm.models",
    "AutoModelForCausalLM": "tensorrt_llm.models.automodel",
    "AutoConfig": "tensorrt_llm.models.automodel",
    "PretrainedModel": "tensorrt_llm.models.modeling_utils",
    "QuantConfig": "tensorrt_llm.models.modeling_utils",
    "ModelRunnerCpp": "tensorrt_llm.runtime.model_runner_cpp",
    "ModelRunner": "tensorrt_llm.runtime.model_runner",
    "_TrtLLM": "tensorrt_llm.llmapi.llm",
    "BaseLLM": "tensorrt_llm.llmapi.llm",
    "KvCacheConfig": "tensorrt_llm.llmapi.llm_args",
    "CalibConfig": "tensorrt_llm.llmapi.llm_args",
    "CudaGraphConfig": "tensorrt_llm.llmapi.llm_args",
    "TorchCompileConfig": "tensorrt_llm.llmapi.llm_args",
    "ExtendedRuntimePerfKnobConfig": "tensorrt_llm.llmapi.llm_args",
    "SchedulerConfig": "tensorrt_llm.llmapi.llm_args",
    "BaseLlmArgs": "tensorrt_llm.llmapi.llm_args",
    "TrtLlmArgs": "tensorrt_llm.llmapi.llm_args",
    "TorchLlmArgs": "tensorrt_llm.llmapi.llm_args",
    "BuildCacheConfig": "tensorrt_llm.llmapi.build_cache",
    "SamplingParams": "tensorrt_llm.sampling_params",
    "CompletionOutput": "tensorrt_llm.executor.result",
}

#: What ModelRunnerCpp.generate takes for sampling beside its named parameters. It drops any other name without a word.
SAMPLING_ARGUMENTS = (
    "num_beams", "top_k", "top_p", "top_p_min", "top_p_reset_ids", "top_p_decay", "temperature", "min_tokens", "beam_search_diversity_rate",
    "repetition_penalty", "presence_penalty", "frequency_penalty", "prompt_ignore_length", "length_penalty", "early_stopping",
    "no_repeat_ngram_size", "random_seed", "num_return_sequences", "min_p", "beam_width_array",
)  # fmt: skip

_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "pos",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "pos",
    inspect.Parameter.KEYWORD_ONLY: "kwonly",
    inspect.Parameter.VAR_KEYWORD: "varkw",
    inspect.Parameter.VAR_POSITIONAL: "vararg",
}
#: A parameter or a field without a default.
_REQUIRED = None


@lru_cache(maxsize=1)
def recorded() -> dict[str, Any]:
    """signatures.json: {"source", "release", "callables": name -> [[parameter, kind, default]], "fields": class -> {field: default}}."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "signatures.json").read_text(encoding="utf-8"))
    return found


def check_arguments(name: str, arguments: Mapping[str, Any], extra: tuple[str, ...] = ()) -> None:
    """Raises EngineError for an argument that the recorded callable `name` doesn't have and `extra` doesn't allow.

    For callables with **kwargs, which take a misspelt name in silence.
    """
    known = {parameter for parameter, kind, _ in recorded()["callables"][name] if kind != "varkw"} | set(extra)
    unknown = sorted(set(arguments) - known)
    if unknown:
        raise EngineError(f"{name} has no argument {unknown[0]!r} and would pass over it in silence; known: {', '.join(sorted(known))}")


def differences() -> list[str]:
    """How the installed tensorrt_llm differs from the record, one line for each name, in its order; empty where it doesn't.

    Imports tensorrt_llm; a part that can't be imported is a line too.
    """
    record, found = recorded(), []
    objects: dict[str, Any] = {}
    for name, module in PLACES.items():
        try:
            objects[name] = getattr(importlib.import_module(module), name)
        except Exception as error:  # whatever a broken part of a library raises
            text = " ".join(str(error).split())[:200]
            found.append(f"{name}: can't be imported from {module}: {type(error).__name__}: {text}")
    for full, parameters in record["callables"].items():
        owner, _, method = full.partition(".")
        if owner not in objects:
            continue
        target = getattr(objects[owner], method, None) if method else objects[owner]
        if target is None:
            found.append(f"{full}: is gone")
            continue
        found += _callable_differences(full, target, parameters)
    for owner, fields in record["fields"].items():
        if owner in objects:
            found += _field_differences(owner, objects[owner], fields)
    return found


def _callable_differences(name: str, target: Any, parameters: list[list[Any]]) -> list[str]:
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return [f"{name}: its signature can't be read"]
    # A bound classmethod or an instance's method doesn't show its first parameter.
    here = {
        ("**" if parameter.kind is inspect.Parameter.VAR_KEYWORD else "") + parameter.name: (
            _KINDS[parameter.kind],
            _REQUIRED if parameter.default is inspect.Parameter.empty else shown(parameter.default),
        )
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    }
    return _compare(name, "parameter", {entry[0]: (entry[1], entry[2]) for entry in parameters if entry[0] not in ("self", "cls")}, here)


def _field_differences(name: str, target: Any, fields: dict[str, str | None]) -> list[str]:
    here = {field: ("field", default) for field, default in fields_of(target).items() if not field.startswith("_")}
    then = {field: ("field", default) for field, default in fields.items() if not field.startswith("_")}
    # A class's arguments may be gathered from its bases: only what its own record names can be missed, and what bases bring isn't new.
    inherited = {field for base in target.__mro__[1:] for field in fields_of(base)}
    return _compare(name, "field", then, {field: entry for field, entry in here.items() if field in then or field not in inherited})


def fields_of(target: Any) -> dict[str, str | None]:
    """A pydantic model's or a dataclass's fields and their defaults, as `shown`; empty for other classes."""
    models = getattr(target, "model_fields", None)
    if isinstance(models, dict):
        return {name: _pydantic_default(field) for name, field in models.items()}
    if not dataclasses.is_dataclass(target):
        return {}
    found: dict[str, str | None] = {}
    for field in dataclasses.fields(target):
        if field.default is not dataclasses.MISSING:
            found[field.name] = shown(field.default)
        else:
            factory = field.default_factory
            found[field.name] = _REQUIRED if factory is dataclasses.MISSING else f"{getattr(factory, '__name__', '?')}()"
    return found


def _pydantic_default(field: Any) -> str | None:
    if field.is_required():
        return _REQUIRED
    if field.default_factory is not None:
        return f"{getattr(field.default_factory, '__name__', '?')}()"
    return shown(field.default)


def shown(value: Any) -> str:
    """A default as source text has it: enumeration members by class and name."""
    return f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)


def _compare(name: str, what: str, then: Mapping[str, tuple[str, str | None]], here: Mapping[str, tuple[str, str | None]]) -> list[str]:
    found = []
    for part, (kind, default) in then.items():
        if part not in here:
            found.append(f"{name}: {what} {part} is gone")
            continue
        kind_here, default_here = here[part]
        if kind_here != kind:
            found.append(f"{name}: {what} {part} is {kind_here}, was {kind}")
        if _value(default_here) != _value(default):
            found.append(f"{name}: {what} {part} is {default_here or 'required'}, was {default or 'required'}")
    found += [f"{name}: {what} {part} is new{'' if here[part][1] else ' and required'}" for part in here if part not in then]
    return found


def _value(default: str | None) -> str | None:
    """A default without the differences of writing that mean nothing: quotes, 1 and 1.0, and whether a factory is a lambda."""
    if default is None:
        return None
    text = default.strip("'\"")
    if text.endswith("()"):
        return "factory()"
    try:
        return str(float(text))
    except ValueError:
        return text
