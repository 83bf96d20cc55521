"""What a key covers, which artifact serves whom, and manifests that are not what they should be."""

from __future__ import annotations

import dataclasses
import json
import os
import string
from pathlib import Path
from typing import Any

import pytest
from artifact_fixtures import INGREDIENTS, changed, obtain
from hypothesis import given
from hypothesis import strategies as st

from llmbench import artifact_manifest
from llmbench.artifact_manifest import MANIFEST, MAX_BYTES, Broken, Ingredients, Manifest, StoredFile, parse
from llmbench.artifacts import Store
from llmbench.protocol import Recipe, Variant, encode

CHANGES: dict[str, dict[str, Any]] = {
    "another engine": {"engine": "other-engine"},
    "another weight": {"checkpoint": "d" * 64},
    "another dtype": {"dtype": "bfloat16"},
    "a quantization": {"quantization": "int8"},
    "a library's version": {"versions": {"library": "1.2.4", "other": "4"}},
    "one library more": {"versions": {"library": "1.2.3", "other": "4", "third": "5"}},
    "another target": {"targets": ("sm_90",)},
    "one target more": {"targets": ("sm_89", "sm_90")},
    "another option": {"options": {"level": 4, "refit": False}},
    "an option's kind": {"options": {"level": 3, "refit": 0}},
    "a whole number as a fraction": {"options": {"level": 3.0, "refit": False}},
    "a number as text": {"options": {"level": "3", "refit": False}},
    "another length": {"maxima": {"batch": 1, "tokens": 206}},
    "a newer adapter": {"adapter": 2},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_each_ingredient_changes_the_key(changes: dict[str, Any]) -> None:
    assert changed(**changes).key != INGREDIENTS.key


def test_every_field_is_among_those_changes() -> None:
    """A field that is added later and left out of the key would be a silent overwrite."""
    assert {name for changes in CHANGES.values() for name in changes} == {field.name for field in dataclasses.fields(Ingredients)}


def test_order_does_not_matter() -> None:
    shuffled = changed(
        versions={"other": "4", "library": "1.2.3"}, options={"refit": False, "level": 3}, maxima={"tokens": 205, "batch": 1}
    )
    assert shuffled.key == INGREDIENTS.key


def test_ingredients_come_from_recipe_checkpoint_and_variant() -> None:
    """Targets in order and once; the variant's own options count through the recipe alone."""
    recipe = Recipe(3, {"library": "1"}, ("sm_90", "sm_89", "sm_90"), {"batch": 2}, {"level": 1})
    made = Ingredients.of("some-engine", recipe, "c" * 64, Variant("x", "some-engine", "float32", "int4", {"unrelated": 7}))
    assert made == Ingredients(
        "some-engine", 3, {"library": "1"}, ("sm_89", "sm_90"), "c" * 64, "float32", "int4", {"batch": 2}, {"level": 1}
    )


SCALARS = st.one_of(st.text(max_size=5), st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
OPTIONS = st.dictionaries(st.text(string.ascii_letters, min_size=1, max_size=4), SCALARS, max_size=4)
TARGETS = st.lists(st.sampled_from(["sm_80", "sm_86", "sm_89", "sm_90"]), unique=True, max_size=4).map(lambda names: tuple(sorted(names)))


@given(OPTIONS, OPTIONS)
def test_keys_are_equal_for_equal_options_alone(one: dict[str, Any], other: dict[str, Any]) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (changed(options=one).key == changed(options=other).key) == same


@given(TARGETS, TARGETS)
def test_more_targets_serve_fewer(built: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """But what is built for no target in particular is only served by its like."""
    serves = changed(targets=built).serves(changed(targets=wanted))
    assert serves == (set(wanted) <= set(built) and (bool(wanted) or not built))


def test_true_is_not_one_when_targets_are_compared() -> None:
    """Python holds True equal to 1; an engine may not."""
    more = changed(targets=("sm_89", "sm_90"), options={"level": True})
    assert not more.serves(changed(options={"level": 1}))
    assert more.serves(changed(options={"level": True}))


@given(OPTIONS, TARGETS, st.dictionaries(st.text(string.ascii_lowercase + "/.", min_size=1, max_size=8), st.integers(0, 9), max_size=3))
def test_a_manifest_survives_its_text(options: dict[str, Any], targets: tuple[str, ...], files: dict[str, int]) -> None:
    """Written and read again it is the same, unless a name in it leads out or is written in another way than walking a folder would."""
    made = changed(options=options, targets=targets)
    manifest = _manifest(made, {name: StoredFile(size, "a" * 64) for name, size in files.items()} or {"one": StoredFile(1, "b" * 64)})
    plain = all(not name.startswith("/") and all(part not in ("", ".", "..") for part in name.split("/")) for name in files)
    if plain:
        assert parse(artifact_manifest.text(manifest)) == manifest
    else:
        with pytest.raises(Broken, match="names the file"):
            parse(artifact_manifest.text(manifest))


def _manifest(made: Ingredients = INGREDIENTS, files: dict[str, StoredFile] | None = None) -> Manifest:
    return Manifest(made.key, made, "m", False, files or {"one": StoredFile(1, "a" * 64)}, "2026-12-01T00:00:00+00:00", 1.5)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_manifest(content: bytes) -> None:
    with pytest.raises(Broken):
        parse(content)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"key": "0" * 32}, "another key"),
        ({"schema_version": 99}, "another key"),
        ({"files": {}}, "not one of llmbench's"),
        ({"build_s": float("inf")}, "not one of llmbench's"),
        ({"files": {"one": {"size": -1, "sha256": "a" * 64}}}, "nothing sound"),
        ({"files": {"one": {"size": 1, "sha256": "a" * 63}}}, "nothing sound"),
        ({"files": {"one": {"size": 10**400, "sha256": "a" * 64}}}, "nothing sound"),
        ({"build_peak_bytes": 10**400}, "not one of llmbench's"),
        *(
            ({"files": {name: {"size": 1, "sha256": "a" * 64}}}, "names the file")
            for name in ("../out", "a/../../out", "/etc/passwd", "a//b", "./a", "", ".", "..", MANIFEST, "a\\b", "a\0b", "a/")
        ),
    ],
)
def test_what_a_manifest_may_not_say(changes: dict[str, Any], why: str) -> None:
    content = json.dumps({**encode(_manifest()), **changes}).encode()
    with pytest.raises(Broken, match=why):
        parse(content)


