"""CSV: one row per detection."""

from __future__ import annotations

import csv
import io

from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks import SinkContext
from framefuse.sinks._base import RecordSink, rounded, tracks_of
from framefuse.sinks._lines import encode

HEADER = (
    *("frame", "seconds", "pts", "time_base"),
    *("class_id", "class", "confidence", "x1", "y1", "x2", "y2", "source", "tracker_id"),
)
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def safe_text(text: str) -> str:
    """The text as no spreadsheet runs it: one that begins like a formula gets a quote in front."""
    return f"'{text}" if text.startswith(FORMULA) else text


def to_csv(rows: list[tuple[object, ...]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return encode(text.getvalue())


class CsvSink(RecordSink):
    """Writes <stem>.csv with the columns in HEADER: the presentation time in seconds, and as pts in ticks of time_base
    seconds, both empty if unknown; coordinates in source pixels; tracker_id is empty without a track. A class or source
    whose name begins like a formula of a spreadsheet gets a quote in front."""

    name = "csv"

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._file.append(to_csv([HEADER]))

    def write(self, result: Result, frame: Frame | None) -> None:
        found, info = result.detections, result.frame
        time, source = (info.index, info.seconds, info.pts, info.time_base), safe_text(info.source_id)
        rows: list[tuple[object, ...]] = [
            (*time, class_id, safe_text(found.name(class_id)), score, *box, source, track)
            for (box, score, class_id), track in zip(rounded(found), tracks_of(found), strict=True)
        ]
        self._file.append(to_csv(rows))
