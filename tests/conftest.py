"""What all tests share: the one real checkpoint, fetched once and kept between runs."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct as a Resolved, kept in LLMBENCH_HOME or the repository. Never skipped: it fails with the reason."""
    from llmbench.checkpoints.fetch import resolve

    return resolve("smollm2-135m", home=Path(os.environ.get("LLMBENCH_HOME") or ROOT), progress=lambda line: None)
