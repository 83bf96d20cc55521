"""Hardware by name, as a user or a driver writes it."""

from __future__ import annotations

import pytest

from llmbench.hardware import PROFILES, UnknownHardware, find, of_device


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


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 NVL", "NVIDIA A100-PCIE-40GB", "NVIDIA L40", ""],
)
def test_a_card_that_is_merely_alike_has_no_profile(name: str) -> None:
    assert of_device(name) is None
