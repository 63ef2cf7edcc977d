"""The facts of a report, and their plain text."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from framefuse.common.text import counted
from framefuse.report.verdict import WhatIf
from framefuse.runtime.profiling import Measured
from framefuse.sources import SourceInfo
from framefuse.tracking.tally import EventFacts

SCHEMA = 1
"""Version of the JSON; incremented when a field changes its meaning or is removed."""
FEW, MANY = 12, 100
"""Maximum lines of one kind in a summary."""


@dataclass(frozen=True)
class SourceFacts:
    """One source of a run."""

    uri: str
    """Passwords are hidden."""
    kind: str
    width: int | None = None
    height: int | None = None
    fps: float | None = None
    notes: list[str] = field(default_factory=list)
    drops: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, info: SourceInfo) -> Self:
        fps = None if info.fps is None else float(info.fps)
        return cls(info.uri, info.kind, info.width, info.height, fps, list(info.notes), dict(info.drops))

    def line(self) -> str:
        size = f" {self.width}x{self.height}" if self.width else ""
        drops = "".join(f", {count:,} {cause}" for cause, count in self.drops.items())
        return f"{self.uri}{size}{f' {self.fps:.3g} fps' if self.fps else ''}{drops}"


@dataclass(frozen=True)
class ModelFacts:
    """The model of a run, and the engine that ran it."""

    name: str
    layout: str
    input: str
    """Width x height of the largest model input: "640x384"."""
    engine: str
    precision: str
    licence: str = ""
    """As the model or its card states it."""

    @property
    def finds_boxes(self) -> bool:
        return self.layout not in ("semantic", "classify")

    def line(self) -> str:
        return f"{self.name}, {self.layout}, {self.input}, {self.engine} {self.precision}"


@dataclass(frozen=True)
class ViewFacts:
    """The parts of the frames that the model saw."""

    per_frame: float
    ms: float
    """From preprocessing to the result of one view; several are in progress at once."""
    pixels: float
    """Pixels of the views of a frame over those of the frame."""

    def line(self) -> str:
        times = "" if (share := f"{self.pixels:.3g}") == "1" else f", with {share} times its pixels"
        return f"{self.per_frame:.3g} a frame, {self.ms:.3g} ms each{times}"


@dataclass(frozen=True)
class CopyFacts:
    """What one stage copies to, from or on the GPU."""

    stage: str
    direction: str
    """h2d, d2h or d2d: h is the host, d the device."""
    kind: str
    """pixels, control (tables of addresses and positions) or results (boxes)."""
    bytes_per_frame: float


@dataclass(frozen=True)
class ErrorFacts:
    """What ended a run early."""

    kind: str
    message: str
    stage: str | None = None
    remedy: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Self:
        if isinstance(error, KeyboardInterrupt):
            return cls("KeyboardInterrupt", "stopped by the user")
        message = getattr(error, "message", None) or str(error) or type(error).__name__
        return cls(type(error).__name__, message, getattr(error, "stage", None), getattr(error, "remedy", None))


@dataclass(frozen=True, kw_only=True)
class ReportFacts(Measured):
    """One run. CPU times are per frame."""

    framefuse: str
    """Version."""
    fps: float
    verdict: str
    limiter: str | None
    explained: float
    what_ifs: list[WhatIf]
    cores: int
    cpu_ms_per_frame: float
    other_cpu_ms: float
    """The part of `cpu_ms_per_frame` outside all stages."""
    detections: int = 0
    detections_per_class: dict[str, int] = field(default_factory=dict)
    tracks: int | None = None
    """Objects that were followed, each counted once; None: nothing was tracked."""
    events: EventFacts | None = None
    """What the tracks did; None: nobody asked for events."""
    sources: list[SourceFacts] = field(default_factory=list)
    model: ModelFacts | None = None
    views: ViewFacts | None = None
    """None: the model saw whole frames."""
    choices: list[str] = field(default_factory=list)
    """Automatic choices, each with its reason."""
    copies: list[CopyFacts] = field(default_factory=list)
    """The ledger; empty on the CPU."""
    minor_faults_per_frame: float | None = None
    outputs: list[str] = field(default_factory=list)
    unreadable: int = 0
    """Inputs that could not be read, or not to their end, while others were: `warnings` lists them."""
    warnings: list[str] = field(default_factory=list)
    error: ErrorFacts | None = None
    environment: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    def summary(self) -> str:
        """One line: "300 frames in 3.6 s, 83.3 fps, 12.4 ms p50 latency, 2,345 detections; limited by inference"."""
        boxes = self.model is None or self.model.finds_boxes
        parts = [f"{counted(self.frames, 'frame')} in {self.seconds:.1f} s", f"{self.fps:.1f} fps"]
        parts += [f"{self.latency_ms.p50:.1f} ms p50 latency"] if self.latency_ms else []
        parts += [counted(self.detections, "detection")] if boxes else []
        parts += [] if self.tracks is None else [counted(self.tracks, "track")]
        end = f"; limited by {'the source' if self.limiter == 'source' else self.limiter}" if self.limiter else ""
        if self.error:
            what = "interrupted" if self.error.kind == "KeyboardInterrupt" else f"ended by {self.error.kind}"
            end = f"; {what}{f' in {self.error.stage}' if self.error.stage else ''}"
        return ", ".join(parts) + end

    def table(self) -> str:
        """The report as plain text, about 100 columns wide."""
        lines = [self.summary(), "", *([f"model    {self.model.line()}"] if self.model else [])]
        lines += [f"views    {self.views.line()}"] if self.views else []
        lines += [f"source   {text}" for text in few([source.line() for source in self.sources])]
        lines += [*self._stage_lines(), *(f"energy   {text}" for text in self.energy_lines())] if self.frames else []
        lines += [f"busy     {self.utilisation.line()}"] if self.utilisation else []
        lines += [f"copies   {self.copied()}"] if self.copies else []
        lines += self.events.text_lines() if self.events else []
        for title, texts in (("choice", self.choices), ("warning", self.warnings), ("wrote", self.outputs)):
            lines += [f"{title:<9}{text}" for text in few(texts, MANY if title == "choice" else FEW)]
        if self.error:
            lines.append(f"error    {self.error.kind}: {self.error.message}")
            lines += [f"         -> {self.error.remedy}"] if self.error.remedy else []
        return "\n".join(lines)

    def _stage_lines(self) -> list[str]:
        """The stages with their times, and the verdict."""
        on_gpu = any(stage.device_ms for stage in self.stages)
        head = "   GPU ms" if on_gpu else ""
        head += f"{'p50 ms':>9}{'p95':>9}{'p99':>9}{'waiting s':>11}{'blocked s':>11}"
        lines = ["", f"{'stage':<14}{'CPU ms':>8} {'':<16}{head}"]
        for stage in self.stages:
            cpu, busy = "-" if stage.cpu_ms is None else f"{stage.cpu_ms:.2f}", stage.busy_ms
            times = f"{busy.p50:>9.2f}{busy.p95:>9.2f}{busy.p99:>9.2f}"
            times += f"{stage.wait_in_ms / 1e3:>11.2f}{stage.wait_out_ms / 1e3:>11.2f}"
            gpu = f"{f'{stage.device_ms.mean:.3f}' if stage.device_ms else '-':>9}" if on_gpu else ""
            lines.append(f"{stage.name:<14}{cpu:>8} {self._bar(stage.cpu_ms):<16}{gpu}{times}")
        lines.append(f"{'other':<14}{self.other_cpu_ms:>8.2f} {self._bar(self.other_cpu_ms):<16}")
        offered = self.seconds * 1e3 / max(self.frames, 1) * self.cores
        cores = f"of {offered:.2f} available on {counted(self.cores, 'core')}"
        memory = f"; peak memory {self.peak_rss_mb:,.0f} MB" if self.peak_rss_mb else ""
        return [*lines, f"{'total':<14}{self.cpu_ms_per_frame:>8.2f} {cores}{memory}", "", f"verdict  {self.verdict}"]

    def energy_lines(self) -> list[str]:
        """Joules a frame of each device, or why there are none, with CPU time as a stand-in for that of a CPU."""
        stand_in = f"; stand-in: {self.cpu_ms_per_frame / 1e3:.3g} CPU-seconds a frame"
        lines = [row.line() + (stand_in if row.missing and "cuda" not in row.device else "") for row in self.energy]
        each = [row.joules_per_frame or 0.0 for row in self.energy]
        return [*lines, *([f"together {sum(each):.3g} J a frame"] if len(each) > 1 and all(each) else [])]

    def copied(self) -> str:
        """What crossed the bus: "per frame over the bus: 0 bytes of pixels, 3,456 of tables and results"."""
        over = [(row.bytes_per_frame, row.kind == "pixels") for row in self.copies if row.direction != "d2d"]
        pixels, rest = (sum(size for size, of_pixels in over if of_pixels is wanted) for wanted in (True, False))
        return f"per frame over the bus: {pixels:,.0f} bytes of pixels, {rest:,.0f} of tables and results"

    def _bar(self, cpu_ms: float | None) -> str:
        return "█" * round(15 * (cpu_ms or 0.0) / max(self.cpu_ms_per_frame, 1e-9))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def few(texts: Sequence[str], limit: int = FEW) -> list[str]:
    """The texts, or the first of many and how many follow."""
    more = f"and {len(texts) - limit + 1:,} more, see report.json"
    return list(texts) if len(texts) <= limit else [*texts[: limit - 1], more]
