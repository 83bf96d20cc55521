"""Run files that the tests of the dashboard share: three GPUs, three days, five models."""

import shutil
from pathlib import Path

import pytest
from make_history import history, write_runs

from llmbench.protocol import Run


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
