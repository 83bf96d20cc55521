"""The page as a file: nothing it loads, nothing a run file can make it do, its size, and markdown beside it."""

import base64
import hashlib
import html.parser
import json
import re

import pytest
from hostile import PAYLOADS, absurd, with_texts
from make_history import GPUS, MODELS, make_run, write_runs

from llmbench.dashboard import page
from llmbench.dashboard.collect import collect
from llmbench.dashboard.markdown import markdown
from llmbench.dashboard.parts import Choices
from llmbench.dashboard.report import report
from llmbench.protocol import encode


class Elements(html.parser.HTMLParser):
    """Every element with its attributes, and the texts of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.found, self.bodies, self.inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag if tag in ("script", "style") else self.inside

    def handle_endtag(self, tag):
        self.inside = None if tag == self.inside else self.inside

    def handle_data(self, data):
        if self.inside:
            self.bodies.append((self.inside, data))


@pytest.fixture(scope="module")
def text(run_folder):
    return page.html(collect([run_folder]))


def test_the_page_loads_nothing_and_its_policy_allows_its_own_script_and_style_alone(text):
    elements = Elements(text)
    for tag, attributes in elements.found:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not any(name.startswith("on") or name in ("style", "src", "action") for name in attributes), (tag, attributes)
        assert attributes.get("href", "#").startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    policy = next(attributes["content"] for tag, attributes in elements.found if attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    digests = [base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for _, body in elements.bodies]
    style, data, script = digests
    assert re.findall(r"'sha256-([^']+)'", policy) == [style, script]
    assert data not in policy


def test_every_bar_has_its_raw_samples_in_the_page(text, runs):
    elements = Elements(text)
    rows = json.loads(next(body for tag, body in elements.bodies if tag == "script"))["rows"]
    opened = [attributes["data-row"] for _, attributes in elements.found if "data-row" in attributes]
    assert opened
    assert set(opened) <= set(rows)
    newest = next(run for run in runs if run.machine.device_name == GPUS[1].name and run.model.name == "phi-2" and "1130" in run.run_id)
    detail = next(
        row for row in rows.values() if row["t"] == "eager" and f"{GPUS[1].name} · phi-2" in row["a"] and "64 prompt ids" in row["a"]
    )
    walls = [wall for _, kinds in detail["b"] for kind, found in kinds if kind == "sample" for wall in found]
    expected = [sample.wall_s for block in newest.row("eager").blocks for sample in block.of_kind("sample")]
    assert walls == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda text: text[:12].encode("unicode_escape").decode())
def test_hostile_text_is_shown_as_text(tmp_path, payload):
    write_runs(tmp_path, [make_run(GPUS[0], "phi-2", 0, 2)])
    data = with_texts(encode(make_run(GPUS[0], "phi-2", 1, 2)), payload)
    (tmp_path / "hostile.json").write_text(json.dumps(data))
    found = collect([tmp_path])
    assert not found.unreadable
    text = page.html(found)
    plain = Elements(page.html(collect([tmp_path / "00000.json"])))
    elements = Elements(text)
    of_two_runs = {"select", "option", "figure", "figcaption", "details", "summary", "polyline", "circle", "title"}
    assert {tag for tag, _ in elements.found} <= {tag for tag, _ in plain.found} | of_two_runs
    assert [tag for tag, _ in elements.found].count("script") == 2
    assert not any(name.startswith("on") or name == "src" for _, attributes in elements.found for name in attributes)
    assert "1337" not in text  # 7 * 191
    assert len(text) < 500_000
    assert not re.search("x{301}", text)
    assert "\x1b" not in text
    assert "\u202e" not in text
    told = markdown(found)
    assert "<script" not in told
    assert "<img" not in told


def test_absurd_numbers_break_nothing(tmp_path):
    """Each field at a time; what the reader refuses is named on the page instead."""
    run = make_run(GPUS[0], "phi-2", 0, 2)
    run.rows = run.rows[1:2]
    run.baseline = run.rows[0].variant.label
    write_runs(tmp_path, [run])
    data = encode(make_run(GPUS[0], "phi-2", 1, 2))
    data["rows"] = [row for row in data["rows"] if row["variant"]["label"] in ("torch-compile", "tensorrt-llm")]
    tried = refused = 0
    for _, _, make in absurd(data, (-1e308, 1e308)):
        (tmp_path / "absurd.json").write_text(json.dumps(make()))
        found = collect([tmp_path])
        text = page.html(found)
        assert text.rstrip().endswith("</html>")
        assert not re.search(r"\d{301}", re.sub(r'data-v="[^"]*"', "", text.partition('<script type="application/json"')[0]))
        tried, refused = tried + 1, refused + len(found.unreadable)
    assert tried > 100
    assert 0 < refused < tried


def test_a_page_that_would_be_too_large_shows_less_and_says_so(tmp_path, monkeypatch):
    write_runs(tmp_path, [make_run(gpu, model, 0, 1) for gpu in GPUS for model in MODELS])
    found = collect([tmp_path])
    whole = page.html(found)
    monkeypatch.setattr(page, "MOST_BYTES", len(whole.encode()) // 3)
    less = page.html(found, Choices(most_cases=15))
    assert len(less.encode()) <= len(whole.encode()) // 3
    assert "of 15 combinations of machine, model, dtype and request are shown" in less


def test_samples_beyond_the_bound_are_left_out_and_counted(run_folder):
    shown = report(collect([run_folder]), Choices(most_samples=200))
    samples = sum(len(walls) for detail in shown.details.values() for _, kinds in detail.blocks for _, walls in kinds)
    assert 0 < samples <= 200
    assert any("Raw samples of" in note for note in shown.notes)


def test_features_come_from_the_runs_or_are_not_measured(run_folder):
    [section] = [one for one in report(collect([run_folder])).sections if one.name == "features"]
    [table] = section.tables
    column = {title: place for place, (title, _) in enumerate(table.columns)}
    cells = {line.cells[0].text: line.cells for line in table.lines}
    assert set(cells) == {"dynamic shapes", "hardware", "precision", "steps to deploy", "reuse of compilation"}
    assert cells["dynamic shapes"][column["tensorrt-llm"]].text == "one artifact, 3 prompt lengths"
    assert cells["dynamic shapes"][column["torch-compile"]].text == "no recompilation"
    assert all(gpu.name in cells["hardware"][column["eager"]].text for gpu in GPUS)
    assert cells["precision"][column["eager"]].text == "float16"
    assert "build, 2 min 20 s" in cells["steps to deploy"][column["tensorrt-llm"]].text
    assert re.fullmatch(r"cold \d+ s, warm [\d.]+ s", cells["reuse of compilation"][column["torch-compile"]].text)
    assert all(cell.hint or cell.text == "not measured" for line in table.lines for cell in line.cells[1:])


def test_a_feature_that_no_run_shows_is_not_measured(tmp_path):
    run = make_run(GPUS[0], "phi-2", 0, 1)
    for row in run.rows:
        row.blocks = row.blocks[:1]
    write_runs(tmp_path, [run])
    [section] = [one for one in report(collect([tmp_path])).sections if one.name == "features"]
    cells = {line.cells[0].text: [cell.text for cell in line.cells[1:]] for line in section.tables[0].lines}
    assert set(cells["reuse of compilation"]) == {"not measured"}
    assert cells["dynamic shapes"][[title for title, _ in section.tables[0].columns].index("tensorrt-llm") - 1] == "not measured"


def test_markdown_tells_the_answer_and_every_table(run_folder):
    shown = report(collect([run_folder]))
    text = markdown(collect([run_folder]))
    assert shown.headline in text
    for section in shown.sections:
        assert f"### {section.title}" in text
        for table in section.tables:
            assert (table.caption in text) == bool(table.lines)
