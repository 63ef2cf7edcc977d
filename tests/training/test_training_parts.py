"""The parts of training, each alone: scores as COCO's, suppression, views, cells that answer, losses. Needs PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra train")

from training import losses, nets, scores  # noqa: E402
from training.augment import fitted, look  # noqa: E402
from training.data import Frames  # noqa: E402
from training.losses import Objects, detection_loss, segmentation_loss  # noqa: E402
from training.rendering import IGNORED, NONE  # noqa: E402

pytestmark = pytest.mark.slow


def test_average_precision_is_that_of_coco() -> None:
    coco = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    rng = np.random.default_rng(0)
    found, truth, images, rows, results = [], [], [], [], []

    def xywh(box: Any) -> list[float]:
        return [float(value) for value in (box[0], box[1], box[2] - box[0], box[3] - box[1])]

    for image in range(1, 13):
        classes, corner = rng.integers(0, 2, 9), rng.uniform(0, 200, (9, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(8, 120, (9, 2))], 1).astype(np.float32)
        moved = boxes + rng.normal(0, 4, boxes.shape).astype(np.float32)
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        guessed, confidence = np.where(rng.random(9) < 0.8, classes, 1), rng.random(9)
        order = np.argsort(-confidence)
        found.append(scores.Found(moved[order], confidence[order], guessed[order]))
        truth.append(scores.Truth(boxes, classes))
        images.append({"id": image, "width": 320, "height": 320})
        for row in range(9):
            shared = {"image_id": image, "area": 1.0, "iscrowd": 0, "id": len(rows) + 1}
            rows.append({**shared, "category_id": int(classes[row]) + 1, "bbox": xywh(boxes[row])})
            mine = {"image_id": image, "category_id": int(guessed[row]) + 1, "bbox": xywh(moved[row])}
            results.append({**mine, "score": float(confidence[row])})
    data = coco.COCO()
    data.dataset = {"images": images, "annotations": rows, "categories": [{"id": 1}, {"id": 2}], "info": {}}
    data.createIndex()
    judge = evaluation.COCOeval(data, data.loadRes(results), "bbox")
    judge.evaluate()
    judge.accumulate()
    ours = scores.average_precision(found, truth, 2)
    np.testing.assert_allclose(ours, judge.eval["precision"][:, :, :, 0, 2].mean(1).T, atol=1e-9)

    # One more object in every image, ignored, and a detection of it that is surer than all: nothing changes.
    extra = np.array([[250, 250, 300, 300]], np.float32)
    for image in range(12):
        f, t = found[image], truth[image]
        truth[image] = scores.Truth(np.concatenate([t.boxes, extra]), np.append(t.classes, IGNORED))
        found[image] = scores.Found(
            np.concatenate([extra, f.boxes]), np.append(2.0, f.scores), np.append(image % 2, f.classes)
        )
    np.testing.assert_allclose(scores.average_precision(found, truth, 2), ours, atol=1e-9)


def test_suppression_is_greedy() -> None:
    generator = torch.Generator().manual_seed(1)
    corner = torch.rand(3, 60, 2, generator=generator) * 60
    boxes = torch.cat([corner, corner + 10 + 40 * torch.rand(3, 60, 2, generator=generator)], -1)
    values = torch.rand(3, 60, generator=generator).sort(1, descending=True).values
    classes = torch.randint(0, 2, (3, 60), generator=generator)
    kept = scores.suppress(boxes, values, classes)
    for image in range(3):
        chosen: list[int] = []
        for row in range(60):
            rivals = [r for r in chosen if classes[image, r] == classes[image, row]]
            if all(losses.iou(boxes[image, row], boxes[image, r]) <= scores.OVERLAP for r in rivals):
                chosen.append(row)
        assert kept[image].nonzero().flatten().tolist() == chosen


def test_boxes_and_masks_follow_the_view() -> None:
    """A white box on black: where the image is white in the view, there are box and mask."""
    images = torch.zeros(1, 60, 100, 3, dtype=torch.uint8)
    images[0, 20:40, 30:70] = 255
    masks = torch.zeros(1, 60, 100, dtype=torch.uint8)
    masks[0, 20:40, 30:70] = 3
    frames = Frames(
        images, torch.tensor([[[30.0, 20, 70, 40], [0, 0, 0, 0]]]), torch.tensor([[1, NONE]]), torch.zeros(1), masks,
        {0: "a", 1: "b"}, 1,
    )  # fmt: skip
    for scale, offset in (([1.0, 1.0], [0.0, 0.0]), ([-0.8, 1.2], [90.0, -5.0]), ([2.0, 2.0], [-60.0, -40.0])):
        seen = look(frames, torch.tensor([0]), torch.tensor([scale]), torch.tensor([offset]), (64, 96))
        white = seen.images[0].mean(0) > 0.5
        rows, columns = white.any(1).nonzero(), white.any(0).nonzero()
        found = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        torch.testing.assert_close(seen.objects.boxes[0, 0], found.float(), atol=1.0, rtol=0)
        assert seen.objects.classes[0].tolist() == [1, NONE]
        assert seen.masks is not None and ((seen.masks[0] == 3) == white).float().mean() > 0.98
    beside = look(frames, torch.tensor([0]), torch.ones(1, 2), torch.tensor([[-60.0, 0.0]]), (64, 96))
    assert beside.objects.classes[0].tolist() == [IGNORED, NONE]  # a quarter of it is left
    centred = fitted(frames, torch.tensor([0]), (64, 96))
    assert centred.images.shape == (1, 3, 64, 96)


def test_cells_answer_for_the_object_they_lie_in() -> None:
    centres, strides = nets.grid([(8, 8), (4, 4), (2, 2)], torch.device("cpu"))
    points = (centres * strides).T
    truth = Objects(torch.tensor([[[8.0, 8, 40, 40], [50, 50, 53, 53], [0, 0, 0, 0]]]), torch.tensor([[1, 0, NONE]]))
    boxes = torch.cat([points - 12, points + 12], 1)[None]
    number, target, free = losses.assign(torch.full((1, len(points), 2), 0.5), boxes, points, truth)
    chosen = target[0] > 0
    assert not free.any() and set(number[0, chosen].tolist()) == {0, 1}  # the tiny one has cells too
    for point, row in zip(points[chosen], number[0, chosen], strict=True):
        if row == 0:
            assert (point > 8).all() and (point < 40).all()
    ignored = replace(truth, classes=torch.tensor([[IGNORED, 0, NONE]]))
    _, _, free = losses.assign(torch.full((1, len(points), 2), 0.5), boxes, points, ignored)
    assert free.any() and ((points[free[0]] > 8) & (points[free[0]] < 40)).all()


def test_a_image_without_objects_has_a_finite_loss() -> None:
    raw = [torch.zeros(1, 4 * nets.BINS + 2, side, side, requires_grad=True) for side in (8, 4, 2)]
    parts = detection_loss(raw, Objects(torch.zeros(1, 3, 4), torch.full((1, 3), NONE)))
    parts["loss"].backward()
    assert all(torch.isfinite(value) for value in parts.values()) and torch.isfinite(raw[0].grad).all()
    masks = segmentation_loss([torch.zeros(1, c, 8, 8) for c in (8, 2)], torch.zeros(1, 8, 8, dtype=torch.long))
    assert torch.isfinite(masks["loss"])
