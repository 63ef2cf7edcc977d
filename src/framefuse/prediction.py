"""Outputs: Predictions (a batch, on the model's device); Detections, Masks, Classification and Result (one frame, on
the host); Event (a change in the life of one object)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from html import escape
from importlib import import_module
from typing import Any, Literal, NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import CapabilityError, UsageError
from framefuse.frame import Frame, View, unchecked
from framefuse.kernels.masks.instances import Runs, mask_runs

Array = NDArray[Any]
PARTS = "runs", "tracker_id", "view", "pair_id", "keypoints", "xywhr"
"""What `Detections` may know of each object besides its box, confidence and class."""
FEW, RANKED = 32, 5
"""Best classes that are found one by one, which is faster than sorting all classes; and for a whole batch at once."""


class Predictions(NamedTuple):
    """Boxes of a batch, padded to K = max_det rows so that no shape depends on the data.

    Coordinates are in source pixels, clipped to the frame. Rows from `counts[b]` on are undefined.
    """

    boxes: Array
    """(batch, K, 4) float32: x1, y1, x2, y2."""
    scores: Array
    """(batch, K) float32 in 0..1, descending."""
    classes: Array
    """(batch, K) int32."""
    counts: Array
    """(batch,) int32: number of valid rows."""


class Detection(NamedTuple):
    """One object of a frame."""

    xyxy: Array
    """(4,) float32: x1, y1, x2, y2 in pixels."""
    confidence: float
    class_id: int
    name: str
    tracker_id: int | None = None
    view: int | None = None
    pair_id: int | None = None


@dataclass(eq=False)
class Detections:
    """Objects of one frame, on the host, as a struct of arrays of equal length n.

    `detections[rows]` selects with a mask, a slice or indices and gives Detections; `detections[0]` and iteration give
    single objects (`Detection`).
    """

    xyxy: Array
    """(n, 4) float32: x1, y1, x2, y2 in pixels of the frame as displayed; 0 <= x1 <= x2 <= width."""
    confidence: Array
    """(n,) float32 in 0..1, descending."""
    class_id: Array
    """(n,) int64."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Class names by class_id."""
    runs: Runs | None = None
    """Run lengths of the mask of each object, of which `mask` makes pixels; None: the model has no masks."""
    tracker_id: Array | None = None
    """(n,) int64, or None."""
    view: Array | None = None
    """(n,) int64: index in the `views` of the Result in which each object was found; None: there are no views."""
    pair_id: Array | None = None
    """(n,) int64: the track of the same object in the other eye, -1 without one; None: no tracks of two eyes."""
    keypoints: Array | None = None
    """(n, k, 3) float32: x and y in pixels of the frame, clipped to it, and a confidence in 0..1, which is 1 if the
    model gives none; None: the model has no keypoints."""
    xywhr: Array | None = None
    """(n, 5) float32: oriented boxes, of which `obb` makes corners: x and y of the centre, width and height in pixels,
    and the angle of the width in radians, from x towards y; None: the model has no oriented boxes."""
    skeleton: Sequence[tuple[int, int]] = ()
    """Pairs of keypoints that a line connects."""

    @classmethod
    def none(cls, names: Mapping[int, str]) -> Self:
        """No objects."""
        return cls(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64), names)

    def __len__(self) -> int:
        return len(self.xyxy)

    def __iter__(self) -> Iterator[Detection]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> Detection: ...
    @overload
    def __getitem__(self, rows: slice | Array | Sequence[int] | Sequence[bool]) -> "Detections": ...
    def __getitem__(self, rows: Any) -> "Detection | Detections":
        if isinstance(rows, int | np.integer) and not isinstance(rows, bool):
            number = int(self.class_id[rows])
            numbers = (None if part is None else int(part[rows]) for part in (self.tracker_id, self.view, self.pair_id))
            return Detection(self.xyxy[rows], float(self.confidence[rows]), number, self.name(number), *numbers)
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            rows = rows if rows.size else rows.astype(np.intp)
        parts = {name: getattr(self, name) for name in PARTS}
        chosen: dict[str, Any] = {name: None if part is None else part[rows] for name, part in parts.items()}
        main = self.xyxy[rows], self.confidence[rows], self.class_id[rows], self.names
        return Detections(*main, **chosen, skeleton=self.skeleton)

    @staticmethod
    def concatenate(parts: "Sequence[Detections]") -> "Detections":
        """The objects of all parts, one after the other; only what all of them know. There is at least one part."""
        joined: dict[str, Any] = {}
        for name in ("xyxy", "confidence", "class_id", *PARTS):
            found = [getattr(part, name) for part in parts]
            join = Runs.concatenate if name == "runs" else np.concatenate
            joined[name] = None if any(part is None for part in found) else join(found)
        return Detections(**joined, names=parts[0].names, skeleton=parts[0].skeleton)

    @property
    def xywh(self) -> Array:
        """(n, 4) float32: x and y of the centre, width and height in pixels."""
        start, end = self.xyxy[:, :2], self.xyxy[:, 2:]
        return np.concatenate([(start + end) / 2, end - start], axis=1)

    @property
    def mask(self) -> Array | None:
        """(n, height, width) bool: the pixels of each object, made anew by each call; None: the model has no masks."""
        return None if self.runs is None else self.runs.decode()

    @property
    def obb(self) -> Array | None:
        """(n, 4, 2) float32: x and y of the corners of oriented boxes, one after the other around the box."""
        return None if self.xywhr is None else corners(self.xywhr)

    def name(self, class_id: int) -> str:
        """Name of a class, or its number if the model has no name for it."""
        return self.names.get(int(class_id), str(int(class_id)))

    def at_least(self, area: float, width: int, height: int) -> "Detections":
        """The objects whose box is no smaller than the setting `min_area`, in a frame of that size."""
        return self[large_enough(self.xyxy, area, width * height)] if area else self

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with a row for each object: x1, y1, x2, y2, confidence, class_id, name, and tracker_id if
        there is one (requires the package pandas)."""
        columns = dict(zip(("x1", "y1", "x2", "y2"), self.xyxy.T, strict=True))
        names = np.array(list(map(self.name, self.class_id)), object)
        columns |= {"confidence": self.confidence, "class_id": self.class_id, "name": names}
        columns |= {} if self.tracker_id is None else {"tracker_id": self.tracker_id}
        return _package("pandas").DataFrame(columns)

    @classmethod
    def from_supervision(cls, found: Any) -> Self:
        """From a `supervision.Detections`. Objects without confidence get 1, those without class get class 0."""
        count = len(found.xyxy)
        confidence = np.asarray(np.ones(count) if found.confidence is None else found.confidence, np.float32)
        class_id = np.asarray(np.zeros(count) if found.class_id is None else found.class_id, np.int64)
        named = zip(class_id.tolist(), found.data.get("class_name", ()), strict=False)
        names = {number: str(name) for number, name in named}
        track = None if found.tracker_id is None else np.asarray(found.tracker_id, np.int64)
        xyxy = np.asarray(found.xyxy, np.float32).reshape(count, 4)
        runs = None if found.mask is None else mask_runs(np.asarray(found.mask, np.bool_))
        assert runs is None or isinstance(runs, Runs)
        points, boxes = found.data.get("keypoints"), found.data.get("xyxyxyxy")
        keypoints = None if points is None else np.asarray(points, np.float32)
        xywhr = None if boxes is None else _oriented(np.asarray(boxes, np.float32))
        return cls(xyxy, confidence, class_id, names, runs, track, keypoints=keypoints, xywhr=xywhr)

    def to_supervision(self) -> Any:
        """The same objects as `supervision.Detections` (requires the package supervision). Its `data` has class_name;
        keypoints as (n, k, 3), of which `supervision.KeyPoints(xy=..., ...)` takes the columns; xyxyxyxy, the corners
        of oriented boxes, which its oriented annotators read."""
        facts = {name: getattr(self, name) for name in ("xyxy", "confidence", "class_id", "mask", "tracker_id")}
        data: dict[str, Any] = {"class_name": np.array(list(map(self.name, self.class_id)))}
        data |= {} if self.keypoints is None else {"keypoints": self.keypoints}
        data |= {} if self.obb is None else {"xyxyxyxy": self.obb}
        return _package("supervision").Detections(**facts, data=data)

    def to_coco(self, image_id: int, category_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """COCO result rows: bbox is [x, y, width, height] in pixels. Masks are the `segmentation` in run lengths,
        oriented boxes as a polygon; `keypoints` are x, y and confidence of each.

        Args:
            image_id: id of the image in the COCO file.
            category_ids: category id of each class; default: the class number, to which the files of --save-json add 1.
        """
        rows = []
        columns = (column.tolist() for column in (self.xyxy, self.confidence, self.class_id))
        for (x1, y1, x2, y2), score, number in zip(*columns, strict=True):
            category = number if category_ids is None else category_ids[number]
            box = [round(value, 3) for value in (x1, y1, x2 - x1, y2 - y1)]
            rows.append({"image_id": image_id, "category_id": category, "bbox": box, "score": round(score, 5)})
        for row, shape in zip(rows, self.segmentations(), strict=False):
            row["segmentation"] = shape
        for row, points in zip(rows, () if self.keypoints is None else self.keypoints, strict=False):
            row["keypoints"] = [round(value, 2) for value in points.ravel().tolist()]
        return rows

    def segmentations(self) -> list[Any]:
        """The outline of each object as in COCO: run lengths of a mask, or the polygon of an oriented box; nothing if
        the model has neither."""
        if self.runs is not None:
            return self.runs.to_json()
        return [] if self.obb is None else self.obb.reshape(-1, 1, 8).round(2).astype(float).tolist()


@dataclass(eq=False)
class Masks:
    """The class of each pixel of one frame, on the host."""

    class_id: Array
    """(height, width) uint8: the class of each pixel of the frame as displayed."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Class names by class_id."""

    def name(self, class_id: int) -> str:
        """Name of a class, or its number if the model has no name for it."""
        return self.names.get(int(class_id), str(int(class_id)))

    def shares(self) -> dict[str, float]:
        """Fraction of the frame, 0..1, that each present class covers."""
        counts = np.bincount(self.class_id.ravel(), minlength=1)
        return {self.name(n): count / self.class_id.size for n, count in enumerate(counts.tolist()) if count}


