"""Events of tracks: a line of JSON each, and a thumbnail of each track."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framefuse.frame import Frame
from framefuse.prediction import Best, Change, Crossing, Event, Result, Visit
from framefuse.sinks._base import RecordSink
from framefuse.sinks._lines import encode, make_folder_durable, open_folder, write_whole

SCHEMA = 1
"""Version of a line; incremented when a field changes its meaning or is removed."""
RENAMED = {"source_id": "source", "name": "class"}
FOLDER = "events"
SIDE, AROUND = 192, 0.15
"""Longest side of a thumbnail, in pixels, and how many sides of the box it shows around it."""


def thumbnail(image: NDArray[np.uint8], box: tuple[float, ...]) -> bytes:
    """The part of an RGB image around a box as JPEG."""
    x1, y1, x2, y2 = box
    across, down = (x2 - x1) * AROUND, (y2 - y1) * AROUND
    part = image[int(max(0, y1 - down)) : int(y2 + down) + 1, int(max(0, x1 - across)) : int(x2 + across) + 1]
    picture, out = Image.fromarray(part), io.BytesIO()
    picture.thumbnail((SIDE, SIDE))
    picture.save(out, "JPEG", quality=85)
    return out.getvalue()


def to_json(event: Event, thumbnail: str | None = None) -> str:
    """One line of JSON, without the newline: the fields of `Event` as RENAMED, and its `dwell`; 4 decimals at most.

    Args:
        thumbnail: file in the folder of the run.
    """
    known = {RENAMED.get(name, name): _plain(value) for name, value in vars(event).items() if name != "thumbnail"}
    dwell = {zone: _plain(seconds) for zone, seconds in event.dwell.items()}
    line = {"schema": SCHEMA, **known, "dwell": dwell, **({"thumbnail": thumbnail} if thumbnail else {})}
    return json.dumps(line, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """A value as JSON has it; a tuple with names is an object without its empty texts."""
    if isinstance(value, Best | Change | Crossing | Visit):
        return {key: _plain(part) for key, part in value._asdict().items() if part != ""}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return round(value, 4) if isinstance(value, float) else value


class EventsSink(RecordSink):
    """Writes <stem>.events.jsonl, and events/<stem>_<track>.jpg at the end of each track that has a thumbnail.

    Args:
        needs_frame: whether thumbnails are wanted.
        rest: called once with the key of the source, at its end: the events that no result carries.
        saved: called with each track and the name of its thumbnail.
    """

    name = "events"
    suffix = "events.jsonl"

    def __init__(
        self,
        *,
        needs_frame: bool = False,
        rest: Callable[[str], list[Event]] = lambda key: [],
        saved: Callable[[int, str], None] = lambda track, name: None,
    ) -> None:
        super().__init__()
        self.needs_frame, self._rest, self._saved = needs_frame, rest, saved
        self._key: str | None = None

    def write(self, result: Result, frame: Frame | None) -> None:
        self._key = self._context.source.unit_of(result.frame.source_id)
        self._put(list(result.events))

    def close(self) -> None:
        key, self._key = self._key, None
        try:
            self._put(self._rest(key) if key is not None else [])
            if len(self.paths) > 1:
                make_folder_durable(self.paths[1])
        finally:
            super().close()

    def _put(self, events: list[Event]) -> None:
        try:
            for event in events:
                name = f"{FOLDER}/{self._context.stem}_{event.track_id}.jpg"
                if event.thumbnail:
                    if len(self.paths) == 1:
                        open_folder(self._context.folder / FOLDER)
                        self.paths.append(self._context.folder / FOLDER)
                    write_whole(self._context.output(name), event.thumbnail)
                    self._saved(event.track_id, name)
                self._file.append(encode(to_json(event, name if event.thumbnail else None) + "\n"))
        except BaseException:
            self._key = None  # nothing more is written
            raise
