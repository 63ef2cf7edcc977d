"""MOTChallenge text: one row for each box of a track."""

from __future__ import annotations

from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks._base import RecordSink, rounded


class MotSink(RecordSink):
    """Writes <stem>.txt with the rows `frame, id, left, top, width, height, confidence, -1, -1, -1`, as MOTChallenge
    and TrackEval read them: frames count from 1, coordinates are source pixels. Boxes without a track are left out."""

    name, suffix = "mot", "txt"

    def write(self, result: Result, frame: Frame | None) -> None:
        found = result.detections
        if found.tracker_id is None:
            return
        rows = [
            f"{result.frame.index + 1},{number},{x1:g},{y1:g},{x2 - x1:.2f},{y2 - y1:.2f},{score:g},-1,-1,-1\n"
            for number, ((x1, y1, x2, y2), score, _) in zip(found.tracker_id.tolist(), rounded(found), strict=True)
            if number >= 0
        ]
        self._file.append("".join(rows).encode())