class MattePart(NamedTuple):
    """The matte of one view of a frame."""

    region: tuple[int, int, int, int]
    """x, y, width and height in pixels of the frame."""
    alpha: Array
    """(rows, columns) float32 in 0..1, at the resolution of the model: how much of each sample is foreground. A CuPy
    array, as `guide`, where the frame stays on a GPU until it is composed."""
    guide: Array | None = None
    """Luma of the region in 0..1 at that resolution."""


@dataclass(frozen=True)
class Matte:
    """How much of each pixel of one frame is foreground."""

    parts: tuple[MattePart, ...]
    """What the model says about each view; what is in none is background."""
    size: tuple[int, int]
    """Width and height of the frame as displayed."""
    feather: float = 2.0
    """Width of the soft edge, in pixels of the frame; one of the model's samples is the widest."""

    def alpha(self, luma: Array | None = None) -> Array:
        """(height, width) uint8, from 0 for background to 255 for foreground.

        Args:
            luma: (height, width) uint8, on the host: the frame as displayed, whose edges the matte follows; None: it
                is stretched.

        Raises:
            UsageError: luma lies on a GPU.
        """
        from framefuse.kernels.arrays import on_gpu, to_host
        from framefuse.kernels.masks.guided import SHARPEST, guided, shrink

        if luma is not None and on_gpu(luma):
            raise UsageError("luma lies on a GPU", remedy="pass a NumPy array")
        whole: Array = np.zeros(self.size[::-1], np.uint8)
        for (x, y, width, height), alpha, guide in self.parts:
            alpha, own = to_host(alpha), whole[y : y + height, x : x + width]
            gain = max(1.0, width / alpha.shape[1] / max(self.feather, SHARPEST))
            # Black has no edges to follow.
            seen = np.zeros_like(own) if luma is None else luma[y : y + height, x : x + width]
            low = shrink(seen, alpha.shape) if luma is None or guide is None else to_host(guide)
            guided(alpha, low, seen, gain=gain, out=own)
        return whole


