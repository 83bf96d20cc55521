"""`llmbench models` and `llmbench engines`: what they say, and that names from disk are shown and not obeyed."""

from __future__ import annotations

import json
from pathlib import Path

from tiny import llmbench

from llmbench.checkpoints.catalog import CATALOG
from llmbench.views.listing import models_data, models_json, models_table


def kept_folder(home: Path, name: str, source: str) -> Path:
    folder = home / "checkpoints" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "LLMBENCH_SOURCE.json").write_text(json.dumps({"source": source}))
    return folder


def test_every_alias_with_its_shape_and_sizes(tmp_path: Path) -> None:
    data = models_data(tmp_path)
    assert [entry["alias"] for entry in data["catalog"]] == list(CATALOG)
    llama = data["catalog"][0]
    assert llama["parameters"] == 6_738_415_616  # the published count of Llama-2-7B
    assert llama["weights_bytes"] == {"float32": 26_953_662_464, "bfloat16": 13_476_831_232, "float16": 13_476_831_232}
    assert llama["kv_bytes_per_token"] == 2 * 32 * 32 * 128 * 2
    assert (llama["gated"], llama["shape"]["context"], llama["kept"]) == (True, 4096, [])
    assert json.loads(models_json(tmp_path)) == data


def test_what_lies_here_stands_with_its_model(tmp_path: Path) -> None:
    kept_folder(tmp_path, "phi-2@dummy-0", "random weights")
    kept_folder(tmp_path, "mine@x", "made\x1b[31m by hand")
    record = {
        "repository": "meta-llama/Llama-2-7b-hf",
        "commit": "0123456789abcdef",
        "snapshot": str(tmp_path / "gone"),
        "files": {"a": 2**30},
    }
    (tmp_path / "checkpoints/meta-llama--Llama-2-7b-hf@0123456789ab.json").write_text(json.dumps(record))
    data = models_data(tmp_path)
    kept = {entry["alias"]: entry["kept"] for entry in data["catalog"] if entry["kept"]}
    assert {alias: [one["source"] for one in entries] for alias, entries in kept.items()} == {
        "phi-2": ["random weights"],
        "llama-2-7b": ["hub meta-llama/Llama-2-7b-hf@0123456789ab"],
    }
    assert [one["name"] for one in data["kept"]] == ["mine@x"]
    text = models_table(tmp_path, 100, color=False)
    assert "1.00 GiB, no longer whole" in text
    assert "\x1b" not in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_the_commands(tmp_path: Path) -> None:
    assert "weights: float32 25.1 GiB" in llmbench(tmp_path, "models").stdout
    assert json.loads(llmbench(tmp_path, "models", "--format", "json").stdout)["catalog"]
    done = llmbench(tmp_path, "models", "--format", "xml")
    assert (done.returncode, "table and json" in done.stderr) == (2, True)
    assert not list(tmp_path.iterdir())
