"""JSON lines: one object per frame."""

from __future__ import annotations

import json

from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks._base import RecordSink, rounded
from framefuse.sinks._lines import encode

SCHEMA = 2
"""Version of a line; incremented when a field changes its meaning or is removed."""


def to_json(result: Result, *, name_source: bool = False) -> str:
    """One line of JSON, without the newline.

    {"schema": SCHEMA, "frame": int, "seconds": presentation time or null, "pts": the same in ticks or null,
    "time_base": seconds per tick as a fraction, "width", "height", "detections": [{"xyxy": [4 numbers, 2 decimals],
    "confidence": 4 decimals, "class_id", "class"}]}, in source pixels. With views, a detection also has "view", the
    tag of the one that shows it; with tracking, "tracker_id", the number of its track or null, and in both eyes
    "pair_id", the track of the same object in the other eye or null. From a semantic segmenter also "shares": {class:
    the fraction of the frame that it covers, 4 decimals}.

    Args:
        name_source: with "source" after the schema, the file or address, to tell several sources apart.
    """
    found = result.detections
    detections: list[dict[str, object]] = [
        {"xyxy": box, "confidence": score, "class_id": class_id, "class": found.name(class_id)}
        for box, score, class_id in rounded(found)
    ]
    for name, ids in (("tracker_id", found.tracker_id), ("pair_id", found.pair_id)):
        for row, number in zip(detections, () if ids is None else ids.tolist(), strict=False):
            row[name] = number if number >= 0 else None
    if found.view is not None:
        for row, number in zip(detections, found.view.tolist(), strict=True):
            row["view"] = result.views[number].tag
    frame = result.frame
    line: dict[str, object] = {"schema": SCHEMA} | ({"source": frame.source_id} if name_source else {})
    line |= {
        "frame": frame.index,
        "seconds": frame.seconds,
        "pts": frame.pts,
        "time_base": str(frame.time_base),
        "width": frame.width,
        "height": frame.height,
        "detections": detections,
    }
    if result.masks is not None:
        line["shares"] = {name: round(share, 4) for name, share in result.masks.shares().items()}
    return json.dumps(line, ensure_ascii=False, allow_nan=False)


class JsonlSink(RecordSink):
    """Writes <stem>.jsonl, which ends with a complete line even after a crash or on a full disk. Lines of images name
    their file."""

    name = "jsonl"

    def write(self, result: Result, frame: Frame | None) -> None:
        name_source = self._context.source.kind == "images"
        self._file.append(encode(to_json(result, name_source=name_source) + "\n"))
