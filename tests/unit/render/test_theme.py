"""Fitting text into widths, and text that cannot misbehave."""

from __future__ import annotations

import io

import pytest

from gpumem.render.terminal import theme
from gpumem.render.terminal.theme import UNICODE, Page
from gpumem.render.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain/päth.py", "plain/päth.py"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("two\nlines\ttab", "two\\nlines\\ttab"),
        ("caf\udce9", "caf\\xe9"),
        ("\u202eevil", "\\u202eevil"),
        ("[bold]x[/]", "[bold]x[/]"),
        ("\ud800", "\\ud800"),
    ],
)
def test_foreign_text_is_made_visible(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (60, "/home/anna/nanogpt/model/attention.py:118 Attention.forward"),
        (50, "…/nanogpt/model/attention.py:118 Attention.forward"),
        (44, "…/model/attention.py:118 Attention.forward"),
        (40, "…/attention.py:118 Attention.forward"),
        (32, "…/attention.py:118 Attent…orward"),
        (20, "at…py:118 Att…rd"),
    ],
)
def test_paths_give_way_before_functions_and_numbers_never(width: int, shown: str) -> None:
    text = theme.site_text("/home/anna/nanogpt/model/attention.py", 118, "Attention.forward", width, "…")
    assert ":118 " in text
    assert len(text) <= width
    if width > 20:
        assert text == shown


def test_figures_keep_their_units_when_lines_are_broken() -> None:
    lines = theme.wrap("the card has 140.00 GiB and 2.3 % of it are used by this program", Page(18, UNICODE))
    assert lines == ["the card has", "140.00 GiB and", "2.3 % of it are", "used by this", "program"]


def test_word_wider_than_a_line_is_cut_and_a_path_keeps_its_name() -> None:
    page = Page(20, UNICODE)
    assert theme.wrap("see /srv/runs/of/yesterday/a.gpumem or " + "x" * 30, page) == [
        "see",
        "…/yesterday/a.gpumem",
        "or",
        "xxxxxxxxx…xxxxxxxxxx",
    ]
    assert theme.wrap_behind("    ", "one two three four five", page) == ["    one two three", "    four five"]


def test_what_is_to_be_pasted_is_never_broken() -> None:
    command = "gpumem summary /srv/runs/of/yesterday/a.gpumem"
    assert theme.pasted("next:", command, Page(60, UNICODE)) == [f"next: {command}"]
    assert theme.pasted("next:", command, Page(40, UNICODE)) == ["next:", f"  {command}"]
    path, said = "/srv/runs/of/yesterday/a.gpumem", ": 12 events, exit code 3"
    assert theme.led_by_path(path, said, Page(60, UNICODE)) == [path + said]
    assert theme.led_by_path(path, said, Page(20, UNICODE)) == [path, "  12 events, exit", "  code 3"]
    assert theme.led_by_path(path, said, Page(20, UNICODE), lead="wrote ")[:2] == ["wrote", f"  {path}"]


def test_page_follows_columns_and_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "133")
    ascii_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    page = theme.page_of(theme.make_console(ascii_stream))
    assert (page.width, page.glyphs) == (133, theme.ASCII)
    monkeypatch.delenv("COLUMNS")
    utf8_stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    page = theme.page_of(theme.make_console(utf8_stream))
    assert (page.width, page.glyphs) == (80, theme.UNICODE)


@pytest.mark.parametrize(
    ("columns", "width"),
    [("7", 40), ("1000000", 1000), ("9" * 9, 1000), ("9" * 5000, 80), ("-5", 80), ("0", 80), ("wide", 80), ("", 80)],
)
def test_width_that_no_terminal_has_is_not_taken(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert theme.page_of(theme.make_console(stream)).width == width


def test_wide_characters_count_two_cells() -> None:
    assert theme.fit_right("漢字", 6) == "  漢字"
    assert theme.shorten("漢字漢字漢字", 7, "…") == "漢 …字"
