"""Writes a stand-in for tensorrt_llm and an interpreter that has it.

Every class and function has the recorded parameters, kinds and defaults (llmbench/engines/tensorrt_llm/signatures.json), so that an unknown or a
missing argument raises as upstream's would; standin_behaviour.py says what they do. It proves that the adapter calls this API rightly, that ids
are counted and padding is not, and that llmbench's own parts fit together. It proves nothing of TensorRT-LLM's speed, numerics or its real plans.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from llmbench.engines.tensorrt_llm.contract import PLACES, recorded

BEHAVIOUR = Path(__file__).with_name("standin_behaviour.py")
PARENTS = {
    "LLaMAForCausalLM": "PretrainedModel",
    "PhiForCausalLM": "PretrainedModel",
    "Phi3ForCausalLM": "PretrainedModel",
    "_TrtLLM": "BaseLLM",
    "TorchLlmArgs": "BaseLlmArgs",
    "TrtLlmArgs": "BaseLlmArgs",
}
#: What the adapter or upstream imports from elsewhere than where it is defined.
ALSO = {
    "tensorrt_llm.models": ("LLaMAForCausalLM", "PhiForCausalLM", "Phi3ForCausalLM"),
    "tensorrt_llm.quantization": ("QuantAlgo",),
    "tensorrt_llm.runtime": ("ModelRunnerCpp", "ModelRunner"),
    "tensorrt_llm.llmapi": ("LLM", "SamplingParams", "KvCacheConfig", "CudaGraphConfig", "BuildConfig", "QuantConfig", "CompletionOutput"),
}
ENGINE_FLOW = {
    "tensorrt_llm.builder",
    "tensorrt_llm.models",
    "tensorrt_llm.models.automodel",
    "tensorrt_llm.models.modeling_utils",
    "tensorrt_llm.plugin.plugin",
    "tensorrt_llm.runtime",
    "tensorrt_llm.runtime.model_runner",
    "tensorrt_llm.runtime.model_runner_cpp",
    "tensorrt_llm._tensorrt_engine",
}
_ENUM = re.compile(r"([A-Za-z]+)\.([A-Za-z_]+)")


def write_package(folder: Path, *, engine_flow: bool = True, record: dict[str, Any] | None = None) -> Path:
    """folder/tensorrt_llm. engine_flow: False leaves out what later releases removed. record: another than the recorded signatures."""
    record = record or recorded()
    package = folder / "tensorrt_llm"
    package.mkdir(parents=True)
    (package / "_api.py").write_text(_api(record))
    (package / "_behaviour.py").write_text(BEHAVIOUR.read_text())
    modules: dict[str, list[str]] = {"tensorrt_llm._tensorrt_engine": ["_TrtLLM as LLM"]}
    for name, module in PLACES.items():
        modules.setdefault(module, []).append(name)
    for module, names in ALSO.items():
        modules[module] = sorted({*modules.get(module, []), *names})
    for module, names in modules.items():
        if not engine_flow and module in ENGINE_FLOW:
            continue
        parts = module.split(".")[1:]
        for depth in range(1, len(parts)):
            place = package.joinpath(*parts[:depth])
            place.mkdir(exist_ok=True)
            (place / "__init__.py").touch()
        # A package, unless nothing lies below it and its name says file: an __init__ serves for both.
        place = package.joinpath(*parts)
        place.mkdir(exist_ok=True)
        (place / "__init__.py").write_text(f"from tensorrt_llm._api import {', '.join(names)}\n")
    (package / "__init__.py").write_text("from tensorrt_llm import _behaviour\n_behaviour.start()\n__version__ = _behaviour.VERSION\n"
                                         "from tensorrt_llm._api import LLM, SamplingParams\n")  # fmt: skip
    return package


def interpreter(folder: Path, name: str = "python-with-trtllm", python: str = sys.executable, **variables: str) -> Path:
    """An executable that runs this interpreter with `folder` on its path and the variables set: what --python takes."""
    path = folder / name
    lines = [f"export {key}='{value}'" for key, value in {"PYTHONPATH": str(folder), **variables}.items()]
    path.write_text("\n".join(["#!/bin/sh", *lines, f'exec "{python}" "$@"', ""]))
    path.chmod(0o755)
    return path


def calls(log: Path, name: str) -> list[dict[str, Any]]:
    """The arguments of every call of that name, in order."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line["arguments"] for line in lines if line["call"] == name]


# ----------------------------------------------------------------------------------------------------------------------------- generating


def _api(record: dict[str, Any]) -> str:
    """The source of all recorded classes and functions."""
    lines = ["import enum", "from dataclasses import dataclass, field", "from tensorrt_llm import _behaviour", ""]
    enums: dict[str, set[str]] = {"QuantAlgo": set(recorded_algos())}
    plain: set[str] = set()
    for fields in record["fields"].values():
        for default in filter(None, fields.values()):
            found = _ENUM.fullmatch(default)
            if found:
                enums.setdefault(found[1], set()).add(found[2])
            elif default.endswith("()") and default[:-2] not in ("dict", "list", *record["fields"]):
                plain.add(default[:-2])
    for name, members in sorted(enums.items()):
        lines += [f"{name} = enum.Enum({name!r}, {{name: name for name in {sorted(members)!r}}})"]
    lines += [f"class {name}: pass" for name in sorted(plain)]
    methods: dict[str, list[str]] = {}
    for full, parameters in record["callables"].items():
        owner, _, method = full.partition(".")
        if method:
            methods.setdefault(owner, []).append(_function(method, f"{owner}_{method}", parameters, indent="    "))
        else:
            lines.append(_function(owner, owner, parameters))
    order = sorted({*methods, *record["fields"]}, key=lambda name: (name in PARENTS, name))
    for name in order:
        parent = f"({PARENTS[name]})" if name in PARENTS else ""
        if name in record["fields"]:
            lines += ["", "@dataclass(kw_only=True)", f"class {name}{parent}:"]
            lines += [f"    {field}: object{_default(default)}" for field, default in record["fields"][name].items()]
        else:
            lines += ["", f"class {name}{parent}:", *methods[name]]
    lines += ["", "class LLM(BaseLLM):", _function("__init__", "LLM___init__", record["callables"]["_TrtLLM.__init__"], indent="    ")]
    return "\n".join(lines) + "\n"


def recorded_algos() -> tuple[str, ...]:
    return ("W8A16", "W4A16", "W4A16_AWQ", "W4A8_AWQ", "W8A16_GPTQ", "W4A16_GPTQ", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "INT8", "NVFP4")


def _default(text: str | None) -> str:
    if text is None:
        return ""
    return f" = field(default_factory=lambda: {text})" if text.endswith("()") else f" = {text}"


def _function(name: str, behaviour: str, parameters: list[list[Any]], indent: str = "") -> str:
    pieces, keyword_only, decorator = [], False, ""
    for parameter, kind, default in parameters:
        if kind == "kwonly" and not keyword_only:
            pieces.append("*")
            keyword_only = True
        pieces.append(parameter if default is None else f"{parameter}={default}")
        if parameter == "cls":
            decorator = f"{indent}@classmethod\n"
    return f"{decorator}{indent}def {name}({', '.join(pieces)}): return _behaviour.{behaviour}(**locals())"
