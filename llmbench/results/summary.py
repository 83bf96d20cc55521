"""The figures of a row, recomputed from the run file's raw samples: the only place where the formulas of the docs are code.

Every view reads these; nothing here is measured and nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmbench import hardware, statistics
from llmbench.checkpoints import layout
from llmbench.checkpoints.config import ModelConfig
from llmbench.protocol import DTYPE_BYTES, Accuracy, Bandwidth, Block, Row, Run, Sample, Status, Variant, decode
from llmbench.results.flags import row_flags
from llmbench.statistics import Comparison, Verdict

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
    speedup_low: float | None = None  # its interval; of all intervals of a run together, plan.confidence hold
    speedup_high: float | None = None
    verdict: Verdict | None = None  # decided by this interval; null without one, and for the baseline
    verdict_reason: str | None = None
    rounds_needed: int | None = None  # of an undecided row: about how many rounds would decide
    ttft_s: float | None = None  # wall of a generation of one token
    decode_tokens_per_s: float | None = None  # (N - 1) / (wall - ttft); null at N = 1
    tpot_s: float | None = None  # its inverse
    prefill_tokens_per_s: float | None = None  # prompt ids / ttft, per sequence
    bytes_per_token: int | None = None
    limit_tokens_per_s: float | None = None  # read bandwidth x batch / bytes_per_token, all sequences together; see limit_reason
    limit_reason: str | None = None  # why limit_tokens_per_s is null
    limit_source: str | None = None  # where its bandwidth is from, where it is no probe's: "datasheet of rtx-4090"
    bandwidth_use: float | None = None  # decode rate of all sequences together / limit
    read_gb_per_s: float | None = None  # the highest probed around the run's blocks
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
    accuracy: str | None = None  # "passed", "failed" or "skipped", by protocol.Accuracy's rule; null where it wasn't looked at
    accuracy_method: str | None = None
    accuracy_reason: str | None = None
    accuracy_error: float | None = None
    accuracy_tolerance: float | None = None
    quality_kl: float | None = None  # nats from the unquantised model; never fails a row
    quality_top1: float | None = None
    joules_per_token: float | None = None  # median over samples of energy / all new tokens of the batch; null without a counter
    flags: tuple[str, ...] = ()  # what is unsteady, in words; nothing is dropped for it


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


def _datasheet_limit(run: Run, bytes_per_token: int, reason: str | None) -> tuple[float | None, str | None, str | None]:
    """(limit, why there is none, its source) where the bandwidth could not be probed: by the GPU's datasheet, which no program reaches."""
    profile = hardware.of_device(run.machine.device_name) if run.machine.device.startswith("cuda") else None
    if profile is None or bytes_per_token < CACHE_FACTOR * hardware.LARGEST_CACHE_BYTES:
        return None, reason, None
    return profile.bandwidth_gb_per_s * 1e9 * run.request.batch_size / bytes_per_token, None, f"datasheet of {profile.name}"


def token_bytes(run: Run, variant: Variant) -> int | None:
    """Bytes that one decode step of this variant reads, all sequences together; null where the dtype or the shape doesn't tell."""
    if variant.quantization is not None or variant.dtype not in DTYPE_BYTES or not run.model.config:
        return None
    request = run.request
    key = (repr(run.model.config), variant.dtype, len(request.prompt_ids), request.max_new_tokens, request.batch_size)
    if key not in _token_bytes:
        if len(_token_bytes) > 1000:
            _token_bytes.clear()
        _token_bytes[key] = layout.bytes_per_token(model_config(run), DTYPE_BYTES[variant.dtype], request)
    return _token_bytes[key]


#: A shape's text, dtype and request -> bytes: working them out goes over all tensors, and a view of many runs asks again and again.
_token_bytes: dict[tuple[object, ...], int] = {}


def summarise(run: Run) -> list[RowSummary]:
    """Every row's figures, in the run's order."""
    baseline = run.row(run.baseline) if run.baseline else None
    if baseline is not None and (not _is_sound(baseline) or not block_rates(run, baseline)):
        baseline = None  # without a good one, ratios are null
    comparisons = _compare(run, baseline) if baseline else {}
    return [_summarise_row(run, row, baseline, comparisons.get(row.variant.label)) for row in run.rows]


def _compare(run: Run, baseline: Row) -> dict[str, Comparison]:
    """Each other row against the baseline, by label. The intervals shown are as wide as their number asks for (Bonferroni)."""
    plan, base = run.plan, block_rates(run, baseline)
    ratios = {row.variant.label: statistics.paired_ratios(block_rates(run, row), base) for row in run.rows if row is not baseline}
    judged = {row.variant.label for row in run.rows if _is_sound(row) and len(ratios.get(row.variant.label, ())) > 1 and not plan.quick}
    found = {}
    for row in run.rows:
        label = row.variant.label
        if label in judged:
            found[label] = statistics.compare(
                ratios[label],
                confidence=plan.confidence,
                comparisons=len(judged),
                min_effect=plan.min_effect,
                noise_floor=run.noise_floor,
            )
        elif ratios.get(label):
            why = f"{row.status.words}: no verdict" if not _is_sound(row) else "one round: no interval, no verdict"
            found[label] = Comparison(statistics.geometric_mean(ratios[label]) or 1.0, reason=why)
    return found


