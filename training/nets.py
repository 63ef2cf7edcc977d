"""The networks: detectors, two of which find masks or keypoints, too, and a segmenter, built from one convolution unit,
which every engine can fuse.

An image (b, 3, h, w), RGB in 0..1, h and w multiples of 32, goes through

    Backbone    features at strides 4, 8, 16, 32
    Neck        coarse features upsampled and joined with fine ones, then downsampled again (detectors)
    Head        per cell of each stride: distances to the four sides as distributions over BINS bins, class logits, and
                mask coefficients or keypoints
    Prototypes  at stride 4: masks out of which the coefficients mix those of objects
    Decoder     upsampling to stride 2, logits of every second pixel (segmenter)

Operators: Conv (3x3, 1x1), SiLU, Add, Concat, MaxPool, nearest Resize; the detector's decoding adds a softmax and plain
arithmetic. Nothing here knows about losses or data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from framefuse.common.keypoints import COCO_KEYPOINTS

STRIDES = (8, 16, 32)
BINS = 16
"""A distance is the expected bin of a distribution over 0..15, in strides (Li et al. 2020, distribution focal loss)."""
PRIOR = 0.01
"""Score of every cell and class in an untrained detector (Lin et al. 2017, focal loss)."""


@dataclass(frozen=True)
class Width:
    """The size of a network: channels at strides 2 to 32, residual blocks per stage at strides 4 to 32."""

    channels: tuple[int, int, int, int, int]
    depth: tuple[int, int, int, int]
    head: int = 32
    """Channels of the branches of the head (detectors), or of the decoder at stride 2 (segmenter)."""
    neck: int = 1
    """Residual blocks per stage of the neck or decoder."""


WIDTHS = {
    "scout-n": Width((16, 32, 64, 64, 96), (1, 2, 2, 1)),
    "scout-s": Width((32, 64, 128, 160, 192), (1, 2, 3, 1), head=80, neck=2),
    "body-n": Width((16, 32, 64, 96, 128), (1, 2, 2, 2), head=24),
}
WIDTHS |= dict.fromkeys(("scout-n-seg", "scout-n-pose"), WIDTHS["scout-n"])
TASKS = {
    "scout-n": "detect",
    "scout-s": "detect",
    "body-n": "semantic",
    "scout-n-seg": "segment",
    "scout-n-pose": "pose",
}
PROTOTYPES = 16
KEYPOINTS = len(COCO_KEYPOINTS)
EXTRA = {"segment": PROTOTYPES, "pose": 3 * KEYPOINTS}
"""Values of a cell besides box and classes, by task."""


class Conv(nn.Module):
    """Convolution, normalisation, SiLU. `fuse` folds the normalisation into the convolution for inference."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))

    @torch.no_grad()
    def fuse(self) -> None:
        """w' = w g / s and b' = b - m g / s, with s = sqrt(variance + eps)."""
        norm = self.norm
        if not isinstance(norm, nn.BatchNorm2d):
            return
        assert norm.running_var is not None and norm.running_mean is not None
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        self.conv.weight.mul_(scale[:, None, None, None])
        self.conv.bias = nn.Parameter(norm.bias - norm.running_mean * scale)
        self.norm = nn.Identity()


class Residual(nn.Module):
    """x + two 3x3 convolutions of x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = Conv(channels, channels), Conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


class Stage(nn.Module):
    """Two 1x1 branches of half the width, residual blocks on one; all intermediate results are joined by a 1x1.

    Short and long paths side by side (cross-stage partial networks, Wang et al. 2019).
    """

    def __init__(self, inputs: int, outputs: int, depth: int) -> None:
        super().__init__()
        half = outputs // 2
        self.near, self.far = Conv(inputs, half, 1), Conv(inputs, half, 1)
        self.chain = nn.ModuleList(Residual(half) for _ in range(depth))
        self.join = Conv(half * (2 + depth), outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.near(x), self.far(x)]
        for residual in self.chain:
            parts.append(residual(parts[-1]))
        return self.join(torch.cat(parts, 1))


class Context(nn.Module):
    """Three 5x5 max-pools in a row, joined with their input by a 1x1: a receptive field of 13 cells at little cost."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter, self.join = Conv(channels, channels // 2, 1), Conv(channels * 2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(functional.max_pool2d(parts[-1], 5, 1, 2))
        return self.join(torch.cat(parts, 1))


