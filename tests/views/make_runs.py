"""Runs with numbers that can be recomputed by hand, for the tests of views and figures."""

from __future__ import annotations

from llmbench.checkpoints.config import ModelConfig
from llmbench.protocol import (
    Bandwidth,
    Block,
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
NEW_TOKENS = 200

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    mlp=1536,
    vocab=49152,
    context=8192,
    rotary_dim=64,
    tied=True,
    dtype="bfloat16",
)


def make_block(
    number: int,
    walls: tuple[float, ...] = (2.0, 2.0, 2.0),
    *,
    new_tokens: int = NEW_TOKENS,
    batch_size: int = 1,
    warmups: tuple[float, ...] = (2.5, 2.0),
    first_token: tuple[float, ...] = (0.01, 0.01, 0.01),
    cold: bool | None = None,
    load_s: float | None = 0.8,
    peak_gib: float | None = 0.5,
    read_gb_per_s: float | None = 30.0,
    cache_bytes: int | None = 2**25,
    status: Status = Status.OK,
    reason: str | None = None,
) -> Block:
    def samples(kind: str, seconds: tuple[float, ...], tokens: int) -> list[Sample]:
        return [Sample(kind, wall, (tokens,) * batch_size, "0" * 64) for wall in seconds]

    return Block(
        round=number,
        status=status,
        reason=reason,
        cold=number == 0 if cold is None else cold,
        load_s=load_s,
        samples=[
            *samples("warmup", warmups, new_tokens),
            *samples("first_token", first_token, 1),
            *samples("sample", walls, new_tokens),
        ],
        report=EngineReport("float32", "float32", weights_bytes=GIB // 2, kv_cache_bytes=GIB // 64),
        memory=Memory(
            baseline_bytes=GIB // 4,
            load_peak_bytes=None if peak_gib is None else int(peak_gib * GIB * 1.5),
            steady_peak_bytes=None if peak_gib is None else int(peak_gib * GIB),
        ),
        bandwidth=[
            Bandwidth(read_gb_per_s, None if read_gb_per_s else "no probe for this device", cache_bytes),
        ],
    )


def make_row(
    label: str,
    blocks: list[Block] | None = None,
    *,
    status: Status = Status.OK,
    reason: str | None = None,
    dtype: str = "float32",
    quantization: str | None = None,
) -> Row:
    """Without blocks: three rounds of three samples at 100 tokens/s, or none at all where the status isn't ok."""
    variant = Variant(label, label.partition("[")[0], dtype, quantization)
    row = Row(variant, status, reason)
    if blocks is None:
        blocks = [make_block(number) for number in range(3)] if status is Status.OK else []
    for block in blocks:
        row.add(block)
    return row


def rows_at(rates: dict[str, float], spread: float = 0.01, new_tokens: int = NEW_TOKENS) -> list[Row]:
    """A good row for each label, about that many tokens/s, three rounds that differ by `spread`."""
    rows = []
    for label, rate in rates.items():
        blocks = []
        for number, drift in enumerate((1 - spread, 1.0, 1 + spread)):
            wall = new_tokens / rate * drift
            walls = (wall * (1 - spread / 2), wall, wall * (1 + spread / 2))
            blocks.append(make_block(number, walls, new_tokens=new_tokens, warmups=(wall + 20 / rate, wall), first_token=(wall / 50,) * 3))
        rows.append(make_row(label, blocks))
    return rows


def make_run(
    rows: list[Row] | None = None,
    *,
    name: str = "smollm2-135m",
    new_tokens: int = NEW_TOKENS,
    batch_size: int = 1,
    baseline: str | None = "eager",
    dtype: str = "float32",
    device: str = "cpu",
    config: ModelConfig | None = CONFIG,
) -> Run:
    if rows is None:
        rows = rows_at({"eager": 41.3, "torch-compile": 61.9})
    return Run(
        run_id=f"20261130-233000-{name}",
        model=Model(
            name=name,
            source="hub HuggingFaceTB/SmolLM2-135M-Instruct@12fd25f",
            path="/models/smollm2",
            architecture="LlamaForCausalLM",
            dtype="bfloat16",
            config=encode(config) if config else {},
            parameters=134_515_008,
        ),
        request=Request(prompt_ids=(19556, 28, 957, 1462, 314), max_new_tokens=new_tokens, batch_size=batch_size),
        plan=Plan(rounds=3, num_iters=3),
        machine=Machine(device=device, device_name="AMD EPYC 7B13" if device == "cpu" else "NVIDIA H200"),
        threads=2,
        dtype=dtype,
        rows=rows,
        prompt="Hello, my name is",
        baseline=baseline,
        started_at="2026-11-30T23:30:00+00:00",
        finished_at="2026-11-30T23:34:00+00:00",
    )
