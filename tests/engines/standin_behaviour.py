# ruff: noqa: N802 - functions are named for what they stand in for
"""What the stand-in's functions do: as TensorRT-LLM is recorded to do it (shapes, padding, counting, names passed over), on the CPU.

Copied into the generated package. Arithmetic is llmbench's own model in float32, so ids are right where the adapter asks rightly. A "plan" is a
zip of the checkpoint that it was built from. It pretends to be on an RTX 4090: torch's questions about the device are answered here.
"""

import dataclasses
import json
import os
import shutil
import signal
import tempfile
import zipfile
from pathlib import Path

VERSION = os.environ.get("STANDIN_VERSION", "1.2.1")
ARCHITECTURES = {
    "LlamaForCausalLM": "LLaMAForCausalLM",
    "MistralForCausalLM": "LLaMAForCausalLM",
    "PhiForCausalLM": "PhiForCausalLM",
    "Phi3ForCausalLM": "Phi3ForCausalLM",
}
SAMPLING = {
    "num_beams", "top_k", "top_p", "top_p_min", "top_p_reset_ids", "top_p_decay", "temperature", "min_tokens", "beam_search_diversity_rate",
    "repetition_penalty", "presence_penalty", "frequency_penalty", "prompt_ignore_length", "length_penalty", "early_stopping",
    "no_repeat_ngram_size", "random_seed", "num_return_sequences", "min_p", "beam_width_array",
}  # fmt: skip


def start():
    """Importing the package: its banner, or what is missing."""
    print(f"[TensorRT-LLM] TensorRT-LLM version: {VERSION}", flush=True)
    if "TLLM_LLMAPI_BUILD_CACHE" in os.environ:
        raise RuntimeError("the library's own build cache is on")
    fault = os.environ.get("STANDIN_FAULT", "")
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault:
        raise ImportError(fault)
    import torch

    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda device: None
    torch.cuda.get_device_name = lambda device=None: "NVIDIA GeForce RTX 4090"
    torch.cuda.get_device_capability = lambda device=None: (
        int(os.environ.get("STANDIN_SM", "89")) // 10,
        int(os.environ.get("STANDIN_SM", "89")) % 10,
    )

    def no_properties(device=None):
        raise RuntimeError("there is no GPU behind the stand-in")

    torch.cuda.get_device_properties = no_properties


def log(call, arguments):
    if "STANDIN_LOG" in os.environ:
        kept = {name: value for name, value in arguments.items() if name not in ("self", "cls")}
        with Path(os.environ["STANDIN_LOG"]).open("a") as stream:
            stream.write(json.dumps({"call": call, "arguments": kept}, default=_shown) + "\n")


def _shown(value):
    if dataclasses.is_dataclass(value):
        return {name: value for name, value in vars(value).items() if not name.startswith("_")}
    return getattr(value, "name", None) or str(value)


# ------------------------------------------------------------------------------------------------------------------------------- building


def _from_hugging_face(cls, hf_model_or_dir, dtype, mapping, quant_config, kwargs):
    log("from_hugging_face", locals())
    folder = Path(hf_model_or_dir)
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    if ARCHITECTURES[architecture] != cls.__name__:
        raise ValueError(f"{cls.__name__} can't convert {architecture}")
    if not any(folder.glob("*.safetensors")):
        raise FileNotFoundError(f"{folder} has no weights")
    model = cls.__new__(cls)
    model.folder, model.dtype, model.quantization = folder, dtype, getattr(getattr(quant_config, "quant_algo", None), "name", None)
    return model


LLaMAForCausalLM_from_hugging_face = PhiForCausalLM_from_hugging_face = Phi3ForCausalLM_from_hugging_face = _from_hugging_face


def build(model, build_config):
    log("build", {"build_config": build_config})
    from tensorrt_llm._api import Engine

    if build_config.plugin_config.gemm_plugin is None:
        print("no GEMM plugin: slow float16 kernels", flush=True)
    if build_config.plugin_config.dtype != model.dtype:
        raise ValueError(f"plugins of dtype {build_config.plugin_config.dtype} in a model of dtype {model.dtype}")
    Path(build_config.output_timing_cache).write_bytes(b"timing")
    return Engine({"model": model, "build_config": build_config}, None)


def Engine___init__(self, config, engine, managed_weights):
    self.config = config


def Engine_save(self, engine_dir):
    folder, model, settings = Path(engine_dir), self.config["model"], self.config["build_config"]
    with zipfile.ZipFile(folder / "rank0.engine", "w") as plan:
        for path in sorted(model.folder.iterdir()):
            if path.suffix in (".json", ".safetensors"):
                plan.write(path, path.name)
    saved = {
        "version": VERSION,
        "pretrained_config": {"dtype": model.dtype, "quant_algo": model.quantization},
        "build_config": {name: value for name, value in vars(settings).items() if name not in ("dry_run", "visualize_network")},
    }
    (folder / "config.json").write_text(json.dumps(saved, default=_shown))


# -------------------------------------------------------------------------------------------------------------------------------- running