class Ranking:
    """The best classes of the images of a batch, found together when the first of them is asked for.

    Args:
        scores: (batch, nc) finite float32.
    """

    def __init__(self, scores: Array) -> None:
        self._scores = scores

    @cached_property
    def rows(self) -> list[list[tuple[int, float]]]:
        """Number and score of the first RANKED classes of each image; of equal scores, the lower number comes first."""
        left, images = self._scores.copy(), np.arange(len(self._scores))
        best = np.empty((len(left), min(RANKED, left.shape[1])), np.int64)
        for column in best.T:
            column[:] = left.argmax(axis=1)
            left[images, column] = -np.inf
        scores = self._scores[images[:, None], best]
        return [list(zip(*row, strict=True)) for row in zip(best.tolist(), scores.tolist(), strict=True)]

    def row(self, image: int) -> list[tuple[int, float]]:
        return self.rows[image]


class Classification:
    """What one frame shows as a whole, on the host.

    Args:
        scores: (nc,) float32 in 0..1 for each class.
        names: class names by number.
        best: gives number and score of the first classes, as many as are known (`Ranking.row`).

    Attributes:
        class_id: (nc,) int64, the best first.
        confidence: (nc,) float32 of those.
    """

    def __init__(
        self, scores: Array, names: Mapping[int, str], best: Callable[[], Sequence[tuple[int, float]]] = list
    ) -> None:
        self.names, self._scores, self._best = names, scores, best

    def __reduce__(self) -> tuple[Any, ...]:
        return Classification, (self._scores, self.names)  # without the other images of the batch

    @cached_property
    def class_id(self) -> Array:
        return np.argsort(-self._scores, kind="stable")

    @cached_property
    def confidence(self) -> Array:
        return self._scores[self.class_id]

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Name and confidence of the best classes."""
        names, scores, best = self.names, self._scores, list[int]()
        if 0 <= count <= len(known := self._best()):
            return [(names[number] if number in names else str(number), score) for number, score in known[:count]]
        if count > FEW or not np.isfinite(scores).all():
            best = self.class_id[: max(0, count)].tolist()
        else:
            left = scores.copy()
            while len(best) < min(count, len(scores)):
                best.append(int(left.argmax()))
                left[best[-1]] = -np.inf
        return [(names.get(number, str(number)), float(scores[number])) for number in best]

    def to_supervision(self) -> Any:
        """The same as `supervision.Classifications` (requires the package supervision)."""
        return _package("supervision").Classifications(self.class_id, self.confidence)


class Best(NamedTuple):
    """The frame that shows an object best."""

    frame: int
    """Its index."""
    seconds: float
    xyxy: tuple[float, ...]
    confidence: float
    score: float
    """0..1: the share of the frame that the box covers times the confidence; a quarter of it at the edge."""


class Visit(NamedTuple):
    """A stay of an object in a zone."""

    zone: str
    entered: float
    """Seconds, as all times of events."""
    left: float | None
    """None: it is still there, or was when it was last seen."""


class Crossing(NamedTuple):
    """A line that an object has crossed: in, from the left of the line to its right as one looks along it, or out."""

    line: str
    direction: str
    seconds: float


class Change(NamedTuple):
    """What an event reports: entered, left (a zone), crossed (a line), stationary, active, recheck, better (a better
    best frame), jumped; at the end "not seen", "source ended", "reconnected", "time went back" or "stopped"."""

    what: str
    where: str = ""
    """The zone or line."""
    direction: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, self))


@dataclass(frozen=True)
class Event:
    """Something that has happened to a tracked object, and all that is known about it by then."""

    kind: Literal["new", "update", "end"]
    source_id: str
    track_id: int
    class_id: int
    """The class with the highest sum of confidences so far."""
    name: str
    """That of the class."""
    frame: int
    """Index of the frame at which it happened."""
    seconds: float
    changes: tuple[Change, ...]
    xyxy: tuple[float, ...]
    """Where the object was last seen, in pixels."""
    confidence: float
    first_seconds: float
    last_seconds: float
    """When it was seen first and last."""
    state: Literal["active", "stationary"]
    stationary_seconds: float
    """How long it has been stationary in total."""
    best: Best
    path: tuple[tuple[float, float, float], ...]
    """(seconds, x, y) of the middle of its lower edge: the few points from which straight steps come close to it."""
    visits: tuple[Visit, ...] = ()
    crossings: tuple[Crossing, ...] = ()
    jumps: int = 0
    """How often the box was too far from where it had been. Such a box counts for nothing else."""
    thumbnail: bytes | None = field(default=None, repr=False)
    """At the end: the best frame's part around the box, as JPEG. None: no frames were kept."""

    @property
    def dwell(self) -> dict[str, float]:
        """Zone -> the seconds that the object has spent in it."""
        found: dict[str, float] = {}
        for zone, entered, left in self.visits:
            found[zone] = found.get(zone, 0.0) + (self.last_seconds if left is None else left) - entered
        return found


