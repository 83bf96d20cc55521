"""The recorded API of tensorrt_llm against an installed one: the real package where it is importable, else the stand-in; and each kind of
difference told by doctor."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trtllm_standin as standin

from llmbench import doctor
from llmbench.engines import registry
from llmbench.engines.tensorrt_llm import contract
from llmbench.results import files
from llmbench.views.doctor_page import page
from llmbench.views.listing import engines_table

pytestmark = pytest.mark.xdist_group("torch")
ROOT = Path(contract.__file__).parents[3]


def differences(python: str) -> list[str]:
    code = f"import sys, json; sys.path.insert(0, {str(ROOT)!r}); from llmbench.engines.tensorrt_llm import contract; "
    done = subprocess.run(
        [python, "-c", code + "print(json.dumps(contract.differences()))"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(python).parent,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_installed_package_or_the_stand_in_is_as_recorded(tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorrt_llm") is not None:
        python = sys.executable
    else:
        standin.write_package(tmp_path)
        python = str(standin.interpreter(tmp_path))
    assert differences(python) == []


def test_the_record_says_where_it_is_from() -> None:
    assert "not compared with an installed 1.2.1 yet" in contract.recorded()["source"]
    owners = {name.partition(".")[0] for name in contract.recorded()["callables"]} | set(contract.recorded()["fields"])
    assert owners == set(contract.PLACES)


def changed() -> dict[str, Any]:
    """A later API: one of each kind of difference."""
    record = copy.deepcopy(contract.recorded())
    parameters = record["callables"]["ModelRunnerCpp.from_dir"]
    parameters[:] = [entry for entry in parameters if entry[0] != "cuda_graph_mode"] + [["new_one", "kwonly", "None"]]
    generate = record["callables"]["ModelRunnerCpp.generate"]
    next(entry for entry in generate if entry[0] == "end_id")[2] = "-1"
    record["fields"]["PluginConfig"]["gemm_plugin"] = "'auto'"
    del record["fields"]["BuildConfig"]["max_num_tokens"]
    record["fields"]["KvCacheConfig"]["brand_new"] = "3"
    del record["callables"]["Engine.from_dir"]
    return record


def test_doctor_names_each_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standin.write_package(tmp_path / "standin", record=changed())
    monkeypatch.setattr(doctor._Workers, "bandwidth", lambda *_: [])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = doctor.examine(home=tmp_path, engine="tensorrt-llm", python={"tensorrt-llm": str(standin.interpreter(tmp_path / "standin"))})
    (entry,) = found["engines"]
    assert entry["versions"]["tensorrt_llm"] == "1.2.1"
    assert sorted(entry["contract"]) == [
        "BuildConfig: field max_num_tokens is gone",
        "Engine.from_dir: is gone",
        "KvCacheConfig: field brand_new is new",
        "ModelRunnerCpp.from_dir: parameter cuda_graph_mode is gone",
        "ModelRunnerCpp.from_dir: parameter new_one is new",
        "ModelRunnerCpp.generate: parameter end_id is -1, was None",
        "PluginConfig: field gemm_plugin is 'auto', was None",
    ]
    text = " ".join(page(found, 100).split())
    assert "7 differences from the API of 1.2.1" in text
    assert "cuda_graph_mode is gone" in text


def test_what_a_part_that_cannot_be_imported_is_called(tmp_path: Path) -> None:
    standin.write_package(tmp_path, engine_flow=False)
    found = differences(str(standin.interpreter(tmp_path)))
    assert any(line.startswith("build: can't be imported from tensorrt_llm.builder") for line in found)
    assert not any(line.startswith("SamplingParams") for line in found)


def test_it_says_not_run_until_a_run_from_a_gpu_is_kept() -> None:
    """`llmbench engines` says so of an engine exactly as long as docs/ holds no run file with a good sample of it on a GPU."""
    run = set()
    for path in (ROOT / "docs").rglob("*.json"):
        try:
            kept = files.load(path)
        except files.RunFileError:
            continue
        if kept.machine.device.startswith("cuda"):
            run |= {row.variant.engine for row in kept.rows if any(block.of_kind("sample") for block in row.blocks)}
    if not run:
        assert "written against 1.2.1's API, not yet run on a GPU by this project" in " ".join(engines_table(200, False).split())
    for name in ("tensorrt-llm", "tensorrt-llm-pytorch"):
        assert (registry.find(name).not_run_on is None) == (name in run)
