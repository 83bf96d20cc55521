"""What all tests share: the one real checkpoint, fetched once and kept between runs."""

import contextlib
import os
from pathlib import Path

import pytest

# torch.compile imports setuptools, which fails where the standard library's distutils was imported before it by another test's library.
with contextlib.suppress(ImportError):
    import setuptools  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct as a Resolved, kept in LLMBENCH_HOME or the repository. Never skipped: it fails with the reason."""
    from llmbench.checkpoints.fetch import resolve

    return resolve("smollm2-135m", home=Path(os.environ.get("LLMBENCH_HOME") or ROOT), progress=lambda line: None)
