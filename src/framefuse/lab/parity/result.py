"""Certificate: the results of a comparison with their pages."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.lab.parity import report
from framefuse.lab.parity.findings import EngineResult, Findings


class Certificate(Findings):
    """The comparison of every engine with the reference, as text, Markdown, HTML and JSON."""

    def table(self) -> list[Sequence[str]]:
        """Rows for `print_table`; a row with a single cell is a title."""
        return report.table(self)

    def summary(self) -> list[str]:
        """One line per engine, then the verdict."""
        return report.summary(self)

    def markdown(self) -> str:
        return report.markdown(self)

    def html(self) -> str:
        return report.html(self)

    def to_json(self) -> str:
        return report.to_json(self)


__all__ = ["Certificate", "EngineResult"]
