"""The table of engines in docs/internals/engines.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import engine_table
from framefuse.engines import ENGINES

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "engines.md"


def test_the_page_agrees_with_the_engines() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert engine_table.renewed(page) == page, "python -m benchmarks.engine_table docs/internals/engines.md"
    assert all(f"| `{name}` |" in engine_table.markdown() for name in ENGINES)


def test_a_page_without_a_place_for_it() -> None:
    with pytest.raises(ValueError, match="made by benchmarks"):
        engine_table.renewed("# Engines\n")