@pytest.mark.parametrize("engine", ["../x", "a/b", "", ".hidden", "a b", "x" * 101])
def test_an_engine_is_one_part_of_a_path(engine: str) -> None:
    with pytest.raises(Broken, match="belongs to the engine"):
        parse(artifact_manifest.text(_manifest(changed(engine=engine))))


def test_a_key_must_be_that_of_the_ingredients() -> None:
    """Else an artifact for one job could pass for another's."""
    forged = dataclasses.replace(_manifest(), ingredients=changed(dtype="float32"))
    with pytest.raises(Broken, match="another key"):
        parse(artifact_manifest.text(forged))


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"null", b"[]", b'"text"', b'{"key": 1}'])
def test_deep_and_odd_json(content: bytes) -> None:
    with pytest.raises(Broken, match="not one of llmbench's"):
        parse(content)


def test_a_manifest_is_read_from_a_real_file_alone(tmp_path: Path) -> None:
    """A pipe is not waited for, a link not followed, and what is too large not taken in whole."""
    store = Store(tmp_path / "engines")
    folder = obtain(store).path
    path, key = folder / MANIFEST, INGREDIENTS.key
    content = path.read_bytes()
    assert artifact_manifest.read(folder, "some-engine", key).files.keys() == {"plan.bin", "parts/rank0.bin", "empty"}
    path.unlink()
    with pytest.raises(Broken, match="no manifest"):
        artifact_manifest.read(folder, "some-engine", key)
    os.mkfifo(path)
    with pytest.raises(Broken, match="no regular file"):
        artifact_manifest.read(folder, "some-engine", key)
    path.unlink()
    (tmp_path / "elsewhere").write_bytes(content)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Broken, match="it is a link"):
        artifact_manifest.read(folder, "some-engine", key)
    path.unlink()
    path.mkdir()
    with pytest.raises(Broken, match=r"regular file|directory"):
        artifact_manifest.read(folder, "some-engine", key)
    path.rmdir()
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(Broken, match="far too large"):
        artifact_manifest.read(folder, "some-engine", key)
    path.write_bytes(content)
    with pytest.raises(Broken, match="another key"):
        artifact_manifest.read(folder, "some-engine", "0" * 32)
    with pytest.raises(Broken, match="belongs to the engine"):
        artifact_manifest.read(folder, "other-engine", key)
