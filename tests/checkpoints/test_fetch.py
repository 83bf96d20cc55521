"""From a name to a folder, without any network."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
from small_checkpoints import write_config, write_small

from llmbench.checkpoints.errors import CheckpointError
from llmbench.checkpoints.fetch import kept, resolve
from llmbench.checkpoints.kept import publish, size_words


def quiet(line):
    pass


def refusal(model, home, **options):
    with pytest.raises(CheckpointError) as caught:
        resolve(model, home=home, progress=quiet, offline=True, **options)
    assert caught.value.reason.isprintable()
    return caught.value.reason


def test_a_folder_wins_over_alias_and_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_small(tmp_path / "phi-2")
    write_small(tmp_path / "owner" / "name")
    for name in ("phi-2", "owner/name", "./phi-2", str(tmp_path / "phi-2")):
        found = resolve(name, home=tmp_path, progress=quiet)
        assert found.ref.name == name
        assert Path(found.ref.path).is_absolute()
        assert found.ref.source == f"folder {found.ref.path}"
        assert found.ref.load_format == "safetensors"
        assert found.config.architecture == "LlamaForCausalLM"
        assert found.stored_dtypes == ("float32",)
        assert found.raw["hidden_size"] == 16


def test_a_folder_speaks_for_itself_only_in_its_own_name(tmp_path):
    folder = write_small(tmp_path / "copied")
    (folder / "LLMBENCH_SOURCE.json").write_text('{"source": "hub big/model\\n@1"}')
    found = resolve(str(folder), home=tmp_path, progress=quiet)
    assert found.ref.source == f"folder {folder}, by its own word hub big/model @1"
    for content in ("[" * 100_000, "[]", '{"source": 1}'):
        (folder / "LLMBENCH_SOURCE.json").write_text(content)
        assert "LLMBENCH_SOURCE.json" in refusal(str(folder), tmp_path)


def test_dummy_takes_the_shape_only(tmp_path):
    write_config(tmp_path / "mine")
    found = resolve(str(tmp_path / "mine"), home=tmp_path, progress=quiet, load_format="dummy", dummy_seed=5)
    assert (found.ref.load_format, found.ref.dummy_seed, found.stored_bytes) == ("dummy", 5, None)
    assert found.ref.source == f"random weights, seed 5, at the shape of folder {tmp_path / 'mine'}"
    for name in ("llama-2-7b", "meta-llama/Llama-2-7b-hf"):
        found = resolve(name, home=tmp_path, progress=quiet, load_format="dummy")
        assert found.ref.name == "llama-2-7b"
        assert found.ref.path == str(tmp_path / "checkpoints" / "llama-2-7b@dummy-0")
        assert "random weights, seed 0" in found.ref.source
        assert sorted(path.name for path in Path(found.ref.path).iterdir()) == ["LLMBENCH_SOURCE.json", "config.json"]
    assert [(entry.name, entry.path.name) for entry in kept(tmp_path)] == [("llama-2-7b@dummy-0",) * 2]


def test_names_that_lead_nowhere(tmp_path):
    assert "did you mean phi-2?" in refusal("phi2", tmp_path)
    assert "known are llama-2-7b" in refusal("zzz", tmp_path)
    assert "there is no folder" in refusal("./phi-2", tmp_path)
    assert "there is no folder" in refusal("/a/b/c", tmp_path)
    assert "has no config.json" in refusal(str(tmp_path), tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "is a file; --model takes the folder" in refusal(str(tmp_path / "model.gguf"), tmp_path)
    for name in ("", "a\0b", "x" * 5000, "a/b\n", "\udcff"):
        refusal(name, tmp_path)
    assert "load format 'gguf' is unknown" in refusal("phi-2", tmp_path, load_format="gguf")
    write_small(tmp_path / "good")
    assert "--revision main goes with a model of the hub" in refusal(str(tmp_path / "good"), tmp_path, revision="main")


def test_no_source_names_three_ways_out(tmp_path):
    for name in ("llama-2-7b", "someone/something"):
        reason = refusal(name, tmp_path)
        assert reason.startswith(f"no source for {name}: --offline is given")
        for way in ("local Hugging Face folder", "a network that reaches the hub's", "--load-format dummy"):
            assert way in reason
    assert "accepting its licence" in refusal("llama-2-7b", tmp_path)
    assert not (tmp_path / "checkpoints").exists()


def test_a_folder_without_weights_offers_dummy(tmp_path):
    write_config(tmp_path / "mine")
    assert "--load-format dummy takes random ones" in refusal(str(tmp_path / "mine"), tmp_path)


def test_checkpoints_that_cannot_be_written(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    assert "can't be written" in refusal("phi-2", tmp_path, load_format="dummy")


def _make_slowly(folder, counter):
    def make(temporary):
        with counter.get_lock():
            counter.value += 1
        (temporary / "whole").write_bytes(bytes(10**6))

    publish(folder, make)
    assert (folder / "whole").stat().st_size == 10**6


def test_two_processes_make_a_folder_once(tmp_path):
    context = multiprocessing.get_context("fork")
    counter = context.Value("i", 0)
    processes = [context.Process(target=_make_slowly, args=(tmp_path / "made", counter)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert counter.value == 1


def test_what_fails_halfway_leaves_nothing(tmp_path):
    left = tmp_path / ".made.killed.partial"
    left.mkdir()

    def make(temporary):
        (temporary / "half").write_bytes(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path / "made", make)
    assert [path.name for path in tmp_path.iterdir()] == [".made.lock"]


def test_the_parent_stays_without_torch(tmp_path):
    write_small(tmp_path / "small")
    code = (
        "import sys; from pathlib import Path; from llmbench.checkpoints.fetch import resolve\n"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'tokenizers', 'gguf', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "from llmbench.checkpoints.tokenizer import Tokenizer\n"
        f"found = resolve({str(tmp_path / 'small')!r}, home=Path({str(tmp_path)!r}), progress=print)\n"
        "assert Tokenizer.open(Path(found.ref.path), found.config) is None\n"
        "assert 'torch' not in sys.modules and 'huggingface_hub' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sizes_in_words():
    assert [size_words(number) for number in (0, 999, 98_362_432, 13.5e9)] == ["0 bytes", "999 bytes", "98.4 MB", "13.5 GB"]
