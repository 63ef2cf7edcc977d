"""The certificate, as rows for a terminal, Markdown, HTML without scripts, or JSON."""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from framefuse.common.text import in_html, in_markdown
from framefuse.lab.evaluation.scores import markdown_table
from framefuse.lab.parity.chain import Selection
from framefuse.lab.parity.compare import Check, Verdict, worst
from framefuse.prediction import Detections
from framefuse.report.html import _section, _table, page, picture

MARKS = {"exact": "=", "within": "~", "outside": "X", "not compared": "-"}
COLOURS = {"exact": "pre", "within": "post", "outside": "sink0", "not compared": "other"}
"""Classes of report.css: green, amber, red and grey."""
NOTE = (
    "From left to right, our stages replace those of the reference; the colour rates the resulting boxes. Green: "
    "identical except for rounding. Amber: within the limits. Red: outside. Grey: not compared."
)
LEGEND = "= identical except for rounding   ~ within the limits   X outside the limits   - not compared"


@dataclass
class EngineResult:
    """One engine in one precision."""

    name: str
    device: str
    asked: str
    """The requested precision."""
    precision: str = ""
    """The precision that ran."""
    checks: list[Check] = field(default_factory=list)
    """Each stage alone, on the reference's input of that stage."""
    steps: list[Check] = field(default_factory=list)
    """Boxes when the reference's stages are replaced by ours one after the other."""
    absent: str = ""
    """Why it did not run on this machine; empty if it did."""
    peer: list[Check] = field(default_factory=list)
    """Each stage against ultralytics."""

    @property
    def verdict(self) -> Verdict:
        return worst(check.verdict for check in (*self.checks, *self.steps))

    @property
    def starts(self) -> str:
        """A sentence on where differences start, or where they exceed the limits."""
        if wrong := next((check for check in (*self.checks, *self.steps) if check.verdict == "outside"), None):
            return f"outside the limits from {wrong.stage} on: {wrong.found}"
        if first := next((check for check in self.steps if check.verdict == "within"), None):
            return f"the first difference is at {first.stage}, within the limits: {first.found}"
        return "no difference beyond rounding at any stage"

    @property
    def outcome(self) -> str:
        """`starts`, or why it did not run."""
        return f"not run here: {self.absent}" if self.absent else self.starts


@dataclass
class Certificate:
    """The comparison of every engine with the reference."""

    model: str
    layout: str
    video: str
    size: tuple[int, int]
    """Width and height of the frames."""
    input: tuple[int, int]
    """Width and height of the model input."""
    frames: Sequence[tuple[str, int, float | None]]
    """Source, index and seconds of each; the index counts from where reading began."""
    boxes: int
    """Number of boxes of the reference in all frames."""
    selection: Selection
    pixels: list[Check]
    """Decoding and colour: the same for every engine."""
    engines: list[EngineResult]
    peer: str
    """Name and version of the other implementation, or why a requested one was not compared."""
    shown: tuple[NDArray[np.uint8], Detections, Detections] | None = field(repr=False)
    """The first frame, (height, width, 3) RGB, and its boxes: of the reference, and of the first engine's pipeline."""

    @property
    def ok(self) -> bool:
        """Whether at least one engine ran, and no stage of any that ran is outside its limits."""
        ran = [engine for engine in self.engines if not engine.absent]
        checks = [*self.pixels, *(check for engine in ran for check in (*engine.checks, *engine.steps, *engine.peer))]
        return bool(ran) and worst(check.verdict for check in checks) != "outside"

    def table(self) -> list[Sequence[str]]:
        """Rows for `print_table`; a row with a single cell is a title."""
        rows: list[Sequence[str]] = []
        for title, checks in groups(self):
            rows += [(title,), *((MARKS[rated], *texts) for rated, *texts in checks)]
        return rows

    def summary(self) -> list[str]:
        """One line per engine, then the verdict."""
        lines = [f"{called(engine)}: {engine.outcome}" for engine in self.engines]
        lines += [self.peer] if self.peer and not any(engine.peer for engine in self.engines) else []
        for engine in self.engines:
            wrong = [check for check in engine.peer if check.verdict == "outside"]
            if engine.peer:
                what = f"outside the limits: {wrong[0].stage}: {wrong[0].found}" if wrong else "within the limits"
                lines.append(f"{called(engine)} against {self.peer}: {what}")
        return [*lines, verdict(self)]

    def markdown(self) -> str:
        lines = [f"# Parity certificate: {verdict(self)}", "", in_markdown(head(self)) + "."]
        lines += ["", "## Where it starts", ""]
        lines += [f"- {in_markdown(line)}" for line in self.summary()[:-1]]
        for title, checks in groups(self):
            rows = [(MARKS[rated], *texts) for rated, *texts in checks]
            lines += ["", f"## {in_markdown(title)}", "", *markdown_table([("", "stage", "found", "limit", ""), *rows])]
        return "\n".join([*lines, "", LEGEND, ""])

    def html(self) -> str:
        """A page in the style of the report."""
        chains = ""
        for engine in self.engines:
            chains += f"<p><b>{in_html(called(engine))}</b> <span class='note'>{in_html(engine.outcome)}</span></p>"
            steps = "".join(f"<li>{_key(check.verdict)}{in_html(check.stage)}</li>" for check in engine.steps)
            chains += f"<ul class='legend'>{steps}</ul>" if steps else ""
        if self.peer and not any(engine.peer for engine in self.engines):
            chains += f"<p class='note'>{in_html(self.peer)}</p>"
        image = picture(_drawn(*self.shown), "boxes of both", "width:100%") if self.shown else ""
        sections = [
            f"<header><h1>Parity certificate</h1><p class='note'>{in_html(head(self))}</p>"
            f"<p class='verdict'>{in_html(verdict(self))}</p></header>",
            _section("Where a difference starts", chains, NOTE),
            _section("The first of the frames", image, "Wide white boxes: the reference. Narrow pink: the pipeline."),
        ]
        for title, checks in groups(self):
            rows = [(_key(rated) + rated, *map(in_html, texts)) for rated, *texts in checks]
            sections.append(_section(in_html(title), _table(("", "stage", "found", "limit", ""), rows, texts=5)))
        return page(f"parity: {self.model}", sections)

    def to_json(self) -> str:
        """All but the image."""
        content = asdict(replace(self, shown=None))
        del content["shown"]
        content |= {"verdict": verdict(self), "frames": len(self.frames)}
        content["compared"] = [{"source": name, "index": n, "seconds": at} for name, n, at in self.frames]
        for engine, entry in zip(self.engines, content["engines"], strict=True):
            entry |= {"starts": "" if engine.absent else engine.starts, "verdict": engine.verdict}
        return json.dumps(content, indent=1)


