"""The report as one HTML page without scripts, fonts or requests, styled by report.css.

Shapes are inline SVG that stretches; labels are HTML, so that text keeps its size on a narrow screen.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from framefuse.common.text import counted, in_html
from framefuse.report import events_html
from framefuse.report.facts import FEW, MANY, ReportFacts, few

MAX_CLASSES = 12
NAMED = 3
"""Sources that the heading names."""
_COLORS = {"decode": "decode", "preprocess": "pre", "inference": "infer", "postprocess": "post"}


def render(report: ReportFacts, folder: Path | None = None) -> str:
    """The page. Links to outputs are relative to `folder`; without one they are plain text."""
    title = report.model.name if report.model else "run"
    source = ", ".join(few([_name(source.uri) for source in report.sources], NAMED))
    sections = [
        _header(report, title, source),
        _cards(report),
        _section("Where a frame's CPU time goes", _cpu_bar(report)),
        _section(
            "What if one stage took no time",
            _what_ifs(report),
            "Predicted speed of the same run if one stage were free. Improve the stage with the longest bar first.",
        ),
        _pair(
            _section(
                "Latency", _latency(report), "From arrival (live) or decoding to the result. Dashed: p50, p95, p99."
            ),
            _section("Speed over time", _speed(report), "Frames per second over equal intervals. Dashed: the mean."),
        ),
        _section("Detections per class", _classes(report)),
        *_events(report, folder),
        _section("Stages", _stage_table(report)),
        _section("Views", f"<p>{report.views.line()}</p>" if report.views else ""),
        _section("Copies", _copies(report), "Bytes per frame between host (h) and device (d)."),
        _pair(_section("Automatic choices", _list(report.choices)), _section("Source", _sources(report))),
        _pair(
            _section("Outputs", _outputs(report, folder)),
            _section("Machine and versions", _facts(report.environment.items())),
        ),
    ]
    return page(f"framefuse: {title}", sections)


def page(title: str, sections: Iterable[str]) -> str:
    """A whole page of some sections; empty ones are left out."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{in_html(title)}</title><style>{style}</style></head>\n<body><main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


def _name(uri: str) -> str:
    """The last part of a path or address."""
    return uri.rstrip("/\\").replace("\\", "/").rpartition("/")[2] or uri


def _section(title: str, body: str, note: str = "") -> str:
    if not body:
        return ""
    note = f'<p class="note">{note}</p>' if note else ""
    return f"<section><h2>{title}</h2>{note}{body}</section>"


def _pair(left: str, right: str) -> str:
    return f'<div class="pair">{left}{right}</div>'


