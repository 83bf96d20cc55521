"""Numbers and names as people read them."""

from __future__ import annotations

import pytest

from llmbench.views.text import count, date, duration, number, plain, shorten, shorten_middle, size, with_deviation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("a\x9b31mred", "ared"),
        ("bell\x07 and\x00null\x7f", "bell andnull"),
        ("two\nlines\tand\u2028three", "two lines and three"),
        ("left\u202eright", "leftright"),
        ("half \ud800 pair", "half pair"),
        ("[bold]ünï 日本", "[bold]ünï 日本"),
    ],
)
def test_plain_has_nothing_a_terminal_obeys(text: str, expected: str) -> None:
    assert plain(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "—"),
        (float("nan"), "—"),
        (float("inf"), "—"),
        (0.0, "0"),
        (0.012345, "0.0123"),
        (1.4349, "1.43"),
        (61.94, "61.9"),
        (12345.6, "12346"),
        (1.2e-7, "1.20e-07"),
    ],
)
def test_number(value: float | None, expected: str) -> None:
    assert number(value) == expected


def test_number_with_a_floor() -> None:
    assert number(0.04512, most_decimals=2) == "0.05"
    assert number(0.00001, most_decimals=2) == "0.00"


def test_deviation_has_the_values_decimals() -> None:
    assert with_deviation(61.904, 0.5994) == "61.90 ± 0.60"
    assert with_deviation(12345.6, 101.2) == "12346 ± 101"
    assert with_deviation(61.904, None) == "61.90"
    assert with_deviation(None, None) == "—"


def test_counts_sizes_and_times() -> None:
    assert count(134_515_008) == "134.5 million"
    assert count(6_738_415_616) == "6.738 billion"
    assert count(900) == "900"
    assert size(542_898_432) == "518 MiB"
    assert size(13.5e9) == "12.6 GiB"
    assert [duration(s) for s in (0.82, 42.4, 59.9, 200, 3600, 7500)] == ["0.8 s", "42 s", "1 min", "3 min 20 s", "1 h", "2 h 5 min"]


def test_dates() -> None:
    assert date("2026-11-30T23:30:00Z") == "2026-11-30 23:30 UTC"
    assert date("2026-11-30T23:30:00+02:00") == "2026-11-30 21:30 UTC"
    assert date("yesterday\x1b[1m") == "yesterday"


def test_shortening() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abcde…"
    assert shorten_middle("[quantization=int8,group=128]", 15) == "[quanti…up=128]"
