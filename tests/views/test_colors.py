"""One engine, one colour."""

from __future__ import annotations

import re

from llmbench.views.colors import COLORS, OTHERS, color, hatches


def test_no_two_engines_share_a_colour() -> None:
    everything = [*COLORS.values(), *OTHERS]
    assert len(set(everything)) == len(everything)
    assert all(re.fullmatch("#[0-9A-F]{6}", one) for one in everything)


def test_unknown_engines_keep_theirs() -> None:
    assert color("my-engine") == color("my-engine")
    assert color("my-engine") in OTHERS
    assert color("\ud800") in OTHERS


def test_variants_of_one_engine_differ_by_hatch() -> None:
    labels = ["eager", "torch-compile", "torch-compile[dtype=bfloat16]", "torch-compile[quantization=int8]"]
    drawn = hatches([(label.partition("[")[0], label) for label in labels] * 2)
    assert list(drawn) == labels
    assert drawn["eager"] == drawn["torch-compile"] == ""
    assert len({drawn[label] for label in labels[1:]}) == 3
