"""notebooks/compare.ipynb: it runs from top to bottom on the runs beside it, and what is committed has its charts in it."""

from __future__ import annotations

import base64
import importlib.util
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def pictures(notebook: Any) -> list[bytes]:
    return [base64.b64decode(output.data["image/png"]) for output in outputs(notebook) if "image/png" in output.get("data", {})]


@pytest.fixture(scope="module")
def committed() -> Any:
    return nbformat.read(NOTEBOOKS / "compare.ipynb", as_version=4)


def test_it_runs_on_the_stored_runs(tmp_path: Path, committed: Any) -> None:
    folder = tmp_path / "notebooks"
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__"))
    specification = importlib.util.spec_from_file_location("run_notebook", folder / "run.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    found = module.execute(folder / "compare.ipynb")
    assert len(pictures(found)) == 4
    assert not [output for output in outputs(found) if output.output_type in ("error", "stream")]
    assert [cell.source for cell in found.cells] == [cell.source for cell in committed.cells]


def test_what_is_committed_shows_its_charts_and_nothing_else_of_where_it_ran(committed: Any) -> None:
    assert len(pictures(committed)) == 4
    assert all(picture.startswith(b"\x89PNG") for picture in pictures(committed))
    assert not [output for output in outputs(committed) if output.output_type in ("error", "stream")]
    counts = [cell.execution_count for cell in committed.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert all(cell.metadata == {} for cell in committed.cells)
    nbformat.validate(committed)
