"""Text in Markdown: two parsers show every name letter by letter."""

from __future__ import annotations

from html import unescape

import markdown
import pytest
from markdown_it import MarkdownIt

from framefuse.common.text import counted, in_markdown

NAMES = [
    "<img src=x onerror=alert(1)>", "<!-- gone", "&lt;", "a | b", "`code`", "``", "*bold*", "_slanted_", "__init__",
    "~~gone~~", "$x$", "[text](javascript:alert(1))", "![image](x)", "[1]: http://x", "# title", "- item", "+ item",
    "1. item", "23) item", "> quote", "---", "===", "\\*", "C:\\", "a\\|b", "traffic_light", "yolov8n-640", "99.1",
]  # fmt: skip


def shown(text: str) -> list[str]:
    """The contents of a list item, a paragraph and a cell, as HTML of each parser."""
    page = f"- {text}\n\n{text}.\n\n| a | b |\n|---|---|\n| {text} | {text} |\n"
    found = []
    for html in (markdown.markdown(page, extensions=["tables"]), MarkdownIt("commonmark").enable("table").render(page)):
        lines = html.replace("\n", "").replace("<", "\n<").replace(">", ">\n").splitlines()
        found += [line for line in lines if line and not line.startswith("<")]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_as_it_is(name: str) -> None:
    texts = [unescape(text) for text in shown(in_markdown(name))]
    assert texts == 2 * [name, f"{name}.", "a", "b", name, name]


def test_a_name_stays_on_its_line() -> None:
    assert in_markdown("a\nb\tc\r\x1b[2J\u202e\udce9") == "a&#92;nb&#92;tc&#92;r&#92;x1b&#91;2J&#92;u202e&#92;udce9"


@pytest.mark.parametrize("name", ["traffic_light", "yolov8n-640", "99.1", "-", "-1", "résumé_2"])
def test_ordinary_names_stay_readable(name: str) -> None:
    assert in_markdown(name) == name


def test_a_number_has_its_noun_in_the_right_form() -> None:
    found = [counted(0, "frame"), counted(1, "frame"), counted(2_000, "frame"), counted(3, "box", "boxes")]
    assert found == ["0 frames", "1 frame", "2,000 frames", "3 boxes"]
