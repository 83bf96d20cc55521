"""The page in a real browser: sorting, filtering, raw samples on a click, links that keep the view, no request, and axe-core's rules."""

import contextlib

import pytest
from make_history import GPUS, make_run, write_runs

from llmbench.dashboard import page as pages
from llmbench.dashboard.collect import collect

#: One browser for all of them.
pytestmark = pytest.mark.xdist_group("browser")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    write_runs(folder, [make_run(gpu, model, day, 4) for gpu in GPUS[:2] for model in ("phi-2", "phi-3-mini") for day in range(4)])
    path = folder / "report.html"
    path.write_text(pages.html(collect([folder])))
    return path.as_uri()


@pytest.fixture(scope="module")
def browser(chromium, tmp_path_factory):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@contextlib.contextmanager
def opened(browser, address, **options):
    """The page in a profile of its own. No request but the one for the file, and no error, may come of whatever is done with it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    tab, requests, faults = context.new_page(), [], []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    tab.goto(address)
    yield tab
    context.close()
    assert {url.partition("#")[0] for url in requests} == {address.partition("#")[0]}
    assert faults == []


def column(tab, table, number):
    return tab.locator(f"#{table} tbody tr:visible > :nth-child({number})").all_inner_texts()


def test_a_heading_sorts_its_table_by_value(browser, file):
    with opened(browser, file) as tab:
        heading = tab.locator("#sums thead th").nth(4)
        heading.locator("button").click()
        assert heading.get_attribute("aria-sort") == "descending"
        falling = [float(text.rstrip("x")) for text in column(tab, "sums", 5) if text != "baseline"]
        assert falling == sorted(falling, reverse=True)
        assert len(set(falling)) > 3
        heading.locator("button").press("Enter")
        assert heading.get_attribute("aria-sort") == "ascending"
        rising = [float(text.rstrip("x")) for text in column(tab, "sums", 5) if text != "baseline"]
        assert rising == falling[::-1]


def test_filters_hide_other_machines_and_models_everywhere_and_the_link_keeps_them(browser, file):
    from playwright.sync_api import expect

    with opened(browser, file) as tab:
        assert tab.locator(".case:visible").count() == 4
        tab.get_by_label("Machine").select_option(GPUS[1].name)
        assert tab.locator(".case:visible").count() == 2
        assert set(column(tab, "sums", 1)) == {GPUS[1].name}
        tab.get_by_label("Contains").fill("phi-3")
        assert tab.locator(".case:visible h3").all_inner_texts() == [
            f"phi-3-mini {GPUS[1].name} · float16 · 64 prompt ids, 128 new tokens, batch 1"
        ]
        assert tab.locator("#filtered").inner_text() == "1 of 4 shown"
        tab.locator("#old-new thead button").nth(5).click()
        link = tab.url
    with opened(browser, link) as tab:
        assert tab.locator(".case:visible").count() == 1
        assert tab.get_by_label("Machine").input_value() == GPUS[1].name
        assert tab.locator("#old-new thead th").nth(5).get_attribute("aria-sort") == "descending"
        tab.get_by_role("button", name="Show all").click()
        expect(tab.locator(".case:visible")).to_have_count(4)  # the form's own reset comes first, the page follows it


def test_a_bar_opens_its_raw_samples_by_mouse_and_keyboard(browser, file):
    with opened(browser, file) as tab:
        bar = tab.locator("button.row").first
        label = bar.locator(".label").inner_text()
        bar.click()
        dialog = tab.get_by_role("dialog")
        assert dialog.get_by_role("heading", level=2).inner_text() == label
        rows = dialog.locator("tbody tr").all_inner_texts()
        assert sum("\tsample\t" in row for row in rows) == 3
        assert "row=" in tab.url
        link = tab.url
        tab.keyboard.press("Escape")
        assert not dialog.is_visible()
        bar.focus()
        tab.keyboard.press("Enter")
        assert dialog.is_visible()
    with opened(browser, link) as tab:
        assert tab.get_by_role("dialog").is_visible()


def test_a_history_shows_other_figures_on_a_click(browser, file):
    with opened(browser, file) as tab:
        figure = tab.locator("figure.charts").first
        assert figure.locator("svg.chart:visible").get_attribute("aria-label").startswith("tokens/s")
        figure.get_by_role("button", name="peak GiB").click()
        assert figure.locator("svg.chart:visible").get_attribute("aria-label").startswith("peak GiB")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser, file, scheme):
    from axe_playwright_python.sync_playwright import Axe

    with opened(browser, file, color_scheme=scheme, bypass_csp=True) as tab:  # axe itself is a script that the page's policy forbids
        for opener in (None, "button.row"):
            if opener:
                tab.locator(opener).first.click()
            found = Axe().run(tab).response["violations"]
            assert [(fault["id"], fault["nodes"][0]["html"][:200]) for fault in found if fault["impact"] in ("serious", "critical")] == []


def test_a_phone_scrolls_down_only(browser, file):
    with opened(browser, file) as tab:
        tab.set_viewport_size({"width": 390, "height": 844})
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        assert tab.locator(".headline").is_visible()


def test_the_page_can_be_read_without_its_script(browser, file):
    with opened(browser, file, java_script_enabled=False) as tab:
        assert tab.locator(".headline").is_visible()
        assert tab.locator("#sums tbody tr").count() == 10


def test_hostile_text_runs_nothing(browser, tmp_path):
    import json

    from hostile import PAYLOADS, with_texts

    from llmbench.protocol import encode

    for place, payload in enumerate(PAYLOADS):
        data = with_texts(encode(make_run(GPUS[0], "phi-2", 1, 2)), payload)
        (tmp_path / f"{place}.json").write_text(json.dumps(data))
    path = tmp_path / "report.html"
    path.write_text(pages.html(collect([tmp_path])))
    with opened(browser, path.as_uri()) as tab:
        tab.locator("button.row").first.click()
        assert tab.evaluate("window.harmed") is None
        assert tab.evaluate("document.documentElement.scrollWidth") == 1280
        assert tab.locator("img").count() == 0
