"""The certificate as rows for a terminal, Markdown, HTML without scripts, or JSON."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from framefuse.common.text import in_markdown
from framefuse.lab.parity.findings import EngineResult, Findings

if TYPE_CHECKING:
    from framefuse.lab.parity.compare import Boxes, Check

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


def groups(certificate: Findings) -> list[tuple[str, list[Check]]]:
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


def head(certificate: Findings) -> str:
    width, height = certificate.size
    chosen = certificate.selection
    places = [f"{number}" if seconds is None else f"{seconds:.2f} s" for _, number, seconds in certificate.frames]
    return (
        f"{certificate.model} ({certificate.layout}), {len(places)} frames of {width}x{height} from "
        f"{certificate.video} (at {', '.join([*places[:8], *['...'][: len(places) - 8]])}), model input "
        f"{certificate.input[0]}x{certificate.input[1]}, confidence {chosen.conf:g}, suppression {chosen.iou:g}: "
        f"{certificate.boxes} boxes in the reference"
    )


def summary(certificate: Findings) -> list[str]:
    """One line per engine, then the verdict."""
    lines = [
        f"{called(engine)}: " + (f"not run here: {engine.absent}" if engine.absent else engine.starts)
        for engine in certificate.engines
    ]
    if certificate.peer and not any(engine.peer for engine in certificate.engines):
        lines.append(certificate.peer)
    for engine in certificate.engines:
        wrong = [check for check in engine.peer if check.verdict == "outside"]
        if engine.peer:
            what = f"outside the limits: {wrong[0].stage}: {wrong[0].found}" if wrong else "within the limits"
            lines.append(f"{called(engine)} against {certificate.peer}: {what}")
    return [*lines, verdict(certificate)]


def verdict(certificate: Findings) -> str:
    if not any(not engine.absent for engine in certificate.engines):
        return "NOT CERTIFIED: no engine ran"
    if not certificate.boxes:
        return "NOT CERTIFIED: the reference found no boxes; use another source, or a lower --conf"
    return "CERTIFIED" if certificate.ok else "NOT CERTIFIED"


def table(certificate: Findings) -> list[Sequence[str]]:
    """Rows for `print_table`; a row with a single cell is a title."""
    rows: list[Sequence[str]] = []
    for title, checks in groups(certificate):
        rows.append((title,))
        rows += [(MARKS[check.verdict], check.stage, check.found, check.limit, check.note) for check in checks]
    return rows


def markdown(certificate: Findings) -> str:
    lines = [f"# Parity certificate: {verdict(certificate)}", "", in_markdown(head(certificate)) + "."]
    lines += ["", "## Where it starts", ""]
    lines += [f"- {in_markdown(line)}" for line in summary(certificate)[:-1]]
    for title, checks in groups(certificate):
        lines += ["", f"## {in_markdown(title)}", "", "| | stage | found | limit | |", "|---|---|---|---|---|"]
        for check in checks:
            lines.append(f"| {' | '.join((MARKS[check.verdict], *map(in_markdown, _texts(check))))} |")
    return "\n".join([*lines, "", LEGEND, ""])


def html(certificate: Findings) -> str:
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


def to_json(certificate: Findings) -> str:
    def checks(found: Iterable[Check]) -> list[dict[str, Any]]:
        return [asdict(check) for check in found]

    return json.dumps(
        {
            "verdict": verdict(certificate),
            "model": certificate.model,
            "layout": certificate.layout,
            "video": certificate.video,
            "size": certificate.size,
            "input": certificate.input,
            "frames": len(certificate.frames),
            "compared": [{"source": name, "index": n, "seconds": at} for name, n, at in certificate.frames],
            "boxes": certificate.boxes,
            "selection": asdict(certificate.selection),
            "pixels": checks(certificate.pixels),
            "peer": certificate.peer,
            "engines": [
                {
                    "name": engine.name, "device": engine.device,
                    "asked": engine.asked, "precision": engine.precision, "absent": engine.absent,
                    "starts": "" if engine.absent else engine.starts, "verdict": engine.verdict,
                    "checks": checks(engine.checks), "steps": checks(engine.steps), "peer": checks(engine.peer),
                }
                for engine in certificate.engines
            ],
        },
        indent=1,
    )  # fmt: skip


def _drawn(certificate: Findings) -> str:
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


class Certificate(Findings):
    """The comparison of every engine with the reference, as text, Markdown, HTML and JSON."""

    table, summary, markdown, html, to_json = table, summary, markdown, html, to_json