def _is_sound(row: Row) -> bool:
    """Whether a row's good blocks can be believed: it is ok, or was cut off by Ctrl-C."""
    return row.status in (Status.OK, Status.INTERRUPTED)


def block_rate(run: Run, block: Block) -> float | None:
    """A block's median tokens/s per sequence, or null where it has no good sample."""
    return statistics.median(sample_rates(run, block))


def sample_rates(run: Run, block: Block) -> list[float]:
    """Tokens/s per sequence of each good sample of a block, in the order they were taken."""
    return [run.request.max_new_tokens / sample.wall_s for sample in good_samples(run, block)]


def good_samples(run: Run, block: Block) -> list[Sample]:
    """A block's full generations that gave exactly max_new_tokens for each sequence: a rate over a wrong count would be no rate."""
    count, batch = run.request.max_new_tokens, run.request.batch_size
    return [one for one in block.of_kind("sample") if len(one.new_tokens) == batch == one.new_tokens.count(count)]


def good_blocks(run: Run, row: Row) -> list[Block]:
    """Those with at least one good sample."""
    return [block for block in row.blocks if good_samples(run, block)]


def block_rates(run: Run, row: Row) -> dict[int, float]:
    """Each round's block median, tokens/s per sequence, of the blocks that have a good sample."""
    rates = ((block.round, block_rate(run, block)) for block in row.blocks)
    return {number: rate for number, rate in rates if rate is not None}


def _summarise_row(run: Run, row: Row, baseline: Row | None, comparison: Comparison | None) -> RowSummary:
    new_tokens, batch = run.request.max_new_tokens, run.request.batch_size
    status, reason = row.status, row.reason
    if status is Status.OK and not any(block.samples for block in row.blocks):
        status, reason = (
            Status.NOT_MEASURED,
            "the run ended before this row's first sample; `llmbench compare --resume RUN` goes on with it",
        )
    good = good_blocks(run, row)
    rates = [rate for block in good for rate in sample_rates(run, block)]
    rate = statistics.median(list(block_rates(run, row).values()))
    ttft = _median_over(good, lambda block: median_wall(block, "first_token"))
    wall = new_tokens / rate if rate else None

    decode_rate = None
    if wall is not None and ttft is not None and new_tokens > 1 and wall > ttft:
        decode_rate = (new_tokens - 1) / (wall - ttft)

    bytes_per_token = token_bytes(run, row.variant)
    limit, limit_reason, limit_source = None, None, None
    if good:
        bandwidths = _probes(run, row)
        limit, limit_reason = (
            limit_tokens_per_s(bandwidths, bytes_per_token, batch)
            if bytes_per_token is not None
            else (None, f"bytes per token are not known for this {'quantization' if run.model.config else 'architecture'}")
        )
        probed = [bandwidth.gb_per_s for bandwidth in bandwidths if bandwidth.gb_per_s is not None]
        if not probed and bytes_per_token is not None:
            limit, limit_reason, limit_source = _datasheet_limit(run, bytes_per_token, limit_reason)
    else:
        probed = []

    cold = next((block for block in good if block.cold), None)
    cached = [block for block in good if not block.cold]
    peak = _steady_peak(good)
    baseline_peak = _steady_peak(good_blocks(run, baseline)) if baseline else None
    accuracy = next((block.accuracy for block in row.blocks if block.accuracy is not None), None)
    report = next((block.report for block in reversed(row.blocks) if block.report), None)
    return RowSummary(
        label=row.variant.label,
        engine=row.variant.engine,
        dtype=row.variant.dtype,
        status=status,
        reason=reason,
        is_baseline=baseline is row,
        rounds=len(good),
        samples=len(rates),
        tokens_per_s=rate,
        tokens_per_s_deviation=statistics.deviation(rates),
        total_tokens_per_s=rate * batch if rate else None,
        speedup=comparison.ratio if comparison else 1.0 if baseline is row else None,
        speedup_low=comparison.low if comparison else None,
        speedup_high=comparison.high if comparison else None,
        verdict=comparison.verdict if comparison else None,
        verdict_reason=comparison.reason if comparison else None,
        rounds_needed=comparison.rounds_needed if comparison else None,
        ttft_s=ttft,
        decode_tokens_per_s=decode_rate,
        tpot_s=1 / decode_rate if decode_rate else None,
        prefill_tokens_per_s=len(run.request.prompt_ids) / ttft if ttft else None,
        bytes_per_token=bytes_per_token,
        limit_tokens_per_s=limit,
        limit_reason=limit_reason,
        limit_source=limit_source,
        bandwidth_use=decode_rate * batch / limit if decode_rate and limit else None,
        read_gb_per_s=max(probed, default=None),
        build_s=next((_build_s(run, block) for block in row.blocks if block.build_s is not None), None),
        load_s=_median_over(good, lambda block: block.load_s),
        first_generation_s=_first_generation(cold),
        compile_s=compile_s(run, cold) if cold else None,
        compile_cached_s=_median_over(cached, lambda block: compile_s(run, block)),
        load_peak_gib=_gib(max((_load_peak(block) or 0 for block in good), default=0) or None),
        peak_memory_gib=_gib(peak),
        memory_compression=baseline_peak / peak if baseline_peak and peak else None,
        weights_gib=_gib(report.weights_bytes if report else None),
        kv_cache_gib=_gib(report.kv_cache_bytes if report else None),
        storage_dtype=report.storage_dtype if report else None,
        arithmetic_dtype=report.arithmetic_dtype if report else None,
        accuracy=_accuracy_word(accuracy),
        accuracy_method=accuracy.method if accuracy else None,
        accuracy_reason=accuracy.reason if accuracy else None,
        accuracy_error=accuracy.error if accuracy else None,
        accuracy_tolerance=accuracy.tolerance if accuracy else None,
        quality_kl=accuracy.quality_kl if accuracy else None,
        quality_top1=accuracy.quality_top1 if accuracy else None,
        joules_per_token=statistics.median(
            [
                sample.energy_j / sum(sample.new_tokens)
                for block in good
                for sample in good_samples(run, block)
                if sample.energy_j is not None and any(sample.new_tokens)
            ]
        ),
        flags=tuple(row_flags(run, [(block, sample_rates(run, block)) for block in good])),
    )


