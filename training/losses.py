"""Losses.

Detectors. Objects are assigned to cells by the network's own output (task-aligned, Feng et al. 2021): of the cells
inside an object, those with the highest score^ALPHA x IoU^BETA. Their class target is that alignment, scaled so that
the target of an object's best cell is its IoU.

    loss = BOX (1 - CIoU) + EDGE DFL + SCORE BCE, each weighted by the target and divided by the sum of all targets

Segmenter. Cross-entropy of every pixel plus 1 - Dice of every class (thin limbs have few pixels), for both heads.

All shapes are fixed (every image is padded to the same number of objects), so nothing waits for the GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from training.nets import BINS, STRIDES, expected, grid
from training.rendering import IGNORED

ALPHA, BETA = 0.5, 6.0
CELLS = 10
"""Maximum number of cells assigned to one object."""
BOX, EDGE, SCORE = 7.5, 1.5, 0.5
REACH = 1.5
"""For the choice of cells, an object is at least this many strides of the finest level large."""


@dataclass(frozen=True)
class Objects:
    """The ground truth of a batch: boxes (b, m, 4) x1 y1 x2 y2 in pixels; classes (b, m) int64, also NONE, IGNORED."""

    boxes: Tensor
    classes: Tensor


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes (..., 4) x1 y1 x2 y2."""
    size = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    # Not prod(): its gradient looks for zeros, which waits for the GPU.
    shared = size[..., 0] * size[..., 1]
    sides = [(box[..., 2:] - box[..., :2]).clamp(min=0) for box in (a, b)]
    areas = [side[..., 0] * side[..., 1] for side in sides]
    return shared / (areas[0] + areas[1] - shared + 1e-7)


