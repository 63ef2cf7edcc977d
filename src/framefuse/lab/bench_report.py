"""The results of `framefuse bench engines`: one row per engine, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from framefuse.errors import CapabilityError


@dataclass(frozen=True)
class Timing:
    """Statistics of several runs, in milliseconds."""

    runs: int
    min: float
    median: float
    mean: float
    p95: float
    p99: float
    max: float
    std: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Timing:
        values = np.asarray(milliseconds, np.float64)
        median, p95, p99 = np.percentile(values, (50, 95, 99)).tolist()
        std = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        return cls(len(values), float(values.min()), median, float(values.mean()), p95, p99, float(values.max()), std)


@dataclass
class Row:
    """One engine on one device."""

    engine: str
    device: str
    precision: str = ""
    """The precision that ran. If the row did not run: the requested one, or empty for auto."""
    build_seconds: float = 0.0
    """From the ONNX to an engine that is ready for this shape; `reasons` tell whether a cache was used."""
    artifact_bytes: int = 0
    """Size of the file that the engine runs: its own build, or the ONNX itself."""
    wall: Timing | None = None
    device_time: Timing | None = None
    error: float | None = None
    """Norm of the difference from the reference's outputs, divided by the norm of those outputs."""
    reasons: list[str] = field(default_factory=list)
    not_run: str = ""
    """Why it did not run on this machine; empty if it did."""

    @property
    def title(self) -> str:
        return " ".join(filter(None, (self.engine, self.precision, "on", self.device)))

    @property
    def key(self) -> tuple[str, str, str]:
        """Rows with the same key are duplicates."""
        return self.engine, self.device, self.not_run or self.precision


@dataclass
class BenchReport:
    """All rows, and the machine that they were measured on."""

    model: str
    shape: tuple[int, int, int, int]
    rows: list[Row]
    warmups: int
    runs: int
    reference: str
    machine: dict[str, str]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Header and rows of text; a row that did not run is a single sentence."""
        header = ("engine", "device", "precision", "median ms", "min", "mean", "p95", "p99", "max", "std", "FPS",
                  "device ms", "img/s", "vs fastest", "build s", "size MB", "error")  # fmt: skip
        ran = [row for row in self.rows if row.wall is not None and row.engine != "null"]
        best = min((fastest(row) for row in ran), default=0.0)
        lines: list[tuple[str, ...]] = []
        for row in self.rows:
            if row.wall is None:
                continue
            wall, device = row.wall, row.device_time
            lines.append((
                row.engine, row.device, row.precision, f"{wall.median:.3f}", f"{wall.min:.3f}", f"{wall.mean:.3f}",
                f"{wall.p95:.3f}", f"{wall.p99:.3f}", f"{wall.max:.3f}", f"{wall.std:.3f}",
                f"{self.shape[0] / wall.median * 1e3:.0f}", f"{device.median:.3f}" if device else "-",
                f"{self.shape[0] / fastest(row) * 1e3:.0f}" if row.engine != "null" else "-",
                f"{fastest(row) / best:.2f}" if row.engine != "null" else "-",
                f"{row.build_seconds:.1f}", f"{row.artifact_bytes / 1e6:.1f}",
                "-" if row.error is None else f"{row.error:.1e}",
            ))  # fmt: skip
        lines += [(f"{row.title}: not run here, because {row.not_run}",) for row in self.rows if row.not_run]
        return header, lines

    def check(self, engines: Sequence[str] = ()) -> None:
        """Check that every engine in `engines` was measured, and at least one engine in all.

        Raises:
            CapabilityError: one was not; the message says why.
        """
        ran = {row.engine for row in self.rows if row.wall is not None}
        for name in engines:
            if name not in ran:
                why = "; ".join(dict.fromkeys(row.not_run for row in self.rows if row.engine == name))
                raise CapabilityError(f"engine {name} was not measured: {why}", remedy="framefuse doctor")
        if not ran - {"null"} and "null" not in engines:
            raise CapabilityError(f"no engine could run {self.model}; the table says why", remedy="framefuse doctor")


def fastest(row: Row) -> float:
    """Median device time if there is one, else median wall-clock time of a request."""
    timing = row.device_time or row.wall
    return timing.median if timing else 0.0
