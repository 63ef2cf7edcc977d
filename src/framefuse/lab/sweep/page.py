"""The page of a sweep: its table, and thumbnails of the tracks that one choice has and another has not."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import numpy as np

from framefuse.common.text import counted
from framefuse.lab.sweep.boxes import ShownTracks, unmatched
from framefuse.lab.sweep.grid import Choice
from framefuse.lab.sweep.record import Recording
from framefuse.lab.sweep.replay import tracks_of
from framefuse.prediction import cut
from framefuse.report.html import _list, _section, _table, _text, page
from framefuse.sinks.canvas import FrameConverter
from framefuse.sources import SourceOptions, open_source

MOST_ROWS = 500
"""Of the table of the page; sweep.csv has all."""
MOST_THUMBNAILS = 24
"""Of tracks gained, and as many of tracks lost: those with the most boxes."""
HEIGHT = 120
"""Pixels of a thumbnail."""
MARGIN = 0.3
"""What a thumbnail shows around the box, as a share of its sides."""
SEARCHED = 300
"""Frames read after seeking, at most, until the wanted one comes: more than lie between key frames."""


@dataclass
class Thumbnail:
    """The frame in which a track has its highest confidence."""

    source: str
    number: int
    """Place of the frame in the recording."""
    row: int
    """Of the table."""
    of: ShownTracks
    text: str
    image: bytes = b""
    """JPEG; empty: the frame could not be read again."""


@dataclass(frozen=True)
class Difference:
    """The tracks that choice `b` has and `a` has not, and the other way round."""

    a: Choice
    b: Choice
    gained: int
    lost: int
    shown: tuple[Sequence[Thumbnail], Sequence[Thumbnail]]
    """Of tracks gained, of tracks lost."""


def compare(recordings: Sequence[Recording], a: Choice, b: Choice) -> Difference:
    """Tracks are one if at least half of the boxes of one overlap tracked boxes of the other, frame by frame."""
    sources = [recording.source for recording in recordings if recording.frames]
    counts, shown = [], []
    old, new = tracks_of(recordings, a), tracks_of(recordings, b)
    for mine, theirs in ((new, old), (old, new)):
        found = [
            (int(one.ends[k] - one.starts[k] + 1), source, one, int(k))
            for source, one, other in zip(sources, mine, theirs, strict=True)
            for k in unmatched(one, other)
        ]
        counts.append(len(found))
        longest = sorted(found, key=lambda item: -item[0])[:MOST_THUMBNAILS]
        shown.append([_thumbnail(source, tracks, k) for _, source, tracks, k in longest])
    for source in sources:
        start = a.settings.start
        _draw(source, [one for side in shown for one in side if one.source == source], start, a.settings.max_pixels)
    return Difference(a, b, counts[0], counts[1], (shown[0], shown[1]))


def _thumbnail(source: str, tracks: ShownTracks, k: int) -> Thumbnail:
    rows = tracks.rows[tracks.starts[k] : tracks.ends[k] + 1]
    table, boxes = tracks.table, tracks.table.found
    row = int(rows[boxes.confidence[rows].argmax()])
    begin, end = table.seconds[table.frame[rows[[0, -1]]]]
    name = boxes.names.get(int(boxes.class_id[row]), str(boxes.class_id[row]))
    text = f"{name} {boxes.confidence[row]:.2f}, {begin:.2f} to {end:.2f} s, {counted(len(rows), 'box', 'boxes')}"
    return Thumbnail(source, int(table.frame[row]), row, tracks, text)


def _draw(source: str, thumbnails: Sequence[Thumbnail], start: float | None, max_pixels: int) -> None:
    """Seek to the frame of each thumbnail, and cut its box out."""
    from PIL import Image

    converter = FrameConverter()
    for one in thumbnails:
        table = one.of.table
        wanted, seconds = table.frames[one.number], table.seconds
        begin = max(0.0, float(seconds[one.number] - seconds[0]) + (start or 0) - 0.005)
        with closing(open_source(source, SourceOptions(start=begin, max_pixels=max_pixels))) as opened:
            frame = next((frame for frame in islice(opened, SEARCHED) if frame.pts == wanted.pts), None)
            if frame is None:
                continue
            box = table.found.xyxy[one.row]
            around = MARGIN * np.tile(box[2:] - box[:2], 2) * (-1, -1, 1, 1)
            shown = (box + around).clip(0, (frame.width, frame.height) * 2)
            image = Image.fromarray(cut(converter.rgb(frame), shown))
            image.thumbnail((3 * HEIGHT, HEIGHT))
            file = io.BytesIO()
            image.save(file, "JPEG", quality=80)
            one.image = file.getvalue()


def render(
    table: Sequence[Sequence[str]],
    notes: Sequence[str],
    difference: Difference | None,
    chosen: tuple[int, str] | None,
    facts: Mapping[str, str],
) -> str:
    """The page, without scripts or requests.

    Args:
        table: header and rows.
        chosen: number and YAML of the chosen setting.
    """
    head, *rows = [[_text(cell) for cell in row] for row in table]
    sections = [
        f"<header><h1>{_text(facts['title'])}</h1><p class='note'>{_text(facts['what'])}</p></header>",
        _section("Settings", _table(head, rows, texts=0), _text(facts["order"])),
    ]
    if chosen is not None:
        note = "Save it as sweep.yaml, and run: framefuse predict SOURCE --config sweep.yaml"
        sections.append(_section(f"Setting {chosen[0]}", f"<pre>{_text(chosen[1])}</pre>", note))
    if difference is not None:
        a, b = difference.a.number, difference.b.number
        for what, count, shown, (has, lacks) in (
            ("gained", difference.gained, difference.shown[0], (b, a)),
            ("lost", difference.lost, difference.shown[1], (a, b)),
        ):
            title = f"{counted(count, 'track')} {what} from setting {a} to {b}"
            note = f"Setting {has} has them and {lacks} has not. " + (
                f"The {len(shown)} with the most boxes, each where its confidence is highest." if shown else ""
            )
            sections.append(_section(title, "".join(map(_figure, shown)) or "<p>none</p>", note))
    return page(facts["title"], [*sections, _section("How it was made", _list(notes))])


def _figure(one: Thumbnail) -> str:
    data = base64.b64encode(one.image).decode()
    image = f"<img alt='' src='data:image/jpeg;base64,{data}'>" if data else "<p>the frame cannot be read again</p>"
    return f"<figure class='thumbnail'>{image}<figcaption>{_text(one.text)}</figcaption></figure>"
