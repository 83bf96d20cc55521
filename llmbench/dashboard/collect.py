"""Run files -> what the dashboard keeps of them, without a word about how it looks.

Thousands of files are read one after another and only a few figures of each are kept: its place in a history. What the page shows in full is
the newest run of each case (one machine, model, dtype and request), and the one before it; those are read again, whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path

from llmbench.protocol import Row, Run, Status
from llmbench.results.diff_metrics import METRICS
from llmbench.results.files import RunFileError, load
from llmbench.results.startup import StartUp, start_ups
from llmbench.results.suite_summary import model_name
from llmbench.views import fields
from llmbench.views.text import date, plain, plural, shorten

#: The most characters of a name, and of a sentence out of a run file, that are shown: such a file may come from anywhere.
NAME, SENTENCE = 80, 300
#: No figure that is drawn is as large, in any unit: what is comes from a file that lies.
MOST = 1e15
#: Libraries with their releases, by name.
Versions = tuple[tuple[str, str], ...]
#: What a history can be drawn of: names of diff_metrics.METRICS, the first one drawn first.
HISTORIES = ("tokens", "startup", "memory")


@lru_cache(maxsize=4096)
def name(text: str) -> str:
    """A name out of a run file as one short line of plain text."""
    return shorten(plain(text[: 20 * NAME]), NAME) or "?"


@lru_cache(maxsize=16384)
def moment(stamp: str) -> str:
    """A time out of a run file, or, where it is none, its beginning."""
    return shorten(date(stamp[:NAME]), 40)


def sentence(text: str | None) -> str:
    """A reason or a note out of a run file as one line of plain text."""
    return shorten(plain((text or "")[: 20 * SENTENCE]), SENTENCE)


@dataclass(frozen=True)
class Case:
    """What must be equal for two runs to tell a history: the words that a reader meets, and `key`, which tells them apart exactly."""

    machine: str
    model: str
    dtype: str
    request: str
    key: tuple[object, ...]
    prompt_ids: int
    max_new_tokens: int
    batch_size: int
    startup: bool  # a run of start-ups
    place: tuple[object, ...]  # the machine alone

    @property
    def words(self) -> str:
        return ", ".join(part for part in (self.machine, self.model, self.dtype) if part)


@dataclass(frozen=True)
class RowMark:
    """One row of one run, as a history needs it. `values`: for each of HISTORIES, one value for each process."""

    label: str
    engine: str
    status: Status
    tokens_per_s: float | None
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Mark:
    """One run's place in its case's history."""

    path: Path
    run_id: str
    started_at: str
    time: float  # seconds since 1970, for order and drawing; 0 where started_at is no time
    versions: Versions
    rows: tuple[RowMark, ...]
    min_effect: float
    noise_floor: float | None
    confidence: float
    finished: bool


@dataclass
class Collected:
    """All that was read. `histories`: each case's runs, oldest first; cases in the order of their newest run, newest first."""

    histories: dict[Case, list[Mark]] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)  # a line each
    files: int = 0
    noise_runs: int = 0  # A/A runs, which compare one variant with itself and are left out of all tables

    @property
    def runs(self) -> int:
        return sum(map(len, self.histories.values()))

    def newest(self, case: Case) -> Mark:
        return self.histories[case][-1]


#: A file's path, time and size -> what was kept of it, so that --watch reads only what changed.
Cache = dict[tuple[str, int, int], "tuple[Case, Mark] | None"]


def run_files(paths: Sequence[Path]) -> list[Path]:
    """The run files in the given files and folders: a folder's own, and those of the suites in it. Each file once."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += [*sorted(path.glob("*.json")), *sorted(path.glob("*/*.json"))]
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def collect(paths: Sequence[Path], cache: Cache | None = None) -> Collected:
    """Reads all run files of the given files and folders. A file that isn't one is named in `unreadable` and hides no other."""
    cache = {} if cache is None else cache
    found, places, versions = Collected(), dict[object, Case](), dict[Versions, Versions]()
    seen: Cache = {}
    for path in run_files(paths):
        found.files += 1
        try:
            about = path.stat()
            key = (str(path), about.st_mtime_ns, about.st_size)
            if key not in cache:
                cache[key] = _kept(path, load(path), places, versions)
            seen[key] = cache[key]
        except (RunFileError, OSError) as error:
            found.unreadable.append(sentence(str(error)))
            continue
        kept = seen[key]
        if kept is None:
            found.noise_runs += 1
        else:
            found.histories.setdefault(kept[0], []).append(kept[1])
    cache.clear()
    cache.update(seen)
    for marks in found.histories.values():
        marks.sort(key=lambda mark: (mark.time, mark.run_id))
    found.histories = dict(sorted(found.histories.items(), key=lambda entry: -entry[1][-1].time))
    return found


