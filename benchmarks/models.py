"""Detectors to benchmark with: ONNX files with exactly the layers of YOLOv8n and of the anchor-based YOLOv5s.

    python -m benchmarks.models yolov8n --out yolov8n.onnx [--static]

Speed depends on the shapes of the layers, on the number of candidates that reach post-processing and on the range of
the activations, not on what the network was taught. So the weights here are random and seeded, every layer is
normalised on frames of the benchmark clip (model_graph.py), and the head is shifted so that a fixed number of
candidates a frame passes confidence 0.25. Such a model costs what the trained one costs, and anybody can make it
without a download.

The architectures are the published layer tables, written as data below. The files follow the conventions of the
exporters in use: input `images`, output `output0`, SiLU as Sigmoid and Mul, box decoding inside the graph, metadata
that says what the model is. A trained export can be put in their place anywhere in the benchmarks.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.clips import CACHE, FRAMES, cached
from benchmarks.detection_heads import COCO_NAMES, Head, anchor_based, anchor_free
from benchmarks.model_graph import Array, Graph, Tensor, cost
from benchmarks.scene import Scene

SIZE = 640
CALIBRATION_FRAMES = 12
CONFIDENCE = 0.25


@dataclass(frozen=True)
class Layer:
    """One row of an architecture table."""

    kind: str
    channels: int = 0
    repeats: int = 1
    kernel: int = 3
    stride: int = 1
    pad: int | None = None
    shortcut: bool = True
    join: int | None = None
    """For `concat`: the index of the earlier layer that is joined behind the previous one."""


def down(channels: int) -> Layer:
    """The 3x3 convolution with stride 2 that starts every stage."""
    return Layer("conv", channels, stride=2)


def concat(join: int) -> Layer:
    """Joins the previous layer and layer `join` along the channels."""
    return Layer("concat", join=join)


YOLOV8N = (
    down(16),                                        # 0   320
    down(32),                                        # 1   160
    Layer("c2f", 32),                                # 2
    down(64),                                        # 3   80
    Layer("c2f", 64, repeats=2),                     # 4
    down(128),                                       # 5   40
    Layer("c2f", 128, repeats=2),                    # 6
    down(256),                                       # 7   20
    Layer("c2f", 256),                               # 8
    Layer("sppf", 256),                              # 9
    Layer("upsample"),                               # 10  40
    concat(6),                                       # 11
    Layer("c2f", 128, shortcut=False),               # 12
    Layer("upsample"),                               # 13  80
    concat(4),                                       # 14
    Layer("c2f", 64, shortcut=False),                # 15  to the head, stride 8
    down(64),                                        # 16  40
    concat(12),                                      # 17
    Layer("c2f", 128, shortcut=False),               # 18  to the head, stride 16
    down(128),                                       # 19  20
    concat(9),                                       # 20
    Layer("c2f", 256, shortcut=False),               # 21  to the head, stride 32
)  # fmt: skip

YOLOV5S = (
    Layer("conv", 32, kernel=6, stride=2, pad=2),    # 0   320
    down(64),                                        # 1   160
    Layer("c3", 64),                                 # 2
    down(128),                                       # 3   80
    Layer("c3", 128, repeats=2),                     # 4
    down(256),                                       # 5   40
    Layer("c3", 256, repeats=3),                     # 6
    down(512),                                       # 7   20
    Layer("c3", 512),                                # 8
    Layer("sppf", 512),                              # 9
    Layer("conv", 256, kernel=1),                    # 10
    Layer("upsample"),                               # 11  40
    concat(6),                                       # 12
    Layer("c3", 256, shortcut=False),                # 13
    Layer("conv", 128, kernel=1),                    # 14
    Layer("upsample"),                               # 15  80
    concat(4),                                       # 16
    Layer("c3", 128, shortcut=False),                # 17  to the head, stride 8
    down(128),                                       # 18  40
    concat(14),                                      # 19
    Layer("c3", 256, shortcut=False),                # 20  to the head, stride 16
    down(256),                                       # 21  20
    concat(10),                                      # 22
    Layer("c3", 512, shortcut=False),                # 23  to the head, stride 32
)  # fmt: skip


def yolov8n(path: Path, *, dynamic: bool = True, seed: int = 0) -> Path:
    """Writes YOLOv8n: 3.15 M parameters, 4.37 GMAC and an output of (1, 84, 8400) at 640x640."""
    return write(path, "yolov8n", YOLOV8N, (15, 18, 21), anchor_free, (20, 14, 8), dynamic=dynamic, seed=seed)


def yolov5s(path: Path, *, dynamic: bool = True, seed: int = 0) -> Path:
    """Writes the anchor-based YOLOv5s: 7.2 M parameters, 8.2 GMAC and an output of (1, 25200, 85) at 640x640."""
    return write(path, "yolov5s", YOLOV5S, (17, 20, 23), anchor_based, (14, 10, 6), dynamic=dynamic, seed=seed)


MODELS: dict[str, Callable[..., Path]] = {"yolov8n": yolov8n, "yolov5s": yolov5s}


def model(name: str, *, dynamic: bool = True) -> Path:
    """The path of a benchmark model in the cache; it is written first if the cache does not have it."""
    path = CACHE / f"{name}{'' if dynamic else '_static'}.onnx"
    sources = ("models", "detection_heads", "model_graph", "scene")
    return cached(path, lambda partial: MODELS[name](partial, dynamic=dynamic), *sources)


def write(path: Path, name: str, table: tuple[Layer, ...], taps: tuple[int, ...],
          head: Callable[[Graph, list[Tensor], str], Head], candidates: tuple[int, int, int], *, dynamic: bool,
          seed: int) -> Path:  # fmt: skip
    """Builds the table, puts the head on the layers `taps`, calibrates the scores and writes the file.

    `candidates` is how many anchors a frame shall pass the confidence on strides 8, 16 and 32, averaged over the
    calibration images.
    """
    graph = Graph(name, calibration_images(), dynamic=dynamic, seed=seed)
    made: list[Tensor] = []
    x = graph.images
    for index, layer in enumerate(table):
        x = BLOCKS[layer.kind](graph, f"/model.{index}", x, layer, made)
        made.append(x)
    detector = head(graph, [made[tap] for tap in taps], f"/model.{len(table)}")
    for level, wanted in zip(detector.levels, candidates, strict=True):
        graph.shift(level.bias, shift_for(level.score_at, wanted), level.rows)
    graph.save(path, detector.output, axes=detector.axes, metadata=metadata(name, dynamic=dynamic))
    return path


@cache
def calibration_images(seed: int = 0) -> npt.NDArray[np.float32]:
    """Frames spread over a clip, letterboxed to (N, 3, 640, 640), RGB in 0..1 on grey 114. Seed 0: the timed clip."""
    scene = Scene(frames=FRAMES, seed=seed)
    images = np.full((CALIBRATION_FRAMES, 3, SIZE, SIZE), 114, np.float32)
    for image, index in zip(images, np.linspace(0, FRAMES - 1, CALIBRATION_FRAMES).astype(int), strict=True):
        # Linear interpolation from 1920x1080 to 640x360 reads exactly the middle pixel of each 3x3; 140 rows of padding
        # above and below.
        image[:, 140:500] = scene.render(int(index))[1::3, 1::3].transpose(2, 0, 1)
    return images / np.float32(255)


def shift_for(score_at: Callable[[float], Array], candidates: int) -> float:
    """The shift of the score logits at which, on average, `candidates` anchors of a frame pass the confidence.

    `score_at(shift)` gives the best class score of every anchor, shape (frames, anchors), and grows with the shift.
    """
    low, high = -40.0, 40.0
    for _ in range(40):
        middle = (low + high) / 2
        too_many = (score_at(middle) > CONFIDENCE).sum(axis=1).mean() > candidates
        low, high = (low, middle) if too_many else (middle, high)
    return (low + high) / 2


def metadata(name: str, *, dynamic: bool) -> dict[str, str]:
    """The keys by which loaders of YOLO exports recognise task, stride, size and class names."""
    return {
        "description": f"{name} layer shapes with seeded random weights, for benchmarks only",
        "author": "framefuse benchmarks",
        "license": "Apache-2.0",
        "stride": "32",
        "task": "detect",
        "head": "Detect",
        "batch": "1",
        "imgsz": str([SIZE, SIZE]),
        "names": str(dict(enumerate(COCO_NAMES))),
        "args": str({"dynamic": dynamic, "nms": False}),
        "channels": "3",
        "end2end": "False",
    }


# The blocks of the tables. Each takes (graph, name, previous layer, row, all layers so far) and gives the new layer.


def conv_silu(graph: Graph, name: str, x: Tensor, channels: int, kernel: int = 1, stride: int = 1,
              pad: int | None = None) -> Tensor:  # fmt: skip
    """Convolution, folded normalisation, SiLU: the unit of which both networks are made."""
    return graph.silu(f"{name}/act", graph.conv(f"{name}/conv", x, channels, kernel, stride, pad=pad))


def bottlenecks(graph: Graph, name: str, x: Tensor, layer: Layer, kernels: tuple[int, int]) -> list[Tensor]:
    """A chain of two-convolution bottlenecks of constant width; gives the output of each."""
    made = []
    for repeat in range(layer.repeats):
        y = conv_silu(graph, f"{name}/m.{repeat}/cv1", x, x.channels, kernels[0])
        y = conv_silu(graph, f"{name}/m.{repeat}/cv2", y, x.channels, kernels[1])
        x = graph.add("Add", f"{name}/m.{repeat}/Add", x, y) if layer.shortcut else y
        made.append(x)
    return made


def conv_block(graph: Graph, name: str, x: Tensor, layer: Layer, made: list[Tensor]) -> Tensor:
    """One convolution with SiLU."""
    return conv_silu(graph, name, x, layer.channels, layer.kernel, layer.stride, layer.pad)


def c2f_block(graph: Graph, name: str, x: Tensor, layer: Layer, made: list[Tensor]) -> Tensor:
    """1x1 to two halves; bottlenecks (3x3, 3x3) on the second; every intermediate result is joined; 1x1."""
    half = layer.channels // 2
    both = conv_silu(graph, f"{name}/cv1", x, layer.channels)
    parts = graph.split(f"{name}/Split", both, [half, half], axis=1)
    chain = bottlenecks(graph, name, parts[1], layer, (3, 3))
    joined = graph.add("Concat", f"{name}/Concat", *parts, *chain, axis=1)
    return conv_silu(graph, f"{name}/cv2", joined, layer.channels)


def c3_block(graph: Graph, name: str, x: Tensor, layer: Layer, made: list[Tensor]) -> Tensor:
    """Two 1x1 branches of half the width; bottlenecks (1x1, 3x3) on the first; joined; 1x1."""
    half = layer.channels // 2
    chain = bottlenecks(graph, name, conv_silu(graph, f"{name}/cv1", x, half), layer, (1, 3))
    other = conv_silu(graph, f"{name}/cv2", x, half)
    joined = graph.add("Concat", f"{name}/Concat", chain[-1], other, axis=1)
    return conv_silu(graph, f"{name}/cv3", joined, layer.channels)


def sppf_block(graph: Graph, name: str, x: Tensor, layer: Layer, made: list[Tensor]) -> Tensor:
    """Spatial pyramid pooling, fast: 1x1 to half the width, three 5x5 max-pools in a row, all four joined; 1x1."""
    pyramid = [conv_silu(graph, f"{name}/cv1", x, x.channels // 2)]
    for level in range(3):
        geometry = {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2, 2, 2, 2]}
        pyramid.append(graph.add("MaxPool", f"{name}/m.{level}/MaxPool", pyramid[-1], **geometry))
    joined = graph.add("Concat", f"{name}/Concat", *pyramid, axis=1)
    return conv_silu(graph, f"{name}/cv2", joined, layer.channels)


def upsample_block(graph: Graph, name: str, x: Tensor, layer: Layer, made: list[Tensor]) -> Tensor:
    """Nearest neighbour, twice the size."""
    scales = graph.constant(f"{name}/scales", np.array([1, 1, 2, 2], np.float32))
    roi = graph.constant(f"{name}/roi", np.array([], np.float32))
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return graph.add("Resize", f"{name}/Resize", x, roi, scales, **how)


def concat_block(graph: Graph, name: str, x: Tensor, layer: Layer, made: list[Tensor]) -> Tensor:
    """The previous layer and an earlier one, joined along the channels."""
    assert layer.join is not None
    return graph.add("Concat", f"{name}/Concat", x, made[layer.join], axis=1)


BLOCKS = {
    "conv": conv_block,
    "c2f": c2f_block,
    "c3": c3_block,
    "sppf": sppf_block,
    "upsample": upsample_block,
    "concat": concat_block,
}


def main() -> None:
    """Writes one model and prints what it costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--out", type=Path, help="default: the cache, benchmarks/.cache/NAME.onnx")
    parser.add_argument("--static", action="store_true", help="fix batch 1 and 640x640, as most people export")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    path = options.out or CACHE / f"{options.name}{'_static' if options.static else ''}.onnx"
    MODELS[options.name](path, dynamic=not options.static, seed=options.seed)
    total = cost(path)
    megabytes = math.ceil(path.stat().st_size / 1e5) / 10
    print(f"{path}: {total.parameters:,} parameters, {total.macs / 1e9:.2f} GMAC at 640x640, {megabytes} MB")


if __name__ == "__main__":
    main()
