"""The report as one HTML page without scripts, fonts or requests, styled by report.css.

Shapes are inline SVG that stretches; labels are HTML, so that text keeps its size on a narrow screen.
"""

import os
from base64 import b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from urllib.parse import quote

from framefuse.common.text import counted, in_html
from framefuse.report.facts import FEW, MANY, ReportFacts, few
from framefuse.tracking.tally import EventFacts, HeatFacts, TrackFacts, listed

MAX_CLASSES = 12
NAMED = 3
"""Sources that the heading names."""
LARGEST = 100_000
"""Bytes of a thumbnail in the page."""
COLOURS = "infer", "decode", "pre", "post", "sink0", "sink1", "sink2", "other"
"""CSS classes of object classes, the most frequent one first."""
_COLORS = {"decode": "decode", "preprocess": "pre", "inference": "infer", "postprocess": "post"}
STRETCHED, LEGEND = "preserveAspectRatio='none'", " class='legend'"


def render(report: ReportFacts, folder: Path | None = None) -> str:
    """The page. Links to outputs are relative to `folder`; without one they are plain text."""
    title = report.model.name if report.model else "run"
    source = ", ".join(few([_name(source.uri) for source in report.sources], NAMED))
    views = f"<p>{report.views.line()}</p>" if report.views else ""
    machine = _facts(report.environment.items())
    gain = "Predicted speed of the same run if one stage were free. Improve the stage with the longest bar first."
    latency = "From arrival (live) or decoding to the result. Dashed: p50, p95, p99."
    speed = "Frames per second over equal intervals. Dashed: the mean."
    sections = [
        _header(report, title, source),
        _cards(report),
        _section("Where a frame's CPU time goes", _cpu_bar(report)),
        _section("What if one stage took no time", _what_ifs(report), gain),
        _pair(_section("Latency", _latency(report), latency), _section("Speed over time", _speed(report), speed)),
        _section("Detections per class", _classes(report.detections_per_class)),
        *(_events(report.events, folder) if report.events else ()),
        _section("Stages", _stage_table(report)),
        _section("Utilisation of the GPU", _list([report.utilisation.line()] if report.utilisation else ())),
        _section("Energy", _list(report.energy_lines() if report.frames else ())),
        _section("Views", views),
        _section("Copies", _copies(report), "Bytes per frame between host (h) and device (d)."),
        _pair(_section("Automatic choices", _list(report.choices)), _section("Source", _sources(report))),
        _pair(_section("Outputs", _outputs(report, folder)), _section("Machine and versions", machine)),
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
        + "\n".join(filter(None, sections))
        + "\n</main></body></html>\n"
    )


def _name(uri: str) -> str:
    """The last part of a path or address."""
    return uri.rstrip("/\\").replace("\\", "/").rpartition("/")[2] or uri


def _section(title: str, body: str, note: str = "") -> str:
    note = f'<p class="note">{note}</p>' if note else ""
    return f"<section><h2>{title}</h2>{note}{body}</section>" if body else ""


def _pair(left: str, right: str) -> str:
    return f'<div class="pair">{left}{right}</div>'


def _list(texts: Iterable[str]) -> str:
    return _items(map(in_html, texts))


