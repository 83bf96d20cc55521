"""The TensorRT-LLM adapters against a stand-in generated from the recorded signatures, through the real worker, builder and artifact cache.

What passing proves: the adapters call the recorded API with arguments that it has, ask for what the facts call essential, count new ids and no
padding, and build, keep and reuse artifacts. What it doesn't: that 1.2.1's API equals the record, or anything of its numerics and speed.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trtllm_standin as standin

from llmbench import comparison
from llmbench.comparison import Options, Prepared, execute, prepare
from llmbench.protocol import Job, Plan, Request, Row, Run, Sampling, Status, encode
from llmbench.results import files
from llmbench.views.progress import progress
from llmbench.views.table import render

pytestmark = pytest.mark.xdist_group("torch")

SMALL = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "torch_dtype": "float16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
#: The five models of the published comparison at a tiny size. Mistral's window is shorter than the request, so that it matters.
MODELS: dict[str, dict[str, Any]] = {
    "llama-2-7b": {**LLAMA, "num_key_value_heads": 4, "rope_theta": 1e4},
    "llama-3-8b": {**LLAMA, "num_key_value_heads": 2, "rope_theta": 5e5},
    "mistral-7b-v0.1": {
        **LLAMA,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "num_key_value_heads": 2,
        "sliding_window": 8,
    },
    "phi-3-mini": {**LLAMA, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "num_key_value_heads": 4},
    "phi-2": {
        "architectures": ["PhiForCausalLM"],
        "model_type": "phi",
        "num_key_value_heads": 4,
        "hidden_act": "gelu_new",
        "partial_rotary_factor": 0.5,
        "layer_norm_eps": 1e-5,
    },
}
WINDOWS = {"mistral-7b-v0.1": (8,)}
NEW = 12


@dataclasses.dataclass
class Machine:
    """A home with a stand-in GPU machine's interpreter."""

    home: Path
    log: Path
    python: str

    def prepared(self, model: str, engines: str, shape: dict[str, Any] | None = None, **changes: Any) -> Prepared:
        """As `llmbench compare --device cuda` would settle it on such a machine; our own torch isn't asked for its devices."""
        folder = self.home / "models" / model
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**SMALL, **MODELS[model], **(shape or {})}))
        given: dict[str, Any] = {
            "input_len": 9,
            "max_new_tokens": NEW,
            "dtype": "float16",
            "load_format": "dummy",
            "device": "cpu",
            "plan": Plan(rounds=1, num_iters=1, num_iters_warmup=1, accuracy=False, quick=True, timeout_s=300),
            **changes,
        }
        python = dict.fromkeys(("tensorrt-llm", "tensorrt-llm-pytorch"), self.python)
        options = Options(model=str(folder), engines=engines, threads=1, home=self.home, python=python, **given)
        unasked: Any = SimpleNamespace(probe={"devices": [], "torch": "2", "cuda": None}, bandwidth=None)
        settled = prepare(options, like=unasked)
        for contestant in settled.contestants:  # the parent's check of host memory is not for a GPU's
            contestant.row.status, contestant.row.reason = Status.OK, None
        settled.contestants = [dataclasses.replace(one, job=dataclasses.replace(one.job, device="cuda:0")) for one in settled.contestants]
        return settled

    def run(self, model: str, engines: str = "tensorrt-llm", **changes: Any) -> Run:
        return files.load(execute(self.prepared(model, engines, **changes), progress(True, sys.stderr)))

    def calls(self, name: str) -> list[dict[str, Any]]:
        return standin.calls(self.log, name)


def make_machine(home: Path, **variables: str) -> Machine:
    folder, log = home / "standin", home / "calls.jsonl"
    standin.write_package(folder)
    return Machine(home, log, str(standin.interpreter(folder, STANDIN_LOG=str(log), **variables)))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path)


Twice = Callable[[str], tuple[Machine, Row, Row]]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """A function from a model to its machine and its rows of two runs there."""
    made: dict[str, tuple[Machine, Row, Row]] = {}

    def of(model: str) -> tuple[Machine, Row, Row]:
        if model not in made:
            machine = make_machine(tmp_path_factory.mktemp("home"))
            made[model] = (machine, only(machine.run(model)), only(machine.run(model)))
        return made[model]

    return of


def other(machine: Machine, name: str, **variables: str) -> Machine:
    """The same machine with other variables for the stand-in."""
    python = standin.interpreter(machine.home / "standin", name, STANDIN_LOG=str(machine.log), **variables)
    return dataclasses.replace(machine, python=str(python))


def only(run: Run) -> Row:
    (row,) = run.rows
    return row


def good(row: Row) -> Row:
    assert row.status is Status.OK, f"{row.status}: {row.reason}"
    return row


