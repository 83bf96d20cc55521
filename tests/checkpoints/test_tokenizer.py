"""Tokenizers of all three file kinds, and whether BOS comes first."""

import base64
import io
import json
from importlib import util
from pathlib import Path

import pytest
import sentencepiece
from small_checkpoints import write_config
from tokenizers import Regex, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Fast

from llmbench.checkpoints.config import read_config
from llmbench.checkpoints.errors import CheckpointError
from llmbench.checkpoints.tiktoken_file import PATTERN, SPECIAL_COUNT
from llmbench.checkpoints.tokenizer import Tokenizer, synthetic_ids

TEXT = "the quick brown fox jumps over the lazy dog 0123456789 and the hen said hello, my name is Ada"


@pytest.fixture(scope="module")
def pieces():
    """A sentencepiece model like Llama-2's: BPE, byte fallback, a space before the first word."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 20),
        model_writer=model,
        model_type="bpe",
        vocab_size=340,
        byte_fallback=True,
        normalization_rule_name="identity",
        bos_id=1,
        eos_id=2,
        unk_id=0,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture
def folder(tmp_path):
    return write_config(tmp_path, vocab_size=600)


def opened(folder, **settings):
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.open(folder, read_config(folder))
    assert tokenizer is not None
    return tokenizer


def write_fast(folder, bos=False):
    vocabulary = {"<s>": 1, "<unk>": 0, "hello": 2, "world": 3}
    fast = Fast(models.WordLevel(vocabulary, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.add_special_tokens(["<s>"])
    if bos:
        fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast.enable_truncation(2)
    fast.enable_padding(length=12)
    fast.save(str(folder / "tokenizer.json"))
    return folder


def test_smollm2_splits_digits_and_takes_no_bos(smollm2):
    folder = Path(smollm2.ref.path)
    tokenizer = Tokenizer.open(folder, smollm2.config)
    assert tokenizer is not None
    assert tokenizer.encode("Gravity is") == [22007, 6463, 314]
    assert [tokenizer.decode([number]) for number in tokenizer.encode("1234")] == ["1", "2", "3", "4"]
    import transformers

    reference = transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("Gravity is", "Hello, my name is", "4 ½", " a  b\n\tc", "É 日本語 🙂", "<|im_start|>user\nhi<|im_end|>", "it's 3.14"):
        ids = tokenizer.encode(text)
        assert ids == reference(text).input_ids
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_nothing_there(folder):
    assert Tokenizer.open(folder, read_config(folder)) is None


@pytest.mark.parametrize(
    ("in_file", "settings", "expected"),
    [
        (True, {}, [1, 2, 3, 2]),
        (False, {}, [2, 3, 2]),
        (False, {"add_bos_token": True, "bos_token": "<s>"}, [1, 2, 3, 2]),
        (True, {"add_bos_token": True, "bos_token": {"content": "<s>"}}, [1, 2, 3, 2]),
        (True, {"add_bos_token": False}, [2, 3, 2]),
        (False, {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>"}, [1, 2, 3, 2]),
        (False, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}, [2, 3, 2]),
        (True, {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": None}, [1, 2, 3, 2]),
    ],
)
def test_bos_as_the_checkpoint_says(folder, in_file, settings, expected):
    tokenizer = opened(write_fast(folder, in_file), **settings)
    assert tokenizer.encode("hello world hello") == expected
    assert tokenizer.decode(expected) == "hello world hello"


def test_sentencepiece(folder, pieces):
    (folder / "tokenizer.model").write_bytes(pieces)
    reference = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    for text in ("hello, my name is", "the 4 ½ foxes", "日"):
        assert opened(folder).encode(text) == [1, *reference.encode(text)]
        assert opened(folder).decode([1, *reference.encode(text), 2, 599]) == text
    assert opened(folder, add_bos_token=False).encode("fox") == reference.encode("fox")


def ranks(*merged):
    """A tiktoken file: 256 single bytes in an order of their own, then `merged`."""
    tokens = [bytes([byte]) for byte in reversed(range(256))] + [text.encode() for text in merged]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)), tokens


def test_tiktoken_ranks(folder):
    data, tokens = ranks("he", "ll", " w", "hell", "or", " wor", "lo", "hello")
    (folder / "tokenizer.model").write_bytes(data)
    tokenizer = opened(folder)
    bos = len(tokens)

    def texts(text):
        ids = tokenizer.encode(text)
        assert ids[0] == bos
        return [tokens[number].decode("latin-1") for number in ids[1:]]

    assert texts("hello world") == ["hello", " wor", "l", "d"]
    assert texts("hellll") == ["hell", "ll"]
    assert texts("hhe1234") == ["h", "he", "1", "2", "3", "4"]
    assert tokenizer.encode("<|eot_id|>") == [bos, bos + 9]
    assert tokenizer.decode(tokenizer.encode("hello wörld 🙂<|end_of_text|>")) == "hello wörld 🙂"
    assert len(tokenizer.encode("lo" * 20_000)) == 20_001


def test_tiktoken_merging_equals_byte_pair_encoding(folder):
    merged = ["th", "the", "in", "ing", " t", " th", " the", "er", "on", " a", "an", "and", " and", "re", "he", "hen"]
    data, tokens = ranks(*merged)
    (folder / "tokenizer.model").write_bytes(data)
    tokenizer = opened(folder)
    order = {token: rank for rank, token in enumerate(tokens)}

    def slowly(word):
        parts = [word] if word in order else [bytes([byte]) for byte in word]  # tiktoken's rule: a whole word in the table is taken
        while len(parts) > 1:
            rank, place = min((order.get(parts[at] + parts[at + 1], 10**9), at) for at in range(len(parts) - 1))
            if rank == 10**9:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return [order[part] for part in parts]

    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    for text in (TEXT, "thethethe hehenning", "in the on the and then there"):
        expected = [number for word, _ in split.pre_tokenize_str(text) for number in slowly(word.encode())]
        assert tokenizer.encode(text)[1:] == expected


def refusal(folder):
    with pytest.raises(CheckpointError) as caught:
        opened(folder)
    assert caught.value.reason.isprintable()
    return caught.value.reason


def test_a_vocabulary_that_does_not_fit(folder, pieces):
    write_config(folder, vocab_size=100)
    (folder / "tokenizer.model").write_bytes(pieces)
    assert "a tokenizer whose vocabulary doesn't fit: 340 ids, config.json's vocab_size is 100" in refusal(folder)
    (folder / "tokenizer.model").write_bytes(ranks()[0])
    assert f"{256 + SPECIAL_COUNT} ids" in refusal(folder)
    write_config(folder, vocab_size=3)
    write_fast(folder)
    assert "4 ids" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": [["x", "y"]]}}'),
        ("tokenizer.json", b"[" * 100_000),
        ("tokenizer.json", b"\x00\xff"),
        ("tokenizer.model", b""),
        ("tokenizer.model", b"\x0a\xff\xff\xff"),
        ("tokenizer.model", b"IQ== 0\nIg== 0\n"),
        ("tokenizer.model", b"IQ== 0\nIg== 7\n"),
        ("tokenizer.model", b"IQ== 0\n*** 1\n"),
        ("tokenizer.model", b"IQ== 0\n"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b'{"add_bos_token": "yes"}'),
    ],
)
def test_broken_files_are_refused_in_one_line(folder, name, content):
    write_fast(folder) if name == "tokenizer_config.json" else None
    (folder / name).write_bytes(content)
    assert name in refusal(folder)


def test_prompts_that_are_no_text_or_too_high(folder):
    tokenizer = opened(write_fast(folder))
    with pytest.raises(CheckpointError, match="not valid UTF-8 text at character 5"):
        tokenizer.encode("hello\udcff")
    fast = Fast.from_file(str(folder / "tokenizer.json"))
    fast.add_tokens(["high"])
    fast.save(str(folder / "tokenizer.json"))
    write_config(folder, vocab_size=4)
    assert opened(folder).encode("hello") == [2]
    with pytest.raises(CheckpointError, match=r"gives the id 4, but config\.json's vocab_size is 4"):
        opened(folder).encode("high")


def test_synthetic_ids_are_seeded_and_in_range():
    ids = synthetic_ids(50, 1000, seed=3)
    assert ids == synthetic_ids(50, 1000, seed=3) != synthetic_ids(50, 1000, seed=4)
    assert set(ids) == set(range(50))
    assert synthetic_ids(51200, 4, 0) == (25247, 49673, 27562, 2653)


def test_mistral_v1_where_its_package_is_installed():
    """ "Hello, my name is" is 6 ids, BOS included, as with Llama-2."""
    spec = util.find_spec("mistral_common")
    if spec is None or spec.origin is None:
        pytest.skip("mistral-common is not installed")
    data = (Path(spec.origin).parent / "data" / "tokenizer.model.v1").read_bytes()
    assert sentencepiece.SentencePieceProcessor(model_proto=data).encode("Hello, my name is") == [22557, 28725, 586, 1141, 349]
