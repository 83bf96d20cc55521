"""Llama-3's tokenizer.model: byte-pair ranks, one "base64-bytes rank" per line, in the format of OpenAI's tiktoken.

The file holds ranks only; the splitting pattern and the special tokens are the published model's. The package tokenizers does the splitting
(Python's re has no \\p classes), the merging is done here, so tiktoken isn't needed.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import re
from typing import Any

from llmbench.checkpoints.errors import CheckpointError, shown

#: Llama-3's split into words, as its tokenizer publishes it.
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
#: Follow the ranks, in this order; 246 more reserved ones come after them.
SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|reserved_special_token_2|>",
    "<|reserved_special_token_3|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|reserved_special_token_4|>",
    "<|eot_id|>",
)
SPECIAL_COUNT = 256
_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]{1,9}")


def is_tiktoken(data: bytes) -> bool:
    """Whether a tokenizer.model holds ranks in lines, rather than a sentencepiece model."""
    return _LINE.fullmatch(data[:4096].split(b"\n", 1)[0].rstrip()) is not None


class TiktokenFile:
    """Byte-pair encoding by ranks. Special tokens in a text are recognised, as the Hugging Face tokenizer does."""

    file = "tokenizer.model"

    def __init__(self, data: bytes, where: str) -> None:
        """Raises CheckpointError, naming `where` and the line, unless every line is bytes in base64 and a rank of its own, counted from 0."""
        self._ranks: dict[bytes, int] = {}
        for number, line in enumerate(data.splitlines(), 1):
            if not line.strip():
                continue
            if _LINE.fullmatch(line.rstrip()) is None:
                raise CheckpointError(f"{where}: line {number} is not base64 and a rank: {shown(line[:60].decode('latin-1'))}")
            encoded, rank = line.split()
            try:
                token = base64.b64decode(encoded, validate=True)
            except binascii.Error:
                raise CheckpointError(f"{where}: line {number} is not base64: {shown(encoded[:60].decode('latin-1'))}") from None
            if token in self._ranks or int(rank) != len(self._ranks):
                raise CheckpointError(f"{where}: line {number} repeats a token or is out of order: rank {int(rank)}")
            self._ranks[token] = int(rank)
        missing = [byte for byte in range(256) if bytes([byte]) not in self._ranks]
        if missing:
            raise CheckpointError(f"{where}: {len(missing)} single bytes have no rank, so not every text can be encoded")
        self._tokens = list(self._ranks)
        self._special = {token: len(self._ranks) + number for number, token in enumerate(SPECIAL)}
        self.size = len(self._ranks) + SPECIAL_COUNT
        self._split: Any = None

    def encode(self, text: str, special: bool) -> list[int]:
        from tokenizers import Regex, pre_tokenizers

        if self._split is None:
            self._split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
        ids: list[int] = [self._special[SPECIAL[0]]] if special else []
        for part in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text):
            if part in self._special:
                ids.append(self._special[part])
            elif part:
                for word, _ in self._split.pre_tokenize_str(part):
                    ids.extend(self._merge(word.encode()))
        return ids

    def decode(self, ids: list[int]) -> str:
        return b"".join(self._tokens[number] for number in ids if 0 <= number < len(self._tokens)).decode("utf-8", "replace")

    def id_of(self, token: str) -> int | None:
        return self._special.get(token, self._ranks.get(token.encode()))

    def _merge(self, word: bytes) -> list[int]:
        """Joins the neighbours of lowest rank, leftmost first, until none can be joined. A heap keeps it at n log n for long words."""
        if word in self._ranks:
            return [self._ranks[word]]
        count = len(word)
        end = list(range(1, count + 1))  # of the part that begins here
        before = list(range(-1, count - 1))  # where the part to the left begins
        alive = [True] * count
        heap: list[tuple[int, int, int]] = []  # rank of the joined part, its begin, its end

        def offer(begin: int) -> None:
            middle = end[begin]
            if middle < count:
                rank = self._ranks.get(word[begin : end[middle]])
                if rank is not None:
                    heapq.heappush(heap, (rank, begin, end[middle]))

        for begin in range(count):
            offer(begin)
        while heap:
            _, begin, stop = heapq.heappop(heap)
            if not alive[begin] or end[begin] >= count or end[end[begin]] != stop:
                continue  # one of the two has been joined with something else since
            alive[end[begin]] = False
            end[begin] = stop
            if stop < count:
                before[stop] = begin
            offer(begin)
            if before[begin] >= 0:
                offer(before[begin])
        return [self._ranks[word[begin : end[begin]]] for begin in range(count) if alive[begin]]
