"""Boxes against the ground truth: COCO metrics by faster-coco-eval, and a confusion matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.lab.evaluation.coco import needed
from framefuse.lab.evaluation.dataset import Labels
from framefuse.lab.evaluation.scores import CONF, IOU, BoxScores, ClassScore, Split

SIZES = ("all", "small", "medium", "large")
COMPLEXITIES = {"crowded": 2 / 3, "busy": 1 / 3, "calm": 0.0}
"""Lower bound of complexity of each group, highest first."""


class BoxCounter:
    """Counts boxes frame by frame.

    Args:
        names: the classes that are compared.
        max_det: maximum number of detections per frame, most confident first.

    Raises:
        CapabilityError: the extra `val` is not installed.
    """

    def __init__(self, names: Sequence[str], *, max_det: int) -> None:
        self._coco = needed("faster_coco_eval")
        self._names = list(names)
        self._max_det = max_det
        self._frames: list[float | None] = []
        self._confident: list[int] = []
        self._truth: list[dict[str, Any]] = []
        self._found: list[dict[str, Any]] = []
        self._confusion = np.zeros((len(names) + 1, len(names) + 1), np.int64)

    def add(self, labels: Labels, xyxy: NDArray[Any], confidence: NDArray[Any], class_id: NDArray[Any]) -> None:
        """Count one frame.

        Args:
            xyxy, confidence, class_id: detections, (n, 4), (n,), (n,); classes index `names`.
        """
        self._frames.append(labels.complexity)
        image = len(self._frames)
        for box, area, crowd, number in zip(
            _xywh(labels.xyxy), labels.area.tolist(), labels.crowd.tolist(), labels.class_id.tolist(), strict=True
        ):
            record = {"id": len(self._truth) + 1, "image_id": image, "category_id": number, "iscrowd": int(crowd)}
            self._truth.append({**record, "bbox": box, "area": area})
        for box, score, number in zip(_xywh(xyxy), confidence.tolist(), class_id.tolist(), strict=True):
            # With an empty segmentation the library does not make a polygon of each box.
            record = {"image_id": image, "category_id": number, "bbox": box, "score": score, "segmentation": []}
            self._found.append(record)
        confident = confidence >= CONF
        self._confident.append(int(confident.sum()))
        self._confusion += confusion(
            labels, xyxy[confident], confidence[confident], class_id[confident], len(self._names)
        )

    def scores(self) -> BoxScores:
        truth = self._coco.COCO(
            {
                "images": [{"id": number + 1} for number in range(len(self._frames))],
                "categories": [{"id": number, "name": name} for number, name in enumerate(self._names)],
                "annotations": self._truth,
            }
        )
        found = truth.loadRes(self._found)
        images = list(range(1, len(self._frames) + 1))
        precision = self._precision(truth, found, images)
        single = [row for row in self._truth if not row["iscrowd"]]
        objects = Counter(row["category_id"] for row in single)
        right, true_objects = int(np.trace(self._confusion[:-1, :-1])), int(self._confusion[:-1].sum())
        predicted = int(self._confusion[:, :-1].sum())
        parts: dict[str, list[int]] = {name: [] for name in COMPLEXITIES if None not in self._frames}
        for image, value in zip(images if parts else [], self._frames, strict=False):
            parts[next(name for name, least in COMPLEXITIES.items() if (value or 0.0) >= least)].append(image)
        by_complexity = {}
        for name, part in parts.items():
            held = set(part)
            values = self._precision(truth, found, part) if part else np.full((10, 101, 1, 4), -1.0)
            by_complexity[name] = Split(
                frames=len(part),
                objects=sum(row["image_id"] in held for row in single),
                detections=sum(self._confident[image - 1] for image in part),
                map50_95=_mean(values[:, :, :, 0]),
                map50=_mean(values[0, :, :, 0]),
            )
        return BoxScores(
            map50_95=_mean(precision[:, :, :, 0]) or 0.0,
            map50=_mean(precision[0, :, :, 0]) or 0.0,
            map75=_mean(precision[5, :, :, 0]) or 0.0,
            objects=len(single),
            precision=right / predicted if predicted else 0.0,
            recall=right / true_objects if true_objects else 0.0,
            by_size={size: _mean(precision[..., at]) for at, size in enumerate(SIZES) if at},
            by_class={
                name: ClassScore(objects[number], _mean(precision[:, :, number, 0]), _mean(precision[0, :, number, 0]))
                for number, name in enumerate(self._names)
            },
            by_complexity=by_complexity,
            confusion=self._confusion.tolist(),
            curves={
                name: [round(value, 6) for value in precision[0, :, number, 0].tolist()]
                for number, name in enumerate(self._names)
                if objects[number]
            },
        )

    def _precision(self, truth: Any, found: Any, images: list[int]) -> NDArray[np.float64]:
        """(10 IoU thresholds, 101 recalls, classes, 4 sizes); -1 where there is no object."""
        count = self._coco.COCOeval_faster(truth, found, "bbox", print_function=_silent)
        count.params.imgIds = images
        count.params.maxDets = [self._max_det]
        count.evaluate()
        count.accumulate()
        shape = len(count.params.iouThrs), len(count.params.recThrs), len(self._names), len(SIZES)
        precision: NDArray[np.float64] = np.asarray(count.eval["precision"], np.float64).reshape(shape)
        return precision


def confusion(
    labels: Labels, xyxy: NDArray[Any], confidence: NDArray[Any], class_id: NDArray[Any], classes: int
) -> NDArray[np.int64]:
    """(classes + 1, classes + 1) counts [truth][found] of one frame.

    Objects and detections are paired greedily by IoU, from the highest down to IOU, whatever their classes. Unpaired
    objects were missed (last column); unpaired detections are false (last row), unless at least half of a detection
    lies in a crowd region.
    """
    table = np.zeros((classes + 1, classes + 1), np.int64)
    single = np.flatnonzero(~labels.crowd)
    shared, inside = overlaps(labels.xyxy, xyxy)
    pairs = shared[single]
    free_truth, free_found = np.ones(len(single), bool), np.ones(len(xyxy), bool)
    at, of = np.nonzero(pairs >= IOU)
    order = np.lexsort((-confidence[of], -pairs[at, of]))
    for row, column in zip(at[order].tolist(), of[order].tolist(), strict=True):
        if free_truth[row] and free_found[column]:
            free_truth[row] = free_found[column] = False
            table[labels.class_id[single[row]], class_id[column]] += 1
    np.add.at(table[:, classes], labels.class_id[single[free_truth]], 1)
    in_crowd = (inside[labels.crowd] >= 0.5).any(axis=0)
    np.add.at(table[classes], class_id[free_found & ~in_crowd], 1)
    return table


def overlaps(truth: NDArray[Any], found: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(objects, detections) each: intersection over union, and intersection over the area of the detection."""
    first, second = truth[:, None].astype(np.float64), found[None].astype(np.float64)
    sides = np.minimum(first[..., 2:], second[..., 2:]) - np.maximum(first[..., :2], second[..., :2])
    both = sides.clip(0).prod(axis=2)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(axis=2) for boxes in (first, second)]
    tiny = np.finfo(np.float64).tiny
    return both / np.maximum(areas[0] + areas[1] - both, tiny), both / np.maximum(areas[1], tiny)


def _mean(precision: NDArray[np.float64]) -> float | None:
    """Mean of the valid values; None if there are none."""
    valid = precision[precision > -1]
    return float(valid.mean()) if valid.size else None


def _xywh(xyxy: NDArray[Any]) -> list[list[float]]:
    boxes = xyxy.astype(np.float64)
    boxes[:, 2:] -= boxes[:, :2]
    rows: list[list[float]] = boxes.tolist()
    return rows


def _silent(*words: object) -> None:
    pass
