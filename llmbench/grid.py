"""Several runs in one call: `--batch-size 1,4 --input-len 128,1024 --model a,b` is one run for each combination, all in one suite folder.

`expand` is pure. `settle` prepares every run before anything is measured, so that no typing error shows after an hour; a model that can't be had
is told and left out, the others go on. `measure` runs them one after another and keeps each as its own run file. The folder's suite.plan holds
all that was asked for, so that `reopen` can go on with a suite that was cut off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from llmbench import suite_plan
from llmbench.block import utc_now
from llmbench.comparison import Options, Prepared, SetupError, UsageError, check, execute, exit_code, not_here, prepare
from llmbench.protocol import Run
from llmbench.results import files
from llmbench.resume import continue_from, is_whole
from llmbench.schedule import Progress
from llmbench.suite_files import SuiteFile
from llmbench.suite_plan import Cell
from llmbench.variants import DTYPE_ALIASES
from llmbench.views.text import duration

#: Options of `compare` that take a list, outermost first: a checkpoint's runs stand together.
AXES = ("model", "dtype", "input_len", "max_new_tokens", "batch_size")
#: How people read them, and how they stand in a file's name.
_WORDS = {"model": "{}", "dtype": "{}", "input_len": "input {}", "max_new_tokens": "{} new tokens", "batch_size": "batch {}"}
_FILE_WORDS = {"model": "", "dtype": "-{}", "input_len": "-in{}", "max_new_tokens": "-out{}", "batch_size": "-batch{}"}
#: The least that a run gets of a time budget that is used up: its first round is whole in any case.
_LEAST_BUDGET_S = 1.0


class Starts(Progress, Protocol):
    """Progress that is told of each run."""

    def start(self, run: Run) -> None: ...


@dataclass
class Suite:
    """All runs of one call. `failures`: what could not be run, a line each."""

    results: Path
    cells: list[Cell] = field(default_factory=list)  # all that was asked for, in order
    settled: list[tuple[Cell, Prepared]] = field(default_factory=list)  # those that can be measured
    missing: list[tuple[Cell, Run]] = field(default_factory=list)  # runs of models that can't be had, with the reason in each row
    failures: list[str] = field(default_factory=list)
    budget_s: float | None = None  # for all runs together
    folder: Path | None = None  # null until the first run begins
    measured: list[tuple[Path, Prepared]] = field(default_factory=list)
    kept: list[tuple[Path, Run]] = field(default_factory=list)  # runs that nothing is measured of, or that an earlier call measured
    interrupted: bool = False

    @property
    def runs(self) -> list[Run]:
        """All runs of the suite, in the order of their files: that in which they began."""
        found = [*((path, prepared.run) for path, prepared in self.measured), *self.kept]
        return [run for _, run in sorted(found, key=lambda entry: entry[0].name)]

    @property
    def exit_code(self) -> int:
        """As a single run's: 0 all good, 1 nothing measured, 3 something failed, 130 interrupted."""
        if self.interrupted:
            return 130
        codes = [exit_code(run) for run in self.runs]
        if codes and not any(codes) and not self.failures:
            return 0
        return 3 if any(code in (0, 3) for code in codes) else 1


def expand(base: Options, lists: Mapping[str, str | None], suite: SuiteFile | None = None) -> list[Cell]:
    """Every combination of comma-separated values, the last axis fastest. Raises UsageError for what is no list of the axis's values.

    lists: axis -> text as typed; null, or an axis left out: base's own value. A call without a comma gives one cell, `base` with its values.
    suite: where names of models are looked up first; a shape found there is run with random weights.
    """
    values = {axis: _values(axis, lists[axis]) for axis in AXES if lists.get(axis) is not None}
    varied = [axis for axis in AXES if len(values.get(axis, [])) > 1]
    cells = []
    for combination in itertools.product(*values.values()):
        chosen: dict[str, Any] = dict(zip(values, combination, strict=True))
        words = ", ".join(_WORDS[axis].format(chosen[axis]) for axis in varied)
        suffix = "".join(_FILE_WORDS[axis].format(chosen[axis]) for axis in varied)
        known = suite.model(chosen["model"]) if suite is not None and "model" in chosen else None
        if known is not None:
            chosen.update(shape=known.shape, load_format="dummy" if known.shape is not None else known.load_format or base.load_format)
        cells.append(Cell(dataclasses.replace(base, **chosen), words, suffix))
    return cells


