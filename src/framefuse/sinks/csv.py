"""CSV: one row per detection."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks import SinkContext
from framefuse.sinks._lines import RecordFile, encode

HEADER = (
    *("frame", "seconds", "pts", "time_base"),
    *("class_id", "class", "confidence", "x1", "y1", "x2", "y2", "source"),
)


FORMULA = ("=", "+", "-", "@", "\t", "\r")


def safe_text(text: str) -> str:
    """The text as no spreadsheet runs it: one that begins like a formula gets a quote in front."""
    return f"'{text}" if text.startswith(FORMULA) else text


def to_csv(rows: list[tuple[object, ...]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return encode(text.getvalue())


class CsvSink:
    """Writes <stem>.csv with the columns in HEADER: the presentation time in seconds, and as pts in ticks of time_base
    seconds, both empty if unknown; coordinates in source pixels. A class or source whose name begins like a formula of
    a spreadsheet gets a quote in front."""

    name = "csv"
    needs_frame = False

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.notes: list[str] = []

    def open(self, context: SinkContext) -> None:
        self._file = RecordFile(context.output(f"{context.stem}.csv"), part=context.ends)
        self.paths.append(self._file.target)
        self._file.append(to_csv([HEADER]))

    def write(self, result: Result, frame: Frame | None) -> None:
        found = result.detections
        columns = (
            found.class_id.tolist(),
            np.round(found.confidence.astype(np.float64), 4).tolist(),
            np.round(found.xyxy.astype(np.float64), 2).tolist(),
        )
        info, source = result.frame, safe_text(result.frame.source_id)
        rows: list[tuple[object, ...]] = [
            (
                info.index,
                info.seconds,
                info.pts,
                info.time_base,
                class_id,
                safe_text(found.name(class_id)),
                score,
                *box,
                source,
            )
            for class_id, score, box in zip(*columns, strict=True)
        ]
        self._file.append(to_csv(rows))

    def close(self) -> None:
        if self.paths:
            self._file.close()
