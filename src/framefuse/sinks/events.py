"""Events of tracks: a line of JSON each, and a thumbnail of each track."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framefuse.frame import Frame
from framefuse.prediction import Event, Result
from framefuse.sinks._base import RecordSink
from framefuse.sinks._lines import encode, make_folder_durable, open_folder, open_output, part_of, write_error

SCHEMA = 1
"""Version of a line; incremented when a field changes its meaning or is removed."""
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
    """One line of JSON, without the newline: the fields of `Event`, and its `dwell`.

    Times have 3 decimals, pixels 1, confidences 4. "source" and "class" are `source_id` and `name`.

    Args:
        thumbnail: file in the folder of the run.
    """

    def short(value: Any, digits: int = 3) -> Any:
        if isinstance(value, float):
            return round(value, digits)
        return [short(item, digits) for item in value] if isinstance(value, tuple) else value

    best = event.best
    line = {
        "schema": SCHEMA,
        "kind": event.kind,
        "source": event.source_id,
        "track_id": event.track_id,
        "class_id": event.class_id,
        "class": event.name,
        "frame": event.frame,
        "seconds": short(event.seconds),
        "changes": [{key: part for key, part in change._asdict().items() if part} for change in event.changes],
        "xyxy": short(event.xyxy, 1),
        "confidence": short(event.confidence, 4),
        "first_seconds": short(event.first_seconds),
        "last_seconds": short(event.last_seconds),
        "state": event.state,
        "stationary_seconds": short(event.stationary_seconds),
        "best": {
            "frame": best.frame,
            "seconds": short(best.seconds),
            "xyxy": short(best.xyxy, 1),
            "confidence": short(best.confidence, 4),
            "score": float(f"{best.score:.4g}"),
        },
        "dwell": {zone: round(seconds, 3) for zone, seconds in event.dwell.items()},
        "visits": [{key: short(part) for key, part in visit._asdict().items()} for visit in event.visits],
        "crossings": [{key: short(part) for key, part in line._asdict().items()} for line in event.crossings],
        "jumps": event.jumps,
        "path": [[round(seconds, 3), round(x, 1), round(y, 1)] for seconds, x, y in event.path],
    }
    return json.dumps(line | ({"thumbnail": thumbnail} if thumbnail else {}), ensure_ascii=False, allow_nan=False)


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
        images = self._context.source.kind == "images"
        self._key = self._context.source.uri if images else result.frame.source_id
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
                name = self._save(event) if event.thumbnail else None
                self._file.append(encode(to_json(event, name) + "\n"))
        except BaseException:
            self._key = None  # nothing more is written
            raise

    def _save(self, event: Event) -> str:
        """Write the thumbnail; its name in the folder of the run."""
        assert event.thumbnail is not None
        if len(self.paths) == 1:
            open_folder(self._context.folder / FOLDER)
            self.paths.append(self._context.folder / FOLDER)
        name = f"{FOLDER}/{self._context.stem}_{event.track_id}.jpg"
        path = self._context.output(name)
        part = part_of(path)
        try:
            with os.fdopen(open_output(part), "wb") as file:
                file.write(event.thumbnail)
            os.replace(part, path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise write_error(path, error) from error
        self._saved(event.track_id, name)
        return name
