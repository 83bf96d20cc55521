"""The noise floor: from kept A/A runs, by `llmbench aa` as a user calls it, and in what later runs conclude."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from tiny import compare, llmbench, run_files, tiny_folder

from llmbench import noise_floor
from llmbench.protocol import Block, Machine, Model, Plan, Request, Row, Run, Sample, Status, Variant
from llmbench.results.files import load, save
from llmbench.results.summary import summarise
from llmbench.variants import VariantError, parse_variants, twice

MACHINE = Machine("cpu", "EPYC", "Linux 6.1 x86_64", "EPYC", 2, 2**34)


def aa_run(*ratios: float, engine: str = "eager", machine: Machine = MACHINE, **fields: object) -> Run:
    """An A/A run whose paired ratios are these."""
    first, second = (Row(Variant(f"{engine}{again}", engine, "float32")) for again in ("", " (again)"))
    for number, ratio in enumerate(ratios):
        first.add(Block(number, samples=[Sample("sample", 1.0, (10,), "")]))
        second.add(Block(number, samples=[Sample("sample", 1 / ratio, (10,), "")]))
    run = Run("id", Model("m", "", "", "a", "float32"), Request((1,), 10), Plan(), machine, 2, "float32", [first, second])
    run = dataclasses.replace(run, baseline=engine, aa=True, finished_at="2026-01-02T03:04:05+00:00")
    return dataclasses.replace(run, **fields)  # type: ignore[arg-type]


def test_the_floor_is_the_far_end_of_the_interval() -> None:
    # Logarithms -0.01, 0, 0.04: mean 0.01, s = 0.0264575; t(2; 97.5 %) = 4.302653: half-width 0.065724.
    run = aa_run(*map(math.exp, (-0.01, 0.0, 0.04)))
    assert noise_floor.of_run(run) == pytest.approx(math.expm1(0.01 + 0.065724), rel=1e-4)
    mirrored = aa_run(*map(math.exp, (0.01, 0.0, -0.04)))
    assert noise_floor.of_run(mirrored) == pytest.approx(noise_floor.of_run(run))


def test_what_gives_no_floor() -> None:
    good = (1.01, 0.99, 1.0)
    assert noise_floor.of_run(aa_run(*good)) is not None
    assert noise_floor.of_run(aa_run(1.01)) is None
    assert noise_floor.of_run(aa_run(1.01, 0.99)) is None  # two rounds: too wide to be of use to anyone
    assert noise_floor.of_run(aa_run(*good, aa=False)) is None
    assert noise_floor.of_run(aa_run(*good, finished_at=None)) is None
    assert noise_floor.of_run(aa_run(*good, interrupted=True)) is None
    assert noise_floor.of_run(aa_run(*good, plan=Plan(quick=True))) is None
    assert noise_floor.of_run(aa_run(*good, rows=[])) is None
    failed = aa_run(*good)
    failed.rows[1].status = Status.NONDETERMINISTIC
    assert noise_floor.of_run(failed) is None
    wild = noise_floor.of_run(aa_run(1e-6, 1.0, 1e6))
    assert wild is not None
    assert math.isfinite(wild)


def test_the_newest_of_this_machine_counts(tmp_path: Path) -> None:
    assert noise_floor.lookup(tmp_path / "none", MACHINE, 2) is None
    old, new = aa_run(1.05, 0.95, 1.0), aa_run(1.01, 0.99, 1.0)
    save(old, tmp_path / "20260101-000000-m.json")
    save(new, tmp_path / "20260102-000000-m.json")
    save(aa_run(1.2, 0.8, 1.0, machine=dataclasses.replace(MACHINE, cpu="Xeon")), tmp_path / "20260103-000000-m.json")
    save(aa_run(1.2, 0.8, 1.0, threads=1), tmp_path / "20260103-000001-m.json")
    save(aa_run(1.2, 0.8, 1.0, aa=False), tmp_path / "20260103-000002-m.json")
    save(aa_run(1.2), tmp_path / "20260103-000003-m.json")
    save(aa_run(1.001, 0.999, 1.0, engine="fake"), tmp_path / "20260103-000004-m.json")
    (tmp_path / "20260104-000000-m.json").write_text('{"aa": true, "schema_version": 1')
    (tmp_path / "20260105-000000-m.json").mkdir()
    assert noise_floor.lookup(tmp_path, MACHINE, 2) == pytest.approx(noise_floor.of_run(new))
    found = noise_floor.find(tmp_path, MACHINE, 2)
    assert found is not None
    assert found.source == "eager, m, 3 rounds, id"
    fake = noise_floor.find(tmp_path, MACHINE, 2, fake=True)
    assert fake is not None
    assert fake.source.startswith("fake")
    newer_kernel = dataclasses.replace(MACHINE, platform="Linux 6.9 x86_64", memory_bytes=2**33)
    assert noise_floor.lookup(tmp_path, newer_kernel, 2) == pytest.approx(noise_floor.of_run(new))


def test_an_aa_run_in_a_suite_counts(tmp_path: Path) -> None:
    (tmp_path / "20260102-000000-suite").mkdir()
    save(aa_run(1.01, 0.99, 1.0), tmp_path / "20260102-000000-suite" / "m-batch1.json")
    assert noise_floor.lookup(tmp_path, MACHINE, 2) is not None


def test_a_run_goes_by_the_floor_that_it_keeps() -> None:
    run = aa_run(1.10, 1.11, 1.09, 1.10, aa=False)
    assert [row.verdict and row.verdict.value for row in summarise(run)] == [None, "faster"]
    run.noise_floor = 0.12
    (_, row) = summarise(run)
    assert row.verdict is not None
    assert row.verdict.value == "undecided"
    assert "noise floor of 12 %" in str(row.verdict_reason)


# ------------------------------------------------------------------------------------------------------------------------- the same twice


def test_one_variant_under_two_names() -> None:
    text = twice("torch-compile[mode=max-autotune,dtype=bf16]")
    variants = [variant for _, variant in parse_variants(text, "float32")]
    labels = [variant.label for variant in variants]
    assert labels == ["torch-compile[dtype=bfloat16,mode=max-autotune]", "torch-compile[dtype=bfloat16,mode=max-autotune] (again)"]
    assert noise_floor.is_aa(variants)
    assert [variant for _, variant in parse_variants(",".join(labels), "float32")] == variants  # a run file's labels can be resumed
    assert not noise_floor.is_aa([variant for _, variant in parse_variants("eager,eager[dtype=bf16]", "float32")])
    assert not noise_floor.is_aa(variants[:1])


@pytest.mark.parametrize("text", ["eager,fake", "", " , "])
def test_an_aa_run_takes_one_variant(text: str) -> None:
    with pytest.raises(VariantError, match="takes one variant"):
        twice(text)


def test_aa_as_a_user_calls_it(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path)
    fixed = ("--model", model, "--load-format", "dummy", "--input-len", 4, "--max-new-tokens", 8, "--num-iters-warmup", 1)
    few = ("--rounds", 3, "--num-iters", 1)
    done = llmbench(tmp_path, "aa", "fake[tokens_per_s=400]", *fixed, *few)
    assert done.returncode == 0, done.stderr
    assert "this machine's noise floor is" in " ".join(done.stdout.split())
    (path,) = run_files(tmp_path)
    run = load(path)
    assert run.aa
    assert run.noise_floor is None
    assert [row.variant.label for row in run.rows] == ["fake[tokens_per_s=400]", "fake[tokens_per_s=400] (again)"]
    assert run.baseline == "fake[tokens_per_s=400]"
    assert [len(row.blocks) for row in run.rows] == [3, 3]
    assert {row.blocks[0].cold for row in run.rows} == {True}
    floor = noise_floor.of_run(run)
    assert floor is not None

    later = compare(tmp_path, "fake[tokens_per_s=400],fake[tokens_per_s=401]", *few, "--baseline", "fake[tokens_per_s=400]")
    assert later.returncode == 0, later.stderr
    assert "noise floor of this machine" in " ".join(later.stdout.split())
    compared = load(run_files(tmp_path)[-1])
    assert compared.noise_floor == pytest.approx(floor)
    assert path.stem in str(compared.noise_floor_source)


def test_aa_of_an_unknown_engine_or_of_two_is_a_usage_error(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path)
    for engine, words in (("egaer", "did you mean eager"), ("eager,fake", "takes one variant, not 2")):
        done = llmbench(tmp_path, "aa", engine, "--model", model, "--load-format", "dummy", "--dry-run")
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr
