"""The table of a card's keys in docs/guide/own-model.md is that of the code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from framefuse.models.cardfile import CardFile

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "own-model.md"


def words(kind: Any) -> Iterator[str]:
    """The words that a key takes."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    elif get_origin(kind) not in (list, dict, tuple):
        for part in get_args(kind):
            yield from words(part)


def test_every_key_has_a_row() -> None:
    rows = ["| key | takes | meaning |", "|---|---|---|"]
    for key, field in CardFile.model_fields.items():
        taken = ", ".join(f"`{word}`" for word in words(field.annotation))
        rows.append(f"| `{key}` | {taken} | {field.description} |")
    table = "\n".join(rows)
    assert f"\n{table}\n" in PAGE.read_text(encoding="utf-8"), f"write this table into {PAGE}:\n{table}"