def _values(axis: str, text: str | None) -> list[str | int]:
    text = text or ""
    option = "--" + axis.replace("_", "-")
    # A folder's name may hold a comma.
    pieces = [text] if axis == "model" and os.path.lexists(text) else [piece.strip() for piece in text.split(",")]
    found: list[str | int] = []
    for piece in pieces:
        if axis in ("model", "dtype"):
            if not piece:
                raise UsageError(f"{option} {text!r}: a name is missing; write {option} a,b")
            found.append(DTYPE_ALIASES.get(piece, piece) if axis == "dtype" else piece)
        elif re.fullmatch(r"[+-]?\d{1,12}", piece):
            found.append(int(piece))
        else:
            raise UsageError(f"{option} {text!r}: {piece!r} is no whole number; write a number, or several as 1,4")
    for value in found:
        if found.count(value) > 1:
            raise UsageError(f"{option} {text!r}: {value} is named twice")
    return found


def settle(
    cells: list[Cell], *, dry_run: bool = False, say: Callable[[str], None] = lambda text: None, record_missing: bool = False
) -> Suite:
    """Prepares every cell. Raises UsageError with the faults of all cells, a line each; what can't be had becomes a failure of the suite.

    record_missing: it becomes a run as well, whose rows say why.
    """
    _all_or_none(cells, lambda cell: check(cell.options))
    budget_s = cells[0].options.plan.time_budget_s
    suite = Suite(cells[0].options.home / "results", list(cells), budget_s=budget_s)
    missing: dict[str, str] = {}  # model -> why it can't be had: asked once, a hub that doesn't answer takes its time

    def settle_one(cell: Cell) -> None:
        model, options = cell.options.model, cell.options
        if model in missing:
            if record_missing:
                suite.missing.append((cell, not_here(options, missing[model])))
            return
        if budget_s is not None:
            options = dataclasses.replace(options, plan=dataclasses.replace(options.plan, time_budget_s=budget_s / len(cells)))
        try:
            like = suite.settled[0][1] if suite.settled else None
            suite.settled.append((cell, prepare(options, dry_run=dry_run, say=say, like=like)))
        except SetupError as error:
            missing[model] = str(error)
            runs = sum(other.options.model == model for other in cells)
            suite.failures.append(f"{model}: {error}" + (f" ({runs} runs)" if runs > 1 else ""))
            if record_missing:
                suite.missing.append((cell, not_here(options, str(error))))

    _all_or_none(cells, settle_one)
    return suite


def _all_or_none(cells: list[Cell], action: Callable[[Cell], None]) -> None:
    """Does it for every cell; raises one UsageError for all that failed, each line once."""
    lines: dict[str, list[str]] = {}
    for cell in cells:
        try:
            action(cell)
        except UsageError as error:
            lines.setdefault(str(error), []).append(cell.words)
    if lines:
        told = (text if len(places) == len(cells) or not places[0] else f"{'; '.join(places)}: {text}" for text, places in lines.items())
        raise UsageError("\n".join(told))


