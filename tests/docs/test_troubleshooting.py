"""The messages on the page for troubleshooting are those of the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guide/troubleshooting.md").read_text()
VALUE = "\0"
"""Stands for a value in a message."""
OF_OTHERS = "Invalid data found when processing input", "No space left on device"
"""What FFmpeg and the system say; our message has a value there."""
MESSAGES = re.findall(r"^\| `(.+?)` \|", PAGE.partition("## Errors")[2].partition("## Surprises")[0], re.MULTILINE)


@cache
def said() -> str:
    """Every string of the package, a line each, with values as VALUE."""
    files = (ROOT / "src/framefuse").rglob("*.py")
    return "\n".join(text for file in files for text in strings(ast.parse(file.read_text(encoding="utf-8"))))


def strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_page_has_the_likely_errors() -> None:
    assert len(MESSAGES) >= 15


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_exists(message: str) -> None:
    for text in OF_OTHERS:
        message = message.replace(text, "...")
    pattern = r"[^\n]*".join(re.escape(part) for part in message.split("..."))
    assert re.search(pattern, said()), message
