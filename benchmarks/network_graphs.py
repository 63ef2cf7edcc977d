"""The networks of benchmarks/networks.py as ONNX, with random weights; to be run where torch is (peers/env.sh, with
transformers and onnxscript beside it):

    python -m benchmarks.network_graphs NAME FILE.onnx [--any-batch]

YOLO is ultralytics' own export, RT-DETR that of transformers. The others are written here after their papers: ResNet
(He et al., 2015), DeepLabV3+ on a ResNet-50 with output stride 16 (Chen et al., 2018), and YOLOX-s (Ge et al., 2021)
without decoding its grid. Batch normalisation is set on frames of the benchmark clip's scene, so that activations keep
their size. seeded_weights.py draws the weights, and makes the files small.

Masks of random weights are noise, which trained networks never give: 19 runs in each column of their boxes, where masks
of people have two to three. Therefore the kernels that make the prototypes are even, so that they smooth, and all
coefficients share a part, so that masks fill most of their boxes: three runs in a column. The boxes of random weights
are still larger than those of a crowd: a third of the frame on average.
"""

import argparse
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.scene import Scene
from benchmarks.seeded_weights import fill

ULTRALYTICS = "yolo26n", "yolo11s", "yolov8n-seg", "yolov8n-pose"
SIZES = {"resnet18": 224, "resnet50": 224, "deeplabv3plus": 512}
"""Sides of the input, where they are not 640."""
SHARED = 3
"""What the coefficients of all masks have in common, by their spread."""
BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3), "deeplabv3plus": (3, 4, 6, 3)}


def conv(inside: int, out: int, size: int, stride: int = 1, activation: Any = nn.ReLU, **more: Any) -> nn.Sequential:
    """A convolution with batch normalisation that keeps the size, and its activation."""
    padding = more.get("dilation", 1) * (size // 2)
    layers = [nn.Conv2d(inside, out, size, stride, padding, bias=False, **more), nn.BatchNorm2d(out)]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class Residual(nn.Module):
    """A block of a ResNet: two convolutions of 3x3, or a bottleneck."""

    def __init__(self, inside: int, width: int, stride: int, deep: bool, dilation: int) -> None:
        super().__init__()
        out = 4 * width if deep else width
        if deep:
            middle = conv(width, width, 3, stride, dilation=dilation)
            layers = [conv(inside, width, 1), middle, conv(width, out, 1, activation=None)]
        else:
            layers = [conv(inside, width, 3, stride), conv(width, out, 3, activation=None)]
        self.body = nn.Sequential(*layers)
        same = inside == out and stride == 1
        self.skip = nn.Identity() if same else conv(inside, out, 1, stride, activation=None)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.skip(x))


class ResNet(nn.Module):
    """Features at strides 4 and 32, or 4 and 16 if the last stage is dilated."""

    def __init__(self, name: str, dilated: bool = False) -> None:
        super().__init__()
        deep, inside = name != "resnet18", 64
        self.stem = nn.Sequential(conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1))
        stages = []
        for number, count in enumerate(BLOCKS[name]):
            spread = dilated and number == 3
            blocks = []
            for block in range(count):
                stride = 2 if number and not block and not spread else 1
                blocks.append(Residual(inside, 64 << number, stride, deep, 2 if spread else 1))
                inside = (64 << number) * (4 if deep else 1)
            stages.append(nn.Sequential(*blocks))
        self.first, self.rest, self.channels = stages[0], nn.Sequential(*stages[1:]), inside

    def forward(self, x: Any) -> tuple[Any, Any]:
        fine = self.first(self.stem(x))
        return fine, self.rest(fine)


class Classifier(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.body = ResNet(name)
        self.head = nn.Linear(self.body.channels, 1000)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x)[1].mean((2, 3)))