def measure(suite: Suite, progress: Starts, announce: Callable[[str, Prepared], None]) -> None:
    """Measures all settled runs into one folder. Ctrl-C ends it with what was measured. Raises SetupError where no folder can be made.

    announce is told of each run before it starts: "run 2 of 4: batch 4, about 3 minutes left", and the run.
    """
    suite.folder = suite.folder or reserve_folder(suite.results, utc_now())
    _keep_plan(suite)
    start_s = time.monotonic()
    settled = {id(cell): prepared for cell, prepared in suite.settled}
    missing = {id(cell): run for cell, run in suite.missing}
    done = 0
    for number, cell in enumerate(suite.cells, 1):
        prepared = settled.get(id(cell))
        try:
            if id(cell) in missing:
                _record(suite, number, cell, missing[id(cell)])
            if prepared is None:
                continue
            left = len(settled) - done
            _measure_one(suite, number, cell, prepared, progress, announce, left, time.monotonic() - start_s)
        except KeyboardInterrupt:
            suite.interrupted = True
            _forget_unbegun(suite)
            return
        except files.RunFileError as error:
            suite.failures.append(f"{cell.words}: {error}")
        except SetupError as error:  # the run file could not be begun
            begun = len(suite.measured)
            _forget_empty(suite, cell)
            if len(suite.measured) == begun:
                suite.measured.pop()
            suite.failures.append(f"{cell.words}: {error}")
        except Exception as error:  # a fault of ours that this model brought out: the others don't wait for its being mended
            traceback.print_exc()
            _forget_empty(suite, cell)
            suite.failures.append(f"{cell.words or cell.options.model}: {type(error).__name__}: {error}"[:400])
        done += 1


def _forget_empty(suite: Suite, cell: Cell) -> None:
    """Takes back a run file that was reserved and never written: an empty file would puzzle every later reader."""
    assert suite.folder is not None
    path = suite.folder / cell.file if cell.file is not None else None
    if path is not None and path.exists() and path.stat().st_size == 0:
        files.forget(path)
        suite.measured = [entry for entry in suite.measured if entry[0] != path]
        cell.file = None


def _measure_one(
    suite: Suite,
    number: int,
    cell: Cell,
    prepared: Prepared,
    progress: Starts,
    announce: Callable[[str, Prepared], None],
    left: int,
    spent_s: float,
) -> None:
    """Run `number` of the suite. `left`: runs still to be measured, this one included; spent_s: seconds that those before it took."""
    assert suite.folder is not None
    run, done = prepared.run, len(suite.settled) - left
    resumed = suite.folder / cell.file if cell.file is not None else None
    if resumed is None:
        run.suite_id, run.started_at = suite.folder.name, utc_now()
    prepared.results = suite.folder
    if suite.budget_s is not None:
        run.plan = dataclasses.replace(run.plan, time_budget_s=share_of(suite.budget_s, spent_s, left))
    remaining = f", about {duration(spent_s / done * left)} left" if done else ""
    announce(f"run {number} of {len(suite.cells)}: {cell.words or run.model.name}{remaining}", prepared)
    progress.start(run)
    path = resumed or _reserve(suite, number, cell, run)
    suite.measured.append((path, prepared))
    execute(prepared, progress, path)


def _reserve(suite: Suite, number: int, cell: Cell, run: Run) -> Path:
    """A run file for a cell, noted in the plan."""
    assert suite.folder is not None
    place = f"{number:0{len(str(len(suite.cells)))}d}"
    path = files.reserve(suite.folder, run.started_at, f"{place}-{Path(run.model.name).name[:30]}{cell.suffix}")
    cell.file = path.name
    _keep_plan(suite)
    return path


def _record(suite: Suite, number: int, cell: Cell, run: Run) -> None:
    """Keeps the run of a model that can't be had."""
    assert suite.folder is not None
    run.suite_id, run.started_at, run.finished_at = suite.folder.name, utc_now(), utc_now()
    path = _reserve(suite, number, cell, run)
    with contextlib.suppress(OSError):
        files.logs_of(path).rmdir()
    run.run_id = path.stem
    files.save(run, path)
    suite.kept.append((path, run))