def _list(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{in_html(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """Cells are HTML; the first `texts` columns hold text, the others numbers."""

    def row(cells: Sequence[str], tag: str) -> str:
        kinds = [""] * texts + [' class="number"'] * (len(cells) - texts)
        return f"<tr>{''.join(f'<{tag}{kind}>{cell}</{tag}>' for kind, cell in zip(kinds, cells, strict=True))}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    return f'<div class="scroll"><table><thead>{row(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{in_html(key)}</dt><dd>{in_html(value)}</dd>" for key, value in rows)
    return f"<dl>{items}</dl>" if items else ""


def _header(report: ReportFacts, title: str, source: str) -> str:
    model = report.model
    facts = [f"{model.engine} {model.precision}, input {model.input}"] if model else []
    facts += [report.started[:19].replace("T", " ") + " UTC", f"framefuse {report.framefuse}"]
    what = f"{title} on {source}" if source else title
    state = ""
    if report.error:
        error = report.error
        where = f" in {error.stage}" if error.stage else ""
        remedy = f"<p>{in_html(error.remedy)}</p>" if error.remedy else ""
        state = (
            f'<div class="box bad" role="alert"><h2>The run ended early{in_html(where)}</h2>'
            f"<p>{in_html(error.kind)}: {in_html(error.message)}</p>{remedy}</div>"
        )
    if report.warnings:
        state += f'<div class="box warn"><h2>Warnings</h2>{_list(few(report.warnings))}</div>'
    sentence = report.verdict[:1].upper() + report.verdict[1:]
    return (
        f"<header><h1>{in_html(what)}</h1><p class='note'>{in_html(' · '.join(facts))}</p>"
        f"<p class='verdict'>{in_html(sentence)}.</p></header>{state}"
    )


def _cards(report: ReportFacts) -> str:
    used = report.cpu_ms_per_frame * report.fps / 1e3
    count = counted(report.frames, "frame")
    cards = [("Speed", f"{report.fps:.1f}", "fps", f"{count} in {report.seconds:.1f} s")]
    if latency := report.latency_ms:
        tail = f"p95 {latency.p95:.1f}, p99 {latency.p99:.1f} ms"
        cards.append(("Latency, median", f"{latency.p50:.1f}", "ms", tail))
    if report.frames:
        busy = f"{used:.2f} of {report.cores} cores busy"
        cards.append(("CPU per frame", f"{report.cpu_ms_per_frame:.1f}", "ms", busy))
    if report.frames and report.peak_rss_mb:
        faults = report.minor_faults_per_frame
        note = "peak of the process" if faults is None else f"peak; {faults:,.0f} page faults per frame"
        cards.append(("Memory", f"{report.peak_rss_mb:,.0f}", "MB", note))
    if report.frames and (report.model is None or report.model.layout != "semantic"):
        per_frame = report.detections / report.frames
        cards.append(("Detections", f"{report.detections:,}", "", f"{per_frame:.1f} per frame"))
    return _as_cards(cards)


def _as_cards(cards: Iterable[tuple[str, str, str, str]]) -> str:
    """Label, value, unit and note of each."""
    found = "".join(
        f"<div class='card'><h3>{in_html(label)}</h3><p class='big'>{in_html(value)}<small> {unit}</small></p>"
        f"<p class='note'>{in_html(note)}</p></div>"
        for label, value, unit, note in cards
    )
    return f'<div class="cards">{found}</div>'


def _colors(report: ReportFacts) -> dict[str, str]:
    """CSS class of each stage; sinks rotate through the remaining colours."""
    sinks = [stage.name for stage in report.stages if stage.name not in _COLORS]
    return _COLORS | {name: f"sink{number % 3}" for number, name in enumerate(sinks)}


def _cpu_bar(report: ReportFacts) -> str:
    if not report.frames:
        return ""
    colors = _colors(report)
    parts = [(stage.name, stage.cpu_ms, colors[stage.name]) for stage in report.stages if stage.cpu_ms is not None]
    if not parts or not report.cpu_ms_per_frame:
        return '<p class="note">CPU time by stage is not available on this system.</p>'
    parts.append(("other", report.other_cpu_ms, "other"))
    total = sum(value for _, value, _ in parts)
    bar, legend, left = "", "", 0.0
    for name, value, color in parts:
        width = 100 * value / total
        share = f"{value / total:.0%}"
        bar += (
            f"<rect class='{color}' x='{left:.3f}' y='0' width='{width:.3f}' height='10'>"
            f"<title>{in_html(name)}: {value:.2f} CPU-ms, {share}</title></rect>"
        )
        left += width
        legend += (
            f"<li><span class='key {color}'></span>{in_html(name)}<b>{value:.2f} ms</b>"
            f"<span class='note'>{share}</span></li>"
        )
    return (
        f"<svg class='stack' viewBox='0 0 100 10' preserveAspectRatio='none' role='img' aria-label='CPU time by stage, "
        f"{total:.1f} ms per frame in total'>{bar}</svg><ul class='legend'>{legend}</ul>"
        "<p class='note'>CPU milliseconds per frame of the stage's own thread and of the library threads that work for "
        "it. Caller: the loop that reads the results. Other: queues and the interpreter.</p>"
    )


def _bars(rows: Sequence[tuple[str, float, str, str]]) -> str:
    """Horizontal bars: label, value, text at the end, CSS class."""
    top = max((value for _, value, _, _ in rows), default=0.0)
    if top <= 0:
        return ""
    bars = "".join(
        f"<div><span class='label'>{in_html(label)}</span>"
        "<svg viewBox='0 0 100 10' preserveAspectRatio='none' aria-hidden='true'>"
        "<rect class='track' width='100' height='10'/>"
        f"<rect class='{color}' width='{100 * value / top:.2f}' height='10'/></svg>"
        f"<span class='value'>{in_html(text)}</span></div>"
        for label, value, text, color in rows
    )
    return f'<div class="bars">{bars}</div>'


def _what_ifs(report: ReportFacts) -> str:
    if not report.what_ifs:
        return ""
    colors = _colors(report)
    rows = [("as measured", report.fps, f"{report.fps:,.0f} fps", "other")]
    rows += [
        (f"without {row.stage}", row.fps, f"{row.fps:,.0f} fps ({row.factor:.1f}x)", colors.get(row.stage, "other"))
        for row in report.what_ifs
    ]
    return _bars(rows)


def _chart(shapes: str, label: str, top: str, right: str, marks: Iterable[tuple[str, str]]) -> str:
    """A chart 100 wide and 40 high, with axis labels around it and a legend of named values."""
    legend = "".join(f"<li>{name}<b>{value}</b></li>" for name, value in marks)
    return (
        f"<figure><span class='axis'>{in_html(top)}</span><svg class='chart' viewBox='0 0 100 40' "
        f"preserveAspectRatio='none' role='img' aria-label='{in_html(label)}'>{shapes}</svg>"
        f"<div class='ends'><span>0</span><span>{in_html(right)}</span></div><ul class='legend'>{legend}</ul></figure>"
    )


def _latency(report: ReportFacts) -> str:
    spread, bars = report.latency_ms, report.latency_bars
    if not spread or not bars:
        return ""
    highest, end = max(count for _, count in bars), bars[-1][0]
    width = 100 / len(bars)
    shapes = "".join(
        f"<rect class='accent' x='{number * width + 0.15:.2f}' y='{40 - 40 * count / highest:.2f}' "
        f"width='{width - 0.3:.2f}' height='{40 * count / highest:.2f}'>"
        f"<title>up to {bound:.1f} ms: {counted(count, 'frame')}</title></rect>"
        for number, (bound, count) in enumerate(bars)
        if count
    )
    points = (("p50", spread.p50), ("p95", spread.p95), ("p99", spread.p99))
    for name, value in points:
        x = f"{min(100 * value / end, 99.7):.2f}"
        shapes += f"<line class='mark' x1='{x}' x2='{x}' y1='0' y2='40'><title>{name}: {value:.1f} ms</title></line>"
    return _chart(
        shapes,
        f"Histogram of latency, median {spread.p50:.1f} ms",
        counted(highest, "frame"),
        f"{end:.1f} ms",
        [(name, f"{value:.1f} ms") for name, value in (*points, ("longest", spread.max))],
    )


def _speed(report: ReportFacts) -> str:
    series = report.fps_over_time
    if len(series) < 3 or not any(fps for _, fps in series):
        return ""
    end, top = series[-1][0], max(fps for _, fps in series) * 1.1
    starts = [0.0, *(second for second, _ in series[:-1])]
    points = [
        (100 * (start + second) / 2 / end, 40 - 40 * fps / top)
        for start, (second, fps) in zip(starts, series, strict=True)
    ]
    points = [(0.0, points[0][1]), *points, (100.0, points[-1][1])]
    line = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    mean = 40 - 40 * report.fps / top
    shapes = (
        f"<polygon class='area' points='0,40 {line} 100,40'/><polyline class='line' points='{line}'/>"
        f"<line class='mark' x1='0' x2='100' y1='{mean:.2f}' y2='{mean:.2f}'>"
        f"<title>mean: {report.fps:.1f} fps</title></line>"
    )
    slowest, fastest = min(fps for _, fps in series), max(fps for _, fps in series)
    marks = (("mean", report.fps), ("slowest", slowest), ("fastest", fastest))
    return _chart(
        shapes,
        f"Frames per second over time, {slowest:.0f} to {fastest:.0f}",
        f"{top:.0f} fps",
        f"{end:.1f} s",
        [(name, f"{value:.0f} fps") for name, value in marks],
    )


def _classes(report: ReportFacts) -> str:
    rows = list(report.detections_per_class.items())
    bars = [(name, float(count), f"{count:,}", "accent") for name, count in rows[:MAX_CLASSES]]
    rest = rows[MAX_CLASSES:]
    if rest:
        count = sum(count for _, count in rest)
        bars.append((f"{len(rest)} more classes", float(count), f"{count:,}", "other"))
    return _bars(bars)


def _events(report: ReportFacts, folder: Path | None) -> list[str]:
    events = report.events
    if events is None:
        return []
    tracks = [(name, float(count), f"{count:,}", "accent") for name, count in events.tracks_per_class.items()]
    shown = f"The last {counted(len(events.timeline), 'track')}. Marks: what happened, with its time."
    return [
        _section("Tracks per class", _bars(sorted(tracks, key=lambda row: -row[1])[:MAX_CLASSES])),
        _section(
            "Zones and lines", _table(*events_html.places(events), texts=3) if events.zones or events.lines else ""
        ),
        _section("Tracks over time", events_html.timeline(events, folder), shown),
        _section("Where tracks went", events_html.maps(events), "The stronger the colour, the more tracks."),
    ]


def _stage_table(report: ReportFacts) -> str:
    colors = _colors(report)
    rows = []
    on_gpu = any(stage.device_ms is not None for stage in report.stages)
    for stage in report.stages:
        busy = stage.busy_ms
        times = (busy.mean, busy.p50, busy.p95, busy.p99, busy.max)
        gpu_ms = "-" if stage.device_ms is None else f"{stage.device_ms.mean:.3f}"
        rows.append(
            (
                f"<span class='key {colors[stage.name]}'></span>{in_html(stage.name)}",
                in_html(stage.thread),
                f"{stage.items:,}",
                "-" if stage.cpu_ms is None else f"{stage.cpu_ms:.2f}",
                *([gpu_ms] if on_gpu else []),
                *(f"{value:.2f}" for value in times),
                f"{stage.wait_in_ms / 1e3:.2f}",
                f"{stage.wait_out_ms / 1e3:.2f}",
            )
        )
    gpu = ("GPU ms",) if on_gpu else ()
    spread = ("mean ms", "p50", "p95", "p99", "max")
    head = ("stage", "thread", "frames", "CPU ms", *gpu, *spread, "waiting s", "blocked s")
    note = ""
    if any(stage.overlapped for stage in report.stages):
        note = (
            "<p class='note'>Times are per frame. Inference time is the latency of a request, and several requests run "
            "at once; its wait is the time the program thread waited for them.</p>"
        )
    if on_gpu:
        note += (
            "<p class='note'>GPU ms is the time on the GPU, measured by CUDA events in some of the batches. The other "
            "times of such a stage are those of the host: to launch the work, or to wait for it.</p>"
        )
    if report.views:
        note += "<p class='note'>To preprocess, inference and postprocess, each view is a frame.</p>"
    return _table(head, rows, texts=2) + note if rows else ""


def _copies(report: ReportFacts) -> str:
    rows = [(row.stage, row.kind, row.direction, f"{row.bytes_per_frame:,.0f}") for row in report.copies]
    return _table(("stage", "what", "direction", "bytes"), rows, texts=3) if rows else ""


def _sources(report: ReportFacts) -> str:
    parts = []
    for source in report.sources[:FEW]:
        size = f"{source.width} x {source.height}" if source.width else "unknown size"
        rate = f", {source.fps:.5g} fps" if source.fps else ""
        rows = [(source.kind, source.uri), ("frames", size + rate)]
        rows += [(f"dropped, {cause}", f"{count:,}") for cause, count in source.drops.items()]
        parts.append(_facts(rows) + _list(source.notes))
    left = len(report.sources) - FEW
    return "".join(parts) + (f"<p>and {left:,} more, see report.json</p>" if left > 0 else "")


def _outputs(report: ReportFacts, folder: Path | None) -> str:
    items = "".join(f"<li>{_link(path, folder)}</li>" for path in report.outputs[:MANY])
    left = len(report.outputs) - MANY
    items += f"<li>and {left:,} more</li>" if left > 0 else ""
    return f"<ul>{items}</ul>" if items else ""


def _link(path: str, folder: Path | None) -> str:
    if folder is None:
        return in_html(path)
    relative = os.path.relpath(path, folder)
    text = "this folder" if relative == "." else relative
    return f"<a href='{escape(quote(os.fsencode(relative)))}'>{in_html(text)}</a>"