def groups(certificate: Certificate) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Title and checks of each section of the page; of a check: verdict, stage, what was found, limit and note."""
    found = [("every engine: decoding and colour", certificate.pixels)]
    for engine in (one for one in certificate.engines if not one.absent):
        name = called(engine)
        found += [(f"{name}: each stage alone", engine.checks), (f"{name}: stage after stage", engine.steps)]
        if engine.peer:
            found.append((f"{name} against {certificate.peer}", engine.peer))
    return [
        (title, [(one.verdict, one.stage, one.found or one.verdict, one.limit, one.note) for one in checks])
        for title, checks in found
    ]


def called(engine: EngineResult) -> str:
    where = " on cuda" if engine.device == "cuda" else ""
    return f"{engine.name}{where} {engine.precision or engine.asked}"


def head(certificate: Certificate) -> str:
    width, height = certificate.size
    chosen = certificate.selection
    places = [f"{number}" if seconds is None else f"{seconds:.2f} s" for _, number, seconds in certificate.frames]
    return (
        f"{certificate.model} ({certificate.layout}), {len(places)} frames of {width}x{height} from "
        f"{certificate.video} (at {', '.join([*places[:8], *['...'][: len(places) - 8]])}), model input "
        f"{certificate.input[0]}x{certificate.input[1]}, confidence {chosen.conf:g}, suppression {chosen.iou:g}: "
        f"{certificate.boxes} boxes in the reference"
    )


def verdict(certificate: Certificate) -> str:
    if all(engine.absent for engine in certificate.engines):
        return "NOT CERTIFIED: no engine ran"
    if not certificate.boxes:
        return "NOT CERTIFIED: the reference found no boxes; use another source, or a lower --conf"
    return "CERTIFIED" if certificate.ok else "NOT CERTIFIED"


def _drawn(frame: NDArray[np.uint8], reference: Detections, ours: Detections) -> bytes:
    """A frame with both lists of boxes, as a JPEG."""
    from PIL import Image, ImageDraw

    image = Image.fromarray(frame)
    scale, pen = max(1.0, image.width / 1280), ImageDraw.Draw(image)
    for boxes, colour, width in ((reference, "white", 4), (ours, "#ff3d8b", 2)):
        for box in boxes.xyxy.tolist():
            pen.rectangle(box, outline=colour, width=round(width * scale))
    image.thumbnail((1280, image.height))
    image.save(memory := io.BytesIO(), "JPEG", quality=85)
    return memory.getvalue()


def _key(rated: str) -> str:
    return f"<span class='key {COLOURS[rated]}'></span>"