def _accuracy_word(accuracy: Accuracy | None) -> str | None:
    if accuracy is None or accuracy.method == "pending":
        return None
    return "skipped" if accuracy.method == "skipped" else "passed" if accuracy.passed else "failed"


def _probes(run: Run, row: Row) -> list[Bandwidth]:
    """The probes that give a row its limit: all of the run, so that rows of one memory have one limit and the highest rate the highest use.

    A row whose own blocks could not probe, or read no weights, keeps its own reasons.
    """
    own = [bandwidth for block in row.blocks for bandwidth in block.bandwidth]
    if all(bandwidth.gb_per_s is None for bandwidth in own):
        return own
    return [bandwidth for other in run.rows for block in other.blocks for bandwidth in block.bandwidth]


def median_wall(block: Block, kind: str) -> float | None:
    """Of a block's generations of one kind, in seconds; null where there are none."""
    return statistics.median([sample.wall_s for sample in block.of_kind(kind)])


def _median_over(blocks: list[Block], figure: Callable[[Block], float | None]) -> float | None:
    return statistics.median([value for value in map(figure, blocks) if value is not None])


def _first_generation(block: Block | None) -> float | None:
    warmups = block.of_kind("warmup") if block else []
    return warmups[0].wall_s if warmups else None


def compile_s(run: Run, block: Block) -> float | None:
    """What the first generations cost beyond generating, in seconds: the sum over warm-ups of (warm-up - steady median), and where the process
    began with a generation of one token, that one's (wall - steady median of such). Noise can't make it negative."""
    steady = statistics.median([sample.wall_s for sample in good_samples(run, block)])
    warmups = block.of_kind("warmup")
    if steady is None or not warmups:
        return None
    extra_s = sum(sample.wall_s - steady for sample in warmups)
    one_token_s = median_wall(block, "first_token")
    if one_token_s is not None:
        extra_s += sum(sample.wall_s - one_token_s for sample in block.of_kind("starting_first_token"))
    return max(0.0, extra_s)


def _build_s(run: Run, block: Block) -> float | None:
    """What building took, its source's building included; what finding it took, where it was there before the run.

    By the manifest, not by who built: of rows that share a source the first in the shuffled order builds it for all.
    """
    used = block.artifact
    return used.build_s if used is not None and used.built_at >= run.started_at else block.build_s


def _load_peak(block: Block) -> int | None:
    return block.memory.device_load_peak_bytes or block.memory.load_peak_bytes


def _steady_peak(blocks: list[Block]) -> int | None:
    return max(steady_peaks(blocks), default=None)


def steady_peaks(blocks: list[Block]) -> list[int]:
    """Bytes, of each process after the cold one: what compiling left in memory there is no part of a steady state. Of that one where it is
    alone."""
    peaks = [(block.cold, block.memory.device_steady_peak_bytes or block.memory.steady_peak_bytes) for block in blocks]
    later = [peak for cold, peak in peaks if peak and not cold]
    return later or [peak for _, peak in peaks if peak]


def _gib(value: int | None) -> float | None:
    return value / GIB if value is not None else None
