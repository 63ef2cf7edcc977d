"""Scores for the training curve: mAP as COCO defines it, and mean IoU. `framefuse val` is authoritative.

mAP50-95: per class, the detections of all images in descending order of score, each matched to the unmatched object
with the highest IoU, at thresholds 0.5, 0.55, ... 0.95; precision made monotone and read at 101 recalls; the mean over
thresholds and classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from training.augment import fitted
from training.data import Frames
from training.losses import iou
from training.rendering import IGNORED, NONE

Array = npt.NDArray[Any]
THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
CONFIDENCE, OVERLAP, CANDIDATES, MOST = 0.001, 0.7, 1000, 300
AREAS = {"small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e10)}
"""Range of area as COCO defines it, in square pixels of the frame."""


@dataclass(frozen=True)
class Found:
    """Detections of one image, best first, in pixels of the frame."""

    boxes: Array
    scores: Array
    classes: Array


@torch.no_grad()
def suppress(boxes: Tensor, scores: Tensor, classes: Tensor) -> Tensor:
    """Greedy NMS per class: (b, k) bool, whether each of the boxes (b, k, 4), in descending order of score, survives.

    A box survives if no better surviving box covers it. Iterating from "all survive" until nothing changes gives the
    greedy result for the whole batch at once.
    """
    apart = boxes + (classes * 1e4)[..., None]
    covers = (iou(apart[:, :, None], apart[:, None]) > OVERLAP).triu(1) & (scores > CONFIDENCE)[:, :, None]
    kept = scores > CONFIDENCE
    while True:
        now = (scores > CONFIDENCE) & ~(covers & kept[:, :, None]).any(1)
        if bool((now == kept).all()):
            return kept
        kept = now


@torch.no_grad()
def detect(net: nn.Module, frames: Frames, size: tuple[int, int], *, batch: int = 32) -> list[Found]:
    """Run a detector over all frames, fitted into (height, width)."""
    height, width = frames.images.shape[1:3]
    scale = min(size[0] / height, size[1] / width)
    offset = [(size[1] - round(width * scale)) // 2, (size[0] - round(height * scale)) // 2]
    found = []
    device = frames.images.device
    for rows in torch.arange(len(frames), device=device).split(batch):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            raw = net(fitted(frames, rows, size).images.contiguous(memory_format=torch.channels_last)).float()
        best, labels = raw[:, 4:].max(1)
        scores, order = best.topk(min(CANDIDATES, best.shape[1]), 1)
        centre, extent = (raw[:, a : a + 2].gather(2, order[:, None].expand(-1, 2, -1)).mT for a in (0, 2))
        boxes = (
            torch.cat([centre - extent / 2, centre + extent / 2], -1) - torch.tensor(offset * 2, device=device)
        ) / scale
        limit = torch.tensor([width, height] * 2, device=device, dtype=boxes.dtype)
        boxes = torch.minimum(boxes.clamp(min=0), limit)
        labels = labels.gather(1, order)
        kept = suppress(boxes, scores, labels).cpu().numpy()
        boxes_, scores_, labels_ = boxes.cpu().numpy(), scores.cpu().numpy(), labels.cpu().numpy()
        for k, b, s, c in zip(kept, boxes_, scores_, labels_, strict=True):
            found.append(Found(b[k][:MOST], s[k][:MOST], c[k][:MOST]))
    return found


@dataclass(frozen=True)
class Truth:
    """Objects of one image; those of class IGNORED count neither for nor against any class."""

    boxes: Array
    classes: Array


def truths(frames: Frames) -> list[Truth]:
    """The ground truth of all frames."""
    pairs = zip(frames.boxes.cpu().numpy(), frames.classes.cpu().numpy(), strict=True)
    return [Truth(boxes[classes != NONE], classes[classes != NONE]) for boxes, classes in pairs]


def average_precision(
    found: list[Found], truth: list[Truth], classes: int, area: tuple[float, float] = (0, 1e10)
) -> Array:
    """(classes, thresholds) average precision; NaN for a class without objects."""
    result = np.full((classes, len(THRESHOLDS)), np.nan)
    for label in range(classes):
        scores, hits, ignored, objects = [], [], [], 0
        for f, t in zip(found, truth, strict=True):
            asked = (t.classes == label) | (t.classes == IGNORED)
            mine, theirs = f.boxes[f.classes == label], t.boxes[asked]
            size = np.prod(theirs[:, 2:] - theirs[:, :2], -1)
            skip = (t.classes[asked] == IGNORED) | (size < area[0]) | (size > area[1])
            objects += int((~skip).sum())
            if not len(mine):
                continue
            # Objects that count come first, so that a detection takes an ignored one only if it has no other.
            order = np.argsort(skip, kind="stable")
            matched = _match(mine, theirs[order], skip[order])
            own = np.prod(mine[:, 2:] - mine[:, :2], -1)
            outside = (own < area[0]) | (own > area[1])
            scores.append(f.scores[f.classes == label])
            hits.append(matched == 1)
            ignored.append((matched == 2) | ((matched == 0) & outside))
        if not objects:
            continue
        result[label] = 0
        if scores:
            order = np.argsort(-np.concatenate(scores), kind="stable")
            right, left_out = np.concatenate(hits, 1)[:, order], np.concatenate(ignored, 1)[:, order]
            for level in range(len(THRESHOLDS)):
                result[label, level] = _area(right[level][~left_out[level]], objects)
    return result


def _match(mine: Array, theirs: Array, skip: Array) -> Array:
    """(thresholds, detections): 0 no object, 1 an object, 2 an ignored object. Both inputs are in matching order."""
    matched = np.zeros((len(THRESHOLDS), len(mine)), np.int8)
    if not len(theirs):
        return matched
    overlap = iou(torch.from_numpy(mine)[:, None], torch.from_numpy(theirs)[None]).numpy()
    for level, threshold in enumerate(THRESHOLDS):
        free = np.ones(len(theirs), bool)
        for row in np.flatnonzero(overlap.max(1) >= threshold):
            open_ = np.where(free & (overlap[row] >= threshold), overlap[row], -1.0)
            real = np.where(skip, -1.0, open_)
            column = int(real.argmax() if real.max() >= 0 else open_.argmax())
            if open_[column] >= 0:
                matched[level, row] = 2 if skip[column] else 1
                free[column] = skip[column]  # COCO lets several detections match one ignored crowd
    return matched


def _area(right: Array, objects: int) -> float:
    """Mean precision at 101 recalls, for detections sorted by score."""
    hits = np.cumsum(right)
    recall = hits / objects
    precision = np.maximum.accumulate((hits / np.arange(1, len(hits) + 1))[::-1])[::-1] if len(hits) else hits
    at = np.searchsorted(recall, RECALLS - 1e-12, side="left")
    return float(np.mean([precision[i] if i < len(precision) else 0.0 for i in at]))


def detector_scores(net: nn.Module, frames: Frames, size: tuple[int, int]) -> dict[str, Any]:
    """mAP50-95 and mAP50 over all classes; mAP50-95 by size, class, and for the calm and crowded third of frames."""
    found, truth = detect(net, frames, size), truths(frames)
    count = len(frames.names)
    whole = average_precision(found, truth, count)
    result: dict[str, Any] = {"map50_95": _mean(whole), "map50": _mean(whole[:, :1])}
    for name, area in AREAS.items():
        result[f"map_{name}"] = _mean(average_precision(found, truth, count, area))
    order = np.argsort(frames.complexity.cpu().numpy(), kind="stable")
    third = len(order) // 3
    for name, rows in (("calm", order[:third]), ("crowded", order[len(order) - third :])):
        result[f"map_{name}"] = _mean(average_precision([found[i] for i in rows], [truth[i] for i in rows], count))
    result["by_class"] = {frames.names[i]: _mean(whole[i : i + 1]) for i in range(count)}
    return result


def _mean(values: Array) -> float | None:
    known = values[~np.isnan(values)]
    return round(float(known.mean()), 4) if known.size else None


@torch.no_grad()
def segmenter_scores(net: Any, frames: Frames, size: tuple[int, int], *, batch: int = 32) -> dict[str, Any]:
    """Mean IoU over the classes (pixels of all frames together) at (height, width), for both heads."""
    device = frames.images.device
    count = len(frames.names)
    tables = [torch.zeros(c, c, device=device) for c in (count, 2)]
    for rows in torch.arange(len(frames), device=device).split(batch):
        view = fitted(frames, rows, size)
        assert view.masks is not None
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            raw = net.features(view.images.contiguous(memory_format=torch.channels_last))
        for table, logits, mask in zip(tables, raw, (view.masks, (view.masks > 0).long()), strict=True):
            classes = len(table)
            full = functional.interpolate(logits.float(), scale_factor=2.0, mode="bilinear", align_corners=False)
            pairs = mask.flatten() * classes + full.argmax(1).flatten()
            table += torch.bincount(pairs, minlength=classes * classes).view(classes, classes)
    shares = []
    for table in tables:
        union = table.sum(0) + table.sum(1) - table.diagonal()
        shares.append((table.diagonal() / union).cpu().numpy())
    by_class = {frames.names[i]: _mean(shares[0][i : i + 1]) for i in range(count)}
    return {"miou": _mean(shares[0]), "miou_body": _mean(shares[1]), "by_class": by_class}
