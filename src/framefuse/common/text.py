"""Escapes untrusted text, such as names of files and classes, for terminals, HTML and Markdown."""

import re
from collections.abc import Sequence
from html import escape

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys, those that change the direction of what follows, and those without an encoding."""
MARKUP = re.compile(r"[\\`*\[\]|~#$<>&]|(?<![^\W_])_|_(?![^\W_])|^[-+=](?=[-=\s])|^\d(?=\d*[.)]\s)")
"""Characters with a meaning in Markdown or HTML: some everywhere, _ at the edge of a word, others at the beginning."""


def without_controls(text: str) -> str:
    """The text with the controls that a file name or class name may bring written as escapes."""
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def on_one_line(text: str) -> str:
    """`without_controls`, with tabs and line breaks as escapes too."""
    return without_controls(text).replace("\n", "\\n").replace("\t", "\\t")


def in_html(value: object) -> str:
    """The value as text of a page. Characters that HTML cannot contain, such as NUL, become a replacement character."""
    return escape("".join(c if c >= " " or c in "\t\n" else "\ufffd" for c in str(value)))


def in_markdown(text: str) -> str:
    """The text as Markdown that shows it letter by letter, on one line, also in a cell of a table.

    Character references instead of backslashes, because every dialect of Markdown reads them.
    """
    return MARKUP.sub(lambda found: f"&#{ord(found[0])};", on_one_line(text))


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: 1 frame, 2,000 frames."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(words: Sequence[str], last: str) -> str:
    """Words as a sentence lists them, with "and" or "or" before the last."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def lines_of(error: BaseException | str) -> list[str]:
    """The lines of an error's message that are not empty; the name of its class if there are none."""
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


def first_line(error: BaseException, most: int = 300) -> str:
    """The first of `lines_of`, of at most so many characters."""
    return lines_of(error)[0][:most]