def complete_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU minus penalties for centre distance and aspect ratio (Zheng et al. 2020); at most 1."""
    overlap = iou(a, b)
    hull = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    away = ((a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]) / 2).square().sum(-1)
    angles = [torch.atan((x[..., 2] - x[..., 0]) / (x[..., 3] - x[..., 1]).clamp(min=1e-4)) for x in (a, b)]
    shape = 4 / math.pi**2 * (angles[0] - angles[1]).square()
    with torch.no_grad():
        weight = shape / (1 - overlap + shape + 1e-7)
    return overlap - away / (hull.square().sum(-1) + 1e-7) - weight * shape


@torch.no_grad()
def assign(scores: Tensor, boxes: Tensor, points: Tensor, truth: Objects) -> tuple[Tensor, Tensor, Tensor]:
    """Assign objects to cells.

    Args:
        scores: (b, N, classes) 0..1; boxes: (b, N, 4) x1 y1 x2 y2; points: (N, 2) centres of the cells; all in pixels.

    Returns:
        object number (b, N); target score (b, N) in 0..1, 0 for unassigned cells; and whether the score of the cell
        (b, N) is ignored, because it lies in an ignored object and is unassigned.
    """
    exists = truth.classes >= 0
    overlap = iou(truth.boxes[:, :, None], boxes[:, None])  # (b, m, N)
    wanted = truth.classes.clamp(min=0)[:, :, None].expand(-1, -1, scores.shape[1])
    alignment = scores.transpose(1, 2).gather(1, wanted).pow(ALPHA) * overlap.pow(BETA)

    middle = (truth.boxes[..., :2] + truth.boxes[..., 2:]) / 2
    half = ((truth.boxes[..., 2:] - truth.boxes[..., :2]) / 2).clamp(min=REACH * STRIDES[0] / 2)
    around = ((points[None, None] - middle[:, :, None]).abs() < half[:, :, None]).all(-1)
    inside = around & exists[..., None]

    # The epsilon lets objects that no cell overlaps yet be assigned too.
    candidate = (alignment + 1e-9) * inside
    top, cells = candidate.topk(min(CELLS, candidate.shape[2]), dim=2)
    chosen = torch.zeros_like(candidate).scatter_(2, cells, (top > 0).to(candidate.dtype)) > 0
    # A cell inside several objects is assigned to the one with the highest IoU.
    claimed = (overlap + 1e-6) * chosen
    best, number = claimed.max(1)
    chosen &= torch.zeros_like(chosen).scatter_(1, number[:, None], (best > 0)[:, None])

    alignment = alignment * chosen
    strongest = alignment.amax(2, keepdim=True)
    reached = (overlap * chosen).amax(2, keepdim=True)
    target = (alignment / (strongest + 1e-9) * reached).amax(1)
    free = (around & (truth.classes == IGNORED)[..., None]).any(1) & (best <= 0)
    return number, target, free


def detection_loss(raw: list[Tensor], truth: Objects) -> dict[str, Tensor]:
    """Terms of the loss of the head's raw maps (b, 4 BINS + classes, h, w); `loss` is their weighted sum."""
    centres, strides = grid([(r.shape[2], r.shape[3]) for r in raw], raw[0].device)
    flat = torch.cat([r.flatten(2) for r in raw], 2).float()
    sides, logits = flat.split([4 * BINS, flat.shape[1] - 4 * BINS], 1)
    logits = logits.transpose(1, 2)
    distance = expected(sides)
    corners = torch.cat([centres - distance[:, :2], centres + distance[:, 2:]], 1)
    boxes = (corners * strides).transpose(1, 2)
    number, target, free = assign(logits.detach().sigmoid(), boxes.detach(), (centres * strides).T, truth)

    total = target.sum().clamp(min=1)
    classes = truth.classes.clamp(min=0).gather(1, number)
    goal = torch.zeros_like(logits).scatter_(2, classes[..., None], target[..., None])
    asked = (~free)[..., None].to(goal.dtype)
    score = functional.binary_cross_entropy_with_logits(logits, goal, asked, reduction="sum") / total

    theirs = truth.boxes.gather(1, number[..., None].expand(-1, -1, 4))
    box = ((1 - complete_iou(boxes, theirs)) * target).sum() / total

    points = centres.T[None]
    edges = theirs / strides.T[None]
    ends = torch.cat([points - edges[..., :2], edges[..., 2:] - points], -1).clamp(0, BINS - 1.01)
    log_share = sides.view(len(sides), 4, BINS, -1).permute(0, 3, 1, 2).log_softmax(-1)  # (b, N, 4, BINS)
    lower = ends.floor()
    share = ends - lower
    near = log_share.gather(-1, lower.long()[..., None])[..., 0]
    far = log_share.gather(-1, lower.long()[..., None] + 1)[..., 0]
    edge = ((-(1 - share) * near - share * far).mean(-1) * target).sum() / total

    loss = BOX * box + EDGE * edge + SCORE * score
    return {"loss": loss, "box": box.detach(), "edge": edge.detach(), "score": score.detach()}


def segmentation_loss(raw: list[Tensor], mask: Tensor) -> dict[str, Tensor]:
    """Terms of the loss of the logits of all classes (b, c, h, w) and of body (b, 2, h, w) against a mask (b, h, w)."""
    parts = [_pixels(logits.float(), goal) for logits, goal in zip(raw, (mask, (mask > 0).long()), strict=True)]
    loss = sum((cross + dice for cross, dice in parts), start=torch.zeros((), device=mask.device))
    return {"loss": loss, "cross": parts[0][0].detach(), "dice": parts[0][1].detach()}


def _pixels(logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy, and 1 - Dice over the whole batch, averaged over the classes in it."""
    cross = functional.cross_entropy(logits, mask)
    share = logits.softmax(1)
    goal = (mask[:, None] == torch.arange(logits.shape[1], device=mask.device)[None, :, None, None]).to(share.dtype)
    present = (goal.sum((0, 2, 3)) > 0).to(share.dtype)
    dice = 2 * (share * goal).sum((0, 2, 3)) / (share.sum((0, 2, 3)) + goal.sum((0, 2, 3)) + 1)
    return cross, 1 - (dice * present).sum() / present.sum().clamp(min=1)