def ids_of(row: Row) -> list[list[int]]:
    ids = good(row).blocks[0].ids
    assert ids is not None
    return ids


# ------------------------------------------------------------------------------------------------------------------ all that is shared


@pytest.mark.parametrize("model", MODELS)
def test_built_loaded_run_and_built_no_second_time(twice: Twice, model: str) -> None:
    machine, first, second = twice(model)
    assert [len(ids) for ids in ids_of(first)] == [NEW]
    assert ids_of(second) == ids_of(first)
    assert [row.blocks[0].artifact.hit for row in (first, second) if row.blocks[0].artifact] == [False, True]
    assert len(machine.calls("build")) == 1
    assert first.blocks[0].versions["tensorrt_llm"] == "1.2.1"
    table = render(
        [files.load(path) for path in sorted((machine.home / "results").glob("*.json"))], "markdown", width=200, verbose=True, color=False
    )
    assert "tensorrt-llm" in table
    # The ids are this model's: what llmbench's own float32 arithmetic would choose.
    assert accuracy_of(machine, model, ids_of(first)).passed
    windows = {tuple(call["max_attention_window_size"] or ()) for call in machine.calls("from_dir")}
    assert windows == {WINDOWS.get(model, ())}


def accuracy_of(machine: Machine, model: str, ids: list[list[int]], **shape: Any) -> Any:
    """The verdict of the check that every engine's rows go through."""
    from llmbench.worker.accuracy import check

    job = machine.prepared(model, "tensorrt-llm", shape).contestants[0].job
    return check(dataclasses.replace(job, device="cpu"), ids, None, 0, len(job.request.prompt_ids) + NEW, None)


def test_ids_without_the_window_are_inaccurate(twice: Twice) -> None:
    """The check above can fail: these ids were chosen within a window, and are not those of the same weights without one."""
    machine, row, _ = twice("mistral-7b-v0.1")
    assert not accuracy_of(machine, "mistral-7b-v0.1", ids_of(row), sliding_window=None).passed


def test_the_pytorch_backend_on_an_install_without_the_engine_flow(twice: Twice, tmp_path: Path) -> None:
    """A later release: no plan can be built, the message says which release can; the PyTorch backend runs and gives the same ids."""
    folder, log = tmp_path / "later", tmp_path / "calls.jsonl"
    standin.write_package(folder, engine_flow=False)
    later = Machine(tmp_path, log, str(standin.interpreter(folder, STANDIN_VERSION="1.4.0", STANDIN_LOG=str(log))))
    built, pytorch = later.run("llama-2-7b", "tensorrt-llm,tensorrt-llm-pytorch[cuda_graphs=false]").rows
    assert built.status is Status.UNAVAILABLE
    assert "1.2.1 is the last release with it" in (built.reason or "")
    assert ids_of(pytorch) == ids_of(twice("llama-2-7b")[1])
    (made,) = later.calls("LLM")
    assert made["kv_cache_config"]["enable_block_reuse"] is False
    assert made["cuda_graph_config"] is None
    assert (made["max_batch_size"], made["max_seq_len"], made["skip_tokenizer_init"]) == (1, 9 + NEW, True)
    for call in later.calls("LLM.generate"):
        parameters = call["sampling_params"]
        assert (parameters["end_id"], parameters["ignore_eos"], parameters["detokenize"]) == (-1, True, False)
        assert call["use_tqdm"] is False
    assert later.calls("prefill skipped") == []
    assert later.calls("shutdown")


# --------------------------------------------------------------------------------------------------- arguments that the facts call essential


def test_what_a_build_is_asked_for(twice: Twice) -> None:
    machine, *_ = twice("llama-2-7b")
    (build,) = machine.calls("build")
    config = build["build_config"]
    assert config["plugin_config"]["gemm_plugin"] == "auto"
    assert config["plugin_config"]["dtype"] == "float16"
    assert (config["max_batch_size"], config["max_input_len"], config["max_seq_len"], config["max_num_tokens"]) == (1, 31, 32, 32)
    assert Path(config["output_timing_cache"]).name == "model.cache"
    (artifact,) = [path for path in (machine.home / "engines" / "tensorrt-llm").iterdir() if path.is_dir()]
    assert {path.name for path in artifact.iterdir()} == {"config.json", "rank0.engine", "model.cache", "manifest.json"}
    assert str(machine.home) not in (artifact / "config.json").read_text(), "an artifact names the place where it was built"


