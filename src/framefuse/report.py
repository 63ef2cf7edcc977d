"""Report: what a run did, what it cost, which stage limits it and what a faster one would gain."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from framefuse.errors import SinkError, UsageError
from framefuse.machine import available_cores
from framefuse.profiling import Measurements, Spread, StageStats
from framefuse.sources import SourceInfo
from framefuse.verdict import WhatIf, verdict

SCHEMA = 1
"""Version of the JSON; it grows when a field changes its meaning or goes away."""


@dataclass(frozen=True)
class SourceFacts:
    """One source of a run."""

    uri: str
    """Without password."""
    kind: str
    width: int | None = None
    height: int | None = None
    fps: float | None = None
    notes: list[str] = field(default_factory=list)
    drops: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, info: SourceInfo) -> SourceFacts:
        fps = None if info.fps is None else float(info.fps)
        return cls(info.uri, info.kind, info.width, info.height, fps, list(info.notes), dict(info.drops))


@dataclass(frozen=True)
class ModelFacts:
    """The model of a run, and what ran it."""

    name: str
    layout: str
    input: str
    """Width x height of the model input as it ran: "640x384"."""
    engine: str
    precision: str


@dataclass(frozen=True)
class CopyFacts:
    """What one stage copied to, from or on the GPU."""

    stage: str
    direction: str
    """h2d, d2h or d2d: from host or device to host or device."""
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
    def of(cls, error: BaseException) -> ErrorFacts:
        if isinstance(error, KeyboardInterrupt):
            return cls("KeyboardInterrupt", "stopped by the user")
        message = getattr(error, "message", None) or str(error) or type(error).__name__
        return cls(type(error).__name__, message, getattr(error, "stage", None), getattr(error, "remedy", None))


@dataclass(frozen=True)
class Report:
    """One run. Times are milliseconds unless the name says otherwise; CPU times are per frame."""

    framefuse: str
    """Version."""
    started: str
    finished: str
    """ISO 8601, UTC."""
    frames: int
    seconds: float
    fps: float
    verdict: str
    limiter: str | None
    explained: float
    what_ifs: list[WhatIf]
    stages: list[StageStats]
    cores: int
    cpu_ms_per_frame: float
    other_cpu_ms: float
    """The part of `cpu_ms_per_frame` that no stage claims."""
    latency_ms: Spread | None = None
    """Per frame, from arrival (live) or the end of decoding to the result."""
    latency_bars: list[tuple[float, int]] = field(default_factory=list)
    """(upper bound in ms, frames), bars of equal width from 0."""
    fps_over_time: list[tuple[float, float]] = field(default_factory=list)
    """(second at the end of an interval, frames per second in it)."""
    detections: int = 0
    detections_per_class: dict[str, int] = field(default_factory=dict)
    sources: list[SourceFacts] = field(default_factory=list)
    model: ModelFacts | None = None
    choices: list[str] = field(default_factory=list)
    """What was chosen automatically, each with its reason."""
    copies: list[CopyFacts] = field(default_factory=list)
    """The ledger: empty where no GPU took part."""
    peak_rss_mb: float | None = None
    minor_faults_per_frame: float | None = None
    outputs: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: ErrorFacts | None = None
    environment: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    def summary(self) -> str:
        """One line: "300 frames in 3.6 s, 83.3 fps, 12.4 ms p50 latency, 2,345 detections; inference limits"."""
        plural = "" if self.frames == 1 else "s"
        parts = [f"{self.frames:,} frame{plural} in {self.seconds:.1f} s", f"{self.fps:.1f} fps"]
        if self.latency_ms:
            parts.append(f"{self.latency_ms.p50:.1f} ms p50 latency")
        if self.model is None or self.model.layout != "semantic":
            parts.append(f"{self.detections:,} detection{'' if self.detections == 1 else 's'}")
        if self.error:
            where = f" in {self.error.stage}" if self.error.stage else ""
            return ", ".join(parts) + f"; ended by {self.error.kind}{where}"
        limit = {None: "", "source": "; the source limits"}.get(self.limiter, f"; {self.limiter} limits")
        return ", ".join(parts) + limit

    def table(self) -> str:
        """The report as plain text, about 100 columns wide."""
        lines = [self.summary(), ""]
        if self.model:
            model = self.model
            lines.append(f"model    {model.name}, {model.layout}, {model.input}, {model.engine} {model.precision}")
        for source in self.sources:
            size = f" {source.width}x{source.height}" if source.width else ""
            drops = "".join(f", {count:,} {cause}" for cause, count in source.drops.items())
            lines.append(f"source   {source.uri}{size}{f' {source.fps:.3g} fps' if source.fps else ''}{drops}")
        head = f"{'p50 ms':>9}{'p95':>9}{'p99':>9}{'wait in s':>11}{'blocked s':>11}"
        lines += ["", f"{'stage':<14}{'CPU ms':>8} {'':<16}{head}"]
        for stage in self.stages:
            cpu = "-" if stage.cpu_ms is None else f"{stage.cpu_ms:.2f}"
            busy = "".join(f"{value:>9.2f}" for value in (stage.busy_ms.p50, stage.busy_ms.p95, stage.busy_ms.p99))
            waits = f"{stage.wait_in_ms / 1e3:>11.2f}{stage.wait_out_ms / 1e3:>11.2f}"
            lines.append(f"{stage.name:<14}{cpu:>8} {self._bar(stage.cpu_ms):<16}{busy}{waits}")
        lines.append(f"{'other':<14}{self.other_cpu_ms:>8.2f} {self._bar(self.other_cpu_ms):<16}")
        offered = self.seconds * 1e3 / max(self.frames, 1) * self.cores
        cores = f"of the {offered:.2f} that {self.cores} core{'s have' if self.cores > 1 else ' has'} a frame"
        memory = f", {self.peak_rss_mb:,.0f} MB at most" if self.peak_rss_mb else ""
        lines += [f"{'all':<14}{self.cpu_ms_per_frame:>8.2f} {cores}{memory}", "", f"verdict  {self.verdict}"]
        if self.copies:
            lines.append(f"copies   {self.copied()}")
        warnings = [*self.skipped(), *self.warnings]
        for title, texts in (("choice", self.choices), ("warning", warnings), ("wrote", self.outputs)):
            lines += [f"{title:<9}{text}" for text in texts]
        if self.error:
            lines.append(f"error    {self.error.kind}: {self.error.message}")
            lines += [f"         -> {self.error.remedy}"] if self.error.remedy else []
        return "\n".join(lines)

    def skipped(self) -> list[str]:
        """What was left out of the sources, each of them named where there are several."""
        names = tuple(f"{source.uri}: " for source in self.sources)
        said = [(source, text) for source in self.sources for text in source.notes if "skipped" in text]
        return list(
            dict.fromkeys(
                text if len(names) == 1 or text.startswith(names) else f"{source.uri}: {text}" for source, text in said
            )
        )

    def copied(self) -> str:
        """What crossed the bus, in words: "a frame: 0 bytes of pixels, 3,456 of tables and results over the bus"."""
        over = [row for row in self.copies if row.direction != "d2d"]
        pixels = sum(row.bytes_per_frame for row in over if row.kind == "pixels")
        rest = sum(row.bytes_per_frame for row in over if row.kind != "pixels")
        return f"a frame: {pixels:,.0f} bytes of pixels, {rest:,.0f} of tables and results over the bus"

    def _bar(self, cpu_ms: float | None, width: int = 15) -> str:
        return "█" * round(width * (cpu_ms or 0.0) / max(self.cpu_ms_per_frame, 1e-9))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return _printable(json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))

    @classmethod
    def from_json(cls, text: str | bytes) -> Report:
        """Read what `to_json` wrote; keys of a later framefuse with the same schema are ignored.

        Raises:
            UsageError: not a report, or one of another schema.
        """
        from pydantic import TypeAdapter, ValidationError

        try:
            report = TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            raise UsageError(f"not a framefuse report: {error.errors()[0]['msg']}") from error
        if report.schema != SCHEMA:
            raise UsageError(
                f"the report has schema {report.schema}, this framefuse reads {SCHEMA}",
                remedy=f"read it with framefuse {report.framefuse}",
            )
        return report

    def to_html(self, folder: Path | None = None) -> str:
        """One page that needs nothing else; links to the outputs are relative to `folder`."""
        from framefuse.report_html import render

        return _printable(render(self, folder))

    def save(self, folder: Path) -> list[Path]:
        """Write report.json and report.html into a folder, which is made when it is missing; returns their paths.

        Those of an earlier run are replaced when the new ones are complete.

        Raises:
            SinkError: they cannot be written.
        """
        texts = {folder / "report.json": self.to_json(), folder / "report.html": self.to_html(folder)}
        parts = {path: path.with_name(path.name + ".part") for path in texts}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, text in texts.items():
                parts[path].write_text(text, encoding="utf-8")
            for path, part in parts.items():
                os.replace(part, path)
        except OSError as error:
            raise SinkError(
                f"cannot write the report into {folder}: {error.strerror}", remedy="choose another --project or --name"
            ) from error
        finally:
            for part in parts.values():
                with suppress(OSError):
                    part.unlink()
        return list(texts)


def build_report(
    measured: Measurements,
    *,
    sources: Iterable[SourceInfo] = (),
    model: ModelFacts | None = None,
    choices: Iterable[str] = (),
    copies: Iterable[CopyFacts] = (),
    detections: Mapping[str, int] | None = None,
    outputs: Iterable[Path] = (),
    warnings: Iterable[str] = (),
    error: ErrorFacts | None = None,
) -> Report:
    """Put a report together after a run, finished or failed.

    Args:
        measured: `Recorder.snapshot()`.
        detections: count by class name.
        error: what ended the run early.
    """
    infos = list(sources)
    frames, seconds, cores = measured.frames, measured.seconds, available_cores()
    cpu_ms = measured.cpu_seconds * 1e3 / max(frames, 1)
    late = sum(info.drops.get(cause, 0) for info in infos for cause in ("stale", "superseded"))
    found = verdict(
        measured.stages,
        cores=cores,
        frames=frames,
        seconds=seconds,
        cpu_ms=cpu_ms,
        machine_idle=measured.machine_idle,
        # A pipeline that is slower than its live source drops frames; a few are dropped while the first ones are slow.
        source_limits=bool(infos) and all(info.live for info in infos) and late <= 0.02 * frames,
    )
    per_class = dict(sorted((detections or {}).items(), key=lambda row: -row[1]))
    faults = measured.minor_faults
    return Report(
        framefuse=_version("framefuse"),
        started=measured.started,
        finished=measured.finished,
        frames=frames,
        seconds=seconds,
        fps=frames / seconds if seconds else 0.0,
        verdict=found.sentence,
        limiter=found.limiter,
        explained=found.explained,
        what_ifs=list(found.what_ifs),
        stages=measured.stages,
        cores=cores,
        cpu_ms_per_frame=cpu_ms,
        other_cpu_ms=max(cpu_ms - sum(stage.cpu_ms or 0.0 for stage in measured.stages), 0.0),
        latency_ms=measured.latency_ms,
        latency_bars=measured.latency_bars,
        fps_over_time=measured.fps_over_time,
        detections=sum(per_class.values()),
        detections_per_class=per_class,
        sources=[SourceFacts.of(info) for info in infos],
        model=model,
        choices=list(choices),
        copies=list(copies),
        peak_rss_mb=measured.peak_rss_mb,
        minor_faults_per_frame=None if faults is None else faults / max(frames, 1),
        outputs=[str(path) for path in outputs],
        warnings=list(warnings),
        error=error,
        environment=environment(),
    )


def _printable(text: str) -> str:
    """With ? for what has no UTF-8: the bytes of a file name that are no text."""
    return text.encode("utf-8", "replace").decode("utf-8")


def environment() -> dict[str, str]:
    """The machine and the versions of the packages that took part."""
    facts = {
        "CPU": _cpu_model(),
        "cores": f"{available_cores()} usable of {os.cpu_count()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": platform.python_version(),
    }
    for package in ("numpy", "av", "openvino", "onnxruntime"):
        if package in sys.modules:
            facts[package] = _version(package)
    return facts


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or "unknown"
    return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from source"
