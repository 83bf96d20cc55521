"""Generation with a Transformer: `prefill` and `decode_one_token` are plain functions, run as they are or compiled, and `generate` is the
loop around them.

Nothing here waits for the device between tokens: sampling is part of the graph, the next step takes the last one's ids where they lie, and
the host gets all ids in one transfer at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from llmbench.torchfast.model import Transformer

Prefill = Callable[[Transformer, Tensor, float, "int | None"], Tensor]
DecodeOneToken = Callable[[Transformer, Tensor, Tensor, float, "int | None"], "tuple[Tensor, Tensor]"]


def sample(logits: Tensor, temperature: float, top_k: int | None) -> Tensor:
    """Ids [B, 1] drawn from logits [B, vocab]: the greatest at temperature 0, else from softmax(logits / temperature) over the top_k greatest.

    Drawn as argmax(p / e), e exponentially distributed: an exponential race, which id i wins with probability p_i. torch.multinomial draws from
    the same distribution but makes the host wait for the device.
    """
    if temperature == 0.0:
        return logits.argmax(dim=-1, keepdim=True)
    logits = logits.float() / temperature
    indices = None
    if top_k is not None and top_k < logits.shape[-1]:
        logits, indices = torch.topk(logits, top_k, dim=-1)
    probabilities = torch.softmax(logits, dim=-1)
    winner = (probabilities / torch.empty_like(probabilities).exponential_(1.0)).argmax(dim=-1, keepdim=True)
    return winner if indices is None else indices.gather(-1, winner)


def prefill(model: Transformer, ids: Tensor, temperature: float, top_k: int | None) -> Tensor:
    """The first new ids [B, 1] after the prompt ids [B, T]; fills the caches from position 0."""
    return sample(model.prefill(ids)[:, -1], temperature, top_k)


def decode_one_token(model: Transformer, ids: Tensor, input_pos: Tensor, temperature: float, top_k: int | None) -> tuple[Tensor, Tensor]:
    """The next ids [B, 1] and the logits [B, vocab] they were drawn from, after ids [B, 1] at position input_pos [1].

    The logits cost nothing to hand out, as sampling reads them from memory anyway; with them, accuracy is checked on the timed graph itself.
    """
    logits = model.step(ids, input_pos)[:, -1]
    return sample(logits, temperature, top_k), logits


def generate(
    model: Transformer,
    prompt: Tensor,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    on_token: Callable[[int], None] | None = None,
    prefill: Prefill = prefill,
    decode_one_token: DecodeOneToken = decode_one_token,
) -> list[list[int]]:
    """Exactly max_new_tokens (>= 1) ids for each row of prompt [B, T], no stop at EOS.

    on_token gets the number of tokens so far once each step's ids are on the host, which makes every step wait for the device.
    """
    batch, length = prompt.shape
    on_cuda = prompt.is_cuda
    ids = torch.empty((batch, max_new_tokens), dtype=torch.int64, device=prompt.device)
    # Buffers of fixed address: a CUDA graph's outputs are only good until its next replay, so they are copied out of it.
    token = torch.empty((batch, 1), dtype=torch.int64, device=prompt.device)
    input_pos = torch.full((1,), length, dtype=torch.int64, device=prompt.device)
    for index in range(max_new_tokens):
        if on_cuda:
            torch.compiler.cudagraph_mark_step_begin()
        if index == 0:
            token.copy_(prefill(model, prompt, temperature, top_k))
        else:
            token.copy_(decode_one_token(model, token, input_pos, temperature, top_k)[0])
            input_pos.add_(1)
        ids[:, index : index + 1] = token
        if on_token is not None:
            token.cpu()
            on_token(index + 1)
    return ids.tolist()  # type: ignore[no-any-return]


def teacher_forced_logits(
    model: Transformer,
    ids: Tensor,
    temperature: float = 0.0,
    top_k: int | None = None,
    decode_one_token: DecodeOneToken = decode_one_token,
    prefill: Prefill | None = None,
    prompt_length: int | None = None,
) -> Tensor:
    """Logits, float32 on the host [T, vocab], of the first sequence of ids [B, T]: the first half prefilled, the others one at a time.

    prefill, prompt_length: an engine's own prefill, which gives no logits but those of the last position, and the length it is compiled for. Where
    ids are longer, the caches that the steps go on from are that prefill's work, so a fault in it shows in every later row.
    """
    batch, length = ids.shape
    half = max(1, length // 2)
    own = prefill is not None and prompt_length is not None and prompt_length < length
    if own:
        half = prompt_length
    rows = torch.empty((length, model.vocab), dtype=torch.float32)
    rows[:half] = model.prefill(ids[:, :half], last_only=False)[0]
    if own:
        # Other contents in the caches first: an engine's prefill that writes nothing would pass otherwise.
        model.prefill((ids[:, :half] + 1) % model.vocab)
        if ids.is_cuda:
            torch.compiler.cudagraph_mark_step_begin()
        # Strides as a prompt's own: compiled functions are guarded by them, even along an axis of one element.
        prefill(model, ids[:, :half].flatten().view(batch, half), temperature, top_k)  # type: ignore[misc]
    token = torch.empty((batch, 1), dtype=torch.int64, device=ids.device)
    input_pos = torch.full((1,), half, dtype=torch.int64, device=ids.device)
    for index in range(half, length):
        if ids.is_cuda:
            torch.compiler.cudagraph_mark_step_begin()
        token.copy_(ids[:, index : index + 1])
        rows[index] = decode_one_token(model, token, input_pos, temperature, top_k)[1][0]
        input_pos.add_(1)
    return rows
