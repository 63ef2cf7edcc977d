"""From NV12 surfaces to objects, masks and labels with PyTorch's operators, around any network: networks.py's peers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from framefuse.models.card import Card
from framefuse.postprocess.decoders import grid

TASKS = {
    "yolo26n": "detect", "yolo11s": "detect", "yolov8n-seg": "segment", "yolov8n-pose": "detect", "yolox-s": "cells",
    "rtdetr-r18": "detr", "deeplabv3plus": "semantic", "resnet18": "classify", "resnet50": "classify",
}  # fmt: skip
CANDIDATES, IOU = 100, 0.7
RGB = ((1.1644, 0.0, 1.7927), (1.1644, -0.2132, -0.5329), (1.1644, 2.1124, 0.0))
"""Of luma and chroma: BT.709, limited range."""


def card_text(path: Path, size: int) -> str:
    """The card of a network whose file states nothing; empty for those of ultralytics."""
    if path.stem.startswith("yolo") and path.stem != "yolox-s":
        return ""
    normal = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}
    facts: dict[str, dict[str, Any]] = {
        "rtdetr-r18": {"task": "detect", "layout": "detr", "outputs": ["boxes", "logits"], "fit": "stretch",
                       "activation": "sigmoid", "names": [str(number) for number in range(80)]},
        "yolox-s": {"task": "detect", "layout": "yolox", "std": [255.0] * 3, "channel_order": "rgb",
                    "names": [str(number) for number in range(80)]},
        "deeplabv3plus": {"task": "semantic", "layout": "semantic", "fit": "stretch", **normal,
                          "names": [str(number) for number in range(21)]},
    }  # fmt: skip
    classifier = {"task": "classify", "layout": "classify", "fit": "crop", **normal, "activation": "softmax",
                  "names": [str(number) for number in range(1000)]}  # fmt: skip
    lines = {**facts.get(path.stem, classifier), "imgsz": size}
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in lines.items())


class TorchSurface:
    """Preparation and postprocessing.

    Attributes:
        spec: as framefuse prepares the input, which this follows.
        conf: confidence that objects must have.
    """

    def __init__(self, name: str, size: int, card: Card, place: str = "cuda") -> None:
        self.task, self.card, self.conf = TASKS[name], card, 0.25
        self.cells: Any = None
        self.spec = replace(card.preprocess, width=size, height=size, rectangular=False)
        self.matrix = torch.tensor(RGB, device=place)
        self.mean, self.std = (torch.tensor(values, device=place).view(1, 3, 1, 1) for values in
                               (self.spec.mean, self.spec.std))  # fmt: skip
        self.black = torch.tensor((16.0, 128.0, 128.0), device=place).view(1, 3, 1, 1)

    def __call__(self, surfaces: Any, side: Any) -> list[Any]:
        """The number of objects of the first image, and results on the GPU."""
        with torch.no_grad():
            self.prepare(surfaces, side.input)
            side.call()
            return self.finish(side.outputs(), surfaces.shape[2], surfaces.shape[1] * 2 // 3)

    def prepare(self, surfaces: Any, target: Any) -> None:
        """(batch, height * 3 / 2, width), uint8 -> the network's input. Planes are resized before they become RGB."""
        count, height, width = surfaces.shape[0], surfaces.shape[1] * 2 // 3, surfaces.shape[2]
        left, top, across, down = self.spec.place(width, height).content
        luma = surfaces[:, None, :height].float()
        chroma = surfaces[:, height:].view(count, height // 2, width // 2, 2).permute(0, 3, 1, 2).float()
        smooth = {"mode": "bilinear", "antialias": self.spec.interpolation == "antialias"}
        planes = [functional.interpolate(one, (down, across), **smooth) for one in (luma, chroma)]
        rgb = torch.einsum("cd,bdhw->bchw", self.matrix, torch.cat(planes, 1) - self.black).clamp_(0, 255)
        edges = left, self.spec.width - left - across, top, self.spec.height - top - down
        padded = functional.pad(rgb, edges, value=self.spec.pad_value)
        target.copy_((padded - self.mean) / self.std)

    def finish(self, outputs: list[Any], width: int, height: int) -> list[Any]:
        if self.task == "semantic":
            scores = functional.interpolate(outputs[0], (height, width), mode="bilinear")
            return [0, scores.argmax(1).to(torch.uint8)]
        if self.task == "classify":
            return [0, *outputs[0].float().softmax(1).topk(5)]
        if self.task == "detr":
            return self._queries(outputs, width, height)
        return self._anchors(outputs, width, height)

    def _queries(self, outputs: list[Any], width: int, height: int) -> list[Any]:
        """As transformers' post_process_object_detection."""
        logits, boxes = outputs
        scores, index = logits.sigmoid().flatten(1).topk(logits.shape[1])
        labels, query = index % logits.shape[2], index // logits.shape[2]
        corners = corners_of(boxes) * torch.tensor([width, height, width, height], device=boxes.device)
        corners = corners.gather(1, query[..., None].expand(-1, -1, 4))
        kept = scores > self.conf
        return [kept[0].sum(), kept.sum(1), corners[kept], scores[kept], labels[kept]]

    def _anchors(self, outputs: list[Any], width: int, height: int) -> list[Any]:
        """Suppression of one class of one image at a time, for all images at once, and what the anchors say besides."""
        from torchvision.ops import batched_nms

        classes = self.card.class_count
        if self.task == "cells":
            table = self._placed(outputs[0].float())
            scores, labels = (table[..., 5:] * table[..., 4:5]).max(-1)
        else:
            table = outputs[0].transpose(1, 2)
            scores, labels = table[..., 4 : 4 + classes].max(-1)
        image, anchor = (scores > self.conf).nonzero(as_tuple=True)
        rows, scores, labels = table[image, anchor].float(), scores[image, anchor].float(), labels[image, anchor]
        boxes = corners_of(rows[:, :4])
        kept = batched_nms(boxes, scores, image * classes + labels, IOU)
        place = self.spec.place(width, height)
        offset = torch.tensor(place.offset * 2, device=boxes.device)
        limits = torch.tensor([width, height, width, height], device=boxes.device)
        corners = ((boxes[kept] - offset) / place.scale[0]).clamp_(min=0).minimum(limits)
        image, extra = image[kept], rows[kept, 4 + classes :]
        found = [(image == 0).sum(), image, corners, scores[kept], labels[kept]]
        if self.task != "segment":
            return [*found, extra]
        parts = [(extra[image == number], corners[image == number]) for number in range(len(outputs[1]))]
        masks = [self._masks(one.float(), *part, width, height) for one, part in zip(outputs[1], parts, strict=True)]
        return [*found, masks]

    def _placed(self, table: Any) -> Any:
        """As YOLOX's decode_outputs."""
        if self.cells is None:
            cells = grid((self.spec.height, self.spec.width), (8, 16, 32))
            self.cells = torch.as_tensor(cells, device=table.device)
        corner, stride = self.cells[:, :2], self.cells[:, 2:]
        return torch.cat(((table[..., :2] + corner) * stride, table[..., 2:4].exp() * stride, table[..., 4:]), -1)

    def _masks(self, prototypes: Any, coefficients: Any, corners: Any, width: int, height: int) -> Any:
        """As ultralytics' process_mask_native: of the frame's size, and nothing outside the box."""
        place = self.spec.place(width, height)
        factor = self.spec.width // prototypes.shape[2]
        left, top, across, down = (side // factor for side in place.content)
        values = (coefficients @ prototypes.flatten(1)).view(-1, *prototypes.shape[1:])
        values = values[:, top : top + down, left : left + across]
        if not len(values):
            return values.new_zeros((0, height, width), dtype=torch.bool)
        values = functional.interpolate(values[None], (height, width), mode="bilinear")[0]
        x, y = (torch.arange(side, device=values.device) for side in (width, height))
        x1, y1, x2, y2 = corners[..., None].unbind(1)
        inside = ((y >= y1) & (y < y2))[:, :, None] & ((x >= x1) & (x < x2))[:, None]
        return (values > 0) & inside


def corners_of(boxes: Any) -> Any:
    """cx cy w h -> x1 y1 x2 y2."""
    return torch.cat([boxes[..., :2] - boxes[..., 2:4] / 2, boxes[..., :2] + boxes[..., 2:4] / 2], -1)


def threshold(task: str, outputs: list[Any], classes: int) -> float:
    """The confidence that CANDIDATES anchors or queries of the first image have."""
    if task in ("semantic", "classify"):
        return 0.25
    output = outputs[0][0].float()
    if task == "cells":
        scores = output[:, 4] * output[:, 5:].amax(1)
    else:
        scores = output.sigmoid().amax(-1) if task == "detr" else output[4 : 4 + classes].amax(0)
    return float(scores.float().sort(descending=True).values[CANDIDATES])
