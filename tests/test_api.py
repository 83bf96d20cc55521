"""`from llmbench import compare, load_runs, plot`: loaded on first use, and what they give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rate_runs import row_at, run_at
from tiny import tiny_folder

import llmbench
from llmbench import api
from llmbench.comparison import UsageError
from llmbench.protocol import Run, Status
from llmbench.results.files import RunFileError, save
from llmbench.views.text import ViewError


def python(*lines: str, flags: tuple[str, ...] = ()) -> str:
    done = subprocess.run([sys.executable, *flags, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_imports_nothing() -> None:
    before = python("import sys", "print(*sorted(sys.modules))", flags=("-I", "-S"))
    root = str(Path(llmbench.__file__).parents[1])
    after = python("import sys", f"sys.path.insert(0, {root!r})", "import llmbench", "print(*sorted(sys.modules))", flags=("-I", "-S"))
    assert set(after.split()) - set(before.split()) == {"llmbench"}


def test_the_three_names_are_light_until_they_are_called() -> None:
    heavy = "{'torch', 'pandas', 'matplotlib', 'numpy', 'pydantic', 'scipy'} & set(sys.modules)"
    assert python("import sys", "from llmbench import compare, load_runs, plot", f"print({heavy})").strip() == "set()"


def test_no_module_hides_a_name() -> None:
    lines = (
        "import pkgutil, llmbench, llmbench.cli, llmbench.comparison, llmbench.commands.diff",
        "names = {module.name for module in pkgutil.iter_modules(llmbench.__path__)}",
        "print(names & set(llmbench.__all__), callable(llmbench.compare), callable(llmbench.plot), callable(llmbench.load_runs))",
    )
    assert python(*lines).strip() == "set() True True True"
    assert {"compare", "load_runs", "plot", "__version__"} <= set(dir(llmbench))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = llmbench.nothing  # type: ignore[attr-defined]


def kept(folder: Path, **rates: float) -> list[Path]:
    paths = []
    for name, rate in rates.items():
        run = run_at({"eager": [rate, rate]})
        run.run_id = name
        save(run, folder / f"{name}.json")
        paths.append(folder / f"{name}.json")
    return paths


def test_runs_of_files_folders_and_suites(tmp_path: Path) -> None:
    first, second = kept(tmp_path, a=50.0, b=60.0)
    (tmp_path / "c-suite").mkdir()
    kept(tmp_path / "c-suite", d=70.0)
    (tmp_path / "a.logs").mkdir()
    (tmp_path / "a.logs" / "trace.json").write_text("{}")
    runs = llmbench.load_runs(tmp_path)
    assert [run.run_id for run in runs] == ["a", "b", "d"]
    assert repr(llmbench.load_runs(str(second), first)) == "Runs(b, a)"
    assert isinstance(runs[1:], api.Runs)
    assert isinstance(runs[0], Run)
    assert list(runs.rows["tokens_per_s"]) == [50.0, 60.0, 70.0]
    assert len(runs.samples) == 3 * 2 * 8
    assert "smollm2-135m" in runs.table("markdown")


def test_without_a_path_results_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMBENCH_HOME", str(tmp_path))
    with pytest.raises(RunFileError, match="results: No such file"):
        llmbench.load_runs()
    (tmp_path / "results").mkdir()
    with pytest.raises(RunFileError, match="no run files"):
        llmbench.load_runs()
    kept(tmp_path / "results", a=50.0)
    assert len(llmbench.load_runs()) == 1
    (tmp_path / "results" / "bad.json").write_text("[]")
    with pytest.raises(RunFileError, match="not a run file"):
        llmbench.load_runs()


def test_pandas_is_asked_for_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = llmbench.load_runs(*kept(tmp_path, a=50.0))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'llmbench\[pandas\]'"):
        _ = runs.rows


def test_plot_gives_a_picture_and_keeps_it(tmp_path: Path) -> None:
    (path,) = kept(tmp_path, a=50.0)
    picture = llmbench.plot(llmbench.load_runs(path), tmp_path / "bars.svg")
    assert picture.png.startswith(b"\x89PNG")
    assert picture._repr_png_() == picture.png
    assert (tmp_path / "bars.svg").read_text().lstrip().startswith("<?xml")
    picture.save(tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes() == picture.png
    assert llmbench.plot(path).png == llmbench.plot(llmbench.load_runs(path)[0]).png
    assert llmbench.plot(path, startup=True).png != picture.png
    with pytest.raises(ViewError, match="of one run, not of 2"):
        llmbench.plot(kept_runs(2), startup=True)
    with pytest.raises(ViewError, match="must end in"):
        llmbench.plot(path, tmp_path / "bars.txt")


def kept_runs(count: int) -> list[Run]:
    return [run_at({"eager": [50.0, 50.0]}) for _ in range(count)]


def test_compare_measures(tmp_path: Path) -> None:
    runs = llmbench.compare(
        tiny_folder(tmp_path),
        ["fake", "fake[tokens_per_s=2000]", "fake[fault=error]"],
        baseline="fake",
        load_format="dummy",
        input_len=4,
        max_new_tokens=8,
        rounds=2,
        num_iters=1,
        num_iters_warmup=1,
        home=tmp_path,
    )
    (run,) = runs
    assert [row.status for row in run.rows] == [Status.OK, Status.OK, Status.FAILED]
    rows = runs.rows.set_index("label")
    assert rows.loc["fake[tokens_per_s=2000]", "speedup"] > 1
    assert [path.stem for path in (tmp_path / "results").glob("*.json")] == [run.run_id]
    assert llmbench.load_runs(tmp_path / "results")[0].run_id == run.run_id


def test_compare_refuses_what_the_command_refuses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--rounds must be at least 1"):
        llmbench.compare(tiny_folder(tmp_path), "fake", rounds=0, home=tmp_path)


def test_rows_that_nothing_was_measured_of(tmp_path: Path) -> None:
    run = run_at({})
    run.rows = [row_at("eager", [])]
    assert api.Runs([run]).rows["tokens_per_s"].isna().all()
    assert api.Runs([run]).samples.empty
