"""The figures of a row, recomputed from the run file's raw samples: the only place where the formulas of the docs are code.

Every view reads these; nothing here is measured and nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmbench import statistics
from llmbench.checkpoints import layout
from llmbench.checkpoints.config import ModelConfig
from llmbench.protocol import DTYPE_BYTES, Bandwidth, Block, Row, Run, Sample, Status, Variant, decode

GIB = 2**30

#: A model whose weights fit in this many last-level caches is read from the cache in part, so the memory's bandwidth is no limit to it.
CACHE_FACTOR = 4


@dataclass(frozen=True)
class RowSummary:
    """One row's figures, in the units its names state. Null where it wasn't measured or can't be known; never zero for that."""

    label: str
    engine: str
    dtype: str
    status: Status
    reason: str | None
    is_baseline: bool
    rounds: int  # blocks with at least one good sample
    samples: int  # timed generations in them
    tokens_per_s: float | None = None  # per sequence: max_new_tokens / wall; median over blocks of each block's median
    tokens_per_s_deviation: float | None = None  # standard deviation of all samples
    total_tokens_per_s: float | None = None  # x batch_size
    speedup: float | None = None  # geometric mean over rounds of this row's block median / the baseline's
    ttft_s: float | None = None  # wall of a generation of one token
    decode_tokens_per_s: float | None = None  # (N - 1) / (wall - ttft); null at N = 1
    tpot_s: float | None = None  # its inverse
    prefill_tokens_per_s: float | None = None  # prompt ids / ttft, per sequence
    bytes_per_token: int | None = None
    limit_tokens_per_s: float | None = None  # read bandwidth x batch / bytes_per_token, all sequences together; see limit_reason
    limit_reason: str | None = None  # why limit_tokens_per_s is null
    bandwidth_use: float | None = None  # decode rate of all sequences together / limit
    read_gb_per_s: float | None = None  # the highest probed around the row's blocks
    build_s: float | None = None
    load_s: float | None = None  # median over blocks
    first_generation_s: float | None = None  # cold block's first warm-up
    compile_s: float | None = None  # cold block: sum over warm-ups of (warm-up - steady median)
    compile_cached_s: float | None = None  # the same, median over later blocks
    load_peak_gib: float | None = None
    peak_memory_gib: float | None = None  # steady state
    memory_compression: float | None = None  # the baseline's peak / this row's
    weights_gib: float | None = None
    kv_cache_gib: float | None = None
    storage_dtype: str | None = None
    arithmetic_dtype: str | None = None


def model_config(run: Run) -> ModelConfig:
    """The shape that a run file keeps in model.config."""
    return decode(ModelConfig, run.model.config)


def limit_tokens_per_s(bandwidths: list[Bandwidth], bytes_per_token: int, batch_size: int) -> tuple[float | None, str | None]:
    """The most tokens per second that reading the weights allows, for all sequences of the batch together, or null and why.

    limit = highest probed read bandwidth x batch_size / bytes_per_token, where bytes_per_token counts what one decode step reads.
    """
    probed = [bandwidth.gb_per_s for bandwidth in bandwidths if bandwidth.gb_per_s is not None]
    if not probed:
        return None, next((bandwidth.reason for bandwidth in bandwidths if bandwidth.reason), "read bandwidth was not probed")
    cache = max((bandwidth.last_level_cache_bytes or 0 for bandwidth in bandwidths), default=0)
    if bytes_per_token < CACHE_FACTOR * cache:
        return None, (
            f"a token reads {bytes_per_token / 2**20:.0f} MiB, under {CACHE_FACTOR} x the {cache / 2**20:.0f} MiB last-level cache"
        )
    return max(probed) * 1e9 * batch_size / bytes_per_token, None


def token_bytes(run: Run, variant: Variant) -> int | None:
    """Bytes that one decode step of this variant reads, all sequences together; null where the dtype or the shape doesn't tell."""
    if variant.quantization is not None or variant.dtype not in DTYPE_BYTES or not run.model.config:
        return None
    return layout.bytes_per_token(model_config(run), DTYPE_BYTES[row.variant.dtype], run.request)


def _median_wall(block: Block, kind: str) -> float | None:
    return statistics.median([sample.wall_s for sample in block.of_kind(kind)])


def _median_over(blocks: list[Block], figure: Callable[[Block], float | None]) -> float | None:
    return statistics.median([value for value in map(figure, blocks) if value is not None])


def _first_generation(block: Block | None) -> float | None:
    warmups = block.of_kind("warmup") if block else []
    return warmups[0].wall_s if warmups else None


def _compile_s(run: Run, block: Block) -> float | None:
    """Sum over warm-ups of (warm-up - steady median): what the first generations cost beyond generating. Noise can't make it negative."""
    steady = statistics.median([sample.wall_s for sample in good_samples(run, block)])
    warmups = block.of_kind("warmup")
    if steady is None or not warmups:
        return None
    return max(0.0, sum(sample.wall_s - steady for sample in warmups))


def _load_peak(block: Block) -> int | None:
    return block.memory.device_load_peak_bytes or block.memory.load_peak_bytes


def _steady_peak(blocks: list[Block]) -> int | None:
    peaks = [block.memory.device_steady_peak_bytes or block.memory.steady_peak_bytes for block in blocks]
    return max((peak for peak in peaks if peak is not None), default=None)


def _gib(value: int | None) -> float | None:
    return value / GIB if value is not None else None
