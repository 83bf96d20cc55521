"""A small checkpoint, damaged at random a few hundred times: it loads, or it is refused in one line; never another exception."""

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_checkpoints import SMALL, join_file, split_file, write_config, write_small

from llmbench.checkpoints.config import read_config
from llmbench.checkpoints.dummy import write_shards
from llmbench.checkpoints.errors import CheckpointError
from llmbench.checkpoints.fetch import resolve
from llmbench.checkpoints.tensor_files import INDEX, SINGLE
from llmbench.checkpoints.tokenizer import Tokenizer

# Raise the number to look for more; CI always takes the same examples.
EDITS = settings(
    max_examples=int(os.environ.get("LLMBENCH_TEST_EXAMPLES", "150")),
    derandomize="CI" in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.integers(min_value=-(2**70), max_value=2**70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("small"), dtype="bfloat16")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    folder = write_config(tmp_path_factory.mktemp("sharded"))
    write_shards(read_config(folder), folder, "bfloat16", 0, shard_bytes=4000)
    return folder


@pytest.fixture(scope="module")
def rules(smollm2):
    """A real tokenizer.json as text, its vocabulary cut down to be quick."""
    content = json.loads((Path(smollm2.ref.path) / "tokenizer.json").read_text())
    content["model"]["vocab"] = {token: number for token, number in content["model"]["vocab"].items() if number < 40}
    content["model"]["merges"], content["added_tokens"] = [], content["added_tokens"][:3]
    return json.dumps(content)


def fresh(source, tmp_path):
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    return shutil.copytree(source, copy)


def answers(folder, tmp_path):
    """Resolves the folder as a user would; true if it loads. Anything but success or a one-line CheckpointError fails the test."""
    try:
        resolve(str(folder), home=tmp_path, progress=lambda line: None)
        return True
    except CheckpointError as error:
        reason = error.reason
    assert reason.isprintable()
    assert 0 < len(reason) <= 2000
    return False


def test_undamaged(small, sharded, tmp_path):
    assert answers(small, tmp_path)
    assert answers(sharded, tmp_path)


@EDITS
@given(data=st.data())
def test_bytes(small, tmp_path, data):
    folder = fresh(small, tmp_path)
    name = data.draw(st.sampled_from([SINGLE, SINGLE, "config.json"]))
    content = bytearray((folder / name).read_bytes())
    head = 8 + int.from_bytes(content[:8], "little") if name == SINGLE else len(content)
    for _ in range(data.draw(st.integers(1, 4))):
        if not content:
            break
        place = data.draw(st.integers(0, min(head + 16, len(content)) - 1))
        kind = data.draw(st.sampled_from(["set", "insert", "delete", "cut"]))
        if kind == "set":
            content[place] = data.draw(st.integers(0, 255))
        elif kind == "insert":
            content[place:place] = data.draw(st.binary(min_size=1, max_size=9))
        elif kind == "delete":
            del content[place : place + data.draw(st.integers(1, 9))]
        else:
            del content[max(place, 1) :]
    (folder / name).write_bytes(content)
    answers(folder, tmp_path)


@EDITS
@given(data=st.data())
def test_header(small, tmp_path, data):
    folder = fresh(small, tmp_path)
    head, tensors = split_file(folder / SINGLE)
    before = json.dumps(head)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(head)))
        kind = data.draw(st.sampled_from(["drop", "rename", "replace", "field"]))
        if kind == "drop":
            del head[name]
        elif kind == "rename":
            head[data.draw(st.text(max_size=20))] = head.pop(name)
        elif kind == "field" and isinstance(head[name], dict):
            key = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
            numbers = st.lists(st.integers(-5, 2**66) | st.integers(0, 600), max_size=4)
            head[name][key] = data.draw(VALUES | numbers | st.sampled_from(["F64", "F8_E4M3", "F16", "I8"]))
        else:
            head[name] = data.draw(VALUES)
    join_file(folder / SINGLE, head, tensors)
    loaded = answers(folder, tmp_path)
    touched = {name for name in {**head, **json.loads(before)} if head.get(name) != json.loads(before).get(name)}
    # Metadata is anybody's; BF16 read as F16 is another checkpoint, not a broken one. All else must be refused.
    harmless = all(name == "__metadata__" or (name in head and "F16" in str(head[name])) or name not in before for name in touched)
    assert not loaded or harmless


@EDITS
@given(data=st.data())
def test_index(sharded, tmp_path, data):
    folder = fresh(sharded, tmp_path)
    index = json.loads((folder / INDEX).read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(index["weight_map"])))
        files = st.sampled_from(["../x.safetensors", "/etc/passwd", "x.safetensors", "model-00001-of-00005.safetensors", "config.json"])
        if data.draw(st.booleans()):
            index["weight_map"][name] = data.draw(files | VALUES)
        else:
            index["weight_map"][data.draw(st.text(max_size=20))] = index["weight_map"].pop(name)
    if data.draw(st.integers(0, 9)) == 0:
        index = data.draw(VALUES)
    (folder / INDEX).write_text(json.dumps(index))
    answers(folder, tmp_path)


@EDITS
@given(data=st.data())
def test_config(small, tmp_path, data):
    folder = fresh(small, tmp_path)
    changes = {}
    keys = [*SMALL, "head_dim", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "dtype", "torch_dtype"]
    keys += ["tie_word_embeddings", "sliding_window", "hidden_act", "bos_token_id", "eos_token_id", "attention_bias", "mlp_bias"]
    for _ in range(data.draw(st.integers(1, 4))):
        changes[data.draw(st.sampled_from(keys))] = data.draw(VALUES | st.integers(0, 64) | st.integers(2**31, 2**80))
    if data.draw(st.booleans()):
        architectures = ["LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "PhiForCausalLM", "GPT2LMHeadModel"]
        changes["architectures"] = [data.draw(st.sampled_from(architectures))]
    write_config(folder, **changes)
    answers(folder, tmp_path)


@EDITS
@given(data=st.data())
def test_tokenizer(small, rules, tmp_path, data):
    folder = fresh(small, tmp_path)
    content = json.loads(rules)
    for _ in range(data.draw(st.integers(1, 3))):
        place = content
        while True:
            keys = sorted(place) if isinstance(place, dict) else range(len(place))
            key = data.draw(st.sampled_from(list(keys)))
            if isinstance(place[key], (dict, list)) and place[key] and data.draw(st.booleans()):
                place = place[key]
                continue
            place[key] = data.draw(VALUES)
            break
    (folder / "tokenizer.json").write_text(json.dumps(content))
    try:
        tokenizer = Tokenizer.open(folder, read_config(folder))
        assert tokenizer is not None
        tokenizer.decode(tokenizer.encode('"!" <|im_start|> 4 \u00bd'))
    except CheckpointError as error:
        reason = error.reason
    else:
        reason = "fits"
    assert reason.isprintable()
