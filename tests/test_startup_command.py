"""`llmbench startup` as users call it, on the fake engine: what it measures, prints, keeps and draws."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import llmbench, run_files, tiny_folder

from llmbench.engines.registry import EngineSpec, find
from llmbench.protocol import Variant
from llmbench.variants import all_starts, parse_variants

FIXED = ("--load-format", "dummy", "--input-len", 4, "--max-new-tokens", 8)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("startup")


def test_cold_and_warm_starts_are_measured_kept_and_drawn(home: Path) -> None:
    variants = "fake,fake[compile_s=0.2,tokens_per_s=4000],fake[artifact_bytes=1000,build_s=0.2]"
    done = llmbench(home, "startup", "--model", tiny_folder(home), "--engines", variants, "--baseline", "fake", *FIXED, COLUMNS="160")
    assert done.returncode == 0, done.stderr
    assert "until which, both cold" in done.stdout
    assert "fake[compile_s=0.2,tokens_per_s=4000] against fake: cold" in done.stdout
    (path,) = run_files(home)
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    run = json.loads(path.read_text())
    assert run["plan"]["startup"] is True
    for row in run["rows"]:
        assert [block["cold"] for block in row["blocks"]] == [True, False, False]
        for block in row["blocks"]:
            assert block["samples"][0]["kind"] == "starting_first_token"
            assert block["samples"][0]["new_tokens"] == [1]
            assert block["start_s"] > 0
    built = run["rows"][2]["blocks"]
    assert [block["artifact"]["hit"] for block in built] == [False, True, True]
    assert built[0]["build_s"] > 0.2 > built[1]["build_s"]
    shown = llmbench(home, "show", "--startup", path, COLUMNS="160")
    assert shown.stdout.splitlines()[:3] == done.stdout.splitlines()[:3]


def test_options_that_have_no_meaning_here_are_refused(home: Path) -> None:
    done = llmbench(home, "startup", "--model", tiny_folder(home), "--engines", "fake", "--interleave", *FIXED)
    assert done.returncode == 2
    assert "--interleave" in done.stderr


def test_an_engine_with_several_starts_is_measured_in_all_of_them() -> None:
    spec = EngineSpec("x", "m:C", "", options={"start": "", "mode": ""})
    named = [(spec, Variant("torch-compile", "torch-compile", "float32")), (find("eager"), Variant("eager", "eager", "float32"))]
    if "start" not in find("torch-compile").options:
        pytest.fail("torch-compile has lost its option start")
    labels = [variant.label for _, variant in all_starts(named, "float32")]
    assert labels == ["torch-compile", "torch-compile[start=bundle]", "torch-compile[start=aot]", "eager"]
    with_mode = parse_variants("torch-compile[mode=default,dtype=bfloat16]", "float32")
    labels = [variant.label for _, variant in all_starts(with_mode, "float32")]
    assert labels[1:] == ["torch-compile[dtype=bfloat16,mode=default,start=bundle]", "torch-compile[dtype=bfloat16,mode=default,start=aot]"]
    said = parse_variants("torch-compile[start=aot]", "float32")
    assert all_starts(said, "float32") == said
    resumed = parse_variants("torch-compile,torch-compile[start=bundle],torch-compile[start=aot]", "float32")
    assert all_starts(resumed, "float32") == resumed