class Backbone(nn.Module):
    """Features at strides 2, 4, 8, 16 and 32."""

    def __init__(self, width: Width) -> None:
        super().__init__()
        c = width.channels
        self.stem = Conv(3, c[0], 3, 2)
        self.down = nn.ModuleList(Conv(c[i], c[i + 1], 3, 2) for i in range(4))
        self.stages = nn.ModuleList(Stage(c[i + 1], c[i + 1], width.depth[i]) for i in range(4))
        self.context = Context(c[4])

    def forward(self, x: Tensor) -> list[Tensor]:
        features = [self.stem(x)]
        for down, stage in zip(self.down, self.stages, strict=True):
            features.append(stage(down(features[-1])))
        features[-1] = self.context(features[-1])
        return features


def twice(x: Tensor) -> Tensor:
    """Nearest-neighbour upsampling by 2."""
    return functional.interpolate(x, scale_factor=2.0, mode="nearest")


class Neck(nn.Module):
    """Features at strides 8, 16 and 32, combined from coarse to fine and back."""

    def __init__(self, width: Width) -> None:
        super().__init__()
        _, _, c3, c4, c5 = width.channels
        self.up4, self.up3 = Stage(c5 + c4, c4, width.neck), Stage(c4 + c3, c3, width.neck)
        self.down4, self.down5 = Conv(c3, c3, 3, 2), Conv(c4, c4, 3, 2)
        self.out4, self.out5 = Stage(c3 + c4, c4, width.neck), Stage(c4 + c5, c5, width.neck)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        p3, p4, p5 = features[-3:]
        n4 = self.up4(torch.cat([twice(p5), p4], 1))
        n3 = self.up3(torch.cat([twice(n4), p3], 1))
        n4 = self.out4(torch.cat([self.down4(n3), n4], 1))
        return [n3, n4, self.out5(torch.cat([self.down5(n4), p5], 1))]


