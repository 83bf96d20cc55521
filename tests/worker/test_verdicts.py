"""The decisions on accuracy, and the reference's cache: no process, small arrays."""

import dataclasses
import json

import pytest
import torch

from llmbench.engines.base import EngineError
from llmbench.protocol import CheckpointRef, Job, Request, Variant
from llmbench.worker import references
from llmbench.worker.accuracy import GreedyIds, check, decide_error, decide_ids, read_logits, tolerance_of, write_logits
from llmbench.worker.references import References

pytestmark = pytest.mark.xdist_group("torch")


def test_the_tolerance_grows_with_eagers_error_up_to_a_ceiling():
    assert tolerance_of("float32", 1e-6) == pytest.approx(1e-4, rel=0.05)
    assert tolerance_of("bfloat16", 0.02) == pytest.approx(1.75 * 0.02 + 5e-4)
    assert tolerance_of("bfloat16", 5.0) == tolerance_of("bfloat16", 0.1)  # a dtype that carries nothing excuses nothing


def test_errors_are_told_in_words():
    assert decide_error(0.01, 0.01, 0.005, "bfloat16") is None
    why = decide_error(0.042, 0.03, 0.016, "bfloat16")
    assert why is not None
    assert "off by 4.2 % from float32 arithmetic on the same weights; up to 3 % would pass (eager PyTorch in bfloat16: 1.6 %)" in why
    assert decide_error(float("nan"), 0.03, 0.016, "bfloat16") == "its logits are not finite"
    assert decide_error(float("inf"), 0.03, 0.016, "bfloat16") == "its logits are not finite"


def greedy(given, best, margins) -> GreedyIds:
    return GreedyIds(given, best, margins, [2.0] * len(given))


def test_ids_may_differ_where_the_reference_hardly_cares():
    assert decide_ids(greedy([5, 6], [5, 6], [0.0, 0.0]), 0.01, ()) == (None, None, None)
    assert decide_ids(greedy([5, 7], [5, 6], [0.0, 0.05]), 0.01, ()) == (None, 1, 0.05)  # 4 x 0.01 x 2 = 0.08
    why, at, margin = decide_ids(greedy([5, 7, 9], [5, 6, 8], [0.0, 0.05, 0.5]), 0.01, ())
    assert (at, margin) == (2, 0.5)  # the first that is wrong, not the first that differs
    assert why == "its new id 3 of 3 is 9, where the reference prefers 8 by 0.5 logits; up to 0.08 would pass"
    why, at, _ = decide_ids(greedy([4, 6], [5, 6], [1.0, 0.0]), 0.01, ())
    assert at == 0
    assert why is not None
    assert why.startswith("its first new id is 4")
    assert decide_ids(greedy([5], [6], [float("nan")]), 0.01, ())[0] is not None


def test_padding_is_named():
    why, _, _ = decide_ids(greedy([5, 2, 0, 0], [5, 2, 7, 7], [0.0, 0.0, 3.0, 3.0]), 0.01, (2,))
    assert why is not None
    assert why.startswith("it counts padding: after its end of sequence, new id 2, it only repeats id 0;")
    why, _, _ = decide_ids(greedy([5, 2, 0, 1], [5, 2, 7, 7], [0.0, 0.0, 3.0, 3.0]), 0.01, (2,))
    assert why is not None
    assert "padding" not in why


def test_logits_travel_by_file(tmp_path):
    rows = torch.randn(5, 7)
    assert write_logits(rows.numpy(), 2, 5, tmp_path / "logits") == (3, 7)
    assert torch.equal(read_logits(tmp_path / "logits", 3, 7), rows[2:])
    assert write_logits(rows.T.contiguous().T.numpy(), 2, 5, tmp_path / "logits") == (3, 7)
    assert torch.equal(read_logits(tmp_path / "logits", 3, 7), rows[2:])
    with pytest.raises(EngineError, match="21 logits came back for 4 positions and a vocabulary of 7"):
        read_logits(tmp_path / "logits", 4, 7)
    with pytest.raises(EngineError, match=r"not float32 \[5, vocabulary\]"):
        write_logits(rows.double().numpy(), 0, 5, tmp_path / "logits")
    with pytest.raises(EngineError, match=r"not float32 \[4, vocabulary\]"):
        write_logits(rows.numpy(), 0, 4, tmp_path / "logits")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    from wrong_engines import write_random

    return CheckpointRef("small", str(write_random(tmp_path_factory.mktemp("small"), num_hidden_layers=1)))