@dataclass(frozen=True)
class FrameInfo:
    """The facts of a frame without its pixels."""

    index: int
    pts: int | None
    time_base: Fraction
    width: int
    height: int
    source_id: str
    connection: int = 0
    """Number of the connection to a live source that brought it."""

    @property
    def seconds(self) -> float | None:
        """Presentation time in seconds; None: unknown."""
        return None if self.pts is None else float(self.pts * self.time_base)

    @classmethod
    def of(cls, frame: Frame) -> Self:
        return unchecked(
            cls, index=frame.index, pts=frame.pts, time_base=frame.time_base, width=frame.width, height=frame.height,
            source_id=frame.source_id, connection=frame.connection,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Result:
    """All results for one frame."""

    frame: FrameInfo
    detections: Detections
    """Empty if the model is a semantic segmenter or a classifier."""
    rung: str = ""
    """Model, size and precision that produced it."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds that this frame (or its batch) spent in each stage."""
    arrival: float | None = None
    """time.monotonic() at which the frame was decoded, or received from a live source."""
    masks: Masks | None = None
    """Only from a semantic segmenter."""
    matte: Matte | None = None
    """With the setting `save_matte`: how much of each pixel is foreground."""
    pixels: Frame | None = field(default=None, repr=False)
    """The frame itself, from a `Model`. A `Pipeline` does not keep frames, as its decoder reuses their memory."""
    views: tuple[View, ...] = ()
    """What the model saw of the frame, in the order of `Detections.view`; empty: the whole frame, once."""
    events: tuple[Event, ...] = ()
    """What has happened to its objects, with the setting `events`."""
    inferred: bool = True
    """Whether the model saw the frame. False, with the setting `adaptive`: its objects were interpolated."""
    why: str = ""
    """With the setting `adaptive`: why the frame was inferred, or not."""
    classification: Classification | None = None
    """Only from a classifier."""

    def crop(self, number: int, frame: Frame | None = None) -> np.ndarray[Any, Any]:
        """Every pixel that the box of an object touches: (height, width, 3) uint8 RGB.

        Args:
            number: index of the object in `detections`.
            frame: where `pixels` is None: the frame that a callback gets, see `CallbackSink`.

        Raises:
            UsageError: there is no frame.
            IndexError: there is no such object.
        """
        return cut(self.pixels_or(frame).to_rgb(), self.detections.xyxy[number])

    def pixels_or(self, frame: Frame | None) -> Frame:
        """This frame or, if it is None, `pixels`. UsageError: there is neither."""
        if found := frame or self.pixels:
            return found
        remedy = "use --save or save_crop, or a CallbackSink with needs_frame, and pass its frame"
        raise UsageError("a Pipeline keeps no frames", remedy=remedy)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        heads: tuple[str, ...] = "class", "confidence"
        if self.classification is not None:
            rows: list[tuple[str, ...]] = [(name, f"{score:.3f}") for name, score in self.classification.top()]
        elif self.masks is None:
            heads = *heads, "x1", "y1", "x2", "y2"
            rows = [(one.name, f"{one.confidence:.3f}", *map("{:.1f}".format, one.xyxy)) for one in self.detections]
        else:
            heads = "class", "share"
            rows = [(name, f"{share:.1%}") for name, share in self.masks.shares().items()]
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        frame, head = self.frame, "".join(f"<th>{head}</th>" for head in heads)
        title = f"{frame.source_id}, frame {frame.index}, {frame.width}x{frame.height}"
        return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{body}</table>"


def _package(name: str) -> Any:
    """A module that only a conversion needs."""
    try:
        return import_module(name)
    except ImportError as error:
        why = "is not installed" if getattr(error, "name", None) == name else f"cannot be imported: {error}"
        raise CapabilityError(f"package {name} {why}", remedy=f"pip install {name}") from error


def large_enough(xyxy: Array, area: float, pixels: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which boxes (n, 4) have an area: in square pixels, or a share of the frame if it is at most 1.

    Args:
        pixels: those of the frame, or of the frame of each box (n,).
    """
    sides = xyxy[:, 2:].astype(np.float64) - xyxy[:, :2]
    return np.asarray(sides[:, 0] * sides[:, 1] >= area * (pixels if area <= 1 else 1))


def cut(image: np.ndarray[Any, Any], box: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The pixels of an image that a box touches: a view."""
    left, top = np.floor(box[:2]).astype(int)
    right, bottom = np.ceil(box[2:]).astype(int)
    return image[top:bottom, left:right]


def corners(xywhr: Array) -> Array:
    """(n, 4, 2) float32: the corners of oriented boxes (n, 5), from the one at the end of width and height on."""
    along = xywhr[:, 2:3] / 2 * np.stack((np.cos(xywhr[:, 4]), np.sin(xywhr[:, 4])), axis=1)
    across = xywhr[:, 3:4] / 2 * np.stack((-np.sin(xywhr[:, 4]), np.cos(xywhr[:, 4])), axis=1)
    offsets = np.stack((along + across, along - across, -along - across, across - along), axis=1)
    return np.asarray(xywhr[:, None, :2] + offsets, np.float32)


def _oriented(boxes: Array) -> Array:
    """(n, 5) float32: the oriented boxes that have these `corners`."""
    along, across = boxes[:, 1] - boxes[:, 2], boxes[:, 0] - boxes[:, 1]
    sides = np.hypot(along[:, 0], along[:, 1]), np.hypot(across[:, 0], across[:, 1])
    return np.stack((*boxes.mean(axis=1).T, *sides, np.arctan2(along[:, 1], along[:, 0])), axis=1)
