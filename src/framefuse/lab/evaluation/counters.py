"""What a model got right, counted frame by frame: boxes by faster-coco-eval, tracks by trackeval, and class masks."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import SourceError, UsageError
from framefuse.lab.evaluation.coco import needed
from framefuse.lab.evaluation.dataset import Dataset, Labels, match_names, plain, table_of
from framefuse.lab.evaluation.scores import (
    CONF,
    IOU,
    BoxScores,
    ClassScore,
    ImageScores,
    PixelScores,
    Split,
    TrackScores,
)
from framefuse.models.card import Card
from framefuse.prediction import Detections, Result

Shape = Literal["segm", "keypoints"]
SHAPE_KEYS: dict[Shape, str] = {"segm": "segmentation", "keypoints": "keypoints"}
"""What is scored besides boxes -> its key in an annotation."""
OTHER_SIGMA = 0.05
"""How exactly people place a keypoint, over the size of the object; COCO has measured it for its 17 only."""
SIZES = ("all", "small", "medium", "large")
COMPLEXITIES = ("calm", "busy", "crowded"), (1 / 3, 2 / 3)
"""Groups of frames by complexity, and the bounds between them."""
OTHER = 255
"""A class that is not compared: pixels with this truth are ignored, predictions of it are wrong."""


class BoxCounter:
    """Counts boxes of the classes `names` frame by frame, in each frame at most the `max_det` most confident.
    CapabilityError if the extra `val` is not installed.

    Args:
        shape: what else is scored, as COCO calls it; it is not if the data do not have it.
        oriented: detections are oriented boxes, so the truth's `obb`, where it has one, is its outline.
    """

    def __init__(
        self, names: Sequence[str], *, max_det: int, shape: Shape | None = None, oriented: bool = False
    ) -> None:
        self._shape, self._oriented = shape, oriented
        self._coco = needed("faster_coco_eval")
        self._names = list(names)
        self._max_det = max_det
        self._frames: list[tuple[tuple[int, int], float | None, int]] = []
        """Size, complexity and confident detections of each."""
        self._truth: list[dict[str, Any]] = []
        self._found: list[dict[str, Any]] = []
        self._confusion = np.zeros((len(names) + 1, len(names) + 1), np.int64)

    def add(self, labels: Labels, found: Detections) -> None:
        """Count one frame; classes of `found` index `names`."""
        confident = found[found.confidence >= CONF]
        self._frames.append((labels.size, labels.complexity, len(confident)))
        self._confusion += confusion(labels, confident, len(self._names))
        image = len(self._frames)
        shapes = labels.shapes() if self._shape and labels.shapes else [{}] * len(labels.area)
        truth = _xywh(labels.xyxy), labels.area.tolist(), labels.crowd.tolist(), labels.class_id.tolist()
        for box, area, crowd, number, shape in zip(*truth, shapes, strict=True):
            record = {"id": len(self._truth) + 1, "image_id": image, "category_id": number, "iscrowd": int(crowd)}
            if self._oriented and "obb" in shape:
                shape = {"segmentation": shape["obb"]}
            self._truth.append({**record, "bbox": box, "area": area, **shape})
        rows = _xywh(found.xyxy), found.confidence.tolist(), found.class_id.tolist()
        masks = found.segmentations() if self._shape == "segm" else [[]] * len(found)
        if self._shape == "segm" and found.runs is None:  # oriented boxes
            width, height = labels.size
            tools = self._coco.mask
            masks = [tools.merge(tools.frPyObjects(polygons, height, width)) for polygons in masks]
        points = [[]] * len(found) if found.keypoints is None else [own.ravel().tolist() for own in found.keypoints]
        for box, score, number, mask, own in zip(*rows, masks, points, strict=True):
            # With an empty segmentation the library does not make a polygon of each box.
            record = {"image_id": image, "category_id": number, "bbox": box, "score": score, "segmentation": mask}
            self._found.append({**record, "keypoints": own} if self._shape == "keypoints" else record)

    def scores(self) -> BoxScores:
        images = list(range(1, len(self._frames) + 1))
        categories = [{"id": number, "name": name} for number, name in enumerate(self._names)]
        entries = [{"id": number, "width": w, "height": h} for number, ((w, h), *_) in enumerate(self._frames, 1)]
        truth = self._coco.COCO({"images": entries, "categories": categories, "annotations": self._truth})
        found = truth.loadRes(self._found)
        precision = self._precision(truth, found, images)
        single = [row for row in self._truth if not row["iscrowd"]]
        objects = Counter(row["category_id"] for row in single)
        right, true_objects = int(np.trace(self._confusion[:-1, :-1])), int(self._confusion[:-1].sum())
        predicted = int(self._confusion[:, :-1].sum())
        by_complexity = {}
        groups, bounds = COMPLEXITIES
        complexity = [value for _, value, _ in self._frames if value is not None]
        if len(complexity) == len(images):
            group_of = np.digitize(complexity, bounds)
            for group, name in reversed(list(enumerate(groups))):
                part = (np.flatnonzero(group_of == group) + 1).tolist()
                values = self._precision(truth, found, part) if part else np.full((10, 101, 1, 4), -1.0)
                held, sure = set(part), sum(self._frames[image - 1][2] for image in part)
                count = sum(row["image_id"] in held for row in single)
                by_complexity[name] = Split(len(part), count, sure, *_both(values))
        classes = [(name, objects[n], precision[:, :, n : n + 1]) for n, name in enumerate(self._names)]
        map50_95, map50 = _both(precision)
        maps = map50_95 or 0.0, map50 or 0.0, _mean(precision[5, :, :, 0]) or 0.0
        rates = right / max(predicted, 1), right / max(true_objects, 1)
        by_size = {size: _mean(precision[..., at]) for at, size in enumerate(SIZES) if at}
        by_class = {name: ClassScore(count, *_both(own)) for name, count, own in classes}
        curves = {name: own[0, :, 0, 0].round(6).tolist() for name, count, own in classes if count}
        table = self._confusion.tolist()
        shaped: tuple[float | None, float | None] = (None, None)
        if self._shape and all(row.get(SHAPE_KEYS[self._shape]) for row in single):
            shaped = _both(self._precision(truth, found, images, self._shape))
        return BoxScores(*maps, len(single), *rates, by_size, by_class, by_complexity, table, curves, *shaped)

    def _precision(self, truth: Any, found: Any, images: list[int], shape: str = "bbox") -> NDArray[np.float64]:
        """(10 IoU thresholds, 101 recalls, classes, 4 sizes, of keypoints 3); -1 where there is no object. Of keypoints
        the library leaves out classes without any."""
        count = self._coco.COCOeval_faster(truth, found, shape, print_function=lambda *words: None)
        count.params.imgIds = images
        count.params.maxDets = [self._max_det]
        if shape == "keypoints":
            points = len(self._truth[0]["keypoints"]) // 3
            if points != len(count.params.kpt_oks_sigmas):
                count.params.kpt_oks_sigmas = np.full(points, OTHER_SIGMA)
        count.evaluate()
        count.accumulate()
        lengths = len(count.params.iouThrs), len(count.params.recThrs), -1, len(count.params.areaRng)
        return np.asarray(count.eval["precision"], np.float64).reshape(lengths)


def confusion(labels: Labels, found: Detections, classes: int) -> NDArray[np.int64]:
    """(classes + 1, classes + 1) counts [truth][found] of one frame.

    Objects and detections are paired greedily by IoU, from the highest down to IOU, whatever their classes. Unpaired
    objects were missed (last column); unpaired detections are false (last row), unless at least half of a detection
    lies in a crowd region.
    """
    table = np.zeros((classes + 1, classes + 1), np.int64)
    single = np.flatnonzero(~labels.crowd)
    shared, inside = overlaps(labels.xyxy, found.xyxy)
    pairs = shared[single]
    free_truth, free_found = np.ones(len(single), bool), np.ones(len(found), bool)
    at, of = np.nonzero(pairs >= IOU)
    order = np.lexsort((-found.confidence[of], -pairs[at, of]))
    for row, column in zip(at[order].tolist(), of[order].tolist(), strict=True):
        if free_truth[row] and free_found[column]:
            free_truth[row] = free_found[column] = False
            table[labels.class_id[single[row]], found.class_id[column]] += 1
    np.add.at(table[:, classes], labels.class_id[single[free_truth]], 1)
    in_crowd = (inside[labels.crowd] >= 0.5).any(axis=0)
    np.add.at(table[classes], found.class_id[free_found & ~in_crowd], 1)
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


def _both(precision: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """map50_95 and map50."""
    return _mean(precision[:, :, :, 0]), _mean(precision[0, :, :, 0])


def _xywh(xyxy: NDArray[Any]) -> Any:
    boxes = xyxy.astype(np.float64)
    return np.hstack((boxes[:, :2], boxes[:, 2:] - boxes[:, :2])).tolist()


class TrackCounter:
    """Counts tracks of the classes `names` frame by frame. Each class of each sequence is scored by itself, and all are
    summed, as over the sequences of a benchmark. CapabilityError if the extra `val` is not installed.
    """

    def __init__(self, names: Sequence[str]) -> None:
        metrics = needed("trackeval").metrics
        quiet = {"PRINT_CONFIG": False, "THRESHOLD": IOU}
        self._metrics: list[Any] = [metrics.HOTA(), metrics.CLEAR(quiet), metrics.Identity(quiet)]
        self._assign = needed("scipy.optimize").linear_sum_assignment
        self._names = list(names)
        self._steps: dict[tuple[str, int], list[tuple[Any, ...]]] = defaultdict(list)
        """Of each frame, by sequence and class: ids of objects (n,) and of tracks (m,), and their overlaps (n, m)."""

    def add(self, sequence: str, labels: Labels, found: Detections) -> None:
        """Count one frame of a sequence; classes of `found` index `names`, and boxes without a track do not count.

        Boxes that match an object which does not count (`Labels.crowd`) are left out, as MOTChallenge does.
        """
        assert labels.track_id is not None
        tracks = np.full(len(found), -1, np.int64) if found.tracker_id is None else found.tracker_id
        for number in range(len(self._names)):
            known, seen = labels.class_id == number, (found.class_id == number) & (tracks >= 0)
            shared, _ = overlaps(labels.xyxy[known], found.xyxy[seen])
            crowd, kept = labels.crowd[known], np.ones(int(seen.sum()), bool)
            at, of = self._assign(-np.where(shared >= IOU, shared, 0))
            kept[of[(shared[at, of] >= IOU) & crowd[at]]] = False
            step = labels.track_id[known][~crowd], tracks[seen][kept], shared[~crowd][:, kept]
            self._steps[sequence, number].append(step)

    def scores(self) -> TrackScores:
        parts = {key: self._part(steps) for key, steps in self._steps.items()}
        parts = {key: data for key, data in parts.items() if data["num_gt_dets"] or data["num_tracker_dets"]}
        if not parts:
            return TrackScores(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, {}, {})
        results = {key: [metric.eval_sequence(data) for metric in self._metrics] for key, data in parts.items()}
        hota, clear, identity = (self._summed(results, number) for number in range(3))
        by_class: dict[str, tuple[int, float | None]] = {}
        for number, name in enumerate(self._names):
            own = {key: one for key, one in results.items() if key[1] == number}
            objects = sum(parts[key]["num_gt_dets"] for key in own)
            by_class[name] = objects, float(np.mean(self._summed(own, 0)["HOTA"])) if objects else None
        curves = {name: [round(float(value), 6) for value in hota[name]] for name in ("HOTA", "DetA", "AssA")}
        found: dict[str, Any] = {name.lower(): float(np.mean(hota[name])) for name in curves}
        found |= {"mota": float(clear["MOTA"]), "idf1": float(identity["IDF1"])}
        found |= {"id_switches": int(clear["IDSW"]), "fragments": int(clear["Frag"])}
        objects, identities = (sum(one[f"num_gt_{key}"] for one in parts.values()) for key in ("dets", "ids"))
        return TrackScores(**found, objects=objects, identities=identities, by_class=by_class, curves=curves)

    def _summed(self, results: dict[tuple[str, int], list[Any]], number: int) -> Any:
        return self._metrics[number].combine_sequences({str(key): one[number] for key, one in results.items()})

    @staticmethod
    def _part(steps: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        """A sequence as trackeval takes it: ids count from 0 without gaps."""
        objects, tracks, shared = zip(*steps, strict=True)
        data: dict[str, Any] = {"num_timesteps": len(steps), "similarity_scores": list(shared)}
        for name, ids in (("gt", objects), ("tracker", tracks)):
            known, index = np.unique(np.concatenate(ids), return_inverse=True)
            data[f"{name}_ids"] = np.split(index, np.cumsum([len(one) for one in ids])[:-1])
            data |= {f"num_{name}_ids": len(known), f"num_{name}_dets": len(index)}
        return data


class ImageCounter:
    """Counts images whose class is right, of a classifier and data that know the class of each image; UsageError if
    these know something else, or share no class."""

    def __init__(self, card: Card, data: Dataset) -> None:
        if not data.whole:
            why = f"{card.path.name} is a classifier, but {data.uri} does not say the class of each image"
            raise UsageError(why, remedy="use a folder with one folder of images for each class")
        given, self.notes = data.names, list[str]()
        if len(given) == len(card.names) and not {*map(plain, given.values())} & {*map(plain, card.names.values())}:
            given = dict(zip(given, card.names.values(), strict=True))
            self.notes.append("folders have other names than classes, so they are classes in this order")
        self.names, self._model_to, self._data_to, notes = match_names(card.names, given, card)
        self.notes += notes
        self._ranks: list[tuple[int, int]] = []
        """Class and rank of it, of each image."""

    def add(self, result: Result, labels: Labels) -> None:
        truth = self._data_to.get(int(labels.class_id[0]), -1)
        if truth < 0:
            return
        assert result.classification is not None
        ranked = [self._model_to.get(number, -1) for number in result.classification.class_id.tolist()]
        self._ranks.append((truth, ranked.index(truth)))

    def scores(self) -> ImageScores:
        found = np.array(self._ranks, np.int64).reshape(-1, 2)
        right = [found[found[:, 0] == number, 1] == 0 for number in range(len(self.names))]
        shares = [(len(one), float(one.mean()) if len(one) else None) for one in right]
        top1, top5 = (float((found[:, 1] < best).mean()) if len(found) else 0.0 for best in (1, 5))
        return ImageScores(top1, top5, dict(zip(self.names, shares, strict=True)))


class PixelCounter:
    """Counts pixels of the classes that a segmenter and the data share; UsageError if there are no masks or no such."""

    def __init__(self, card: Card, data: Dataset) -> None:
        if not data.mask_names:
            remedy = "use data with few enough categories and a segmentation for each annotation, or synthetic://bodies"
            why = f"{card.path.name} is a segmenter (task: semantic), but {data.uri} has {data.no_masks}"
            raise UsageError(why, remedy=remedy)
        known = {plain(name) for name in card.names.values()}
        names = dict(data.mask_names)
        for group, members in data.mask_groups.items():
            inside = {plain(data.mask_names[number]) for number in members} - {plain(group)}
            if plain(group) in known and not known & inside:
                names |= dict.fromkeys(members, group)
        self.names, model_to, data_to, self.notes = match_names(card.names, names, card)
        self._truth, self._found = (table_of(to, OTHER)[:256].astype(np.uint8) for to in (data_to, model_to))
        self._table = np.zeros((len(self.names), len(self.names) + 1), np.int64)

    def add(self, result: Result, labels: Labels) -> None:
        if labels.class_mask is None or result.masks is None:
            raise SourceError(f"{result.frame.source_id}, frame {result.frame.index}, has no mask to compare with")
        self.count(self._truth[labels.class_mask()], self._found[result.masks.class_id])

    def count(self, truth: NDArray[np.uint8], found: NDArray[np.uint8]) -> None:
        """Count one frame; both masks are (height, width) indices of `names`, or OTHER."""
        pairs = np.bincount((truth.astype(np.uint16) * 256 + found).ravel(), minlength=65536).reshape(256, 256)
        classes = len(self.names)
        self._table[:, :classes] += pairs[:classes, :classes]
        self._table[:, classes] += pairs[:classes, classes:].sum(axis=1)

    def scores(self) -> PixelScores:
        right = np.diag(self._table)
        true, predicted = self._table.sum(axis=1), self._table[:, :-1].sum(axis=0)
        union = true + predicted - right
        shares: list[Any] = [int(a) / int(b) if b else None for a, b in zip(right, union, strict=True)]
        known = [share for share, count in zip(shares, true, strict=True) if count]
        miou, accuracy = sum(known) / max(len(known), 1), float(right.sum() / max(int(true.sum()), 1))
        return PixelScores(miou, accuracy, dict(zip(self.names, shares, strict=True)), self._table.tolist())
