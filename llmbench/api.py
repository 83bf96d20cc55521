"""What Python programs and notebooks use: measure, load kept runs, draw. `from llmbench import compare, load_runs, plot`.

    runs = load_runs("results")                        # run files, and folders of them
    runs.rows                                          # a pandas frame: one row for each variant of each run
    runs.samples                                       # one row for each timed generation
    plot(runs)                                         # the bars, shown by a notebook; plot(runs, "bars.svg") keeps them

Everything heavy is imported on first use; torch never is, since measuring happens in processes of its own.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

from llmbench.protocol import Plan, Run

if TYPE_CHECKING:
    import pandas


class Runs(Sequence[Run]):
    """Runs in an order, as frames. Iterates over llmbench.protocol.Run, which holds every raw sample."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)

    @property
    def rows(self) -> pandas.DataFrame:
        """One row for each variant of each run: identity, figures with units in their names, starts, versions. Needs pandas."""
        from llmbench.results.frames import rows_frame

        return rows_frame(self._runs)

    @property
    def samples(self) -> pandas.DataFrame:
        """One row for each timed generation, warm-ups included, walls in seconds. Needs pandas."""
        from llmbench.results.frames import samples_frame

        return samples_frame(self._runs)

    def table(self, format: str = "table", *, width: int = 120) -> str:
        """The runs as `llmbench show` prints them: table, markdown, json, jsonl or csv."""
        from llmbench.views.table import render

        return render(self._runs, format, width=width)

    @overload
    def __getitem__(self, index: int) -> Run: ...

    @overload
    def __getitem__(self, index: slice) -> Runs: ...

    def __getitem__(self, index: int | slice) -> Run | Runs:
        return Runs(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __repr__(self) -> str:
        return f"Runs({', '.join(run.run_id for run in self._runs)})"


@dataclass(frozen=True)
class Picture:
    """A drawn chart. A notebook shows it; `save` keeps it."""

    png: bytes

    def save(self, path: str | Path) -> None:
        """Writes the PNG. Raises OSError."""
        Path(path).write_bytes(self.png)

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"Picture({len(self.png)} bytes of PNG)"


def load_runs(*paths: str | Path) -> Runs:
    """The runs of run files, and of folders with run files or suites in them, oldest first within a folder; without a path those of results/.

    Raises llmbench.results.files.RunFileError for a file that isn't one, and where there is none at all.
    """
    from llmbench.results.files import RunFileError, load

    if not paths:
        from llmbench.comparison import home

        paths = (home() / "results",)
    found = [file for path in map(Path, paths) for file in _files(path)]
    if not found:
        raise RunFileError(f"no run files (*.json) in {', '.join(map(str, paths))}")
    return Runs([load(path) for path in found])


def _files(path: Path) -> list[Path]:
    """A folder's run files and those of the suites in it, by their names, which begin with their time."""
    if not path.is_dir():
        return [path]
    suites = (file for file in path.glob("*/*.json") if file.parent.suffix != ".logs")  # a run's logs may hold traces
    return sorted([*path.glob("*.json"), *suites], key=lambda file: file.relative_to(path).as_posix())


def compare(
    model: str | Path,
    engines: str | Sequence[str] | None = None,
    *,
    baseline: str | None = None,
    prompt: str | None = None,
    input_len: int | None = None,
    max_new_tokens: int = 200,
    batch_size: int = 1,
    temperature: float = 0.0,
    top_k: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    rounds: int = 5,
    num_iters: int = 3,
    num_iters_warmup: int = 2,
    interleave: bool = False,
    accuracy: bool = True,
    startup: bool = False,
    time_budget_s: float | None = None,
    load_format: str = "auto",
    offline: bool = False,
    seed: int = 0,
    home: str | Path | None = None,
    quiet: bool = True,
) -> Runs:
    """Measures one model with one request under several engines, as `llmbench compare` does, and returns that run.

    model: a folder, an alias or a hub id. engines: variants, as "eager,torch-compile[mode=max-autotune]" or a list of such; without them every
    usable engine of the default list. home: where checkpoints/, engines/ and results/ lie. The rest are the command's options by their names;
    quiet=False shows progress on stderr.

    A variant that fails is a row with its status and reason. Raises llmbench.comparison.UsageError for what can't be asked so, SetupError where
    the model or the folder can't be had. Ctrl-C raises KeyboardInterrupt; what was measured until then is in its run file.
    """
    from llmbench import interpreters
    from llmbench.comparison import Options, execute, prepare
    from llmbench.comparison import home as default_home
    from llmbench.engines.registry import engines as all_engines
    from llmbench.views.progress import progress as make_progress

    plan = Plan(
        rounds=rounds,
        num_iters=num_iters,
        num_iters_warmup=num_iters_warmup,
        seed=seed,
        time_budget_s=time_budget_s,
        quick=rounds == 1,
        interleave=interleave,
        accuracy=accuracy,
        startup=startup,
    )
    options = Options(
        model=str(model),
        engines=engines if engines is None or isinstance(engines, str) else ",".join(engines),
        baseline=baseline,
        prompt=prompt,
        input_len=input_len,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        temperature=temperature,
        top_k=top_k,
        dtype=dtype,
        device=device,
        threads=threads,
        plan=plan,
        load_format=load_format,
        offline=offline,
        seed=seed,
        python=interpreters.settled({}, all_engines()),
        command=["llmbench.compare"],
        home=default_home() if home is None else Path(home),
    )
    progress = make_progress(quiet, sys.stderr)
    prepared = prepare(options, say=progress.message)
    progress.start(prepared.run)
    try:
        execute(prepared, progress)
    finally:
        progress.close()
    if prepared.unsaved is not None:
        warnings.warn(f"not all that was measured is kept: {prepared.unsaved}", stacklevel=2)
    return Runs([prepared.run])


def plot(runs: Runs | Run | Sequence[Run] | str | Path, path: str | Path | None = None, *, startup: bool = False) -> Picture:
    """The tokens-per-second bars of runs, or with `startup` one run's starts and break-even. Shown by a notebook, kept where `path` is given.

    runs: what load_runs and compare give, one run, or a path to load. path: .png or .svg. Raises llmbench.views.text.ViewError for what can't be
    drawn or written, and RunFileError for a path without runs.
    """
    from llmbench.views.chart import draw
    from llmbench.views.startup_chart import draw_startup
    from llmbench.views.text import ViewError

    found = list(load_runs(runs) if isinstance(runs, (str, Path)) else [runs] if isinstance(runs, Run) else runs)
    if startup and len(found) != 1:
        raise ViewError(f"a start-up picture is of one run, not of {len(found)}: plot(runs[0], startup=True)")

    def put(target: Path) -> None:
        if startup:
            draw_startup(found[0], target)
        else:
            draw(found, target)

    if path is not None:
        put(Path(path))
    with tempfile.TemporaryDirectory(prefix="llmbench-") as folder:
        picture = Path(folder) / "picture.png"
        put(picture)
        return Picture(picture.read_bytes())