class _Model:
    """A checkpoint's float32 model."""

    def __init__(self, folder, batch, length, window):
        from llmbench.checkpoints.config import read_config
        from llmbench.checkpoints.tensor_files import read_entries
        from llmbench.torchfast import weights

        config = dataclasses.replace(read_config(folder), sliding_window=window)
        self.eos = config.eos_ids
        self.model = weights.build_empty(config, weights.DTYPES["float32"], "cpu")
        weights.load_safetensors(self.model, read_entries(folder, config))
        self.model.setup_caches(batch, -(-length // 8) * 8, "cpu")
        self.seen = set()

    def new_ids(self, prompts, count, temperature, top_k, seed, end_id):
        """New ids for each prompt, cut off behind `end_id`."""
        import torch

        from llmbench.torchfast.generate import generate

        greedy = top_k == 1 or temperature is None
        torch.manual_seed(seed or 0)
        with torch.no_grad():
            rows = generate(self.model, torch.tensor(prompts), count, 0.0 if greedy else temperature, None if greedy else (top_k or None))
        return [row[: row.index(end_id) + 1] if end_id in row else row for row in rows]


def ModelRunnerCpp_from_dir(cls, engine_dir, **arguments):
    log("from_dir", arguments)
    saved = json.loads((Path(engine_dir) / "config.json").read_text())
    built = saved["build_config"]
    runner = cls.__new__(cls)
    longest_input = arguments["max_input_len"] or built["max_input_len"]
    runner.max_seq_len = longest_input + (arguments["max_output_len"] or built["max_seq_len"] - longest_input)
    runner.batch = arguments["max_batch_size"] or built["max_batch_size"]
    assert runner.max_seq_len <= built["max_seq_len"], "longer than the engine"
    assert longest_input <= built["max_input_len"], "a longer input than the engine's"
    assert runner.batch <= built["max_batch_size"], "more sequences than the engine's"
    windows = arguments["max_attention_window_size"]
    runner.reuse = arguments["kv_cache_enable_block_reuse"]
    folder = Path(tempfile.mkdtemp())
    try:
        with zipfile.ZipFile(Path(engine_dir) / "rank0.engine") as plan:
            plan.extractall(folder)
        runner.model = _Model(folder, runner.batch, runner.max_seq_len, windows[0] if windows else None)
    finally:
        shutil.rmtree(folder)
    return runner


def ModelRunnerCpp_generate(self, batch_input_ids, kwargs, **arguments):
    import torch

    log("generate", {**arguments, "kwargs": kwargs})
    sampling = {name: value for name, value in kwargs.items() if name in SAMPLING}  # others are passed over
    if arguments["stopping_criteria"] is not None:
        raise RuntimeError("Stopping criteria is not supported in C++ session.")
    prompts = [ids.tolist() for ids in batch_input_ids]
    length, end_id = len(prompts[0]), arguments["end_id"]
    torch.tensor(end_id, dtype=torch.int32)  # raises for None, as upstream
    if length + arguments["max_new_tokens"] > self.max_seq_len:
        raise RuntimeError("prompt and new tokens are longer than the runner")
    if self.reuse and str(prompts) in self.model.seen:
        log("prefill skipped", {})
    self.model.seen.add(str(prompts))
    new = self.model.new_ids(
        prompts, arguments["max_new_tokens"], sampling.get("temperature"), sampling.get("top_k", 1), sampling.get("random_seed"), end_id
    )

    def answer(count):
        rows = [prompt + ids[:count] for prompt, ids in zip(prompts, new, strict=True)]
        padded = [[row + [end_id] * (self.max_seq_len - len(row))] for row in rows]
        found = {"output_ids": torch.tensor(padded, dtype=torch.int32)}
        if arguments["output_sequence_lengths"]:
            found["sequence_lengths"] = torch.tensor([[len(row)] for row in rows], dtype=torch.int32)
        return found if arguments["return_dict"] else found["output_ids"]

    if arguments["streaming"]:
        return (answer(count) for count in range(1, max(map(len, new)) + 1))
    return answer(arguments["max_new_tokens"])


# ------------------------------------------------------------------------------------------------------------------------- PyTorch backend


def LLM___init__(self, model, kwargs, **arguments):
    from tensorrt_llm._api import TorchLlmArgs

    if os.environ.get("TLLM_WORKER_USE_SINGLE_PROCESS") != "1":
        raise RuntimeError("the MPI worker starts the main script again")
    try:
        settings = TorchLlmArgs(model=model, **kwargs)  # an unknown name raises
    except TypeError as error:
        raise ValueError(str(error)) from None
    log("LLM", {**arguments, **kwargs})
    self.settings, self.skip_tokenizer = settings, arguments["skip_tokenizer_init"]
    self.model = _Model(Path(model), settings.max_batch_size or 1, settings.max_seq_len or 128, None)


class RequestOutput:
    def __init__(self, ids):
        from tensorrt_llm._api import CompletionOutput

        self.outputs, self._ids = [CompletionOutput(index=0, token_ids=list(ids), finish_reason="length")], ids

    def __iter__(self):
        """A streaming request: cumulative."""
        return (RequestOutput(self._ids[: count + 1]) for count in range(len(self._ids)))

    def result(self):
        return self


def BaseLLM_generate(self, inputs, sampling_params, **arguments):
    log("LLM.generate", {"inputs": inputs, "sampling_params": sampling_params, **arguments})
    if sampling_params.end_id is None and self.skip_tokenizer:
        raise ValueError("end_id is None and there is no tokenizer to ask")
    prompts = [one["prompt_token_ids"] for one in inputs]
    if self.settings.kv_cache_config.enable_block_reuse and str(prompts) in self.model.seen:
        log("prefill skipped", {})
    self.model.seen.add(str(prompts))
    end = -1 if sampling_params.ignore_eos else sampling_params.end_id
    parameters = (sampling_params.max_tokens, sampling_params.temperature, sampling_params.top_k, sampling_params.seed, end)
    return [RequestOutput(ids) for ids in self.model.new_ids(prompts, *parameters)]


def BaseLLM_generate_async(self, inputs, sampling_params, streaming, **arguments):
    assert streaming
    return BaseLLM_generate(self, [inputs] * (self.settings.max_batch_size or 1), sampling_params)[0]


def BaseLLM_shutdown(self):
    log("shutdown", {})
