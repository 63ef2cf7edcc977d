"""Report: what a run did, what it cost, which stage limits it and what a faster one would gain."""

import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import Self

from framefuse.common.files import os_errors_as, replaced
from framefuse.common.machine import available_cores, cpu_model, memory_limit
from framefuse.common.version import __version__
from framefuse.errors import SinkError, UsageError
from framefuse.report.facts import SCHEMA, CopyFacts, ErrorFacts, ModelFacts, ReportFacts, SourceFacts, ViewFacts
from framefuse.report.html import render
from framefuse.report.verdict import verdict
from framefuse.runtime.profiling import PROGRAM, Measured, Measurements
from framefuse.sources import SourceInfo
from framefuse.tracking.tally import EventFacts

FILES = "report.json", "report.html"
INCOMPLETE = re.compile("skipped|^damaged|^the header states")
"""Notes of sources that mean that something is missing from the results."""


@dataclass(frozen=True)
class Report(ReportFacts):
    """The report of one run, with its file formats."""

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the output of `to_json`; unknown keys of a later framefuse with the same schema are ignored.

        Raises:
            UsageError: not a report, or a report with another schema.
        """
        from pydantic import TypeAdapter, ValidationError

        try:
            report = TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            raise UsageError(f"not a framefuse report: {error.errors()[0]['msg']}") from error
        if report.schema != SCHEMA:
            raise UsageError(
                f"the report has schema {report.schema}, but this framefuse reads schema {SCHEMA}",
                remedy=f"read it with framefuse {report.framefuse}",
            )
        return report

    def to_json(self) -> str:
        return _printable(json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))

    def _repr_html_(self) -> str:
        """The page in a frame, for notebooks."""
        page = escape(self.to_html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:40em;border:0"></iframe>'

    def to_html(self, folder: Path | None = None) -> str:
        """The report as one self-contained page; links to outputs are relative to `folder`."""
        return _printable(render(self, folder))

    def save(self, folder: Path) -> list[Path]:
        """Write FILES into a folder, which is created if missing; returns their paths.

        Existing files are replaced once the new ones are complete.

        Raises:
            SinkError: a file cannot be written.
        """
        texts = dict(zip((folder / name for name in FILES), (self.to_json(), self.to_html(folder)), strict=True))
        what = f"cannot write the report into {folder}"
        with os_errors_as(SinkError, what, "choose another --project or --name"), ExitStack() as stack:
            folder.mkdir(parents=True, exist_ok=True)
            for path, text in texts.items():
                stack.enter_context(replaced(path, ".part")).write_text(text, encoding="utf-8")
        return list(texts)


def _printable(text: str) -> str:
    """The text with ? for what UTF-8 cannot encode, such as the raw bytes of a file name."""
    return text.encode("utf-8", "replace").decode("utf-8")


def build_report(
    measured: Measurements,
    *,
    sources: Iterable[SourceInfo] = (),
    model: ModelFacts | None = None,
    looked: tuple[float, float] | None = None,
    choices: Iterable[str] = (),
    copies: Iterable[CopyFacts] = (),
    detections: Mapping[str, int] | None = None,
    tracks: int | None = None,
    events: EventFacts | None = None,
    outputs: Iterable[Path] = (),
    unreadable: int = 0,
    warnings: Iterable[str] = (),
    error: ErrorFacts | None = None,
) -> Report:
    """The report of a run, finished or failed.

    Args:
        measured: `Recorder.snapshot()`.
        looked: views a frame, and their pixels over those of the frame; None: the model saw whole frames.
        detections: class name -> count.
    """
    infos, stages, cores, limit = list(sources), measured.stages, available_cores(), memory_limit()
    frames, seconds, faults, peak = measured.frames, measured.seconds, measured.minor_faults, measured.peak_rss_mb
    cpu_ms = measured.cpu_seconds * 1e3 / max(frames, 1)
    late = sum(info.drops.get(cause, 0) for info in infos for cause in ("stale", "superseded"))
    # A pipeline slower than its live source drops frames; a few drops during the slow first frames are normal.
    live, idle = bool(infos) and all(info.live for info in infos) and late <= 0.02 * frames, measured.machine_idle
    found = verdict(
        stages, cores=cores, frames=frames, seconds=seconds, cpu_ms=cpu_ms, machine_idle=idle, source_limits=live
    )
    per_class = dict(sorted((detections or {}).items(), key=lambda row: -row[1]))
    each = sum((stage.device_ms or stage.busy_ms).mean for stage in stages if stage.thread == PROGRAM)
    full = []
    if peak and limit is not None and peak * 1e6 >= 0.9 * limit:
        allowed = f"the {limit / 1e6:,.0f} MB allowed; beyond that, the run is killed"
        full.append(f"peak memory was {peak:,.0f} MB of {allowed}")
    return Report(
        framefuse=__version__,
        **{fact.name: getattr(measured, fact.name) for fact in fields(Measured)},
        fps=frames / seconds if seconds else 0.0,
        verdict=found.sentence,
        limiter=found.limiter,
        explained=found.explained,
        what_ifs=list(found.what_ifs),
        cores=cores,
        cpu_ms_per_frame=cpu_ms,
        other_cpu_ms=max(cpu_ms - sum(stage.cpu_ms or 0.0 for stage in stages), 0.0),
        detections=sum(per_class.values()),
        detections_per_class=per_class,
        tracks=tracks,
        events=events,
        sources=[SourceFacts.of(info) for info in infos],
        model=model,
        views=ViewFacts(looked[0], each, looked[1]) if looked else None,
        choices=list(choices),
        copies=list(copies),
        minor_faults_per_frame=faults / max(frames, 1),
        outputs=[str(path) for path in outputs],
        unreadable=unreadable,
        warnings=[*_incomplete(infos), *warnings, *full],
        error=error,
        environment=environment(),
    )


def _incomplete(infos: Sequence[SourceInfo]) -> list[str]:
    """What of the sources is skipped, damaged or cut off; of several, each line names its own, if it does not yet."""
    names, found = tuple(f"{info.uri}: " for info in infos), dict[str, None]()
    for info in infos:
        named = len(infos) == 1 or (info.path is None and info.kind != "images")
        for text in (note for note in info.notes if INCOMPLETE.search(note)):
            found[text if named or text.startswith(names) else f"{info.uri}: {text}"] = None
    return list(found)


def environment() -> dict[str, str]:
    """The machine, and the versions of the packages in use."""
    facts = {
        "CPU": cpu_model(),
        "cores": f"{available_cores()} usable of {os.cpu_count()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": platform.python_version(),
    }
    packages = {name: sys.modules[name] for name in ("numpy", "av", "openvino", "onnxruntime") if name in sys.modules}
    return facts | {name: str(getattr(module, "__version__", "unknown")) for name, module in packages.items()}