class Head(nn.Module):
    """Per stride (b, 4 BINS + classes + extra, h, w): logits of distance bins (left, top, right, bottom), of classes,
    and what else the task needs."""

    def __init__(self, inputs: tuple[int, ...], classes: int, hidden: int, extra: int = 0) -> None:
        super().__init__()
        self.boxes = nn.ModuleList(self._branch(c, max(hidden, 4 * BINS // 2), 4 * BINS) for c in inputs)
        self.classes = nn.ModuleList(self._branch(c, hidden, classes) for c in inputs)
        self.extra = nn.ModuleList(self._branch(c, max(hidden, extra), extra) for c in inputs if extra)
        for branch in self.classes:
            nn.init.constant_(branch[-1].bias, -torch.log(torch.tensor((1 - PRIOR) / PRIOR)).item())

    @staticmethod
    def _branch(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(Conv(inputs, hidden), Conv(hidden, hidden), nn.Conv2d(hidden, outputs, 1))

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        branches = [branch for branch in (self.boxes, self.classes, self.extra) if len(branch)]
        return [torch.cat([branch[level](x) for branch in branches], 1) for level, x in enumerate(features)]


class Prototypes(nn.Module):
    """Features at strides 4 and 8 to PROTOTYPES masks at stride 4."""

    def __init__(self, fine: int, coarse: int, hidden: int) -> None:
        super().__init__()
        self.enter, self.join = Conv(coarse, hidden, 1), Conv(hidden + fine, hidden)
        self.refine, self.last = Conv(hidden, hidden), nn.Conv2d(hidden, PROTOTYPES, 1)

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        return self.last(self.refine(self.join(torch.cat([twice(self.enter(coarse)), fine], 1))))


class Detector(nn.Module):
    """An image to the YOLOv8 layout: (b, 4 + classes + extra, N), cx cy w h in model pixels and scores in 0..1; extra:
    the mask coefficients of `segment`, or x, y in model pixels and visibility in 0..1 of the keypoints of `pose`."""

    def __init__(self, width: Width, classes: int, task: str = "detect") -> None:
        super().__init__()
        self.class_count, self.task = classes, task
        self.backbone, self.neck = Backbone(width), Neck(width)
        self.head = Head(width.channels[2:], classes, width.head, EXTRA.get(task, 0))
        self.prototypes = Prototypes(*width.channels[1:3], width.head) if task == "segment" else None

    def features(self, x: Tensor) -> list[Tensor]:
        """The input of the loss: the head's raw maps at strides 8, 16 and 32, and the prototypes of `segment`."""
        fine = self.backbone(x)
        levels = self.neck(fine)
        return self.head(levels) + ([] if self.prototypes is None else [self.prototypes(fine[1], levels[0])])

    def forward(self, x: Tensor) -> Tensor:
        raw = self.features(x)[: len(STRIDES)]
        centres, strides = grid([(r.shape[2], r.shape[3]) for r in raw], x.device)
        flat = torch.cat([r.flatten(2) for r in raw], 2)
        sides, logits, extra = flat.split([4 * BINS, self.class_count, EXTRA.get(self.task, 0)], 1)
        boxes = to_boxes(expected(sides), centres, strides)
        if self.task == "pose":
            extra = to_keypoints(extra, centres, strides).flatten(1, 2)
        return torch.cat([boxes, logits.sigmoid(), extra], 1)


def to_keypoints(raw: Tensor, centres: Tensor, strides: Tensor) -> Tensor:
    """(b, 3 KEYPOINTS, N) to (b, KEYPOINTS, 3, N): x and y in pixels, visibility in 0..1.

    A place is twice its raw value, in strides from the corner of its cell, as in YOLOv8's exports.
    """
    points = raw.unflatten(1, (KEYPOINTS, 3))
    places = (points[:, :, :2] * 2 + (centres - 0.5)) * strides
    return torch.cat([places, points[:, :, 2:].sigmoid()], 2)


def expected(sides: Tensor) -> Tensor:
    """The mean bin of each side: (b, 4 BINS, N) logits to (b, 4, N) distances in strides."""
    batch, _, anchors = sides.shape
    # The mean over the bins is a 1x1 convolution with weights 0..15, as in every export of such heads.
    share = sides.view(batch, 4, BINS, anchors).transpose(1, 2).softmax(1)
    bins = torch.arange(BINS, dtype=share.dtype, device=share.device).view(1, BINS, 1, 1)
    return functional.conv2d(share, bins).view(batch, 4, anchors)


def grid(sizes: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Centres (2, N) in strides, x first, and strides (1, N) of all cells, finest level first, in row order."""
    centres, strides = [], []
    for (height, width), stride in zip(sizes, STRIDES, strict=True):
        y, x = torch.meshgrid(
            torch.arange(height, device=device, dtype=torch.float32) + 0.5,
            torch.arange(width, device=device, dtype=torch.float32) + 0.5,
            indexing="ij",
        )
        centres.append(torch.stack([x, y]).flatten(1))
        strides.append(torch.full_like(centres[-1][:1], stride))
    return torch.cat(centres, 1), torch.cat(strides, 1)


def to_boxes(distance: Tensor, centres: Tensor, strides: Tensor) -> Tensor:
    """Distances (b, 4, N) in strides to cx cy w h (b, 4, N) in pixels."""
    start, end = centres - distance[:, :2], centres + distance[:, 2:]
    return torch.cat([(start + end) / 2, end - start], 1) * strides


class Segmenter(nn.Module):
    """An image to logits of every second pixel: (b, classes, h / 2, w / 2).

    It is trained with two heads at once, all classes and body against background; `binary` selects the output.
    """

    def __init__(self, width: Width, classes: int) -> None:
        super().__init__()
        c = width.channels
        self.backbone = Backbone(width)
        self.up = nn.ModuleList(Stage(c[i + 1] + c[i], c[i], width.neck) for i in (3, 2, 1))
        self.last = Conv(c[1] + c[0], width.head)
        self.refine = Conv(width.head, width.head)
        self.classes, self.body = nn.Conv2d(width.head, classes, 1), nn.Conv2d(width.head, 2, 1)
        self.binary = False

    def features(self, x: Tensor) -> list[Tensor]:
        """The input of the loss: logits of all classes, and of background and body."""
        *fine, y = self.backbone(x)
        for stage, skip in zip(self.up, reversed(fine[1:]), strict=True):
            y = stage(torch.cat([twice(y), skip], 1))
        y = self.refine(self.last(torch.cat([twice(y), fine[0]], 1)))
        return [self.classes(y), self.body(y)]

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[self.binary]


def build(name: str, classes: int) -> Detector | Segmenter:
    """An untrained network of the given name, seeded by torch's global generator."""
    task = TASKS[name]
    return Segmenter(WIDTHS[name], classes) if task == "semantic" else Detector(WIDTHS[name], classes, task)


def fuse(net: nn.Module) -> nn.Module:
    """Fold every normalisation into its convolution, in place; afterwards the network is for inference only."""
    net.eval()
    for module in net.modules():
        if isinstance(module, Conv):
            module.fuse()
    return net


def parameters(net: nn.Module) -> int:
    """Number of weights after `fuse`, which folds normalisation to one bias per channel."""
    folded = sum(p.numel() for m in net.modules() if isinstance(m, nn.BatchNorm2d) for p in [m.weight])
    return sum(p.numel() for p in net.parameters()) - folded
