"""A look at the weights' values before anything runs: NaN and infinity are worth a warning, never a refusal.

Small checkpoints and small tensors are read whole, of large tensors only some pieces: a damaged download shows in most of them, and 14 GB
are not read twice for it. Needs numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmbench.checkpoints.errors import CheckpointError
from llmbench.checkpoints.tensor_files import TensorEntry

PIECE_BYTES = 2**16
PIECES = 3


def warn_of_values(entries: dict[str, TensorEntry]) -> list[str]:
    """One line for all tensors with a NaN or an infinity among the values looked at; none where all are finite."""
    bad: list[tuple[str, str]] = []
    for entry in entries.values():
        try:
            with entry.file.open("rb") as stream:
                for start, length in _pieces(entry.nbytes):
                    stream.seek(entry.offset + start)
                    kind = _not_finite(stream.read(length), entry.dtype)
                    if kind:
                        bad.append((entry.name, kind))
                        break
        except OSError as error:
            raise CheckpointError(f"{entry.file} can't be read: {error}") from None
    if not bad:
        return []
    more = f" and {len(bad) - 1} more tensors" if len(bad) > 1 else ""
    return [f"the weights hold {bad[0][1]}: tensor {bad[0][0]}{more}; speeds are real, the text is not"]


def _pieces(nbytes: int) -> list[tuple[int, int]]:
    """Begin and length of what to read, on multiples of 8 bytes: the start, the middle and the end, or all of it."""
    if nbytes <= PIECES * PIECE_BYTES:
        return [(0, nbytes)]
    last = nbytes - PIECE_BYTES
    return [(last * number // (PIECES - 1) // 8 * 8, PIECE_BYTES) for number in range(PIECES)]


def _not_finite(data: bytes, dtype: str) -> str | None:
    """ "NaN" or "infinity" if one is among the values; by the bits, since numpy has no bfloat16."""
    integer, exponent = {"float32": ("<u4", 0x7F800000), "float16": ("<u2", 0x7C00), "bfloat16": ("<u2", 0x7F80)}[dtype]
    size = int(integer[2])
    bits: np.ndarray[Any, Any] = np.frombuffer(data[: len(data) // size * size], dtype=integer)
    special = (bits & exponent) == exponent
    if not special.any():
        return None
    mantissa = exponent ^ (0x7FFFFFFF if size == 4 else 0x7FFF)
    return "NaN" if bool(((bits & mantissa) != 0)[special].any()) else "infinity"
