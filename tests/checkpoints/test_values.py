"""NaN and infinity in the weights are a warning that names the tensor."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_checkpoints import write_small

from llmbench.checkpoints.config import read_config
from llmbench.checkpoints.tensor_files import SINGLE, read_entries
from llmbench.checkpoints.values import _pieces, warn_of_values


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("-inf"), "infinity")])
def test_names_the_tensor(tmp_path, dtype, value, word):
    folder = write_small(tmp_path, dtype)
    config = read_config(folder)
    assert warn_of_values(read_entries(folder, config)) == []
    tensors = load_file(folder / SINGLE)
    tensors["model.norm.weight"][3] = value
    save_file(tensors, folder / SINGLE)
    assert tensors["model.norm.weight"].dtype == getattr(torch, dtype)
    (warning,) = warn_of_values(read_entries(folder, config))
    assert word in warning
    assert "model.norm.weight" in warning


def test_pieces_lie_within_and_reach_both_ends():
    for nbytes in (0, 2, 1000, 196_608, 196_610, 10**9 + 6):
        pieces = _pieces(nbytes)
        assert pieces[0][0] == 0
        assert all(start % 8 == 0 and start + length <= nbytes for start, length in pieces)
        assert np.sum([length for _, length in pieces]) <= 3 * 2**16
        assert nbytes - sum(pieces[-1]) < 8