def _keep_plan(suite: Suite) -> None:
    """Notes what was asked for. Where that fails, the suite can't be resumed as a whole; its runs still can."""
    assert suite.folder is not None
    with contextlib.suppress(OSError):
        suite_plan.save(suite.folder, suite.cells)


def reopen(folder: Path, given: Options, *, say: Callable[[str], None] = lambda text: None) -> Suite:
    """A suite that was cut off, with what it lacks prepared: runs that are whole are kept, one that was begun goes on, others are measured.

    given: what no plan keeps: the home folder, the network, interpreters, a time budget. Raises UsageError where the folder is no suite's, and
    where a run can't be continued because something it depends on has changed.
    """
    cells = suite_plan.load(folder, given)
    suite = Suite(folder.parent, cells, budget_s=given.plan.time_budget_s, folder=folder)
    for cell in cells:
        old = _read_begun(folder, cell)
        if old is not None and is_whole(old):
            suite.kept.append((folder / str(cell.file), old))
            continue
        try:
            like = suite.settled[0][1] if suite.settled else None
            prepared = prepare(cell.options, say=say, like=like)
        except SetupError as error:
            suite.failures.append(f"{cell.options.model}: {error}")
            suite.missing.append((cell, not_here(cell.options, str(error))))
            continue
        if old is not None:
            try:
                continue_from(prepared, old)
            except UsageError as error:
                raise UsageError(f"{cell.file}: {error}") from None
        suite.settled.append((cell, prepared))
    return suite


def _read_begun(folder: Path, cell: Cell) -> Run | None:
    """The run of a cell, as far as it came; null where it has to begin anew, its remains then out of the way."""
    if cell.file is None:
        return None
    path = folder / cell.file
    if path.exists() and path.stat().st_size:
        try:
            run = files.load(path)
        except files.RunFileError as error:
            raise UsageError(f"{error}; take it out of the way to have it measured anew") from None
        if run.model.path:
            return run
    # Killed between reserving and writing; or of a model that wasn't there, which may be there now.
    files.forget(path)
    cell.file = None
    return None


def _forget_unbegun(suite: Suite) -> None:
    """Takes away what an interrupt between a run's reservation and its first block left: a run that was never begun is none."""
    assert suite.folder is not None
    if suite.measured and suite.measured[-1][1].run.finished_at is None:
        path, _ = suite.measured.pop()
        path.unlink(missing_ok=True)
    for path in suite.folder.glob("*.json"):
        if path.stat().st_size == 0:
            path.unlink()
    for logs in suite.folder.glob("*.logs"):
        if not logs.with_suffix(".json").exists():
            shutil.rmtree(logs, ignore_errors=True)
    for cell in suite.cells:
        if cell.file is not None and not (suite.folder / cell.file).exists():
            cell.file = None
    if any(suite.folder.glob("*.json")):
        _keep_plan(suite)
        return
    with contextlib.suppress(OSError):  # it isn't empty
        suite_plan.path_of(suite.folder).unlink(missing_ok=True)
        suite.folder.rmdir()


def share_of(budget_s: float, spent_s: float, runs_left: int) -> float:
    """Seconds for the next run: an even share of what is left, so that a run which ends early leaves its time to the others."""
    return max(_LEAST_BUDGET_S, (budget_s - spent_s) / runs_left)


def reserve_folder(results: Path, started_at: str) -> Path:
    """Creates results/<time>-suite under a name of its own."""
    stamp = re.sub(r"[^0-9]", "", started_at[:19])
    name = f"{stamp[:8]}-{stamp[8:]}-suite"
    try:
        results.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = results / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise SetupError(f"results can't be written in {results}: {error.strerror or error}; set LLMBENCH_HOME") from None
    raise AssertionError("unreachable")


def run_files(paths: list[Path]) -> list[Path]:
    """Run files, a suite's folder replaced by those in it in the order they were measured, which their names have."""
    return [found for path in paths for found in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
