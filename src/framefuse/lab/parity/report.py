"""The certificate, as rows for a terminal, Markdown, HTML without scripts, or JSON."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape

import numpy as np
from numpy.typing import NDArray

from framefuse.common.text import in_markdown
from framefuse.lab.parity.chain import Selection
from framefuse.lab.parity.compare import Boxes, Check, Verdict, worst

MARKS = {"exact": "=", "within": "~", "outside": "X", "not compared": "-"}
LEGEND = "= identical except for rounding   ~ within the limits   X outside the limits   - not compared"
STYLE = """
:root { --ink:#1c2430; --soft:#5b6675; --line:#d9dfe7; --page:#fbfcfd; --exact:#1b8a5a; --within:#b98400;
        --outside:#c8323c; --none:#9aa5b1; }
@media (prefers-color-scheme: dark) { :root { --ink:#e7ebf0; --soft:#9aa7b6; --line:#313b48; --page:#12171d; } }
* { box-sizing:border-box } body { margin:0; background:var(--page); color:var(--ink);
  font:15px/1.45 system-ui, sans-serif } main { max-width:64rem; margin:0 auto; padding:1.5rem 1rem 3rem }
h1 { font-size:1.5rem; margin:0 } h2 { font-size:1.05rem; margin:2rem 0 .5rem } p { margin:.3rem 0 }
.soft { color:var(--soft) } .big { font-size:1.15rem; font-weight:600; margin:.6rem 0 }
.chain { display:flex; gap:.3rem; flex-wrap:wrap; margin:.5rem 0 }
.chain span { flex:1 1 6rem; padding:.35rem .5rem; border-radius:.3rem; color:#fff; font-size:.85rem;
  text-align:center }
.exact { background:var(--exact) } .within { background:var(--within) } .outside { background:var(--outside) }
.none { background:var(--none) }
.wide { overflow-x:auto } table { border-collapse:collapse; width:100%; font-size:.88rem }
th, td { text-align:left; padding:.3rem .6rem .3rem 0; border-bottom:1px solid var(--line); vertical-align:top }
td.exact, td.within, td.outside, td.none { background:none; font-weight:600; white-space:nowrap }
td.exact { color:var(--exact) } td.within { color:var(--within) } td.outside { color:var(--outside) }
td.none { color:var(--none) } img { max-width:100%; height:auto; border-radius:.3rem; margin-top:.5rem }
"""


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

    def same_as(self, other: EngineResult) -> bool:
        """Whether two requested precisions resolved to the same result."""
        mine, others = ((one.name, one.device, one.precision, one.absent) for one in (self, other))
        return mine == others

    @property
    def starts(self) -> str:
        """A sentence on where differences start, or where they exceed the limits."""
        first = next((check for check in self.steps if check.verdict in ("within", "outside")), None)
        wrong = next((check for check in (*self.checks, *self.steps) if check.verdict == "outside"), None)
        if wrong is not None:
            return f"outside the limits from {wrong.stage} on: {wrong.found}"
        if first is None:
            return "no difference beyond rounding at any stage"
        return f"the first difference is at {first.stage}, within the limits: {first.found}"


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
    peer: str = ""
    """Name and version of the other implementation, or why a requested one was not compared."""
    image: NDArray[np.uint8] | None = field(default=None, repr=False)
    """(height, width, 3) RGB: the first frame."""
    shown: tuple[Boxes, Boxes] | None = field(default=None, repr=False)
    """Its boxes: of the reference, and of the first engine's whole pipeline."""

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
            rows.append((title,))
            rows += [(MARKS[check.verdict], check.stage, check.found, check.limit, check.note) for check in checks]
        return rows

    def summary(self) -> list[str]:
        """One line per engine, then the verdict."""
        lines = [
            f"{called(engine)}: " + (f"not run here: {engine.absent}" if engine.absent else engine.starts)
            for engine in self.engines
        ]
        if self.peer and not any(engine.peer for engine in self.engines):
            lines.append(self.peer)
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
            lines += ["", f"## {in_markdown(title)}", "", "| | stage | found | limit | |", "|---|---|---|---|---|"]
            for check in checks:
                lines.append(f"| {' | '.join((MARKS[check.verdict], *map(in_markdown, _texts(check))))} |")
        return "\n".join([*lines, "", LEGEND, ""])

    def html(self) -> str:
        return _page(self)

    def to_json(self) -> str:
        """All but the image."""
        content = asdict(replace(self, image=None, shown=None))
        del content["image"], content["shown"]
        content |= {"verdict": verdict(self), "frames": len(self.frames)}
        content["compared"] = [{"source": name, "index": n, "seconds": at} for name, n, at in self.frames]
        for engine, entry in zip(self.engines, content["engines"], strict=True):
            entry |= {"starts": "" if engine.absent else engine.starts, "verdict": engine.verdict}
        return json.dumps(content, indent=1)


def groups(certificate: Certificate) -> list[tuple[str, list[Check]]]:
    """Title and checks of each section of the page."""
    found = [("every engine: decoding and colour", certificate.pixels)]
    for engine in certificate.engines:
        if engine.absent:
            continue
        name = called(engine)
        found += [(f"{name}: each stage alone", engine.checks), (f"{name}: stage after stage", engine.steps)]
        if engine.peer:
            found.append((f"{name} against {certificate.peer}", engine.peer))
    return found


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
    if not any(not engine.absent for engine in certificate.engines):
        return "NOT CERTIFIED: no engine ran"
    if not certificate.boxes:
        return "NOT CERTIFIED: the reference found no boxes; use another source, or a lower --conf"
    return "CERTIFIED" if certificate.ok else "NOT CERTIFIED"


def _page(certificate: Certificate) -> str:
    good = verdict(certificate) == "CERTIFIED"
    parts = [
        "<h1>Parity certificate</h1>",
        f'<p class="soft">{escape(head(certificate))}</p>',
        f'<p class="big" style="color:var(--{"exact" if good else "outside"})">{escape(verdict(certificate))}</p>',
        "<h2>Where a difference starts</h2>",
        '<p class="soft">From left to right, our stages replace those of the reference; the colour rates the resulting '
        "boxes. Green: identical except for rounding. Amber: within the limits. Red: outside. Grey: not compared.</p>",
    ]
    for engine in certificate.engines:
        parts.append(f"<p><b>{escape(called(engine))}</b> ")
        if engine.absent:
            parts.append(f'<span class="soft">not run here: {escape(engine.absent)}</span></p>')
            continue
        parts.append(f'<span class="soft">{escape(engine.starts)}</span></p><div class="chain">')
        parts += [f'<span class="{_class(check)}">{escape(check.stage)}</span>' for check in engine.steps]
        parts.append("</div>")
    if certificate.peer and not any(engine.peer for engine in certificate.engines):
        parts.append(f'<p class="soft">{escape(certificate.peer)}</p>')
    if certificate.image is not None and certificate.shown is not None:
        parts.append("<h2>The first of the frames</h2>")
        parts.append('<p class="soft">Wide white boxes: the reference. Narrow pink boxes: the pipeline, first engine.')
        parts.append(f'</p><img alt="boxes of both" src="data:image/jpeg;base64,{_drawn(certificate)}">')
    for title, checks in groups(certificate):
        parts.append(f'<h2>{escape(title)}</h2><div class="wide"><table>')
        parts.append("<tr><th></th><th>stage</th><th>found</th><th>limit</th><th></th></tr>")
        for check in checks:
            cells = "".join(f"<td>{escape(text)}</td>" for text in _texts(check))
            parts.append(f'<tr><td class="{_class(check)}">{escape(check.verdict)}</td>{cells}</tr>')
        parts.append("</table></div>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>parity: {escape(certificate.model)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _drawn(certificate: Certificate) -> str:
    """The first frame with both lists of boxes, as a base64 JPEG."""
    from PIL import Image, ImageDraw

    assert certificate.image is not None and certificate.shown is not None
    image = Image.fromarray(certificate.image)
    scale = min(1.0, 1280 / image.width)
    image = image.resize((round(image.width * scale), round(image.height * scale)))
    pen = ImageDraw.Draw(image)

    def draw(boxes: Boxes, colour: str, width: int) -> None:
        for box in boxes.xyxy:
            pen.rectangle([float(side) * scale for side in box], outline=colour, width=width)

    reference, ours = certificate.shown
    draw(reference, "white", 4)
    draw(ours, "#ff3d8b", 2)
    memory = io.BytesIO()
    image.save(memory, "JPEG", quality=85)
    return base64.b64encode(memory.getvalue()).decode()


def _texts(check: Check) -> tuple[str, str, str, str]:
    return check.stage, check.found or check.verdict, check.limit, check.note


def _class(check: Check) -> str:
    return "none" if check.verdict == "not compared" else check.verdict