def test_references_are_read_again_and_a_damaged_one_is_computed_anew(checkpoint, tmp_path, monkeypatch):
    sweeps = []
    real = references.run
    monkeypatch.setattr(references, "run", lambda *arguments: sweeps.append(1) or real(*arguments))
    ids, span = [[1, 2, 3, 4, 5]], [(1, 5)]
    kept = References(checkpoint, "cpu", tmp_path)
    first, error = kept.get(ids, span, None, "bfloat16")
    assert error is not None
    assert 0 < error < 0.1
    again, same = References(checkpoint, "cpu", tmp_path).get(ids, span, None, "bfloat16")
    assert len(sweeps) == 1
    assert same == error
    assert all(torch.equal(getattr(first[0], field.name), getattr(again[0], field.name)) for field in dataclasses.fields(first[0]))
    (file,) = tmp_path.glob("*.npz")
    for damage in (file.read_bytes()[:-200], b"", b"PK\x03\x04 nonsense", file.read_bytes()[:2000] + bytes(50) + file.read_bytes()[2050:]):
        count = len(sweeps)
        file.write_bytes(damage)
        mended, _ = kept.get(ids, span, None, "bfloat16")
        assert torch.equal(mended[0].kept, first[0].kept)
        assert len(sweeps) == count + 1
    (note,) = tmp_path.glob("*.json")
    note.write_text('"NaN"')
    assert kept.get(ids, span, None, "bfloat16")[1] == pytest.approx(error)
    for other in (("int8", ids, span), (None, [[1, 2, 3, 4, 6]], span), (None, ids, [(0, 5)])):
        count = len(sweeps)
        kept.get(other[1], other[2], other[0], None)
        assert len(sweeps) == count + 1, other


def test_another_checkpoint_in_the_same_place_is_another_reference(checkpoint, tmp_path):
    from wrong_engines import write_random

    folder = write_random(tmp_path / "model", num_hidden_layers=1)
    ref = CheckpointRef("model", str(folder))
    before = references.identity(ref)
    assert references.identity(ref) == before
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert references.identity(ref) != before
    assert references.identity(dataclasses.replace(ref, load_format="dummy")) != references.identity(
        dataclasses.replace(ref, load_format="dummy", dummy_seed=1)
    )


def test_the_cache_stays_small_and_a_place_that_cannot_be_written_costs_nothing(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(references, "MAX_BYTES", 6000)
    kept = References(checkpoint, "cpu", tmp_path / "kept")
    for last in range(6):
        kept.get([[1, 2, last]], [(0, 3)], None, None)
    files = list((tmp_path / "kept").iterdir())
    assert 1 <= len(files) <= 2
    (tmp_path / "file").write_text("")
    logits, _ = References(checkpoint, "cpu", tmp_path / "file" / "below").get([[1, 2, 3]], [(0, 3)], None, None)
    assert logits[0].kept.shape == (3, 199)
    assert References(checkpoint, "cpu", None).get([[1, 2, 3]], [(0, 3)], None, "float16")[1] is not None


def test_a_scheme_of_an_engines_own_is_reported_and_not_judged(checkpoint, tmp_path):
    job = Job(checkpoint, Variant("x", "x", "float32", "fp8"), Request((1, 2, 3), 2), "cpu", 1)
    exact, _ = References(checkpoint, "cpu", None).get([[1, 2, 3, 4, 5]], [(0, 5)], None, None)
    write_logits((exact[0].kept + 0.5 * torch.randn(5, 199)).numpy(), 0, 5, tmp_path / "logits")
    found = check(job, [[4, 5]], tmp_path / "logits", 0, 5, None)
    assert (found.method, found.passed) == ("skipped", True)
    assert "'fp8'" in (found.reason or "")
    assert found.quality_kl is not None
    assert found.quality_kl > 0
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_logits_that_are_not_finite_fail_and_can_be_kept(checkpoint, tmp_path):
    job = Job(checkpoint, Variant("x", "x", "float32"), Request((1, 2, 3), 2), "cpu", 1)
    write_logits(torch.full((5, 199), float("nan")).numpy(), 0, 5, tmp_path / "logits")
    found = check(job, [[4, 5]], tmp_path / "logits", 0, 5, None)
    assert (found.passed, found.reason, found.error) == (False, "its logits are not finite", None)
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_a_checkpoint_that_is_gone_is_one_line(tmp_path):
    job = Job(CheckpointRef("gone", str(tmp_path / "gone")), Variant("x", "x", "float32"), Request((1, 2), 2), "cpu", 1)
    with pytest.raises(EngineError, match=r"config\.json") as caught:
        check(job, [[4, 5]], None, 0, 4, None)
    assert "\n" not in caught.value.reason
