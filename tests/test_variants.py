"""Variants as users write them."""

from __future__ import annotations

import pytest

from llmbench.engines.registry import UnknownEngine
from llmbench.variants import VariantError, dtype_name, parse_variants


def labels(text: str, dtype: str = "bfloat16") -> list[str]:
    return [variant.label for _, variant in parse_variants(text, dtype)]


def test_plain_names_and_options() -> None:
    found = [variant for _, variant in parse_variants("eager, torch-compile[mode=default,quantization=int8],fake[noise=0.5]", "bfloat16")]
    assert [variant.engine for variant in found] == ["eager", "torch-compile", "fake"]
    assert found[0].label == "eager"
    assert found[0].dtype == "bfloat16"
    assert found[1].label == "torch-compile[quantization=int8,mode=default]"
    assert found[1].quantization == "int8"
    assert found[1].options == {"mode": "default"}
    assert found[2].options == {"noise": 0.5}


def test_a_dtype_of_its_own_is_in_the_label_and_not_an_option() -> None:
    (_, variant), *_ = parse_variants("eager[dtype=fp32]", "bfloat16")
    assert (variant.label, variant.dtype, variant.options) == ("eager[dtype=float32]", "float32", {})
    assert labels("eager[dtype=bf16]") == ["eager"]


def test_one_way_to_write_a_label() -> None:
    assert labels("fake[noise=0.1,fault=none]") == labels("fake[fault=none,noise=0.1]") == ["fake[fault=none,noise=0.1]"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no engine is named"),
        ("eager,eager", "named twice"),
        ("eager[dtype=bfloat16],eager", "named twice"),
        ("eager[mode", "can't read"),
        ("eager[mode]", "option=value"),
        ("eager[mode=]", "option=value"),
        ("fake[noise=1,noise=2]", "given twice"),
        ("eager[dtype=int3]", "unknown dtype 'int3'"),
    ],
)
def test_what_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(VariantError, match=words.replace("[", r"\[")):
        parse_variants(text, "bfloat16")


def test_an_unknown_engine_gets_near_matches() -> None:
    with pytest.raises(UnknownEngine, match="did you mean torch-compile"):
        parse_variants("torch_compile", "bfloat16")


def test_dtype_names() -> None:
    assert [dtype_name(text) for text in ("bf16", "fp16", "half", "float32")] == ["bfloat16", "float16", "float16", "float32"]
    with pytest.raises(VariantError, match="auto, float32"):
        dtype_name("float8")
