"""Text of detections: JSON lines, CSV and MOTChallenge, one file each, and YOLO labels, a file per frame. Events of
tracks: a line of JSON each, and a thumbnail of each track."""

import csv
import io
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.frame import Frame
from framefuse.prediction import Best, Change, Crossing, Detections, Event, Result, Visit
from framefuse.sinks import BaseSink, FolderSink, RecordSink, SinkContext, labelled, rows_of
from framefuse.sinks.outlines import outline
from framefuse.sinks.run_folder import encode, save

SCHEMA = 2
"""Version of a JSON line; incremented when a field changes its meaning or is removed."""
EVENT_SCHEMA = 1
"""That of an event."""
RENAMED = {"source_id": "source", "name": "class"}
FOLDER = "events"
SIDE, AROUND = 192, 0.15
"""Longest side of a thumbnail, in pixels, and how many sides of the box it shows around it."""
HEADER = (
    *("frame", "seconds", "pts", "time_base"),
    *("class_id", "class", "confidence", "x1", "y1", "x2", "y2", "source", "tracker_id", "inferred"),
    *("xywhr", "keypoints"),
)
"""Columns of a CSV."""
TOP = 5
"""Classes of a frame that are written."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_json(result: Result, *, name_source: bool = False) -> str:
    """One line of JSON, without the newline.

    {"schema": SCHEMA, "frame": int, "seconds": presentation time or null, "pts": the same in ticks or null,
    "time_base": seconds per tick as a fraction, "width", "height", "detections": [{"xyxy": [4 numbers, 2 decimals],
    "confidence": 4 decimals, "class_id", "class"}]}, in source pixels. With views, a detection also has "view", the
    tag of the one that shows it; with tracking, "tracker_id", the number of its track or null, and in both eyes
    "pair_id", the track of the same object in the other eye or null. From a semantic segmenter also "shares": {class:
    the fraction of the frame that it covers, 4 decimals}, and from a classifier "classes": [{"class_id", "class",
    "confidence"}], the best TOP. A frame that the model has not seen has "inferred": false.

    By the task of the model, a detection also has "segmentation": {"size": [height, width], "counts": run lengths as
    COCO compresses them}; "keypoints": [[x, y, confidence]]; or "xywhr": [x and y of the centre, width, height, angle
    in radians] with "obb", its corners [[x, y]].

    Args:
        name_source: with "source" after the schema, the file or address, to tell several sources apart.
    """
    found, frame = result.detections, result.frame
    detections: list[dict[str, object]] = []
    for box, score, number, track in rows_of(found):
        tracked = {} if found.tracker_id is None else {"tracker_id": track}
        named = {"class_id": number, "class": found.name(number)}
        detections.append({"xyxy": box, "confidence": score, **named, **tracked})
    for row, extra in zip(detections, _shapes(found), strict=False):
        row.update(extra)
    if found.pair_id is not None:
        for row, number in zip(detections, found.pair_id.tolist(), strict=True):
            row["pair_id"] = number if number >= 0 else None
    if found.view is not None:
        for row, number in zip(detections, found.view.tolist(), strict=True):
            row["view"] = result.views[number].tag
    line: dict[str, object] = {"schema": SCHEMA} | ({"source": frame.source_id} if name_source else {})
    line |= {"frame": frame.index, "seconds": frame.seconds, "pts": frame.pts, "time_base": str(frame.time_base)}
    line |= {"width": frame.width, "height": frame.height, "detections": detections}
    if result.masks is not None:
        line["shares"] = {name: round(share, 4) for name, share in result.masks.shares().items()}
    if result.classification is not None:
        line["classes"] = [dict(zip(("class_id", "class", "confidence"), best, strict=True)) for best in _best(result)]
    if not result.inferred:
        line["inferred"] = False
    return json.dumps(line, ensure_ascii=False, allow_nan=False)


def _shapes(found: Detections) -> list[dict[str, object]]:
    """What each detection has besides its box: nothing if the model finds boxes only."""
    rows: list[dict[str, object]] = []
    if found.runs is not None:
        rows = [{"segmentation": shape} for shape in found.segmentations()]
    if found.keypoints is not None:
        rows = [{"keypoints": points} for points in _plain_floats(found.keypoints, 4)]
    if found.xywhr is not None and found.obb is not None:
        boxes = zip(_plain_floats(found.xywhr, 4), _plain_floats(found.obb, 2), strict=True)
        rows = [{"xywhr": box, "obb": ends} for box, ends in boxes]
    return rows


def _plain_floats(values: NDArray[Any], digits: int) -> list[Any]:
    rounded: list[Any] = values.astype(np.float64).round(digits).tolist()
    return rounded


def _best(result: Result) -> list[tuple[int, str, float]]:
    """Number, name and confidence, 4 decimals, of the best classes of a frame."""
    found = result.classification
    if found is None:
        return []
    named = zip(found.class_id.tolist(), found.top(TOP), strict=False)
    return [(number, name, round(score, 4)) for number, (name, score) in named]


class JsonlSink(RecordSink):
    """Writes <stem>.jsonl, which ends with a complete line even after a crash or on a full disk. Lines of images name
    their file."""

    name = "jsonl"

    def write(self, result: Result, frame: Frame | None) -> None:
        name_source = self._context.source.kind == "images"
        self._file.append(encode(to_json(result, name_source=name_source) + "\n"))


class CsvSink(RecordSink):
    """Writes <stem>.csv with the columns in HEADER: the presentation time in seconds, and as pts in ticks of time_base
    seconds, both empty if unknown; coordinates in source pixels; tracker_id is empty without a track; inferred is false
    for a frame that the model has not seen. The last two columns have numbers with spaces between them: an oriented box
    as x and y of the centre, width, height and angle, and x, y and confidence of each keypoint. A classifier gives a
    row without a box for each of the best TOP classes. A class or source whose name begins like a formula of a
    spreadsheet gets a quote in front."""

    name = "csv"

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._append([HEADER])

    def write(self, result: Result, frame: Frame | None) -> None:
        found, info = result.detections, result.frame
        time, source = (info.index, info.seconds, info.pts, info.time_base), safe_text(info.source_id)
        inferred = "true" if result.inferred else "false"
        more = [("", "")] * len(found)
        if found.xywhr is not None:
            more = [(" ".join(map(str, box)), "") for box in _plain_floats(found.xywhr, 4)]
        elif found.keypoints is not None:
            flat = _plain_floats(found.keypoints.reshape(len(found), -1), 4)
            more = [("", " ".join(map(str, points))) for points in flat]
        self._append(
            (*time, class_id, safe_text(found.name(class_id)), score, *box, source, track, inferred, *shape)
            for (box, score, class_id, track), shape in zip(rows_of(found), more, strict=True)
        )
        self._append(
            (*time, number, safe_text(name), score, *[""] * 4, source, None, inferred, "", "")
            for number, name, score in _best(result)
        )

    def _append(self, rows: Iterable[tuple[object, ...]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._file.append(encode(text.getvalue()))


def safe_text(text: str) -> str:
    """The text as no spreadsheet runs it: one that begins like a formula gets a quote in front."""
    return f"'{text}" if text.startswith(FORMULA) else text


class MotSink(RecordSink):
    """Writes <stem>.txt with the rows `frame, id, left, top, width, height, confidence, -1, -1, -1`, as MOTChallenge
    and TrackEval read them: frames count from 1, coordinates are source pixels. Boxes without a track are left out."""

    name, suffix = "mot", "txt"

    def write(self, result: Result, frame: Frame | None) -> None:
        number = result.frame.index + 1
        rows = [
            f"{number},{track},{x1:g},{y1:g},{x2 - x1:.2f},{y2 - y1:.2f},{score:g},-1,-1,-1\n"
            for (x1, y1, x2, y2), score, _, track in rows_of(result.detections)
            if track is not None
        ]
        self._file.append("".join(rows).encode())


class YoloTxtSink(FolderSink):
    """Writes labels/<stem>_<frame>.txt, or labels/<image>.txt for images, a line for each object in 0..1 of the frame
    size: `class cx cy w h`; for pose then `x y v` for each keypoint, where v is 2, or all three 0 if it is not visible;
    for masks `class x y x y ...`, the outline of the largest part; for oriented boxes that of their corners; for a
    classifier `confidence name` of the best TOP classes.

    A frame without objects gets an empty file, which training tools read as a background image.

    Args:
        confidence: add the confidence as the last column.
    """

    name = "yolo_txt"
    folder = "labels"

    def __init__(self, *, confidence: bool = False) -> None:
        super().__init__()
        self._confidence = confidence

    def write(self, result: Result, frame: Frame | None) -> None:
        found, info = result.detections, result.frame
        size, rows = np.array((info.width, info.height), np.float64), []
        for number, values in zip(found.class_id.tolist(), _label_values(found, size), strict=True):
            rows.append(" ".join([str(number), *(f"{value:.6f}".rstrip("0").rstrip(".") for value in values)]))
        if self._confidence:
            rows = [f"{row} {score:.6f}" for row, score in zip(rows, found.confidence.tolist(), strict=True)]
        rows += [f"{score:.4f} {name}" for _, name, score in _best(result)]
        path = self._context.output(f"labels/{self._context.image_name(self.name, info)}.txt")
        save(path, encode("".join(f"{row}\n" for row in rows)))


def _label_values(found: Detections, size: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """What a YOLO label says of each object after its class."""
    if found.runs is not None:
        return [(outline(found.runs[row : row + 1]) / size).ravel() for row in range(len(found))]
    if found.obb is not None:
        return list((found.obb / size).clip(0, 1).reshape(len(found), -1))
    boxes = found.xywh / np.tile(size, 2)
    if found.keypoints is None:
        return list(boxes)
    points = labelled(found.keypoints)
    points[:, :, :2] /= size
    return list(np.hstack((boxes, points.reshape(len(found), -1))))


def thumbnail(image: NDArray[np.uint8], box: tuple[float, ...]) -> bytes:
    """The part of an RGB image around a box as JPEG."""
    x1, y1, x2, y2 = box
    across, down = (x2 - x1) * AROUND, (y2 - y1) * AROUND
    part = image[int(max(0, y1 - down)) : int(y2 + down) + 1, int(max(0, x1 - across)) : int(x2 + across) + 1]
    from PIL import Image  # slow to import

    picture, out = Image.fromarray(part), io.BytesIO()
    picture.thumbnail((SIDE, SIDE))
    picture.save(out, "JPEG", quality=85)
    return out.getvalue()


def event_json(event: Event, thumbnail: str | None = None) -> str:
    """One line of JSON, without the newline: the fields of `Event` as RENAMED, its `dwell`, and the file of its
    thumbnail in the folder of the run; 4 decimals at most."""
    known = {RENAMED.get(name, name): _plain(value) for name, value in vars(event).items() if name != "thumbnail"}
    dwell = {zone: _plain(seconds) for zone, seconds in event.dwell.items()}
    line = {"schema": EVENT_SCHEMA, **known, "dwell": dwell, **({"thumbnail": thumbnail} if thumbnail else {})}
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
            BaseSink.close(self)  # the folder of the thumbnails
        finally:
            super().close()

    def _put(self, events: list[Event]) -> None:
        try:
            for event in events:
                name = f"{FOLDER}/{self._context.stem}_{event.track_id}.jpg"
                if event.thumbnail:
                    if len(self.paths) == 1:
                        self.paths.append(self._folder(FOLDER))
                    save(self._context.output(name), event.thumbnail)
                    self._saved(event.track_id, name)
                self._file.append(encode(event_json(event, name if event.thumbnail else None) + "\n"))
        except BaseException:
            self._key = None  # nothing more is written
            raise
