"""Outputs: Predictions (a batch, on the model's device); Detections, Masks and Result (one frame, on the host)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.frame import Frame

Array = NDArray[Any]


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


@dataclass(eq=False)
class Detections:
    """Objects of one frame, on the host, as a struct of arrays of equal length n."""

    xyxy: Array
    """(n, 4) float32: x1, y1, x2, y2 in pixels of the frame as displayed; 0 <= x1 <= x2 <= width."""
    confidence: Array
    """(n,) float32 in 0..1, descending."""
    class_id: Array
    """(n,) int64."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Class names by class_id."""
    mask: Array | None = None
    """(n, height, width) bool, or None."""
    tracker_id: Array | None = None
    """(n,) int64, or None."""

    @classmethod
    def none(cls, names: Mapping[int, str]) -> Detections:
        """No objects."""
        return cls(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64), names)

    def __len__(self) -> int:
        return len(self.xyxy)

    def name(self, class_id: int) -> str:
        """Name of a class, or its number if the model has no name for it."""
        return self.names.get(int(class_id), str(int(class_id)))

    def to_supervision(self) -> Any:
        """The same objects as `supervision.Detections` (requires the package supervision)."""
        import supervision

        return supervision.Detections(
            xyxy=self.xyxy,
            confidence=self.confidence,
            class_id=self.class_id,
            mask=self.mask,
            tracker_id=self.tracker_id,
            data={"class_name": np.array([self.name(c) for c in self.class_id])},
        )

    def to_coco(self, image_id: int, category_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """COCO result rows: bbox is [x, y, width, height] in pixels.

        Args:
            image_id: id of the image in the COCO file.
            category_ids: category id of each class; default: the class number.
        """
        rows = []
        for (x1, y1, x2, y2), score, class_id in zip(
            self.xyxy.tolist(), self.confidence.tolist(), self.class_id.tolist(), strict=True
        ):
            category = class_id if category_ids is None else category_ids[class_id]
            box = [round(value, 3) for value in (x1, y1, x2 - x1, y2 - y1)]
            rows.append({"image_id": image_id, "category_id": category, "bbox": box, "score": round(score, 5)})
        return rows


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


@dataclass(frozen=True)
class FrameInfo:
    """The facts of a frame without its pixels."""

    index: int
    pts: int | None
    time_base: Fraction
    width: int
    height: int
    source_id: str

    @property
    def seconds(self) -> float | None:
        """Presentation time in seconds; None: unknown."""
        return None if self.pts is None else float(self.pts * self.time_base)

    @classmethod
    def of(cls, frame: Frame) -> FrameInfo:
        return cls(frame.index, frame.pts, frame.time_base, frame.width, frame.height, frame.source_id)


@dataclass(frozen=True, eq=False)
class Result:
    """All results for one frame."""

    frame: FrameInfo
    detections: Detections
    """Empty if the model is a semantic segmenter."""
    rung: str = ""
    """Model, size and precision that produced it."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds that this frame (or its batch) spent in each stage."""
    arrival: float | None = None
    """time.monotonic() at which the frame was decoded, or received from a live source."""
    masks: Masks | None = None
    """Only from a semantic segmenter."""
