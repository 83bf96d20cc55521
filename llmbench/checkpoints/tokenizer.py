"""A checkpoint's own tokenizer, in the parent, never inside the timed region: text to prompt ids, and new ids back to text.

Three kinds of file, in this order: tokenizer.json (package tokenizers), a sentencepiece tokenizer.model, Llama-3's tiktoken tokenizer.model.
All are data, read with a size limit; no code of a checkpoint is run. Whether a prompt begins with BOS is the checkpoint's word:
tokenizer_config.json's add_bos_token first, then what the tokenizer itself does.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Protocol

from llmbench.checkpoints.config import ModelConfig, Outline
from llmbench.checkpoints.errors import CheckpointError, one_line, shown
from llmbench.checkpoints.files import read_bytes, read_json
from llmbench.checkpoints.tiktoken_file import TiktokenFile, is_tiktoken

MAX_BYTES = 128 * 2**20

#: Classes whose tokenizers put BOS first unless tokenizer_config.json says otherwise.
BOS_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast")


class _Backend(Protocol):
    file: str
    size: int  # ids of its own vocabulary are below this; added tokens may lie above

    def encode(self, text: str, special: bool) -> list[int]:
        """special: with the tokens that the file's own rules put around a text."""
        ...

    def decode(self, ids: list[int]) -> str: ...

    def id_of(self, token: str) -> int | None: ...


class Tokenizer:
    """Text <-> ids of one checkpoint. Made by `open`."""

    def __init__(self, backend: _Backend, path: Path, config: ModelConfig | Outline, bos_id: int | None, add_bos: bool | None) -> None:
        self._backend = backend
        self.path = path
        self.vocab = config.vocab
        self.bos_id = bos_id
        self.add_bos = add_bos  # null: whatever the tokenizer file does

    @classmethod
    def open(cls, path: Path, config: ModelConfig | Outline) -> Tokenizer | None:
        """The tokenizer in the folder `path`; null where it has none (take `synthetic_ids`).

        Raises CheckpointError where its file can't be read, or its vocabulary is larger than config's.
        """
        path = Path(path)
        settings = read_json(path, "tokenizer_config.json") if (path / "tokenizer_config.json").exists() else {}
        backend = _backend(path)
        if backend is None:
            return None
        if backend.size > config.vocab:
            raise CheckpointError(
                f"{path / backend.file}: a tokenizer whose vocabulary doesn't fit: {backend.size} ids, config.json's vocab_size is {config.vocab}"
            )
        bos = settings.get("bos_token")
        if isinstance(bos, dict):
            bos = bos.get("content")
        bos_id = backend.id_of(bos) if isinstance(bos, str) else None
        if bos_id is None:
            bos_id = config.bos_id
        add_bos = settings.get("add_bos_token")
        if add_bos is not None and not isinstance(add_bos, bool):
            raise CheckpointError(f"{path / 'tokenizer_config.json'}: add_bos_token is {shown(add_bos)}, not true or false")
        if add_bos is None and settings.get("tokenizer_class") in BOS_CLASSES:
            add_bos = True
        return cls(backend, path, config, bos_id, add_bos)

    def encode(self, text: str) -> list[int]:
        """The prompt's ids, BOS first where the checkpoint says so.

        Raises CheckpointError for text that is no Unicode and for ids past the vocabulary.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise CheckpointError(f"the prompt is not valid UTF-8 text at character {error.start}") from None
        if self.add_bos is None:
            ids = self._backend.encode(text, True)
        else:
            ids = self._backend.encode(text, False)
            if self.add_bos and self.bos_id is not None and self.bos_id >= 0:
                ids = [self.bos_id, *ids]
        if ids and max(ids) >= self.vocab:
            raise CheckpointError(
                f"{self.path / self._backend.file} gives the id {max(ids)}, but config.json's vocab_size is {self.vocab}: they don't fit"
            )
        return ids

    def decode(self, ids: list[int] | tuple[int, ...]) -> str:
        """The text of ids, special tokens left out. Ids that the tokenizer doesn't know (a padded vocabulary) give nothing."""
        return self._backend.decode([int(number) for number in ids])


def synthetic_ids(vocab: int, length: int, seed: int) -> tuple[int, ...]:
    """`length` ids drawn evenly from 0 to vocab - 1: the same for the same seed on every machine."""
    draw = random.Random(seed)
    return tuple(draw.randrange(vocab) for _ in range(length))


def _backend(path: Path) -> _Backend | None:
    if (path / "tokenizer.json").exists():
        return _Fast(path)
    if (path / "tokenizer.model").exists():
        data = read_bytes(path, "tokenizer.model", MAX_BYTES)
        if is_tiktoken(data):
            return TiktokenFile(data, str(path / "tokenizer.model"))
        return _SentencePiece(data, path)
    return None


class _Fast:
    """tokenizer.json, through the package tokenizers."""

    file = "tokenizer.json"

    def __init__(self, path: Path) -> None:
        import tokenizers

        data = read_bytes(path, self.file, MAX_BYTES)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(data)
            vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=False)
        except BaseException as error:
            raise _refusal(error, path / self.file) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size = max(vocabulary.values(), default=-1) + 1

    def encode(self, text: str, special: bool) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=special).ids)
        except BaseException as error:
            raise _refusal(error, Path(self.file)) from None

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def id_of(self, token: str) -> int | None:
        number: int | None = self._tokenizer.token_to_id(token)
        return number


def _refusal(error: BaseException, file: Path) -> BaseException:
    """A panic in the Rust library is no Exception, but it is an answer to a bad file; Ctrl-C passes through."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return CheckpointError(f"{file} is no tokenizer that can be used: {one_line(error, 200)}")
    return error


class _SentencePiece:
    """A sentencepiece model, as Llama-2 and Mistral bring."""

    file = "tokenizer.model"

    def __init__(self, data: bytes, path: Path) -> None:
        import sentencepiece

        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=data)
            self.size = int(self._processor.get_piece_size())
        except Exception as error:
            raise _refusal(error, path / self.file) from None
        if self.size == 0:
            raise CheckpointError(f"{path / self.file} is neither a sentencepiece model nor tiktoken ranks")

    def encode(self, text: str, special: bool) -> list[int]:
        return list(self._processor.encode(text, add_bos=special))

    def decode(self, ids: list[int]) -> str:
        known = [number for number in ids if number < self.size and not self._processor.is_control(number)]
        return str(self._processor.decode(known))

    def id_of(self, token: str) -> int | None:
        number = int(self._processor.piece_to_id(token))
        return None if number == self._processor.unk_id() else number
