"""The one exception by which this package refuses a checkpoint: a single line for the user.

Names and values in the reason may come from an untrusted file, so control characters are taken out here, once for all callers.
"""

from __future__ import annotations

MAX_REASON = 2000


def one_line(text: object, limit: int = MAX_REASON) -> str:
    """`text` with every control character and line break replaced by a space, cut to `limit` characters."""
    cleaned = "".join(character if character.isprintable() else " " for character in str(text)[: 4 * limit])
    cleaned = " ".join(cleaned.split())
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 3] + "..."


def shown(value: object) -> str:
    """A value from an untrusted file as a short Python literal, fit to stand in a reason."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"  # Python refuses to print past 4,300 digits
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)} entries"
    return one_line(ascii(value[:200] if isinstance(value, str) else value), 120)


class CheckpointError(Exception):
    """Why a checkpoint can't be used: one line naming the tensor or key, the file and the value, and what to do."""

    def __init__(self, reason: str) -> None:
        self.reason = one_line(reason)
        super().__init__(self.reason)
