"""What models say besides boxes: masks, keypoints and angles of objects; the class of a whole frame."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.kernels.boxes.call import detections
from framefuse.kernels.boxes.reference import Found
from framefuse.kernels.masks.instances import Runs, instance_runs
from framefuse.postprocess import BoxCheck, _readable, maps, raise_non_finite
from framefuse.prediction import Classification, Detections, Ranking, corners
from framefuse.preprocess import Placement

ABOUT = {"segment": "coefficients of masks", "pose": "keypoints", "obb": "angles"}
"""Task -> what the anchors have after their classes."""


@dataclass(frozen=True, eq=False)
class Heads:
    """Objects with what their anchors say after the classes, on the host."""

    task: str
    """segment, pose or obb."""
    layout: str
    """yolov5, yolov8 or end2end, as in `models.card.Card`."""
    extra: int
    """Values of an anchor after its classes."""
    checked: BoxCheck
    """Drops what no object can have."""
    keypoints: tuple[int, int] | None = None
    """pose: their number, and the values of each."""
    skeleton: Sequence[tuple[int, int]] = ()
    """pose: pairs of keypoints that a line connects."""

    def __call__(
        self, outputs: Sequence[NDArray[Any]], placements: Sequence[Placement], **selection: Any
    ) -> list[Detections]:
        """The objects of each image.

        Args:
            outputs: the boxes; segment: then the prototypes (batch, n, h, w).
            selection: the arguments of `postprocess` that choose boxes.

        Raises:
            NonFiniteError: NaN or infinity in the outputs of an image.
        """
        output, *planes = map(_readable, outputs)
        table = maps(tuple(placements), False)
        found = detections([output], self.layout, table, extra=self.extra, oriented=self.task == "obb", **selection)
        raise_non_finite(found.non_finite, "of its anchors or queries")
        anchors = output.transpose(0, 2, 1) if self.layout == "yolov8" else output
        results = []
        for image, (placement, count) in enumerate(zip(placements, found.counts.tolist(), strict=True)):
            values = anchors[image][found.anchors[image, :count], -self.extra :]
            own = [plane[image] for plane in planes]
            results.append(self.objects(found, image, values, own, placement, table[image]))
        return results

    def objects(
        self,
        found: Found,
        image: int,
        values: NDArray[Any],
        planes: Sequence[NDArray[Any]],
        placement: Placement,
        row: NDArray[np.float32],
        runs: Runs | None = None,
    ) -> Detections:
        """The objects of an image of a batch.

        Args:
            values: (n, extra): what the anchors of its objects say after the classes.
            planes: segment: the prototypes (n, h, w).
            row: of the image in `maps`.
            runs: segment: the masks, if they are known already.

        Raises:
            NonFiniteError: a value is NaN or infinite.
        """
        chosen, values = slice(len(values)), values.astype(np.float32, copy=False)
        boxes, scores, classes = (part[image, chosen] for part in found[:3])
        if np.count_nonzero(np.isfinite(values)) < values.size:
            broken = np.zeros(len(found.counts), np.int64)
            broken[image] = np.count_nonzero(~np.isfinite(values).all(axis=1))
            raise_non_finite(broken, f"of the {ABOUT[self.task]} of its objects")
        more: dict[str, Any]
        if self.task == "obb":
            around, size = corners(boxes), np.array(placement.source, np.float32)
            more = {"xywhr": boxes.copy()}
            boxes = np.concatenate((around.min(axis=1), around.max(axis=1)), axis=1).clip(0, np.tile(size, 2))
        elif self.task == "pose":
            assert self.keypoints is not None
            points = np.ones((len(values), self.keypoints[0], 3), np.float32)
            points[:, :, : self.keypoints[1]] = values.reshape(len(values), *self.keypoints)
            for axis in range(2):  # one by one: NumPy is slow where the last axis has two numbers
                place = points[:, :, axis]
                place *= row[axis]
                place -= row[2 + axis]
                place *= row[4 + axis]
                np.minimum(np.maximum(place, 0, out=place), row[6 + axis], out=place)
            more = {"keypoints": points}
        else:
            more = {"runs": runs or runs_of(planes[0], values, boxes, placement)}
        objects = self.checked.one(boxes, scores, classes, **more)
        objects.skeleton = self.skeleton
        # An object of whose mask no pixel lies in its box is none, as in the YOLO frameworks; all is one run then.
        return objects if objects.runs is None else objects[objects.runs.ends - objects.runs.starts > 1]


def content_of(prototypes: tuple[int, ...], placement: Placement) -> tuple[float, float, float, float]:
    """Where the whole frame lies in prototypes of this shape (n, h, w): what is outside a view is outside of every box
    in it."""
    scale = prototypes[2] / placement.size[0], prototypes[1] / placement.size[1]
    left, top = (offset * per for offset, per in zip(placement.offset, scale, strict=True))
    across, down = (
        side * factor * per for side, factor, per in zip(placement.source, placement.scale, scale, strict=True)
    )
    return left, top, across, down


def runs_of(prototypes: NDArray[Any], coefficients: NDArray[Any], boxes: NDArray[Any], placement: Placement) -> Runs:
    """Masks of the size of the whole frame."""
    content = content_of(prototypes.shape, placement)
    found = instance_runs(
        prototypes.astype(np.float32, copy=False), coefficients, boxes, placement.source[::-1], content=content
    )
    assert isinstance(found, Runs)
    return found


def classify(scores: NDArray[Any], names: Any, activation: str) -> list[Classification]:
    """The class of each image.

    Args:
        scores: (batch, nc), or (batch, nc, 1, 1).
        names: class number -> name.
        activation: maps scores to 0..1: none, sigmoid or softmax.

    Raises:
        NonFiniteError: NaN or infinity in the scores of an image.
    """
    values = scores.reshape(len(scores), -1).astype(np.float32)
    if np.count_nonzero(np.isfinite(values)) < values.size:
        raise_non_finite(np.count_nonzero(~np.isfinite(values), axis=1), "of its scores")
    if activation == "softmax":
        values -= values.max(axis=1, keepdims=True)
        np.exp(values, out=values)
        values /= values.sum(axis=1, keepdims=True)
    elif activation == "sigmoid":
        with np.errstate(over="ignore"):
            values = np.float32(1) / (np.float32(1) + np.exp(-values))
    ranking = Ranking(values)
    return [Classification(row, names, partial(ranking.row, image)) for image, row in enumerate(values)]