def test_what_a_runner_and_a_generation_are_asked_for(twice: Twice) -> None:
    machine, *_ = twice("llama-2-7b")
    for loaded in machine.calls("from_dir"):
        assert (loaded["max_input_len"], loaded["max_output_len"], loaded["max_batch_size"]) == (9, NEW, 1)
        assert loaded["kv_cache_enable_block_reuse"] is False
        assert loaded["max_tokens_in_paged_kv_cache"] == 64
        assert loaded["kv_cache_free_gpu_memory_fraction"] == 0.9
        assert loaded["cuda_graph_mode"] is True
    for call in machine.calls("generate"):
        assert (call["end_id"], call["pad_id"], call["return_dict"], call["output_sequence_lengths"]) == (-1, -1, True, True)
        assert call["kwargs"] == {"top_k": 1}
    assert machine.calls("prefill skipped") == []


def test_block_reuse_is_turned_off_and_not_left_to_the_default(machine: Machine) -> None:
    """In the record both are off by default; use_runtime_defaults may bring others with the plan."""
    from llmbench.engines.tensorrt_llm.runner import TensorRTLLMBuiltEngine

    engine, (job,) = TensorRTLLMBuiltEngine(), jobs_of(machine, "llama-2-7b", "tensorrt-llm")
    engine.config = engine.read_config(job)
    arguments = engine.runner_arguments(job)
    assert arguments["kv_cache_enable_block_reuse"] is False
    assert arguments["enable_chunked_context"] is False


def test_the_figures_of_memory_keep_pool_and_use_apart(twice: Twice) -> None:
    report = twice("llama-2-7b")[1].blocks[0].report
    assert report is not None
    position = 2 * 2 * 64 * 2  # keys and values, layers, hidden, bytes
    assert (report.kv_cache_bytes, report.settings["kv_pool_bytes"]) == (21 * position, 64 * position)


def test_sampling_is_told_by_names_that_are_read() -> None:
    from llmbench.engines.tensorrt_llm.pytorch_backend import sampling_parameters
    from llmbench.engines.tensorrt_llm.runner import generate_arguments

    request = Request((1, 2), 4, sampling=Sampling(0.8, 200, 7))
    chosen = generate_arguments(request)
    assert (chosen["temperature"], chosen["top_k"], chosen["random_seed"]) == (0.8, 200, 7)
    assert "seed" not in chosen
    assert sampling_parameters(request)["seed"] == 7
    everything = generate_arguments(dataclasses.replace(request, sampling=Sampling(1.0)))
    assert (everything["top_k"], everything["top_p"]) == (0, 1.0)


def test_a_name_that_upstream_passes_over_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from llmbench.engines.base import EngineError
    from llmbench.engines.tensorrt_llm import runner

    monkeypatch.setattr(runner, "sampling_arguments", lambda sampling: {"temprature": 0.8})
    with pytest.raises(EngineError, match="'temprature'"):
        runner.generate_arguments(Request((1, 2), 4))


def test_padding_is_not_counted() -> None:
    from llmbench.engines.tensorrt_llm.runner import new_ids

    rows = torch.tensor([[[5, 6, 7, 8, -1, -1]], [[5, 6, 9, -1, -1, -1]]], dtype=torch.int32)
    assert new_ids({"output_ids": rows, "sequence_lengths": torch.tensor([[4], [3]])}, 2) == [[7, 8], [9]]


