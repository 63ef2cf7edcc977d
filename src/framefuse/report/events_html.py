"""What happened to tracks, as parts of the report's page: a table of counts, a timeline, and maps of the paths."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from framefuse.common.text import in_html
from framefuse.tracking.tally import EventFacts, HeatFacts, TrackFacts

LARGEST = 100_000
"""Bytes of a thumbnail in the page."""
COLOURS = "infer", "decode", "pre", "post", "sink0", "sink1", "sink2", "other"
"""CSS classes of object classes, the most frequent one first."""


def places(events: EventFacts) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Head and rows of a table: what entered each zone and crossed each line."""

    def classes(counts: dict[str, int]) -> tuple[str, str]:
        listed = sorted(counts.items(), key=lambda row: -row[1])
        return in_html(", ".join(f"{count:,} {name}" for name, count in listed)) or "-", f"{sum(counts.values()):,}"

    rows: list[Sequence[str]] = []
    for zone, counts in events.zones.items():
        mean = f"{events.dwell_seconds[zone]:.1f}" if zone in events.dwell_seconds else "-"
        rows.append((in_html(zone), "entered", *classes(counts), mean))
    for line, ways in events.lines.items():
        rows += [(in_html(line), f"crossed {way}", *classes(counts), "-") for way, counts in ways.items()]
    return ("zone or line", "", "classes", "count", "mean stay, s"), rows


def timeline(events: EventFacts, folder: Path | None) -> str:
    """A row for each of the last tracks: thumbnail, bar and marks."""
    rows = sorted(events.timeline, key=lambda row: (row.source, row.first))
    if not rows:
        return ""
    start, end = min(row.first for row in rows), max(row.last for row in rows)
    names = sorted(events.tracks_per_class, key=lambda name: -events.tracks_per_class[name])
    several = len({row.source for row in rows}) > 1

    def line(row: TrackFacts) -> str:
        colour = COLOURS[min(names.index(row.name), len(COLOURS) - 1)]
        scale = 100 / max(end - start, 1e-9)
        left, width = (row.first - start) * scale, max((row.last - row.first) * scale, 0.4)
        marks = "".join(
            f"<line class='mark' x1='{(at - start) * scale:.2f}' x2='{(at - start) * scale:.2f}' y1='0' y2='10'>"
            f"<title>{at:.1f} s: {in_html(text)}</title></line>"
            for at, text in row.changes
            if at <= row.last
        )
        where = f"<br><span class='note'>{in_html(row.source.rstrip('/').rpartition('/')[2])}</span>" if several else ""
        happened = ", ".join(dict.fromkeys(text for _, text in row.changes[:-1]))
        return (
            f"<div><span class='thumb'>{_image(row, folder)}</span>"
            f"<span class='label'>{in_html(row.name)} {row.track_id}{where}</span>"
            "<svg viewBox='0 0 100 10' preserveAspectRatio='none' aria-hidden='true'>"
            f"<rect class='track' width='100' height='10'/><rect class='{colour}' x='{left:.2f}' "
            f"width='{width:.2f}' height='10'/>{marks}</svg>"
            f"<span class='value'>{row.first:.1f} to {row.last:.1f} s"
            f"<br><span class='note'>{in_html(happened)}</span></span></div>"
        )

    return f"<div class='bars tracks'>{''.join(map(line, rows))}</div>"


def _image(row: TrackFacts, folder: Path | None) -> str:
    """The thumbnail as a part of the page; nothing if there is none."""
    data = b""
    if folder is not None and row.thumbnail is not None and (path := folder / row.thumbnail).parent.parent == folder:
        with suppress(OSError):
            data = path.read_bytes()
    if not 0 < len(data) <= LARGEST:
        return ""
    return f"<img alt='' src='data:image/jpeg;base64,{b64encode(data).decode()}'>"


def maps(events: EventFacts) -> str:
    return "".join(_map(source, heat, len(events.heat) > 1) for source, heat in events.heat.items() if heat.rows)


def _map(source: str, heat: HeatFacts, named: bool) -> str:
    """Cells, above them zones and lines with their names."""
    across, down = len(heat.rows[0]), len(heat.rows)
    shapes = f"<rect class='track' width='{across}' height='{down}'/>" + "".join(
        f"<rect class='accent' x='{x}' y='{y}' width='1' height='1' fill-opacity='{0.1 * int(cell):.1f}'/>"
        for y, row in enumerate(heat.rows)
        for x, cell in enumerate(row)
        if cell.isdecimal()
    )
    names = ""
    for name, corners in heat.places.items():
        points = " ".join(f"{x * across:.2f},{y * down:.2f}" for x, y in corners)
        shapes += f"<polygon class='place' points='{points}'/>"
        x, y = (min(96, max(4, 100 * sum(values) / len(values))) for values in zip(*corners, strict=True))
        names += f"<span style='left:{x:.1f}%;top:{y:.1f}%'>{in_html(name)}</span>"
    caption = f"<figcaption class='note'>{in_html(source)}</figcaption>" if named else ""
    return (
        f"<figure class='map'><div><svg viewBox='0 0 {across} {down}' shape-rendering='crispEdges' role='img' "
        f"aria-label='Map of the paths'>{shapes}"
        f"</svg>{names}</div>{caption}</figure>"
    )
