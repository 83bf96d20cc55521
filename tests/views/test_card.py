"""The card: what will run, and the limit that follows from the memory."""

from __future__ import annotations

import dataclasses

from make_runs import make_row, make_run

from llmbench.protocol import Bandwidth, Plan, Sampling
from llmbench.views.card import card

# 134,515,008 parameters (tied) and 105 positions of 2 x 30 x 3 x 64 elements, 4 bytes each: 542,898,432 bytes or 517.7 MiB a token.
LIMIT = 30e9 / 542_898_432


def entry(text: str, name: str) -> str:
    """An entry's text, its lines joined."""
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(name))
    end = next((place for place in range(start + 1, len(lines)) if lines[place][:1] != " "), len(lines))
    return " ".join(line[11:] for line in lines[start:end])


def test_the_whole_card() -> None:
    text = card(make_run(), bandwidth=Bandwidth(30.0), left_out={"openvino": "not installed"}, estimate_s=200.0)
    assert entry(text, "model").startswith("smollm2-135m (hub HuggingFaceTB/SmolLM2-135M-Instruct@12fd25f) LlamaForCausalLM, 134.5 million")
    assert entry(text, "dtype") == "float32 (the checkpoint's is bfloat16)"
    assert entry(text, "device") == "cpu, AMD EPYC 7B13, 2 threads"
    assert entry(text, "prompt") == '"Hello, my name is", 5 ids'
    assert entry(text, "generate") == "200 new tokens, batch 1, greedy"
    assert entry(text, "limit") == f"{LIMIT:.1f} tokens/s: a token reads 518 MiB, memory gives 30.0 GB/s"
    assert entry(text, "runs").startswith("eager (baseline), torch-compile 3 rounds x (2 warm-ups + 3 samples)")
    assert entry(text, "left out") == "openvino: not installed"
    assert entry(text, "time") == "about 3 min 20 s"


def test_why_there_is_no_limit() -> None:
    assert "probed beside each row" in entry(card(make_run()), "limit")
    assert entry(card(make_run(), bandwidth=Bandwidth(None, "no probe here")), "limit") == "unknown: no probe here"
    assert "last-level cache" in entry(card(make_run(), bandwidth=Bandwidth(30.0, None, 2**28)), "limit")
    assert "bytes per token are not known" in entry(card(make_run(config=None), bandwidth=Bandwidth(30.0)), "limit")


def test_a_batch_has_one_limit_for_all_sequences() -> None:
    text = entry(card(make_run(batch_size=4), bandwidth=Bandwidth(30.0)), "limit")
    assert text.startswith("215 tokens/s for all sequences together: a step of 4 tokens reads 532 MiB")


def test_sampling_budget_synthetic_prompt_and_warnings() -> None:
    run = make_run([make_row("eager")])
    run.request = dataclasses.replace(run.request, sampling=Sampling(temperature=0.8, top_k=200))
    run.plan = Plan(time_budget_s=240.0)
    run.prompt = None
    run.model.warnings.append("tokenizer is another model's")
    text = card(run)
    assert "temperature 0.8, top-k 200" in entry(text, "generate")
    assert entry(text, "prompt") == "synthetic, 5 ids"
    assert entry(text, "time") == "no estimate yet, budget 4 min"
    assert entry(text, "warning") == "tokenizer is another model's"


def test_it_fits_and_obeys_nothing() -> None:
    run = make_run(name="m" * 20 + "\x1b[31m")
    run.prompt = "once upon a time\n" * 40
    text = card(run, width=60, left_out={"openvino": "long reason " * 20})
    assert max(map(len, text.splitlines())) <= 60
    assert "\x1b" not in text
    assert "\x1b[2m" in card(run, color=True)


def test_what_a_verdict_will_rest_on() -> None:
    run = make_run()
    assert entry(card(run), "decides") == "a 95 % interval; differences under 2 % don't count"
    run.noise_floor, run.noise_floor_source = 0.031, "eager, m, 5 rounds, id"
    assert entry(card(run), "decides").endswith("noise floor 3.1 % (eager, m, 5 rounds, id)")
    run.plan = Plan(rounds=1, quick=True)
    assert entry(card(run), "decides") == "nothing: one round gives no interval and no verdict"
    assert "decides" not in card(make_run(baseline=None))
    assert "side by side" in card(dataclasses.replace(run, plan=Plan(interleave=True)))
