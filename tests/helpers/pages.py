"""Code blocks of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    """The blocks of a page in these languages, without the indentation of a list that holds them."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [re.sub(f"^{indent}", "", code, flags=re.M) for indent, language, code in found if language in languages]


def block(page: str, *words: str) -> str:
    """The only block of a page of the guide that has all of these words."""
    languages = "python", "py", "toml", "ini", "sh"
    (code,) = (code for code in blocks(DOCS / "guide" / page, *languages) if all(word in code for word in words))
    return code
