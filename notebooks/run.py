"""Runs a notebook from top to bottom and keeps its outputs in it: `make notebook`, or `python notebooks/run.py [NOTEBOOK]`.

Times of execution are left out of the file, so that running it again on the same runs changes nothing that isn't drawn.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


def execute(path: Path) -> Any:
    """The notebook with fresh outputs, run in its own folder. Raises nbclient's CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}, record_timing=False
    )
    client.execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("compare.ipynb")
    nbformat.write(execute(path), path)


if __name__ == "__main__":
    main()