def _items(items: Iterable[str], attributes: str = "") -> str:
    found = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul{attributes}>{found}</ul>" if found else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """Cells are HTML; the first `texts` columns hold text, the others numbers."""

    def row(cells: Sequence[str], tag: str) -> str:
        kinds = [""] * texts + [' class="number"'] * (len(cells) - texts)
        return f"<tr>{''.join(f'<{tag}{kind}>{cell}</{tag}>' for kind, cell in zip(kinds, cells, strict=True))}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    return f'<div class="scroll"><table><thead>{row(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def picture(data: bytes, alt: str = "", style: str = "", kind: str = "jpeg") -> str:
    """An image as a part of the page; nothing without data."""
    style = f" style='{style}'" if style else ""
    return f"<img alt='{alt}'{style} src='data:image/{kind};base64,{b64encode(data).decode()}'>" if data else ""


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{in_html(key)}</dt><dd>{in_html(value)}</dd>" for key, value in rows)
    return f"<dl>{items}</dl>" if items else ""


def _rect(color: str, x: float, y: float, width: float, height: float, title: str = "", more: str = "") -> str:
    place = f"x='{x:.5g}' y='{y:.5g}' width='{width:.5g}' height='{height:.5g}'"
    return f"<rect class='{color}' {place}{more}>{f'<title>{in_html(title)}</title>' if title else ''}</rect>"


def _mark(x: float, height: float, title: str) -> str:
    line = f"x1='{x:.2f}' x2='{x:.2f}' y1='0' y2='{height:g}'"
    return f"<line class='mark' {line}><title>{in_html(title)}</title></line>"


def _header(report: ReportFacts, title: str, source: str) -> str:
    model, error, state = report.model, report.error, ""
    facts = [f"{model.engine} {model.precision}, input {model.input}"] if model else []
    facts += [f"licence of the model: {model.licence}"] if model and model.licence else []
    facts += [report.started[:19].replace("T", " ") + " UTC", f"framefuse {report.framefuse}"]
    what = f"{title} on {source}" if source else title
    if error:
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
    count = counted(report.frames, "frame")
    cards = [("Speed", f"{report.fps:.1f}", "fps", f"{count} in {report.seconds:.1f} s")]
    if latency := report.latency_ms:
        tail = f"p95 {latency.p95:.1f}, p99 {latency.p99:.1f} ms"
        cards.append(("Latency, median", f"{latency.p50:.1f}", "ms", tail))
    if report.frames:
        busy = f"{report.cpu_ms_per_frame * report.fps / 1e3:.2f} of {report.cores} cores busy"
        cards.append(("CPU per frame", f"{report.cpu_ms_per_frame:.1f}", "ms", busy))
    if report.frames and report.peak_rss_mb:
        faults = report.minor_faults_per_frame
        note = "peak of the process" if faults is None else f"peak; {faults:,.0f} page faults per frame"
        cards.append(("Memory", f"{report.peak_rss_mb:,.0f}", "MB", note))
    if report.frames and (report.model is None or report.model.finds_boxes):
        cards.append(("Detections", f"{report.detections:,}", "", f"{report.detections / report.frames:.1f} per frame"))
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
    bar, legend, left = "", list[str](), 0.0
    for name, value, color in parts:
        width, share = 100 * value / total, f"{value / total:.0%}"
        bar += _rect(color, left, 0, width, 10, f"{name}: {value:.2f} CPU-ms, {share}")
        key = f"<span class='key {color}'></span>{in_html(name)}"
        legend.append(f"{key}<b>{value:.2f} ms</b><span class='note'>{share}</span>")
        left += width
    return (
        f"<svg class='stack' viewBox='0 0 100 10' {STRETCHED} role='img' aria-label='CPU time by stage, "
        f"{total:.1f} ms per frame in total'>{bar}</svg>{_items(legend, LEGEND)}"
        "<p class='note'>CPU milliseconds per frame of the stage's own thread and of the library threads that work for "
        "it. Caller: the loop that reads the results. Other: queues and the interpreter.</p>"
    )


def _bar(label: str, shapes: str, value: str, before: str = "") -> str:
    """A row with a bar in the middle: HTML, shapes that are 100 wide and 10 high, and HTML."""
    svg = f"<svg viewBox='0 0 100 10' {STRETCHED} aria-hidden='true'>{_rect('track', 0, 0, 100, 10)}{shapes}</svg>"
    return f"<div>{before}<span class='label'>{label}</span>{svg}<span class='value'>{value}</span></div>"


def _bars(rows: Sequence[tuple[str, float, str, str]]) -> str:
    """Horizontal bars: label, value, text at the end, CSS class."""
    top = max((value for _, value, _, _ in rows), default=0.0)
    if top <= 0:
        return ""
    bars = (_bar(in_html(row[0]), _rect(row[3], 0, 0, 100 * row[1] / top, 10), in_html(row[2])) for row in rows)
    return f'<div class="bars">{"".join(bars)}</div>'


def _what_ifs(report: ReportFacts) -> str:
    colors, rows = _colors(report), [("as measured", report.fps, f"{report.fps:,.0f} fps", "other")]
    for row in report.what_ifs:
        text = f"{row.fps:,.0f} fps ({row.factor:.1f}x)"
        rows.append((f"without {row.stage}", row.fps, text, colors.get(row.stage, "other")))
    return _bars(rows) if report.what_ifs else ""


def _chart(shapes: str, label: str, top: str, right: str, marks: Iterable[tuple[str, str]]) -> str:
    """A chart 100 wide and 40 high, with axis labels around it and a legend of named values."""
    legend = _items((f"{name}<b>{value}</b>" for name, value in marks), LEGEND)
    return (
        f"<figure><span class='axis'>{in_html(top)}</span><svg class='chart' viewBox='0 0 100 40' "
        f"{STRETCHED} role='img' aria-label='{in_html(label)}'>{shapes}</svg>"
        f"<div class='ends'><span>0</span><span>{in_html(right)}</span></div>{legend}</figure>"
    )


def _latency(report: ReportFacts) -> str:
    spread, bars = report.latency_ms, report.latency_bars
    if not spread or not bars:
        return ""
    highest, end, width, shapes = max(count for _, count in bars), bars[-1][0], 100 / len(bars), ""
    for number, (bound, count) in enumerate(bars):
        if count:
            height, title = 40 * count / highest, f"up to {bound:.1f} ms: {counted(count, 'frame')}"
            shapes += _rect("accent", number * width + 0.15, 40 - height, width - 0.3, height, title)
    points = (("p50", spread.p50), ("p95", spread.p95), ("p99", spread.p99))
    shapes += "".join(_mark(min(100 * value / end, 99.7), 40, f"{name}: {value:.1f} ms") for name, value in points)
    marks = [(name, f"{value:.1f} ms") for name, value in (*points, ("longest", spread.max))]
    label = f"Histogram of latency, median {spread.p50:.1f} ms"
    return _chart(shapes, label, counted(highest, "frame"), f"{end:.1f} ms", marks)


def _speed(report: ReportFacts) -> str:
    series, values = report.fps_over_time, [fps for _, fps in report.fps_over_time]
    if len(series) < 3 or not any(values):
        return ""
    end, top, mean = series[-1][0], max(values) * 1.1, report.fps
    starts = [0.0, *(second for second, _ in series[:-1])]
    middles = [50 * (start + second) / end for start, (second, _) in zip(starts, series, strict=True)]
    points = zip([0.0, *middles, 100.0], [values[0], *values, values[-1]], strict=True)
    line = " ".join(f"{x:.2f},{40 - 40 * fps / top:.2f}" for x, fps in points)
    y = f"{40 - 40 * mean / top:.2f}"
    shapes = (
        f"<polygon class='area' points='0,40 {line} 100,40'/><polyline class='line' points='{line}'/>"
        f"<line class='mark' x1='0' x2='100' y1='{y}' y2='{y}'><title>mean: {mean:.1f} fps</title></line>"
    )
    speeds = {"mean": mean, "slowest": min(values), "fastest": max(values)}
    marks = [(name, f"{fps:.0f} fps") for name, fps in speeds.items()]
    label = f"Frames per second over time, {min(values):.0f} to {max(values):.0f}"
    return _chart(shapes, label, f"{top:.0f} fps", f"{end:.1f} s", marks)


def _classes(counts: dict[str, int]) -> str:
    rows = sorted(counts.items(), key=lambda row: -row[1])
    bars = [(name, float(count), f"{count:,}", "accent") for name, count in rows[:MAX_CLASSES]]
    if rest := [count for _, count in rows[MAX_CLASSES:]]:
        bars.append((f"{len(rest)} more classes", float(sum(rest)), f"{sum(rest):,}", "other"))
    return _bars(bars)


def _stage_table(report: ReportFacts) -> str:
    colors, rows = _colors(report), []
    on_gpu = any(stage.device_ms is not None for stage in report.stages)
    for stage in report.stages:
        busy, name = stage.busy_ms, f"<span class='key {colors[stage.name]}'></span>{in_html(stage.name)}"
        cpu = "-" if stage.cpu_ms is None else f"{stage.cpu_ms:.2f}"
        gpu = ["-" if stage.device_ms is None else f"{stage.device_ms.mean:.3f}"] if on_gpu else []
        times = busy.mean, busy.p50, busy.p95, busy.p99, busy.max, stage.wait_in_ms / 1e3, stage.wait_out_ms / 1e3
        texts = [f"{value:.2f}" for value in times]
        rows.append((name, in_html(stage.thread), f"{stage.items:,}", cpu, *gpu, *texts))
    spread = "mean ms", "p50", "p95", "p99", "max", "waiting s", "blocked s"
    head = ("stage", "thread", "frames", "CPU ms", *(["GPU ms"] if on_gpu else []), *spread)
    notes = {
        "Times are per frame. Inference time is the latency of a request, and several requests run at once; its wait "
        "is the time the program thread waited for them.": any(stage.overlapped for stage in report.stages),
        "GPU ms is the time on the GPU, measured by CUDA events in some of the batches. The other times of such a "
        "stage are those of the host: to launch the work, or to wait for it.": on_gpu,
        "To preprocess, inference and postprocess, each view is a frame.": report.views,
    }
    said = "".join(f"<p class='note'>{note}</p>" for note, applies in notes.items() if applies)
    return _table(head, rows, texts=2) + said if rows else ""


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
    left = len(report.outputs) - MANY
    more = [f"and {left:,} more"] if left > 0 else []
    return _items([*(_link(path, folder) for path in report.outputs[:MANY]), *more])


def _link(path: str, folder: Path | None) -> str:
    if folder is None:
        return in_html(path)
    relative = os.path.relpath(path, folder)
    text = "this folder" if relative == "." else relative
    return f"<a href='{escape(quote(os.fsencode(relative)))}'>{in_html(text)}</a>"


def _events(events: EventFacts, folder: Path | None) -> list[str]:
    """What happened to tracks: counts, a timeline, and maps of the paths."""
    left = len(events.timeline) < sum(events.tracks_per_class.values())
    shown = f"The last {counted(len(events.timeline), 'track')}. " if left else ""
    shown += "Marks: what happened, with its time."
    maps = "".join(_map(source, heat, len(events.heat) > 1) for source, heat in events.heat.items() if heat.rows)
    return [
        _section("Tracks per class", _classes(events.tracks_per_class)),
        _section("Zones and lines", _places(events) if events.zones or events.lines else ""),
        _section("Tracks over time", _timeline(events, folder) if events.timeline else "", shown),
        _section("Where tracks went", maps, "The stronger the colour, the more tracks."),
    ]


def _places(events: EventFacts) -> str:
    """What entered each zone and crossed each line."""
    means = {zone: f"{seconds:.1f}" for zone, seconds in events.dwell_seconds.items()}
    rows = [(zone, "entered", counts, means.get(zone, "-")) for zone, counts in events.zones.items()]
    rows += [(line, f"crossed {way}", n, "-") for line, ways in events.lines.items() for way, n in ways.items()]
    cells = [
        (in_html(name), what, in_html(listed(counts)) or "-", f"{sum(counts.values()):,}", mean)
        for name, what, counts, mean in rows
    ]
    return _table(("zone or line", "", "classes", "count", "mean stay, s"), cells, texts=3)


def _timeline(events: EventFacts, folder: Path | None) -> str:
    """A row for each of the last tracks: thumbnail, bar and marks."""
    rows = sorted(events.timeline, key=lambda row: (row.source, row.first))
    start, end = min(row.first for row in rows), max(row.last for row in rows)
    names = sorted(events.tracks_per_class, key=lambda name: -events.tracks_per_class[name])
    scale, several = 100 / max(end - start, 1e-9), len({row.source for row in rows}) > 1

    def line(row: TrackFacts) -> str:
        colour = COLOURS[min(names.index(row.name), len(COLOURS) - 1)]
        shapes = _rect(colour, (row.first - start) * scale, 0, max((row.last - row.first) * scale, 0.4), 10)
        changes = [(at, text) for at, text in row.changes if at <= row.last]
        shapes += "".join(_mark((at - start) * scale, 10, f"{at:.1f} s: {text}") for at, text in changes)
        where = f"<br><span class='note'>{in_html(_name(row.source))}</span>" if several else ""
        happened = in_html(", ".join(dict.fromkeys(text for _, text in row.changes[:-1])))
        value = f"{row.first:.1f} to {row.last:.1f} s<br><span class='note'>{happened}</span>"
        thumbnail = f"<span class='thumb'>{_image(row, folder)}</span>"
        return _bar(f"{in_html(row.name)} {row.track_id}{where}", shapes, value, thumbnail)

    return f"<div class='bars tracks'>{''.join(map(line, rows))}</div>"


def _image(row: TrackFacts, folder: Path | None) -> str:
    """The thumbnail as a part of the page; nothing if there is none."""
    data = b""
    if folder is not None and row.thumbnail is not None and (path := folder / row.thumbnail).parent.parent == folder:
        with suppress(OSError):
            data = path.read_bytes()
    return picture(data if len(data) <= LARGEST else b"")


def _map(source: str, heat: HeatFacts, named: bool) -> str:
    """Cells, above them zones and lines with their names."""
    across, down, names = len(heat.rows[0]), len(heat.rows), ""
    shapes = _rect("track", 0, 0, across, down)
    for y, row in enumerate(heat.rows):
        cells = ((x, int(cell)) for x, cell in enumerate(row) if cell.isdecimal())
        shapes += "".join(_rect("accent", x, y, 1, 1, more=f" fill-opacity='{cell / 10}'") for x, cell in cells)
    for name, corners in heat.places.items():
        points = " ".join(f"{x * across:.2f},{y * down:.2f}" for x, y in corners)
        shapes += f"<polygon class='place' points='{points}'/>"
        left, top = (min(96, max(4, 100 * sum(values) / len(values))) for values in zip(*corners, strict=True))
        names += f"<span style='left:{left:.1f}%;top:{top:.1f}%'>{in_html(name)}</span>"
    caption = f"<figcaption class='note'>{in_html(source)}</figcaption>" if named else ""
    return (
        f"<figure class='map'><div><svg viewBox='0 0 {across} {down}' shape-rendering='crispEdges' role='img' "
        f"aria-label='Map of the paths'>{shapes}</svg>{names}</div>{caption}</figure>"
    )
