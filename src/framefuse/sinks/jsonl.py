"""JSON lines: one object per frame."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks import SinkContext
from framefuse.sinks._lines import RecordFile, encode


def to_json(result: Result, *, name_source: bool = False) -> str:
    """One line of JSON, without the newline.

    {"frame": int, "pts": seconds or null, "width", "height", "detections": [{"xyxy": [4 numbers, 2 decimals],
    "confidence": 4 decimals, "class_id", "class"}]}, in source pixels. From a semantic segmenter also
    "shares": {class: the fraction of the frame that it covers, 4 decimals}.

    Args:
        name_source: begin with "source", the file or address, to tell several sources apart.
    """
    found = result.detections
    boxes = np.round(found.xyxy.astype(np.float64), 2).tolist()
    scores = np.round(found.confidence.astype(np.float64), 4).tolist()
    class_ids = found.class_id.tolist()
    detections = [
        {"xyxy": box, "confidence": score, "class_id": class_id, "class": found.name(class_id)}
        for box, score, class_id in zip(boxes, scores, class_ids, strict=True)
    ]
    frame = result.frame
    line: dict[str, object] = {"source": frame.source_id} if name_source else {}
    line |= {
        "frame": frame.index,
        "pts": frame.seconds,
        "width": frame.width,
        "height": frame.height,
        "detections": detections,
    }
    if result.masks is not None:
        line["shares"] = {name: round(share, 4) for name, share in result.masks.shares().items()}
    return json.dumps(line, ensure_ascii=False, allow_nan=False)


class JsonlSink:
    """Writes <stem>.jsonl, which ends with a complete line even after a crash or on a full disk. Lines of images name
    their file."""

    name = "jsonl"
    needs_frame = False

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.notes: list[str] = []

    def open(self, context: SinkContext) -> None:
        self._file = RecordFile(context.output(f"{context.stem}.jsonl"))
        self.paths.append(self._file.path)
        self._name_source = context.source.kind == "images"

    def write(self, result: Result, frame: Frame | None) -> None:
        self._file.append(encode(to_json(result, name_source=self._name_source) + "\n"))

    def close(self) -> None:
        if not self.paths:
            return
        if self._file.size:
            self._file.close()
        else:
            self._file.discard()
