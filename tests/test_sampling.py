"""--sampling: names for temperature and top-k, in the run file like the figures themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import compare, run_files

from llmbench.protocol import Sampling
from llmbench.results import files


def test_gpt_fasts_defaults(tmp_path: Path) -> None:
    done = compare(tmp_path, "fake", "--sampling", "gpt-fast", "--rounds", 1, "-q")
    assert done.returncode == 0, done.stderr
    assert files.load(run_files(tmp_path)[0]).request.sampling == Sampling(0.8, 200, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--sampling", "gptfast"), "there are greedy, gpt-fast"),
        (("--sampling", "gpt-fast", "--temperature", 0.7), "leave --temperature and --top-k out"),
        (("--sampling", "greedy", "--top-k", 5), "leave --temperature and --top-k out"),
    ],
)
def test_what_it_refuses(tmp_path: Path, arguments: tuple[object, ...], words: str) -> None:
    done = compare(tmp_path, "fake", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert run_files(tmp_path) == []
