"""What a suite's file may say, and the ones that come with llmbench."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from llmbench import suite_files
from llmbench.checkpoints import catalog
from llmbench.checkpoints.config import FAMILIES, ModelConfig, Outline, parse_outline
from llmbench.comparison import UsageError

MODEL = '[[models]]\nname = "m"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models = ", "is no TOML"),
        ("", "there are no models"),
        ("models = 3", "there are no models"),
        (MODEL + "shap = {}", r"unknown key models\[1\].shap; did you mean shape"),
        ("[compare]\nenginse = 'eager'\n" + MODEL, "unknown key compare.enginse; did you mean engines"),
        ("[compare]\nrounds = 'two'\n" + MODEL, "compare.rounds is 'two'; it takes a whole number"),
        ("[compare]\nrounds = true\n" + MODEL, "compare.rounds is True; it takes a whole number"),
        ("[compare]\nquick = 1\n" + MODEL, "compare.quick is 1; it takes true or false"),
        ("[compare]\noutput = 'x'\n" + MODEL, "unknown key compare.output"),
        ("[[models]]\nname = 'a,b'", "a name without a comma"),
        ("[[models]]\nname = '../a'\nshape = {}", "letters, digits"),
        ("[[models]]\nname = 'a'\nshape = {}\nload-format = 'safetensors'", "random weights"),
        (MODEL + MODEL, "two models are called m"),
        ("description = 3\n" + MODEL, "description is 3; it takes a text"),
        ("compare = 3\n" + MODEL, "compare is a table of options"),
    ],
)
def test_a_fault_is_one_line_with_the_key_and_the_value(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        suite_files.parse(text, Path("x.toml"))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("x.toml")


def test_an_unknown_suite_offers_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean published"):
        suite_files.load("publishd")
    with pytest.raises(UsageError, match="there are huggingface, published, small"):
        suite_files.load(str(tmp_path / "none.toml"))
    big = tmp_path / "big.toml"
    big.write_text("#" * (suite_files.MAX_BYTES + 1))
    with pytest.raises(UsageError, match="bytes are no suite"):
        suite_files.load(str(big))


def test_every_option_of_a_suite_is_one_of_compare() -> None:
    from llmbench.cli import compare

    assert {name.replace("-", "_") for name in suite_files.OPTIONS} <= set(inspect.signature(compare).parameters)


@pytest.mark.parametrize("name", suite_files.names())
def test_the_suites_that_come_with_llmbench(name: str) -> None:
    suite = suite_files.load(name)
    assert suite.description
    for model in suite.models:
        if model.shape is None:
            assert catalog.find(model.name) is not None
        else:
            assert isinstance(parse_outline(model.shape, model.name), (ModelConfig, Outline))
    assert suite.defaults()["model"].split(",") == [model.name for model in suite.models]


def test_small_has_a_shape_of_each_family_and_published_is_the_published_request() -> None:
    small = suite_files.load("small")
    assert {model.shape["architectures"][0] for model in small.models if model.shape} == set(FAMILIES)
    assert "smollm2-135m" in [model.name for model in small.models]
    published = suite_files.load("published")
    assert published.options == {
        "engines": "torch-compile,tensorrt-llm",
        "prompt": "Hello, my name is",
        "max-new-tokens": 200,
        "dtype": "float16",
    }
    assert [model.name for model in published.models] == ["llama-2-7b", "llama-3-8b", "mistral-7b-v0.1", "phi-3-mini", "phi-2"]


def test_huggingface_has_each_architecture_once() -> None:
    architectures = [model.shape["architectures"][0] for model in suite_files.load("huggingface").models if model.shape]
    assert len(architectures) == len(set(architectures)) > 100
    assert {"GPT2LMHeadModel", "OPTForCausalLM", "BloomForCausalLM", "MixtralForCausalLM", "MambaForCausalLM"} <= set(architectures)
