"""safetensors headers that lie: each lie is one line naming the tensor, the file and the value."""

import json

import pytest
from small_checkpoints import join_file, split_file, write_config, write_small

from llmbench.checkpoints.config import read_config
from llmbench.checkpoints.dummy import write_shards
from llmbench.checkpoints.errors import CheckpointError
from llmbench.checkpoints.tensor_files import INDEX, SINGLE, read_entries

Q = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"


@pytest.fixture
def folder(tmp_path):
    return write_small(tmp_path / "small")


@pytest.fixture
def sharded(tmp_path):
    folder = write_config(tmp_path / "sharded")
    write_shards(read_config(folder), folder, "bfloat16", 0, shard_bytes=4000)
    return folder


def refusal(folder):
    with pytest.raises(CheckpointError) as caught:
        read_entries(folder, read_config(folder))
    assert caught.value.reason.isprintable()
    return caught.value.reason


def change(folder, edit, data=None):
    """Rewrites the header with `edit` (a function of the header's dictionary), data as it was unless given."""
    head, old = split_file(folder / SINGLE)
    edit(head)
    join_file(folder / SINGLE, head, old if data is None else data)


def test_good_ones_are_read(folder, sharded):
    assert read_entries(folder, read_config(folder))[Q].dtype == "float32"
    entries = read_entries(sharded, read_config(sharded))
    assert entries[Q].nbytes == 16 * 16 * 2
    assert len({entry.file for entry in entries.values()}) > 2


def test_length_beyond_the_file(folder):
    data = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes((2**62).to_bytes(8, "little") + data[8:])
    assert f"{folder / SINGLE} says that its header has {2**62} bytes, but the file has {len(data)}" in refusal(folder)


def test_a_huge_header_is_not_read(folder):
    with (folder / SINGLE).open("r+b") as stream:
        stream.write((2**37).to_bytes(8, "little"))
        stream.truncate(2**38)  # a hole: takes no space
    assert f"says that its header has {2**37} bytes; more than" in refusal(folder)


def test_cut_off(folder):
    data = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(data[:-1])
    assert f"cut off: tensor 'lm_head.weight' ends at byte {len(data)}, but the file has {len(data) - 1}" in refusal(folder)
    (folder / SINGLE).write_bytes(data + b"more")
    assert "4 bytes more than its header accounts for" in refusal(folder)
    (folder / SINGLE).write_bytes(data[:5])
    assert "cut off: 5 bytes" in refusal(folder)


def test_missing_and_extra(folder):
    change(folder, lambda head: head.update({"model.layers.7.q": head.pop(NORM)}))
    assert f"has no tensor {NORM}" in refusal(folder)
    write_small(folder, num_hidden_layers=1)
    write_config(folder, num_hidden_layers=1, tie_word_embeddings=True)
    assert len(read_entries(folder, read_config(folder))) == 11  # lm_head.weight of a tied model is passed over
    write_small(folder)
    write_config(folder, num_hidden_layers=1)
    assert "holds the tensor 'model.layers.1.input_layernorm.weight' and 8 more" in refusal(folder)


def test_old_buffers_are_passed_over(folder):
    head, data = split_file(folder / SINGLE)
    head["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"dtype": "F32", "shape": [2], "data_offsets": [len(data), len(data) + 8]}
    join_file(folder / SINGLE, head, data + bytes(8))
    assert Q in read_entries(folder, read_config(folder))


def test_mis_shaped_and_mis_typed(folder):
    change(folder, lambda head: head[Q].update(shape=[8, 32]))
    assert f"tensor {Q} has shape [8, 32], config.json asks for [16, 16]" in refusal(folder)
    change(folder, lambda head: head[Q].update(shape=[16, 16], dtype="I32"))
    assert f"tensor {Q} has dtype I32; supported are F32, BF16, F16" in refusal(folder)
    change(folder, lambda head: head[Q].update(dtype="F16"))
    assert "but shape [16, 16] of F16 takes 512" in refusal(folder)
    change(folder, lambda head: head[Q].update(dtype="Q4"))
    assert "has dtype 'Q4'" in refusal(folder)


def test_offsets(folder):
    def shift(by):
        def edit(head):
            head[Q]["data_offsets"] = [value + by for value in head[Q]["data_offsets"]]

        return edit

    change(folder, shift(-64))
    assert "overlaps" in refusal(folder)
    change(folder, shift(10**9 + 64))
    assert "but the file has" in refusal(folder)
    change(folder, lambda head: head[Q].update(data_offsets=[-4, 1020]))
    assert "data_offsets a list of 2 entries" in refusal(folder)


def test_duplicate_names(folder, sharded):
    head, data = split_file(folder / SINGLE)
    text = json.dumps(head)
    join_file(folder / SINGLE, (text[:-1] + f', "{NORM}": {json.dumps(head[NORM])}' + "}").encode(), data)
    assert f"'{NORM}' stands there twice" in refusal(folder)
    files = sorted(sharded.glob("*.safetensors"))
    index = json.loads((sharded / INDEX).read_text())
    files[1].write_bytes(files[0].read_bytes())
    assert "lies twice" in refusal(sharded)
    index["weight_map"][NORM] = files[0].name
    (sharded / INDEX).write_text(json.dumps(index))
    refusal(sharded)


@pytest.mark.parametrize("file", ["../small/model.safetensors", "/etc/passwd", "a\\b.safetensors", "..", "", None, 3, "x.safetensors\0"])
def test_index_that_leads_out(sharded, file):
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"][Q] = file
    (sharded / INDEX).write_text(json.dumps(index))
    assert str(sharded) in refusal(sharded)


def test_index_and_shards_disagree(sharded):
    index = json.loads((sharded / INDEX).read_text())
    first, last = sorted(set(index["weight_map"].values()))[:: len(set(index["weight_map"].values())) - 1]
    moved = {**index["weight_map"], NORM: first}
    (sharded / INDEX).write_text(json.dumps({"weight_map": moved}))
    assert f"says that tensor '{NORM}' lies in '{first}', where it is not" in refusal(sharded)
    (sharded / INDEX).write_text(json.dumps(index))
    (sharded / last).unlink()
    assert f"{last} is missing" in refusal(sharded)
    (sharded / INDEX).write_text(json.dumps({"weight_map": []}))
    assert "weight_map is a list of 0 entries" in refusal(sharded)


def test_links(tmp_path, folder):
    inner = write_config(tmp_path / "linked")
    (inner / SINGLE).symlink_to(folder / SINGLE)
    assert "outside the checkpoint's folder" in refusal(inner)
    (inner / SINGLE).unlink()
    (inner / SINGLE).symlink_to(inner / SINGLE)
    refusal(inner)


def test_a_snapshot_of_the_hub_cache_links_into_its_blobs(tmp_path, folder):
    cache = tmp_path / "models--a--b"
    snapshot = cache / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for name in ("config.json", SINGLE):
        (folder / name).rename(cache / "blobs" / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert Q in read_entries(snapshot, read_config(snapshot))
    other = tmp_path / "elsewhere.safetensors"
    (cache / "blobs" / SINGLE).rename(other)
    (snapshot / SINGLE).unlink()
    (snapshot / SINGLE).symlink_to(other)
    assert "outside the checkpoint's folder" in refusal(snapshot)


def test_no_safetensors(tmp_path):
    folder = write_config(tmp_path)
    assert "holds no weights" in refusal(folder)
    (folder / "consolidated.safetensors").write_bytes(b"")
    assert "holds consolidated.safetensors, but neither" in refusal(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02cos\nsystem\n.")
    assert "pickles only" in refusal(folder)