def _kept(path: Path, run: Run, places: dict[object, Case], versions: dict[Versions, Versions]) -> tuple[Case, Mark] | None:
    if run.aa:
        return None
    key = _key(run)
    if key not in places:
        places[key] = _case(run, key)
    libraries = _versions(run)
    mark = Mark(
        path=path,
        run_id=name(run.run_id),
        started_at=run.started_at[:40],
        time=_time(run.started_at),
        versions=versions.setdefault(libraries, libraries),
        rows=tuple(_row_mark(run, row, start) for row, start in zip(run.rows, start_ups(run), strict=True)),
        min_effect=run.plan.min_effect,
        noise_floor=run.noise_floor,
        confidence=run.plan.confidence,
        finished=run.finished_at is not None and not run.interrupted,
    )
    return places[key], mark


def _key(run: Run) -> tuple[object, ...]:
    request, sampling = run.request, run.request.sampling
    prompt = run.prompt if run.prompt is not None else hash(request.prompt_ids)
    work = (prompt, len(request.prompt_ids), request.max_new_tokens, request.batch_size, sampling.temperature, sampling.top_k)
    return (*_place(run), model_name(run), run.dtype, *work, run.plan.startup)


def _place(run: Run) -> tuple[object, ...]:
    machine = run.machine
    return (machine.device, machine.device_name, machine.device_memory_bytes, machine.cpu, machine.cpu_count, run.threads)


def _case(run: Run, key: tuple[object, ...]) -> Case:
    request = run.request
    device = run.machine.device_name or run.machine.cpu
    threads = "" if run.machine.device.startswith("cuda") else f", {plural(run.threads, 'thread')}"
    return Case(
        machine=f"{name(device)}{threads}" if device else "no machine",
        model=name(model_name(run)),
        dtype=name(run.dtype),
        request=fields.request_words(run),
        key=key,
        prompt_ids=len(request.prompt_ids),
        max_new_tokens=request.max_new_tokens,
        batch_size=request.batch_size,
        startup=run.plan.startup,
        place=_place(run),
    )


def _row_mark(run: Run, row: Row, start: StartUp) -> RowMark:
    ready_s = start.cold.ready_s if start.cold is not None else None
    values = (METRICS["tokens"].values(run, row), [ready_s] if ready_s is not None else [], METRICS["memory"].values(run, row))
    drawn = tuple(tuple(value for value in found if 0 < value < MOST) for found in values)
    return RowMark(name(row.variant.label), name(row.variant.engine), row.status, start.tokens_per_s, drawn)


def _versions(run: Run) -> Versions:
    """llmbench, the driver and each library of any row, each with the last version seen."""
    found = {"llmbench": run.llmbench_version, "driver": run.machine.driver or ""}
    for row in run.rows:
        if row.blocks:
            found.update(row.blocks[-1].versions)
    return tuple((name(key), name(value)) for key, value in sorted(found.items()) if value)


def _time(stamp: str) -> float:
    try:
        found = datetime.fromisoformat(stamp.strip().replace("Z", "+00:00"))
        return found.replace(tzinfo=found.tzinfo or timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def fingerprint(paths: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    """What changes whenever a run file does."""
    found = []
    for path in run_files(paths):
        try:
            about = path.stat()
        except OSError:
            continue
        found.append((str(path), about.st_mtime_ns, about.st_size))
    return tuple(found)


#: Loads a run again, whole; a file that went away meanwhile is null.
def again(mark: Mark, load_run: Callable[[Path], Run] = load) -> Run | None:
    try:
        return load_run(mark.path)
    except RunFileError:
        return None
