"""The table in its five formats: what stands in it, that it fits, and that data is never obeyed."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import pytest
from make_runs import make_block, make_row, make_run, rows_at

from llmbench.protocol import Plan, Row, Run, Status, decode, encode
from llmbench.results.summary import summarise
from llmbench.views import fields
from llmbench.views.fields import FIELDS, RUN_FIELDS
from llmbench.views.table import FORMATS, render
from llmbench.views.text import ViewError


@pytest.fixture
def run() -> Run:
    failed = make_row("tensorrt-llm", status=Status.UNAVAILABLE, reason="tensorrt_llm is not installed")
    return make_run([*rows_at({"eager": 41.3, "torch-compile": 61.9}), failed])


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_a_wide_table_has_all_default_columns(run: Run) -> None:
    text = render([run], width=120)
    assert line_of(text, "engine").split() == ["engine", "tokens/s", "ratio", "verdict", "ms", "tokens/s", "%", "s", "s", "GiB", "status"]
    assert line_of(text, "eager").split()[:5] == ["eager", "41.30", "±", "0.40", "baseline"]
    assert "1.499x [1.499, 1.499] faster" in line_of(text, "torch-compile")
    assert "unavailable" in line_of(text, "tensorrt-llm")
    assert "  tensorrt-llm: unavailable: tensorrt_llm is not installed" in text
    assert "no room" not in text


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_rows_stay_on_one_line_and_nothing_is_wider_than_the_terminal(run: Run, width: int) -> None:
    lines = render([run], width=width).splitlines()
    assert max(map(len, lines)) <= width
    head = next(place for place, line in enumerate(lines) if line.startswith("engine"))
    assert [line.split()[0] for line in lines[head + 1 : head + 4]] == ["eager", "torch-compile", "tensorrt-llm"]
    assert all(column in lines[head] for column in ("tokens/s", "ratio", "verdict"))
    assert "  tensorrt-llm: unavailable" in "\n".join(lines)


def test_columns_without_room_are_named(run: Run) -> None:
    text = " ".join(render([run], width=60).split())
    assert "no room here for: " in text
    assert "load s" in text


def test_two_plain_rows_at_100_lose_what_costs_least() -> None:
    assert "no room here for: decode tokens/s, load s (" in render([make_run()], width=100)


def test_head_names_model_device_request_and_date(run: Run) -> None:
    text = render([run], width=200)
    assert text.startswith("smollm2-135m (hub HuggingFaceTB/SmolLM2-135M-Instruct@12fd25f)\n")
    assert "float32 · cpu, AMD EPYC 7B13, 2 threads · 5 prompt ids, 200 new tokens, batch 1 · 3 rounds x 3 samples" in text
    assert "2026-11-30 23:30 UTC" in text


def test_head_tells_how_much_was_cut() -> None:
    run = make_run([make_row("eager", [make_block(0), make_block(1, (2.0,)), make_block(2, ())])])
    assert "2 of 3 rounds x 1 to 3 samples" in render([run], width=200)


def test_runs_are_grouped_by_model() -> None:
    text = render([make_run(), make_run(name="phi-2"), make_run(new_tokens=50, rows=rows_at({"eager": 3.0}, new_tokens=50))], width=120)
    assert text.count("smollm2-135m (") == 1
    assert text.index("50 new tokens") < text.index("phi-2 (")


def test_null_columns_are_left_out_with_their_reason() -> None:
    blocks = [make_block(0, read_gb_per_s=None, peak_gib=None)]
    text = render([make_run([make_row("eager", blocks)])], width=120)
    assert "bandwidth" not in line_of(text, "engine")
    assert "no bandwidth %: no probe for this device" in text
    assert "no peak GiB: this platform does not tell peaks" in text


def test_no_baseline_no_ratio() -> None:
    bad = make_row("eager", status=Status.OUT_OF_HOST_MEMORY, reason="16 GiB asked")
    text = render([make_run([bad, *rows_at({"torch-compile": 61.9})])], width=120)
    assert "no ratio: the baseline eager is no good row (out of host memory)" in text
    assert "ratio" not in line_of(text, "engine")


def test_one_new_token_has_no_decode_column() -> None:
    run = make_run(rows_at({"eager": 10.0}, new_tokens=1), new_tokens=1)
    assert "no decode tokens/s: one new token has no decode step" in render([run], width=120)


def test_a_batch_shows_the_rate_of_all_sequences() -> None:
    run = make_run([make_row("eager", [make_block(0, batch_size=4)])], batch_size=4)
    assert "all tokens/s" in render([run], width=120)
    assert "400.0" in line_of(render([run], width=120), "eager")


def test_long_labels_fold_and_stay_whole() -> None:
    label = "torch-compile[quantization=int8,group=128,max-autotune=true]"
    text = render([make_run([*rows_at({"eager": 40.0, label: 60.0})])], width=80)
    assert max(map(len, text.splitlines())) <= 80
    first = next(place for place, line in enumerate(text.splitlines()) if line.startswith("torch-compile"))
    left = "".join(line.split("  ")[0].strip() for line in text.splitlines()[first : first + 4] if "no room" not in line)
    assert left.startswith("torch-compile")
    assert "60.00 ± 0.58" in text.splitlines()[first]


def test_interruption_notes_and_warnings_are_shown(run: Run) -> None:
    run.interrupted = True
    run.notes.append("rounds cut from 5 to 3 by the time budget")
    run.model.warnings.append("random weights")
    text = render([run], width=120)
    assert "interrupted" in text
    assert "rounds cut from 5 to 3" in text
    assert "random weights" in text


def test_verbose_adds_details(run: Run) -> None:
    text = render([run], width=80, verbose=True)
    assert line_of(text, "compile cached s")
    assert line_of(text, "weights GiB").split() == ["weights", "GiB", "0.500", "0.500"]
    assert line_of(text, "samples").split() == ["samples", "9", "9"]
    assert "no room" not in text


def test_many_rows_details_fit() -> None:
    rates = {f"engine-number-{number}": 10.0 + number for number in range(9)}
    text = render([make_run(rows_at(rates), baseline=None)], width=80, verbose=True)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("compile cached s") > 1


def test_colour_only_where_asked(run: Run) -> None:
    assert "\x1b" not in render([run])
    assert "\x1b[32m" in render([run], color=True)
    assert "\x1b" not in render([run], "markdown", color=True)


@pytest.mark.parametrize("format", FORMATS)
def test_data_is_never_obeyed(format: str) -> None:
    evil = "[bold red]x[/] \x1b[2J\x9b2J\x07 <script> | `a` \u202e :smile: [a](b)"
    row = make_row("eager", status=Status.FAILED, reason=evil)
    run = make_run([row, *rows_at({"torch-compile[x=[red]]": 10.0})], name=evil)
    run.notes.append(evil)
    text = render([run], format, width=120, verbose=True)
    assert not any(char in text for char in "\x1b\x9b\x07\u202e")
    assert "[bold red]x" in text.replace("\\", "")
    assert ":smile:" in text
    assert "[red]" in text.replace("\n ", "")
    if format == "markdown":
        assert "<script>" not in text
        assert "[a](b)" not in text.replace(r"\[a](b)", "")
        assert all(line.count("|") - line.count(r"\|") in (0, 12, 11, 3, 8, 9, 10) for line in text.splitlines())


def test_markdown(run: Run) -> None:
    text = render([run], "markdown", width=40)
    assert text.startswith("### smollm2-135m (")
    assert (
        "| engine | tokens/s | ratio | verdict | TTFT ms | decode tokens/s | bandwidth % | compile s | load s | peak GiB | status |" in text
    )
    assert "| eager | 41.30 ± 0.40 | baseline |" in text
    assert "- tensorrt-llm: unavailable: tensorrt_llm is not installed" in text


def test_json_is_the_run_file_with_a_summary(run: Run) -> None:
    data = json.loads(render([run], "json"))
    summary = data.pop("summary")
    assert data == json.loads(json.dumps(encode(run)))
    assert decode(Run, data) == run
    assert [row["label"] for row in summary] == ["eager", "torch-compile", "tensorrt-llm"]
    assert summary[0]["tokens_per_s"] == pytest.approx(41.3)
    assert summary[2]["tokens_per_s"] is None
    assert isinstance(json.loads(render([run, run], "json")), list)


def test_json_has_no_nan(run: Run) -> None:
    run.rows[0].blocks[0].load_s = float("nan")
    data = json.loads(render([run], "json"), parse_constant=lambda name: pytest.fail(name))
    assert data["rows"][0]["blocks"][0]["load_s"] is None


def test_jsonl_and_csv_have_a_line_for_each_row(run: Run) -> None:
    lines = [json.loads(line) for line in render([run, run], "jsonl").splitlines()]
    table = list(csv.DictReader(io.StringIO(render([run, run], "csv"))))
    keys = [field.key for field in (*RUN_FIELDS, *FIELDS)]
    assert len(lines) == len(table) == 6
    assert list(lines[0]) == list(table[0]) == keys
    assert len(set(keys)) == len(keys)
    assert lines[1]["model"] == table[1]["model"] == "smollm2-135m"
    assert lines[1]["speedup"] == pytest.approx(float(table[1]["speedup"])) == pytest.approx(summarise(run)[1].speedup)
    assert table[2]["tokens_per_s"] == ""


def test_every_figure_is_a_field() -> None:
    import dataclasses

    from llmbench.results.summary import RowSummary

    assert {entry.name for entry in dataclasses.fields(RowSummary)} == {field.key for field in FIELDS}


@pytest.mark.parametrize(
    "empty", [make_run([]), make_run([make_row("eager", status=Status.INTERRUPTED)]), make_run([make_row("eager", [])])]
)
@pytest.mark.parametrize("format", FORMATS)
def test_runs_without_numbers(empty: Run, format: str) -> None:
    assert render([empty], format, verbose=True) or not empty.rows


def test_unknown_format() -> None:
    with pytest.raises(ViewError, match="use one of table, markdown, json, jsonl, csv"):
        render([], "yaml")


# ------------------------------------------------------------------------------------------------------------------ intervals and verdicts


def spread_rows(label: str, rate: float, *factors: float) -> Row:
    """A row with one round for each factor of the rate."""
    blocks = [make_block(number, (200 / (rate * factor),) * 3, first_token=(0.01,) * 3) for number, factor in enumerate(factors)]
    return make_row(label, blocks)


def test_ratio_interval_verdict_and_what_would_decide() -> None:
    base = spread_rows("eager", 40.0, 1, 1, 1)
    run = make_run([base, spread_rows("torch-compile", 60.0, 0.98, 1.0, 1.02), spread_rows("openvino", 41.0, 0.9, 1.0, 1.1)])
    text = render([run], width=140)
    rows = {row.label: row for row in summarise(run)}
    for label in ("torch-compile", "openvino"):
        row = rows[label]
        assert f"{row.speedup:.2f}x [{row.speedup_low:.2f}, {row.speedup_high:.2f}]" in line_of(text, label)
    assert "faster" in line_of(text, "torch-compile")
    assert "undecided" in line_of(text, "openvino")
    assert f"openvino: undecided: {rows['openvino'].verdict_reason}" in " ".join(text.split())
    assert "[95 % interval, all of a run together]" in " ".join(text.split())


def test_an_interval_that_excludes_one_is_seen_to() -> None:
    row = summarise(make_run([spread_rows("eager", 40.0, 1, 1, 1), spread_rows("openvino", 40.6, 0.996, 1.0, 1.004)]))[1]
    row = dataclasses.replace(row, speedup=1.03, speedup_low=1.0004, speedup_high=1.0604)
    assert fields.ratio_words(row) == "1.0300x [1.0004, 1.0604]"
    assert fields.ratio_words(dataclasses.replace(row, speedup_low=0.98, speedup_high=1.08)) == "1.03x [0.98, 1.08]"
    assert fields.ratio_words(dataclasses.replace(row, speedup_low=1.028, speedup_high=1.032)) == "1.030x [1.028, 1.032]"
    assert fields.ratio_words(dataclasses.replace(row, speedup_low=1e-300, speedup_high=1e300)) == "1.03x [0.00, over 10000]"
    assert fields.ratio_words(dataclasses.replace(row, speedup_low=None, speedup_high=None)) == "1.03x"


def test_quick_says_that_there_is_no_verdict() -> None:
    run = make_run([spread_rows("eager", 40.0, 1), spread_rows("openvino", 60.0, 1)])
    run.plan = Plan(rounds=1, quick=True)
    text = " ".join(render([run], width=140).split())
    assert "no verdict: --quick measures one round, which gives no interval" in text
    assert "1.50x" in text
    assert "[95 % interval" not in text
    run.plan = Plan(rounds=1)
    assert "no verdict: one round: no interval, no verdict" in " ".join(render([run], width=140).split())


def test_flags_and_the_noise_floor_are_noted_in_every_table() -> None:
    run = make_run([spread_rows("eager", 40.0, 1, 1.001, 0.999, 1, 1), spread_rows("openvino", 60.0, 1, 1, 0.7, 1, 1.001)])
    run.noise_floor, run.noise_floor_source = 0.0123, "eager, m, 5 rounds, id"
    for format in ("table", "markdown"):
        text = " ".join(render([run], format, width=140).split())
        assert "openvino: round 3 is disturbed: 30 % slower than its other blocks" in text
        assert "noise floor of this machine: 1.2 % (A/A run: eager, m, 5 rounds, id)" in text
    (_, line) = [json.loads(line) for line in render([run], "jsonl").splitlines()]
    assert line["flags"] == ["round 3 is disturbed: 30 % slower than its other blocks"]
    assert line["noise_floor"] == 0.0123
    assert list(csv.DictReader(io.StringIO(render([run], "csv"))))[1]["flags"] == "round 3 is disturbed: 30 % slower than its other blocks"


def test_an_aa_run_tells_its_floor() -> None:
    run = make_run([spread_rows("eager", 40.0, 1, 1, 1), spread_rows("eager (again)", 40.0, 1.01, 0.99, 1.0)])
    run.aa = True
    assert "the same variant under two names: this machine's noise floor is 2.5 %" in " ".join(render([run], width=140).split())
    run.interrupted = True
    assert "no noise floor" in " ".join(render([run], width=140).split())


def test_nothing_marks_a_best_row_that_is_undecided() -> None:
    run = make_run([spread_rows("eager", 40.0, 1, 1, 1), spread_rows("openvino", 41.0, 0.9, 1.0, 1.1)])
    text = render([run], width=140, color=True)
    head, _, _ = text.partition("openvino")
    assert "\x1b[1m" not in text[len(head) :]
    assert "\x1b[33mundecided" in text