def test_a_stop_at_an_end_id_is_a_wrong_count(twice: Twice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an end id that comes up, the stand-in stops there as upstream does, and the row says so instead of showing a rate."""
    machine, row, _ = twice("llama-2-7b")
    changed = changed_package(tmp_path, "NO_END = -1", f"NO_END = {ids_of(row)[0][3]}")
    monkeypatch.setattr("llmbench.supervise.__file__", str(changed / "supervise.py"))
    stopped = only(machine.run("llama-2-7b"))
    assert stopped.status is Status.WRONG_COUNT, stopped.reason


def changed_package(folder: Path, old: str, new: str) -> Path:
    """A copy of llmbench whose engines/tensorrt_llm/common.py has another line."""
    copy = folder / "llmbench"
    shutil.copytree(Path(comparison.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / "engines" / "tensorrt_llm" / "common.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return copy


# ------------------------------------------------------------------------------------------- asked of the engines in the other interpreter


SCRIPT = """
import json, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from llmbench.engines.base import EngineError
from llmbench.engines.tensorrt_llm.pytorch_backend import TensorRTLLMPyTorchEngine
from llmbench.engines.tensorrt_llm.runner import TensorRTLLMBuiltEngine
from llmbench.protocol import Job, decode, encode

found = []
for job in json.loads(sys.stdin.read()):
    job, seen = decode(Job, job), []
    engine = (TensorRTLLMPyTorchEngine if job.variant.engine.endswith("pytorch") else TensorRTLLMBuiltEngine)()
    try:
        engine.supports(job)
        recipe = engine.recipe(job)
        with tempfile.TemporaryDirectory() as folder:
            engine.build(job, Path(folder))
            engine.load(job, Path(folder))
            streamed = engine.generate(job.request, seen.append)
            found.append({"seen": seen, "same": streamed == engine.generate(job.request), "recipe": encode(recipe)})
        engine.close()
    except EngineError as error:
        found.append({"status": error.status.value, "reason": error.reason})
Path(sys.argv[2]).write_text(json.dumps(found))
"""


def ask(machine: Machine, jobs: list[Job]) -> list[dict[str, Any]]:
    """What supports, recipe, build, load and a streaming generation give for each job."""
    out = machine.home / "found.json"
    command = [machine.python, "-c", SCRIPT, str(Path(comparison.__file__).parents[1]), str(out)]
    done = subprocess.run(command, input=json.dumps([encode(job) for job in jobs]), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


def jobs_of(machine: Machine, model: str, engines: str, **changes: Any) -> list[Job]:
    return [one.job for one in machine.prepared(model, engines, **changes).contestants]


def test_streaming_batches_and_recipes(machine: Machine) -> None:
    jobs = jobs_of(machine, "llama-3-8b", "tensorrt-llm,tensorrt-llm[quantization=fp8],tensorrt-llm-pytorch", batch_size=2)
    plain, fp8, pytorch = ask(machine, jobs)
    for found in (plain, fp8, pytorch):
        assert found["seen"] == list(range(1, NEW + 1)), found
        assert found["same"]
    assert machine.calls("from_hugging_face")[1]["quant_config"]["quant_algo"] == "FP8_PER_CHANNEL_PER_TOKEN"
    recipe = plain["recipe"]
    assert recipe["targets"] == ["sm_89 NVIDIA GeForce RTX 4090"]
    assert recipe["maxima"] == {"batch": 2, "input_len": 31, "seq_len": 32}
    assert recipe["versions"]["tensorrt_llm"] == "1.2.1"
    assert recipe["executes"] is True
    assert {"architecture", "quant_algo", "gemm_plugin", "platform", "tp_size", "max_beam_width"} <= set(recipe["options"])
    assert recipe["options"] != fp8["recipe"]["options"]
    assert not any(name in recipe["options"] for name in ("kv_fraction", "cuda_graphs")), "how it is run is no part of a plan"


def test_what_they_cannot_do(machine: Machine) -> None:
    cases = [
        ("phi-2", "tensorrt-llm-pytorch", "no PhiForCausalLM"),
        ("phi-2", "tensorrt-llm[quantization=w8a16]", "PhiForCausalLM in float16 and bfloat16 alone"),
        ("llama-2-7b", "tensorrt-llm[quantization=int8]", "no quantization 'int8'"),
        ("mistral-7b-v0.1", "tensorrt-llm-pytorch", "no sliding window"),
        ("llama-2-7b", "tensorrt-llm[kv_fraction=2]", "kv_fraction"),
        ("llama-2-7b", "tensorrt-llm[cuda_graphs=3]", "cuda_graphs is true or false"),
        ("llama-2-7b", "tensorrt-llm[quantization=fp8]", "8.9"),
    ]
    jobs = [jobs_of(machine, model, engine)[0] for model, engine, _ in cases]
    jobs.append(dataclasses.replace(jobs[0], device="cpu"))
    ampere = other(machine, "ampere", STANDIN_SM="86")
    for found, words in zip(ask(ampere, jobs), [*(words for *_, words in cases), "NVIDIA GPUs only"], strict=True):
        assert found.get("status") == "unsupported", (words, found)
        assert words in found["reason"]
    assert machine.calls("build") == []


# --------------------------------------------------------------------------------------------------------------------- broken installs


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("libmpi.so.40: cannot open shared object file: No such file or directory", "libopenmpi-dev"),
        ("libcuda.so.1: cannot open shared object file: No such file or directory", "NVIDIA's driver is missing"),
        ("libnvinfer.so.10: cannot open shared object file", "TensorRT's library is missing"),
    ],
)
def test_a_missing_library_has_an_answer(machine: Machine, fault: str, words: str) -> None:
    row = only(other(machine, "broken", STANDIN_FAULT=fault).run("llama-2-7b"))
    assert row.status is Status.UNAVAILABLE
    assert words in (row.reason or "")


def test_a_crash_while_importing_is_a_row(machine: Machine) -> None:
    row = only(other(machine, "crashing", STANDIN_FAULT="crash").run("llama-2-7b"))
    assert row.status is Status.CRASHED
    assert "SIGSEGV" in (row.reason or "")
