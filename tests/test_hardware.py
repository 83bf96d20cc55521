"""Hardware by name, as a user or a driver writes it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from llmbench.checkpoints import catalog
from llmbench.hardware import PROFILES, UnknownHardware, find, of_device
from llmbench.protocol import Bandwidth
from llmbench.results.summary import RowSummary, summarise

sys.path.insert(0, str(Path(__file__).parent / "views"))

from make_runs import make_run, rows_at

SEVEN_B = catalog.CATALOG["llama-2-7b"].shape


@pytest.mark.parametrize("name", ["rtx-4090", "RTX 4090", "4090", "rtx4090", "NVIDIA GeForce RTX 4090"])
def test_one_card_has_several_spellings(name: str) -> None:
    assert find(name).compute_capability == (8, 9)
    assert find(name).sm == "sm_89"


def test_an_unknown_name_gets_near_ones() -> None:
    with pytest.raises(UnknownHardware, match="did you mean rtx-4090"):
        find("rtx-4900")
    with pytest.raises(UnknownHardware, match="there are rtx-3090"):
        find("abacus")


def test_every_profile_is_found_by_its_own_names_and_by_one_alone() -> None:
    for profile in PROFILES:
        assert find(profile.name) is profile
        assert of_device(profile.device_name) is profile
        assert 100 < profile.bandwidth_gb_per_s < 10_000
        assert profile.tflops["float16"] > profile.tflops["tf32"]


OTHERS = (
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA H100 NVL",
    "NVIDIA A100-PCIE-40GB",
    "NVIDIA L40",
    "NVIDIA GH200 480GB",
    "NVIDIA H200 MIG 1g.18gb",
    "",
)


@pytest.mark.parametrize("name", OTHERS)
def test_a_card_that_is_merely_alike_has_no_profile(name: str) -> None:
    assert of_device(name) is None


def without_probe(device_name: str, **changes: Any) -> RowSummary:
    """The first row's figures of a run on that GPU whose bandwidth could not be probed."""
    run = make_run(device="cuda:0", config=SEVEN_B, dtype="bfloat16", **changes)
    run.machine.device_name = device_name
    for row in run.rows:
        row.variant = dataclasses.replace(row.variant, dtype="bfloat16")
        for block in row.blocks:
            block.bandwidth = [Bandwidth(None, "the interpreter has no torch")]
    return summarise(run)[0]


def test_the_datasheet_gives_a_limit_where_nothing_could_be_probed() -> None:
    found = without_probe("NVIDIA GeForce RTX 4090", rows=rows_at({"eager": 50.0}))
    assert found.limit_source == "datasheet of rtx-4090"
    assert found.bytes_per_token is not None
    assert found.limit_tokens_per_s == pytest.approx(1008e9 / found.bytes_per_token)
    assert found.limit_reason is None
    assert 0.6 < (found.bandwidth_use or 0) < 0.75  # 50 of some 76 tokens/s
    assert found.read_gb_per_s is None


def test_an_unknown_card_and_a_probe_go_before_it() -> None:
    unknown = without_probe("NVIDIA Mystery 1")
    assert (unknown.limit_tokens_per_s, unknown.limit_reason) == (None, "the interpreter has no torch")
    assert summarise(make_run(device="cuda:0", config=SEVEN_B))[0].limit_source is None
