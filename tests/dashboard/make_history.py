"""Synthetic run files of three GPUs over many days, built through protocol's dataclasses: `python make_history.py FOLDER [DAYS] [--many]`.

Rates follow from a GPU's bandwidth, a model's bytes and an engine's share of what they allow, with noise between processes and from day to day. Two
releases change on the way, one of them for the worse; some rows run out of memory, one is inaccurate. Nothing of it was measured: it is there
to see what the page does with many runs.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from llmbench.checkpoints.config import ModelConfig
from llmbench.checkpoints.layout import bytes_per_token
from llmbench.protocol import (
    Accuracy,
    ArtifactUse,
    Bandwidth,
    Block,
    Compilation,
    EngineReport,
    Machine,
    Memory,
    Model,
    Plan,
    Request,
    Row,
    Run,
    Sample,
    Status,
    Variant,
    encode,
)

GIB = 2**30
NEW_TOKENS = 128


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_gib: int
    gb_per_s: float
    watts: float
    overhead_s: float  # of an eager step that isn't reading


GPUS = (
    Gpu("NVIDIA GeForce RTX 4090", 24, 930.0, 350.0, 0.0065),
    Gpu("NVIDIA H200", 141, 4200.0, 560.0, 0.0072),
    Gpu("NVIDIA L4", 24, 270.0, 70.0, 0.0081),
)


def config(hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, vocab: int, context: int, family: str) -> ModelConfig:
    return ModelConfig(
        architecture=family, hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=hidden // heads, mlp=mlp, vocab=vocab,
        context=context, rotary_dim=hidden // heads, tied=False, dtype="float16",
    )  # fmt: skip


MODELS = {
    "llama-2-7b": (config(4096, 32, 32, 32, 11008, 32000, 4096, "LlamaForCausalLM"), 6_738_415_616),
    "llama-3-8b": (config(4096, 32, 32, 8, 14336, 128256, 8192, "LlamaForCausalLM"), 8_030_261_248),
    "mistral-7b": (config(4096, 32, 32, 8, 14336, 32000, 32768, "MistralForCausalLM"), 7_241_732_096),
    "phi-3-mini": (config(3072, 32, 32, 32, 8192, 32064, 4096, "Phi3ForCausalLM"), 3_821_079_552),
    "phi-2": (config(2560, 32, 32, 32, 10240, 51200, 2048, "PhiForCausalLM"), 2_779_683_840),
}


@dataclass(frozen=True)
class Engine:
    share: float  # of the bandwidth that its decode step reaches
    steps: float  # its overhead for a step, as a share of eager's
    compile_s: float = 0.0
    build_s: float = 0.0
    library: str = "torch"
    extra_gib: float = 0.3


ENGINES = {
    "eager": Engine(0.82, 1.0),
    "torch-compile": Engine(0.90, 0.04, compile_s=48.0, extra_gib=0.9),
    "aot-inductor": Engine(0.895, 0.09, build_s=96.0),
    "tensorrt-llm": Engine(0.89, 0.03, build_s=140.0, library="tensorrt_llm", extra_gib=1.4),
    "onnxruntime": Engine(0.80, 0.3, build_s=35.0, library="onnxruntime", extra_gib=2.2),
}


def releases(day: int, days: int) -> dict[str, str]:
    return {
        "torch": "2.12.1" if day < days * 0.4 else "2.13.0",
        "tensorrt_llm": "1.1.0" if day < days * 0.7 else "1.2.0",
        "onnxruntime": "1.32.0",
        "python": "3.11.7",
    }


def step_s(gpu: Gpu, shape: ModelConfig, request: Request, name: str, versions: dict[str, str]) -> float:
    """Seconds of a decode step."""
    engine = ENGINES[name]
    read_s = bytes_per_token(shape, 2, request) / (gpu.gb_per_s * 1e9 * engine.share)
    seconds = read_s + engine.steps * gpu.overhead_s
    if name == "torch-compile" and versions["torch"] == "2.13.0":
        seconds /= 1.035
    if name == "tensorrt-llm" and versions["tensorrt_llm"] == "1.2.0":
        seconds *= 1.09
    return seconds


def make_block(
    random_: random.Random,
    gpu: Gpu,
    name: str,
    number: int,
    step: float,
    versions: dict[str, str],
    parameters: int,
    batch: int,
    prompt: int,
) -> Block:
    engine, disturbed = ENGINES[name], random_.random() < 0.01
    step *= random_.gauss(1.0, 0.004) * (1.08 if disturbed else 1.0)
    first_s = 0.004 + step * (1 + prompt / 400)

    def timed(kind: str, tokens: int, extra_s: float = 0.0) -> Sample:
        wall = (first_s + step * (tokens - 1)) * random_.gauss(1.0, 0.002) + extra_s
        return Sample(kind, wall, (tokens,) * batch, "5" * 64, energy_j=gpu.watts * wall if kind == "sample" else None)

    cold = number == 0
    weights = 2 * parameters
    peak = int(weights + engine.extra_gib * GIB + batch * (prompt + NEW_TOKENS) * 524_288)
    compiles = name == "torch-compile"
    compile_s = engine.compile_s * random_.gauss(1.0, 0.05) * (1.0 if cold else 0.16)
    return Block(
        round=number,
        started_at="",
        cold=cold,
        start_s=random_.gauss(2.6, 0.1),
        build_s=0.0 if engine.build_s else None,
        artifact=(
            ArtifactUse(name, f"{name}-{parameters:x}", True, weights + 2**20, engine.build_s, "2026-09-01T02:00:00+00:00")
            if engine.build_s
            else None
        ),
        load_s=weights / 2.2e9 * random_.gauss(1.0, 0.05),
        samples=[
            timed("warmup", NEW_TOKENS, compile_s),
            timed("warmup", NEW_TOKENS),
            *(timed("first_token", 1) for _ in range(2)),
            *(timed("sample", NEW_TOKENS) for _ in range(3)),
        ],
        report=EngineReport("float16", "float16", weights, batch * (prompt + NEW_TOKENS) * 524_288),
        memory=Memory(baseline_bytes=GIB, device_load_peak_bytes=weights + GIB // 4, device_steady_peak_bytes=peak),
        bandwidth=[Bandwidth(gpu.gb_per_s * random_.gauss(0.995, 0.003), None, 72 * 2**20)],
        accuracy=Accuracy("logits", True, positions=64, error=random_.uniform(8e-4, 1.2e-3), eager_error=1e-3, tolerance=4e-3) if cold else None,
        compilation=(
            Compilation(compile_s, compile_s * 0.22, compile_s * 0.18, compile_s * 0.6, compile_s * 0.42, 2, 2, 0, 0, 1450,
                        0 if cold else 2, 2 if cold else 0, 310)
            if compiles else None
        ),
        versions={library: versions[library] for library in ("python", "torch", engine.library)},
    )  # fmt: skip


def make_run(
    gpu: Gpu, model: str, day: int, days: int, *, batch: int = 1, prompt: int = 64, seed: int = 0, last: datetime | None = None
) -> Run:
    shape, parameters = MODELS[model]
    random_ = random.Random(f"{gpu.name} {model} {day} {batch} {prompt} {seed}")
    when = (last or datetime(2026, 11, 30, 3, 0, tzinfo=timezone.utc)) - timedelta(
        days=days - 1 - day, minutes=-13 * list(MODELS).index(model)
    )
    versions = releases(day, days)
    rows = []
    request = Request(tuple(range(100, 100 + prompt)), NEW_TOKENS, batch)
    daily = random_.gauss(1.0, 0.004)
    for name, engine in ENGINES.items():
        row = Row(Variant(name, name, "float16"))
        fits = 2 * parameters + engine.extra_gib * GIB * 4 < gpu.memory_gib * 1e9
        if not fits:
            row.add(Block(0, Status.OUT_OF_DEVICE_MEMORY, f"CUDA out of memory: tried to allocate {engine.extra_gib:.1f} GiB", cold=True))
        elif name == "onnxruntime" and model == "phi-3-mini" and day > days * 0.6:
            row.add(Block(0, Status.INACCURATE, "logits off by 3.1 %, allowed 0.4 %", cold=True,
                          accuracy=Accuracy("logits", False, "logits off by 3.1 %, allowed 0.4 %", 64, 0.031, 1e-3, 4e-3)))  # fmt: skip
        else:
            step = step_s(gpu, shape, request, name, versions) * daily
            for number in range(3):
                row.add(make_block(random_, gpu, name, number, step, versions, parameters, batch, prompt))
        rows.append(row)
    stamp = when.isoformat()
    return Run(
        run_id=f"{when:%Y%m%d-%H%M%S}-{model}",
        model=Model(model, f"hub example/{model}@1a2b3c4", f"/models/{model}", shape.architecture, "float16", encode(shape), parameters=parameters,
                    identity=f"{parameters:064x}"),
        request=request,
        plan=Plan(rounds=3, num_iters=3),
        machine=Machine("cuda:0", gpu.name, "Linux 6.8 x86_64", "AMD EPYC 9354", 32, 2**38, "580.65.06", gpu.memory_gib * GIB),
        threads=16,
        dtype="float16",
        rows=rows,
        baseline="eager",
        started_at=stamp,
        finished_at=(when + timedelta(minutes=12)).isoformat(),
        command=["llmbench", "compare", "--model", model],
        suite_id=f"{when:%Y%m%d}-nightly",
        llmbench_version="0.1.0" if day < days * 0.8 else "0.2.0",
    )  # fmt: skip


def history(days: int = 60, *, many: bool = False) -> Iterator[Run]:
    """Every model once a night on every GPU; phi-2 with other batch sizes and prompts in the last night. `many`: with those every night."""
    for day in range(days):
        for gpu in GPUS:
            for model in MODELS:
                yield make_run(gpu, model, day, days)
                if many:
                    yield from (make_run(gpu, model, day, days, batch=batch) for batch in (4, 16))
                    yield from (make_run(gpu, model, day, days, prompt=prompt) for prompt in (512, 1024))
            if day == days - 1 and not many:
                yield from (make_run(gpu, "phi-2", day, days, batch=batch) for batch in (4, 16))
                yield from (make_run(gpu, "phi-2", day, days, prompt=prompt) for prompt in (512, 1024))


def write_runs(folder: Path, runs: Iterable[Run]) -> list[Path]:
    """Each run as its own file, in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for place, run in enumerate(runs):
        paths.append(folder / f"{place:05d}.json")
        paths[-1].write_text(json.dumps(encode(run)))
    return paths


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    nights = history(int(words[1]) if len(words) > 1 else 60, many="--many" in sys.argv)
    print(len(write_runs(Path(words[0]), nights)), "run files")
