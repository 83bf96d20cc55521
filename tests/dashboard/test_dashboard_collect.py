"""Reading run files for the dashboard: what is kept, what is left out, and that nothing is read twice."""

import dataclasses

import pytest
from make_history import GPUS, make_run, write_runs

from llmbench.dashboard import collect as collecting
from llmbench.dashboard.collect import collect, fingerprint, name, run_files
from llmbench.results import files


def test_a_history_is_ordered_by_time_whatever_the_files_names(tmp_path):
    days = [make_run(GPUS[0], "phi-2", day, 5) for day in (3, 0, 4, 1)]
    write_runs(tmp_path, days)
    found = collect([tmp_path])
    [(case, marks)] = found.histories.items()
    assert [mark.started_at for mark in marks] == sorted(run.started_at for run in days)
    assert found.newest(case).run_id == days[2].run_id
    assert (case.machine, case.model, case.dtype) == (GPUS[0].name, "phi-2", "float16")


def test_other_machines_models_and_requests_are_other_cases(run_folder):
    found = collect([run_folder])
    assert len(found.histories) == 3 * 5 + 3 * 4
    assert found.runs == found.files == 3 * 3 * 5 + 3 * 4
    assert sorted(len(marks) for marks in found.histories.values()) == [1] * 12 + [3] * 15


def test_a_file_that_is_no_run_is_named_and_hides_no_other(tmp_path):
    write_runs(tmp_path, [make_run(GPUS[0], "phi-2", 0, 1)])
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text("[1, 2]")
    found = collect([tmp_path, tmp_path / "missing.json"])
    assert found.runs == 1
    assert [sum(word in line for line in found.unreadable) for word in ("broken.json", "other.json", "missing.json")] == [1, 1, 1]


def test_runs_of_one_variant_against_itself_are_counted_and_left_out(tmp_path):
    run = make_run(GPUS[0], "phi-2", 0, 1)
    write_runs(tmp_path, [run, dataclasses.replace(run, aa=True)])
    found = collect([tmp_path])
    assert (found.runs, found.noise_runs) == (1, 1)


def test_a_folder_holds_its_own_runs_and_those_of_its_suites_each_once(tmp_path):
    own = write_runs(tmp_path, [make_run(GPUS[0], "phi-2", 0, 1)])
    suite = write_runs(tmp_path / "suite", [make_run(GPUS[1], "phi-2", 0, 1)])
    assert run_files([tmp_path, own[0]]) == own + suite


def test_only_changed_files_are_read_again(tmp_path, monkeypatch):
    paths = write_runs(tmp_path, [make_run(gpu, "phi-2", 0, 1) for gpu in GPUS])
    read = []
    monkeypatch.setattr(collecting, "load", lambda path: read.append(path) or files.load(path))
    cache = {}
    first = collect([tmp_path], cache)
    before = fingerprint([tmp_path])
    assert (read, len(cache)) == (paths, 3)
    write_runs(tmp_path, [make_run(GPUS[0], "phi-2", 0, 1, seed=7)])
    paths[2].unlink()
    second = collect([tmp_path], cache)
    assert read[3:] == paths[:1]
    assert len(cache) == second.runs == first.runs - 1
    assert fingerprint([tmp_path]) != before


@pytest.mark.parametrize("text", ["", "\x1b[31mred", "a\nb", "x" * 10_000, "\u202eabc"])
def test_names_are_one_short_plain_line(text):
    found = name(text)
    assert 1 <= len(found) <= 80
    assert found.isprintable()
