"""Counts, sampling and seeds of the generation loop."""

import pytest
import torch

from llmbench.torchfast.generate import decode_one_token, generate, prefill, sample

pytestmark = pytest.mark.xdist_group("torch")


def test_greedy_takes_the_greatest_and_ignores_top_k():
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
    assert sample(logits, 0.0, None).tolist() == [[1], [0]]
    assert sample(logits, 0.0, 2).tolist() == [[1], [0]]


def test_samples_stay_within_top_k_and_follow_softmax():
    torch.manual_seed(0)
    logits = torch.tensor([2.0, -1.0, 1.0, 0.0, 1.5, -9.0])
    drawn = sample(logits.repeat(40000, 1), 0.7, 3).flatten()
    assert set(drawn.tolist()) == {0, 2, 4}
    expected = torch.softmax(logits[[0, 2, 4]] / 0.7, dim=0)
    seen = torch.stack([(drawn == token).float().mean() for token in (0, 2, 4)])
    assert (seen - expected).abs().max() < 0.015  # six standard deviations of 40,000 draws


def test_top_k_beyond_the_vocabulary_is_all_of_it():
    torch.manual_seed(0)
    drawn = sample(torch.zeros(4000, 5), 1.0, 50).flatten()
    assert set(drawn.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(("batch", "count"), [(1, 1), (1, 7), (3, 1), (3, 5)])
@torch.no_grad()
def test_exactly_as_many_ids_as_asked(batch, count, checkpoint, load_model):
    model = load_model(checkpoint("llama")[0], batch=3)
    seen = []
    ids = generate(model, torch.ones((batch, 4), dtype=torch.int64), count, on_token=seen.append)
    assert [len(sequence) for sequence in ids] == [count] * batch
    assert seen == list(range(1, count + 1))


@torch.no_grad()
def test_one_id_prompt_and_a_full_cache(checkpoint, load_model):
    model = load_model(checkpoint("llama")[0], length=16)
    assert len(generate(model, torch.tensor([[5]]), 15)[0]) == 15


@torch.no_grad()
def test_a_shorter_generation_is_the_longer_ones_beginning(checkpoint, load_model):
    model = load_model(checkpoint("mistral-window")[0])
    prompt = torch.arange(10)[None]
    assert generate(model, prompt, 1)[0] == generate(model, prompt, 20)[0][:1]


@torch.no_grad()
def test_the_seed_decides_and_stale_cache_does_not(checkpoint, load_model):
    model = load_model(checkpoint("llama")[0], batch=2)
    prompt = torch.arange(12)[None].repeat(2, 1)

    def run(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        return generate(model, prompt, 12, temperature=0.9, top_k=20)

    first = run(1)
    assert first[0] != first[1]  # sequences of a batch draw apart
    assert run(2) != first
    assert run(1) == first


@torch.no_grad()
def test_decode_hands_out_the_logits_it_drew_from(checkpoint, load_model):
    model = load_model(checkpoint("llama")[0])
    prefill(model, torch.arange(4)[None], 0.0, None)
    token, logits = decode_one_token(model, torch.tensor([[9]]), torch.tensor([4]), 0.0, None)
    assert logits.shape == (1, 199)
    assert token.item() == logits.argmax().item()