class DeepLab(nn.Module):
    """Scores of 21 classes at the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = ResNet("deeplabv3plus", dilated=True)
        rates = [conv(2048, 256, 3, dilation=rate) for rate in (6, 12, 18)]
        self.branches, self.pooled = nn.ModuleList([conv(2048, 256, 1), *rates]), conv(2048, 256, 1)
        self.project, self.fine = conv(5 * 256, 256, 1), conv(256, 48, 1)
        self.head = nn.Sequential(conv(304, 256, 3), conv(256, 256, 3), nn.Conv2d(256, 21, 1))

    def forward(self, x: Any) -> Any:
        def resize(one: Any, like: Any) -> Any:
            return nn.functional.interpolate(one, like.shape[2:], mode="bilinear", align_corners=False)

        fine, deep = self.body(x)
        pooled = resize(self.pooled(deep.mean((2, 3), keepdim=True)), deep)
        joined = self.project(torch.cat([*(branch(deep) for branch in self.branches), pooled], 1))
        return resize(self.head(torch.cat([resize(joined, fine), self.fine(fine)], 1)), x)


def silu(inside: int, out: int, size: int, stride: int = 1) -> nn.Sequential:
    return conv(inside, out, size, stride, nn.SiLU)


class Split(nn.Module):
    """A cross-stage partial block, with as many bottlenecks."""

    def __init__(self, inside: int, out: int, count: int, add: bool = True) -> None:
        super().__init__()
        half = out // 2
        self.one, self.other, self.end = silu(inside, half, 1), silu(inside, half, 1), silu(out, out, 1)
        self.steps = nn.ModuleList(nn.Sequential(silu(half, half, 1), silu(half, half, 3)) for _ in range(count))
        self.add = add

    def forward(self, x: Any) -> Any:
        one = self.one(x)
        for step in self.steps:
            one = one + step(one) if self.add else step(one)
        return self.end(torch.cat([one, self.other(x)], 1))


class Pyramid(nn.Module):
    """Pooling over 5, 9 and 13 pixels, side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.begin, self.end = silu(width, width // 2, 1), silu(2 * width, width, 1)
        self.pools = nn.ModuleList(nn.MaxPool2d(size, 1, size // 2) for size in (5, 9, 13))

    def forward(self, x: Any) -> Any:
        x = self.begin(x)
        return self.end(torch.cat([x, *(pool(x) for pool in self.pools)], 1))


class Yolox(nn.Module):
    """YOLOX-s: (1, 8400, 85)."""

    def __init__(self) -> None:
        super().__init__()
        widths = 32, 64, 128, 256, 512
        self.stem = silu(12, widths[0], 3)
        counts = 1, 3, 3, 1
        self.stages = nn.ModuleList()
        for (inside, out), count in zip(pairwise(widths), counts, strict=True):
            last = out == widths[-1]
            middle = [Pyramid(out)] if last else []
            self.stages.append(nn.Sequential(silu(inside, out, 3, 2), *middle, Split(out, out, count, add=not last)))
        self.down = nn.ModuleList([silu(512, 256, 1), silu(256, 128, 1)])
        self.up = nn.ModuleList([Split(512, 256, 1, False), Split(256, 128, 1, False)])
        self.strides = nn.ModuleList([silu(128, 128, 3, 2), silu(256, 256, 3, 2)])
        self.out = nn.ModuleList([Split(256, 256, 1, False), Split(512, 512, 1, False)])
        self.heads = nn.ModuleList()
        for width in (128, 256, 512):
            towers = [nn.Sequential(silu(128, 128, 3), silu(128, 128, 3)) for _ in range(2)]
            ends = [nn.Conv2d(128, count, 1) for count in (80, 4, 1)]
            self.heads.append(nn.ModuleList([silu(width, 128, 1), *towers, *ends]))

    def forward(self, x: Any) -> Any:
        parts = [x[..., row::2, column::2] for column in range(2) for row in range(2)]
        x, levels = self.stem(torch.cat(parts, 1)), []
        for stage in self.stages:
            levels.append(x := stage(x))
        _, fine, middle, deep = levels
        deep = self.down[0](deep)
        middle = self.up[0](torch.cat([nn.functional.interpolate(deep, scale_factor=2), middle], 1))
        middle = self.down[1](middle)
        fine = self.up[1](torch.cat([nn.functional.interpolate(middle, scale_factor=2), fine], 1))
        middle = self.out[0](torch.cat([self.strides[0](fine), middle], 1))
        deep = self.out[1](torch.cat([self.strides[1](middle), deep], 1))
        rows = []
        for (stem, classes, boxes, *ends), level in zip(self.heads, (fine, middle, deep), strict=True):
            level = stem(level)
            named, placed = classes(level), boxes(level)
            found = torch.cat([ends[1](placed), ends[2](placed).sigmoid(), ends[0](named).sigmoid()], 1)
            rows.append(found.flatten(2))
        return torch.cat(rows, 2).transpose(1, 2)


class RtDetr(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sys.modules["torchvision"] = None  # transformers does without it, but not with the stand-in of env.sh
        from benchmarks.peers.detr import network

        self.net = network("rtdetr-r18")[0]

    def forward(self, x: Any) -> Any:
        found = self.net(pixel_values=x)
        return found.logits, found.pred_boxes


def pictures(count: int, size: int) -> Any:
    """Frames of the scene, (count, 3, size, size) in 0..1, with a letterbox."""
    scene = Scene(frames=300)
    made = np.stack([scene.render(int(number)) for number in np.linspace(0, 299, count)])
    small = nn.functional.interpolate(torch.from_numpy(made).permute(0, 3, 1, 2).float() / 255, (size * 9 // 16, size),
                                      mode="bilinear")  # fmt: skip
    above = (size - small.shape[2]) // 2
    return nn.functional.pad(small, (0, 0, above, size - small.shape[2] - above), value=114 / 255)


def prepare(net: Any, size: int) -> None:
    """Draw the weights, and set batch normalisation."""
    fill(net)
    for head in [part for part in net.modules() if hasattr(part, "proto")]:
        fill(head.proto, even=True)
        with torch.no_grad():
            for *_, last in head.cv4:
                last.bias.fill_(SHARED * float(last.weight.std()) * last.in_channels**0.5)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None
            layer.reset_running_stats()
    with torch.no_grad():
        net.train()(pictures(4, size))
    net.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    parser.add_argument("--any-batch", action="store_true", help="not only one image; YOLO also takes any size then")
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.name in ULTRALYTICS:
        from benchmarks.peers.heads import load

        made = load(f"{args.name}.yaml")
        prepare(made.model, 640)
        Path(made.export(format="onnx", imgsz=640, simplify=False, dynamic=args.any_batch)).replace(args.out)
        return
    kinds = {"deeplabv3plus": DeepLab, "yolox-s": Yolox, "rtdetr-r18": RtDetr}
    net = kinds[args.name]() if args.name in kinds else Classifier(args.name)
    size = SIZES.get(args.name, 640)
    prepare(net, size)
    more: dict[str, Any] = {"dynamic_axes": {"images": {0: "batch"}}} if args.any_batch else {}
    if args.name == "rtdetr-r18":
        more["output_names"] = ["logits", "boxes"]
    with torch.no_grad():
        torch.onnx.export(
            net, (torch.rand(1, 3, size, size),), str(args.out), dynamo=False, opset_version=17, input_names=["images"],
            **more,
        )  # fmt: skip


if __name__ == "__main__":
    main()
