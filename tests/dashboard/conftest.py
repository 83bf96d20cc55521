"""Run files that the tests of the dashboard share: three GPUs, three days, five models."""

import json
import shutil
from pathlib import Path

import pytest
from make_history import history

from llmbench.protocol import Run, encode


def write_runs(folder: Path, runs) -> list[Path]:
    """Each run as its own file, in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for place, run in enumerate(runs):
        paths.append(folder / f"{place:05d}.json")
        paths[-1].write_text(json.dumps(encode(run)))
    return paths


@pytest.fixture(scope="session")
def runs() -> list[Run]:
    return list(history(3))


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory, runs) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_runs(folder, runs)
    return folder


@pytest.fixture(scope="session")
def chromium() -> str:
    """Debian's browser, by its path. Where it isn't, a person's tests are skipped and CI's fail."""
    import os

    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        message = "no chromium: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found
