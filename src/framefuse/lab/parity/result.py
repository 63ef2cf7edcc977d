"""Certificate: what was compared, and its pages."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.lab.parity import report
from framefuse.lab.parity.findings import EngineResult, Findings


class Certificate(Findings):
    """What was compared, what came of it, and how it reads."""

    def table(self) -> list[Sequence[str]]:
        """Rows for `print_table`; a row of one cell is a title."""
        return report.table(self)

    def summary(self) -> list[str]:
        """A line for each engine."""
        return report.summary(self)

    def markdown(self) -> str:
        return report.markdown(self)

    def html(self) -> str:
        return report.html(self)

    def to_json(self) -> str:
        return report.to_json(self)


__all__ = ["Certificate", "EngineResult"]
