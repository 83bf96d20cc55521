"""prefill and the decode step as modules with nothing but tensors for inputs, the sampling fixed: the form that torch.export takes."""

from __future__ import annotations

from torch import Tensor, nn

from llmbench.protocol import Sampling
from llmbench.torchfast import generate as functions
from llmbench.torchfast.model import Transformer


class PrefillProgram(nn.Module):
    """ids [B, T] -> the first new ids [B, 1] and the logits [B, vocab] they were drawn from; fills the caches from position 0."""

    def __init__(self, model: Transformer, sampling: Sampling) -> None:
        super().__init__()
        self.model, self.sampling = model, sampling

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model.prefill(ids)[:, -1]
        return functions.sample(logits, self.sampling.temperature, self.sampling.top_k), logits


class StepProgram(nn.Module):
    """ids [B, 1] at position input_pos [1] -> the next ids [B, 1] and the logits [B, vocab] they were drawn from."""

    def __init__(self, model: Transformer, sampling: Sampling) -> None:
        super().__init__()
        self.model, self.sampling = model, sampling

    def forward(self, ids: Tensor, input_pos: Tensor) -> tuple[Tensor, Tensor]:
        return functions.decode_one_token(self.model, ids, input_pos, self.sampling.temperature, self.sampling.top_k)
