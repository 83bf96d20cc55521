"""The hub path against a local server: huggingface_hub itself talks to it, in processes of their own since it reads its settings at import."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import COMMIT, OTHER_COMMIT, Hub
from small_checkpoints import write_config, write_small

from llmbench.checkpoints.config import read_config
from llmbench.checkpoints.dummy import write_shards
from llmbench.checkpoints.tensor_files import INDEX, SINGLE

CODE = """
import json, sys
from pathlib import Path
from llmbench.checkpoints.errors import CheckpointError
from llmbench.checkpoints.fetch import resolve
options = json.loads(sys.argv[2])
lines = []
try:
    found = resolve(options.pop("model", "owner/name"), home=Path(sys.argv[1]), progress=lines.append, **options)
    ref = found.ref
    answer = {"path": ref.path, "source": ref.source, "name": ref.name, "load_format": ref.load_format, "commit": found.commit}
except CheckpointError as error:
    answer = {"error": error.reason}
assert "torch" not in sys.modules
print(json.dumps({**answer, "lines": lines}))
"""


@pytest.fixture
def run(tmp_path):
    """Resolves in a process of its own, against a hub: a function of the hub and resolve's options to what came out."""

    def resolve(hub, environment=None, **options):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_") and "proxy" not in name.lower()}
        settings = {"HF_ENDPOINT": hub if isinstance(hub, str) else hub.endpoint, "HF_HOME": str(tmp_path / "hf")}
        settings |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **(environment or {})}
        command = [sys.executable, "-c", CODE, str(tmp_path / "home"), json.dumps(options)]
        done = subprocess.run(command, env=clean | settings, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        answer = json.loads(done.stdout)
        assert "hf_secret" not in done.stdout + done.stderr
        return answer

    return resolve


@pytest.fixture
def folder(tmp_path):
    return write_small(tmp_path / "source")


def test_downloads_the_needed_files_once(tmp_path, folder, run):
    for name in ("pytorch_model.bin", "README.md", "consolidated.safetensors", "modeling_custom.py", "tokenizer_config.json"):
        (folder / name).write_bytes(b"{}")
    with Hub.of_folder(folder) as hub:
        first = run(hub)
        assert first["source"] == f"hub owner/name@{COMMIT[:12]}"
        assert (first["commit"], first["name"], first["load_format"]) == (COMMIT, "owner/name", "safetensors")
        assert Path(first["path"]).is_relative_to(tmp_path / "hf")
        assert sorted(path.name for path in Path(first["path"]).iterdir()) == ["config.json", SINGLE, "tokenizer_config.json"]
        assert any("downloading owner/name@0123456789ab: 3 files" in line for line in first["lines"])
        hub.log.clear()
        assert {**run(hub), "lines": None} == {**first, "lines": None}
        assert run(hub, revision=COMMIT)["path"] == first["path"]
        assert hub.log == []  # what is whole is used without the network
    assert run(hub, offline=True)["path"] == first["path"]
    assert run(hub, {"HF_HUB_OFFLINE": "1"})["path"] == first["path"]
    (record,) = (tmp_path / "home" / "checkpoints").glob("*.json")
    assert record.name == f"owner--name@{COMMIT[:12]}.json"
    record.unlink()
    assert run(hub)["path"] == first["path"]  # nobody answers any more: the cache does
    blob = Path(first["path"], SINGLE).resolve()
    blob.write_bytes(blob.read_bytes()[:-5])
    assert "is cut off: tensor 'lm_head.weight'" in run(hub)["error"]


def test_shards(tmp_path, run):
    folder = write_config(tmp_path / "sharded")
    write_shards(read_config(folder), folder, "float16", 0, shard_bytes=3000)
    with Hub.of_folder(folder) as hub:
        found = run(hub)
    assert sorted(path.name for path in Path(found["path"]).iterdir()) == sorted(path.name for path in folder.iterdir())
    assert (Path(found["path"]) / INDEX).is_file()


def test_dummy_takes_the_config_only(folder, run):
    with Hub.of_folder(folder) as hub:
        found = run(hub, load_format="dummy", dummy_seed=4)
        assert found["load_format"] == "dummy"
        assert found["source"] == f"random weights, seed 4, at the shape of hub owner/name@{COMMIT[:12]}"
        assert hub.paths("GET") == ["config.json"]
        assert Path(run(hub)["path"], SINGLE).is_file()


def test_a_newer_commit_is_another_snapshot(folder, run):
    with Hub.of_folder(folder) as hub:
        first = run(hub)
        hub.commit = OTHER_COMMIT
        assert run(hub)["commit"] == COMMIT
        second = run(hub, revision=OTHER_COMMIT)
        assert second["commit"] == OTHER_COMMIT
        assert second["path"] != first["path"]
        assert "has no revision 'v9'" in run(hub, revision="v9")["error"]


def test_gated(folder, run):
    with Hub.of_folder(folder) as hub:
        hub.token = "hf_secret"
        error = run(hub)["error"]
        assert f"owner/name is gated: accept its licence on {hub.endpoint}/owner/name" in error
        assert "`hf auth login`, or the environment variable HF_TOKEN" in error
        error = run(hub, {"HF_TOKEN": "hf_secret_but_wrong"})["error"]
        assert "gated: accept its licence" in error
        assert "account of the token in use" in error
        assert run(hub, {"HF_TOKEN": "hf_secret"})["commit"] == COMMIT


def test_unknown_and_refused(folder, run):
    with Hub.of_folder(folder) as hub:
        for environment in ({}, {"HF_TOKEN": "hf_secret"}):
            error = run(hub, environment, model="microsoft/phi2")["error"]
            assert "the hub has no model 'microsoft/phi2', or it is private" in error
            assert "did you mean phi-2" in error

        def expired(request):
            request.send_response(401)
            request.send_header("X-Error-Message", "Invalid credentials in Authorization header")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return True

        hub.fault = expired
        assert "does not accept the token in use" in run(hub, {"HF_TOKEN": "hf_secret"})["error"]

        def forbidden(request):
            request.refuse(403, "Forbidden")
            return True

        hub.fault = forbidden
        assert "does not let this account read owner/name" in run(hub, {"HF_TOKEN": "hf_secret"})["error"]


def test_a_hub_that_is_down_leaves_three_ways_out(run):
    with Hub({}) as hub:

        def down(request):
            request.refuse(503, "")
            return True

        hub.fault = down
        error = run(hub)["error"]
    assert error.startswith("no source for owner/name: the hub at http://127.0.0.1")
    assert "it answered 503" in error
    assert "Three ways out" in error
    assert "Three ways out" in run("http://127.0.0.1:9")["error"]


def test_a_cut_connection_goes_on_where_it_stopped(tmp_path, run):
    folder = write_small(tmp_path / "source", vocab_size=200_000)  # huggingface_hub writes in pieces of 10 MiB
    data = (folder / SINGLE).read_bytes()
    with Hub.of_folder(folder) as hub:
        cuts = []

        def cut(request):
            if request.command != "GET" or not request.path.endswith(SINGLE):
                return False
            if not cuts:
                cuts.append(request)
                request.send_file(data, send=23_000_000)
                return True
            request.refuse(500, "")  # and stays away for the rest of this call
            return True

        hub.fault = cut
        error = run(hub)["error"]
        assert f"downloading {SINGLE} of owner/name broke off" in error
        assert "call again, it goes on where it stopped" in error
        hub.fault, hub.log[:] = None, []
        found = run(hub)
        assert Path(found["path"], SINGLE).read_bytes() == data
        ranges = [span for method, path, span in hub.log if method == "GET" and path.endswith(SINGLE)]
        assert len(ranges) == 1
        assert int(ranges[0].removeprefix("bytes=").removesuffix("-")) >= 10 * 2**20


def test_a_file_of_another_size_is_never_used(folder, run):
    data = (folder / SINGLE).read_bytes()
    with Hub.of_folder(folder) as hub:

        def short(request):
            if not request.path.endswith(SINGLE):
                return False
            request.send_file(data[:-100], claim=len(data))
            return True

        hub.fault = short
        error = run(hub)["error"]
        assert f"downloading {SINGLE} of owner/name broke off" in error
        assert str(len(data)) in error
        hub.fault = None
        assert Path(run(hub)["path"], SINGLE).read_bytes() == data


def test_other_bytes_of_the_same_size_are_never_used(folder, run):
    data = (folder / SINGLE).read_bytes()
    with Hub.of_folder(folder) as hub:

        def other(request):
            if request.command != "GET" or not request.path.endswith(SINGLE):
                return False
            request.send_file(data[:-1] + b"?")
            return True

        hub.fault = other
        error = run(hub)["error"]
        assert f"{SINGLE} of owner/name came with sha256" in error
        hub.fault = None
        assert Path(run(hub)["path"], SINGLE).read_bytes() == data


def test_refused_before_the_weights_are_downloaded(tmp_path, run):
    folder = write_small(tmp_path / "source")
    write_config(folder, quantization_config={"quant_method": "gptq"})
    with Hub.of_folder(folder) as hub:
        assert "checkpoints stored quantized are not supported" in run(hub)["error"]
        assert hub.paths("GET") == ["config.json"]
        del hub.files[SINGLE]
        hub.files["pytorch_model.bin"] = b"pickle"
        assert "pickles (*.bin) are never read" in run(hub)["error"]
        del hub.files["config.json"]
        assert "has no config.json" in run(hub)["error"]
        assert hub.paths("GET") == ["config.json"]


def test_too_little_disk_is_told_first(folder, run):
    with Hub.of_folder(folder) as hub:

        def huge(request):
            if "/api/" not in request.path:
                return False
            siblings = [{**entry, "size": 10**18} if entry["rfilename"] == SINGLE else entry for entry in request.siblings()]
            request.send_json({"id": "owner/name", "sha": COMMIT, "siblings": siblings})
            return True

        hub.fault = huge
        error = run(hub)["error"]
        assert "not enough disk space for owner/name@0123456789ab: it takes 1000000000.0 GB" in error
        assert hub.paths("GET") == []
