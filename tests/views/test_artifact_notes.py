"""What a run's table says of the artifacts that its rows loaded."""

from __future__ import annotations

import dataclasses
import json

from make_runs import make_run, rows_at

from llmbench.protocol import ArtifactUse, Run
from llmbench.views.table import render

USE = ArtifactUse("aot-inductor", "ab" * 16, True, 335 * 2**20, 83.4, "2026-12-01T03:00:00+00:00")
PLACE = f"engines/aot-inductor/{'ab' * 16}"


def run_with(hit: bool) -> Run:
    rows = rows_at({"eager": 41.3, "aot-inductor": 61.9})
    for number, block in enumerate(rows[1].blocks):
        block.artifact = dataclasses.replace(USE, hit=hit or number > 0)
        block.build_s = 1.25 if hit or number > 0 else 84.0
    return make_run(rows)


def words(run: Run, width: int = 200) -> str:
    return " ".join(render([run], "table", width=width).split())


def test_a_reused_artifact_is_told() -> None:
    text = words(run_with(hit=True))
    assert f"aot-inductor: reuses {PLACE} (335 MiB, built 2026-12-01 in 1 min 23 s)" in text
    assert "eager: reuses" not in text


def test_one_that_this_run_built_is_told_as_that() -> None:
    """Its first block decides: the later ones find what that one built."""
    text = words(run_with(hit=False))
    assert f"aot-inductor: built {PLACE} (335 MiB) in 1 min 23 s; later runs reuse it" in text
    assert "reuses engines" not in text


def test_the_column_is_there_where_something_was_built() -> None:
    assert "build" in render([run_with(hit=False)], "table", width=200).splitlines()[2]
    without = render([make_run()], "table", width=200)
    assert "build" not in "".join(without.splitlines()[:6])
    assert "engines/" not in without


def test_machines_get_the_seconds_either_way() -> None:
    (eager, built) = (json.loads(line) for line in render([run_with(hit=False)], "jsonl").splitlines())
    assert (eager["build_s"], built["build_s"]) == (None, 83.4)


def test_a_note_is_no_flag() -> None:
    line = json.loads(render([run_with(hit=True)], "jsonl").splitlines()[1])
    assert not any("engines/" in flag for flag in line["flags"])


def test_a_key_from_a_run_file_is_shown_and_not_obeyed() -> None:
    run = run_with(hit=True)
    run.rows[1].blocks[0].artifact = dataclasses.replace(USE, engine="x\x1b[31m", key="k\x07", built_at="\x1b[2J")
    assert not any(char in render([run], "table", width=200) for char in ("\x1b", "\x07"))
