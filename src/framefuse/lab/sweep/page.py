"""The page of a sweep: its table, a setting as YAML, and thumbnails of tracks that one choice has and another lacks."""

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from framefuse.common.text import counted, in_html
from framefuse.config import Settings
from framefuse.lab.sweep.record import Choice, Recording, data_of
from framefuse.lab.sweep.replay import Numbers, Tracks, tracks_of, unmatched
from framefuse.prediction import cut
from framefuse.report.html import _list, _section, _table, page, picture
from framefuse.sinks.images import FrameConverter
from framefuse.sources import SourceOptions, open_source

MOST_ROWS = 500
"""Of the table of the page; sweep.csv has all."""
MOST_THUMBNAILS = 24
"""Of tracks gained, and as many of tracks lost: those with the most boxes."""
HEIGHT, MARGIN = 120, 0.3
"""Pixels of a thumbnail; what it shows around the box, as a share of its sides."""
SEARCHED = 300
"""Frames read after seeking, at most, until the wanted one comes: more than lie between key frames."""
Lines = Sequence[Sequence[str]]


class Difference(NamedTuple):
    """The tracks that one choice has and another has not."""

    has: Choice
    lacks: Choice
    tracks: int
    shown: Sequence[str]
    """HTML of the thumbnails."""


def compare(recordings: Sequence[Recording], a: Choice, b: Choice) -> list[Difference]:
    """Tracks gained from `a` to `b`, and tracks lost. Tracks are one if at least half of the boxes of one overlap
    tracked boxes of the other, frame by frame."""
    there = [one for one in recordings if one.frames]
    of_a, of_b = tracks_of(there, a), tracks_of(there, b)
    differences = []
    for has, lacks, mine, theirs in ((b, a, of_b, of_a), (a, b, of_a, of_b)):
        found = [
            (int(one.starts[k] - one.ends[k]), recording, one, int(k))
            for recording, one, other in zip(there, mine, theirs, strict=True)
            for k in unmatched(one, other)
        ]
        most = sorted(found, key=lambda item: item[0])[:MOST_THUMBNAILS]
        shown = [_thumbnail(recording, one, k, has) for _, recording, one, k in most]
        differences.append(Difference(has, lacks, len(found), shown))
    return differences


def _thumbnail(recording: Recording, tracks: Tracks, k: int, choice: Choice) -> str:
    """The frame in which a track has its highest confidence, around its box."""
    found = tracks.table.found
    rows = tracks.rows[tracks.starts[k] : tracks.ends[k] + 1]
    row = int(rows[found.confidence[rows].argmax()])
    what = f"{found.name(found.class_id[row])} {found.confidence[row]:.2f}"
    text = f"{what}, {tracks.begun[k]:.2f} to {tracks.ended[k]:.2f} s, {counted(len(rows), 'box', 'boxes')}"
    image = picture(_crop(recording, tracks, row, choice)) or "<p>the frame cannot be read again</p>"
    return f"<figure class='thumbnail' title='{in_html(recording.source)}'>{image}{in_html(text)}</figure>"


def _crop(recording: Recording, tracks: Tracks, row: int, choice: Choice) -> bytes:
    """JPEG; empty if the frame cannot be found by its time."""
    from PIL import Image

    table, place = tracks.table, int(tracks.table.frame[row])
    wanted, data = table.frames[place], data_of(recording.source, choice.settings)
    begin = max(0.0, table.seconds[place] - table.seconds[0] + (choice.settings.start or 0) - 0.005)
    options = SourceOptions(start=round(begin, 6), max_pixels=choice.settings.max_pixels)
    source = data.open([data.keys[place]]) if data else open_source(recording.source, options)
    with closing(source):
        frame = next((one for one in islice(source, SEARCHED) if data or one.pts == wanted.pts), None)
        if frame is None:
            return b""
        box = table.found.xyxy[row]
        around = MARGIN * np.tile(box[2:] - box[:2], 2) * (-1, -1, 1, 1)
        shown = (box + around).clip(0, [frame.width, frame.height] * 2)
        image = Image.fromarray(cut(FrameConverter().rgb(frame), shown))
    image.thumbnail((3 * HEIGHT, HEIGHT))
    image.save(file := io.BytesIO(), "JPEG", quality=80)
    return file.getvalue()


def table(
    values: Mapping[str, Sequence[Any]], found: Sequence[tuple[Choice, Numbers]], columns: Sequence[str]
) -> list[list[str]]:
    """Header and rows; fields that are the same in all settings are left out."""
    fields = [field for field in values if len(values[field]) > 1] or list(values)
    lines = [["setting", *fields, *(name.replace("_", " ") for name in columns)]]
    for choice, counts in found:
        own = [choice.values[field] for field in fields]
        texts = [",".join(map(str, one)) if isinstance(one, list) else "-" if one is None else str(one) for one in own]
        cells = [f"{counts[name]:.6g}" if name in counts else "-" for name in columns]
        lines.append([str(choice.number), *texts, *cells])
    return lines


def as_yaml(choice: Choice, base: Settings, model: str, left_out: set[str]) -> str:
    """The setting as `predict --config` takes it, without some of the fields of `base`."""
    own = base.model_dump(mode="json", exclude_unset=True, exclude=left_out)
    own = {"model": model, **own, **choice.values}
    lines = [f"# Setting {choice.number} of a sweep: framefuse predict SOURCE --config FILE"]
    return "\n".join([*lines, *(f"{field}: {json.dumps(value, default=str)}" for field, value in own.items())]) + "\n"


def render(
    heading: Sequence[str], lines: Lines, chosen: str, differences: Sequence[Difference], notes: Sequence[str]
) -> str:
    """The page, without scripts or requests: title, what was swept and how the rows are sorted; header and rows; YAML
    of the chosen setting, if there is one; thumbnails; notes."""
    title, swept, order = map(in_html, heading)
    head, *rows = [[in_html(cell) for cell in row] for row in lines]
    sections = [
        f"<header><h1>{title}</h1><p class='note'>{swept}</p></header>",
        _section("Settings", _table(head, rows, texts=0), order),
        _section("Chosen", f"<pre>{in_html(chosen)}</pre>", "The file chosen.yaml.") if chosen else "",
    ]
    for what, (has, lacks, number, shown) in zip(("gained", "lost"), differences, strict=False):
        most = f"These are the {len(shown)} with the most boxes. " if number > len(shown) else ""
        most += "Each where its confidence is highest."
        note = f"Setting {has.number} has them, setting {lacks.number} has not. {most}"
        sections.append(_section(f"{counted(number, 'track')} {what}", "".join(shown) or "<p>none</p>", note))
    return page(heading[0], [*sections, _section("How it was made", _list(notes))])
