"""YOLO11n to benchmark with: an ONNX file with exactly its layers, as benchmarks/models.py makes those of YOLOv8n.

    python -m benchmarks.models_yolo11 --out yolo11n.onnx

What is new in it: bottlenecks inside of bottlenecks, attention on the smallest image, and filters for each channel in
the head.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.detection_heads import anchor_free
from benchmarks.model_graph import Graph, Tensor, cost, evaluate
from benchmarks.models import BLOCKS, Layer, calibration_images, concat, conv_silu, down, metadata, shift_for

HEAD_CHANNELS = 64
"""Channels of a value of one head of attention; keys have half of them."""


def c3k2(channels: int, *, inner: bool, part: float = 0.5) -> Layer:
    """A row of YOLO11's block; `inner`: bottlenecks in bottlenecks; `part`: width of the chain, of the channels."""
    return Layer("c3k2 inner" if inner else "c3k2", channels, kernel=round(channels * part))


YOLO11N = (
    down(16),                                        # 0   320
    down(32),                                        # 1   160
    c3k2(64, inner=False, part=0.25),                # 2
    down(64),                                        # 3   80
    c3k2(128, inner=False, part=0.25),               # 4
    down(128),                                       # 5   40
    c3k2(128, inner=True),                           # 6
    down(256),                                       # 7   20
    c3k2(256, inner=True),                           # 8
    Layer("sppf", 256),                              # 9
    Layer("c2psa", 256),                             # 10
    Layer("upsample"),                               # 11  40
    concat(6),                                       # 12
    c3k2(128, inner=False),                          # 13
    Layer("upsample"),                               # 14  80
    concat(4),                                       # 15
    c3k2(64, inner=False),                           # 16  to the head, stride 8
    down(64),                                        # 17  40
    concat(13),                                      # 18
    c3k2(128, inner=False),                          # 19  to the head, stride 16
    down(128),                                       # 20  20
    concat(10),                                      # 21
    c3k2(256, inner=True),                           # 22  to the head, stride 32
)  # fmt: skip
TAPS = 16, 19, 22


class Graph11(Graph):
    """The class branch of the head has filters for each channel and 1x1 where YOLOv8's has 3x3."""

    def conv(self, name: str, x: Tensor, channels: int, kernel: int, stride: int = 1, **how: Any) -> Tensor:
        if "/cv3." in name and kernel == 3:
            x = self.silu(f"{name}/each/act", self.depthwise(f"{name}/each", x))
            kernel = 1
        return super().conv(name, x, channels, kernel, stride, **how)

    def depthwise(self, name: str, x: Tensor, std: float = 1.0) -> Tensor:
        """A 3x3 filter for each channel, normalised as `conv`."""
        geometry: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1] * 4, "group": x.channels}
        weight = self.rng.standard_normal((x.channels, 1, 3, 3), np.float32)
        from onnx import helper

        node = helper.make_node("Conv", ["x", "w"], ["y"], **geometry)
        (raw,) = evaluate(node, {"x": x.value, "w": weight})
        mean, deviation = raw.mean((0, 2, 3), dtype=np.float64), raw.std((0, 2, 3), dtype=np.float64)
        scale = std / np.maximum(deviation, 1e-3)
        folded = self.constant(f"{name}.weight", (weight * scale[:, None, None, None]).astype(np.float32))
        bias = self.constant(f"{name}.bias", (-mean * scale).astype(np.float32))
        return self.add("Conv", f"{name}/Conv", x, folded, bias, **geometry)


def c3k2_block(graph: Graph, name: str, x: Tensor, layer: Layer, made: list[Tensor]) -> Tensor:
    """1x1 to two parts; one bottleneck on the second, which may hold two more; all joined; 1x1."""
    width = layer.kernel
    parts = graph.split(f"{name}/Split", conv_silu(graph, f"{name}/cv1", x, 2 * width), [width, width], axis=1)
    y = parts[1]
    if layer.kind == "c3k2 inner":
        one, other = (conv_silu(graph, f"{name}/m.0/cv{n}", y, width // 2) for n in (1, 2))
        for repeat in range(2):
            one = _bottleneck(graph, f"{name}/m.0/m.{repeat}", one, one.channels)
        y = conv_silu(graph, f"{name}/m.0/cv3", graph.add("Concat", f"{name}/m.0/Concat", one, other, axis=1), width)
    else:
        y = _bottleneck(graph, f"{name}/m.0", y, width // 2)
    return conv_silu(graph, f"{name}/cv2", graph.add("Concat", f"{name}/Concat", *parts, y, axis=1), layer.channels)


def _bottleneck(graph: Graph, name: str, x: Tensor, hidden: int) -> Tensor:
    y = conv_silu(graph, f"{name}/cv1", x, hidden, 3)
    return graph.add("Add", f"{name}/Add", x, conv_silu(graph, f"{name}/cv2", y, x.channels, 3))


def c2psa_block(graph: Graph, name: str, x: Tensor, layer: Layer, made: list[Tensor]) -> Tensor:
    """Half of the channels go through attention and two 1x1 convolutions, each with a residual."""
    half = layer.channels // 2
    both = conv_silu(graph, f"{name}/cv1", x, 2 * half)
    rest, inner = graph.split(f"{name}/Split", both, [half, half], axis=1)
    inner = graph.add("Add", f"{name}/m.0/Add", inner, _attention(graph, f"{name}/m.0/attn", inner))
    wide = conv_silu(graph, f"{name}/m.0/ffn.0", inner, 2 * half)
    inner = graph.add("Add", f"{name}/m.0/Add_1", inner, graph.conv(f"{name}/m.0/ffn.1/conv", wide, half, 1))
    return conv_silu(graph, f"{name}/cv2", graph.add("Concat", f"{name}/Concat", rest, inner, axis=1), layer.channels)


def _attention(graph: Graph, name: str, x: Tensor) -> Tensor:
    """As its exporter writes it: queries, keys and values of each head behind each other in one convolution."""
    assert isinstance(graph, Graph11)
    heads, values, keys = x.channels // HEAD_CHANNELS, HEAD_CHANNELS, HEAD_CHANNELS // 2
    size = graph.size(f"{name}/size", x)

    def reshape(label: str, value: Tensor, *sizes: int, image: bool) -> Tensor:
        shape = graph.constant(f"{label}/first", np.array(sizes, np.int64))
        if image:
            shape = graph.add("Concat", f"{label}/shape", shape, size, axis=0)
        return graph.add("Reshape", label, value, shape)

    qkv = graph.conv(f"{name}/qkv/conv", x, heads * (2 * keys + values), 1)
    table = reshape(f"{name}/Reshape", qkv, 0, heads, 2 * keys + values, -1, image=False)
    query, key, value = graph.split(f"{name}/Split", table, [keys, keys, values], axis=2)
    product = graph.add("MatMul", f"{name}/MatMul", graph.add("Transpose", f"{name}/T", query, perm=[0, 1, 3, 2]), key)
    scale = graph.constant(f"{name}/scale", np.array(keys**-0.5, np.float32))
    share = graph.add("Softmax", f"{name}/Softmax", graph.add("Mul", f"{name}/Mul", product, scale), axis=-1)
    turned = graph.add("Transpose", f"{name}/T_1", share, perm=[0, 1, 3, 2])
    found = graph.add("MatMul", f"{name}/MatMul_1", value, turned)
    image = reshape(f"{name}/Reshape_1", found, 0, x.channels, image=True)
    beside = graph.depthwise(f"{name}/pe", reshape(f"{name}/Reshape_2", value, 0, x.channels, image=True))
    return graph.conv(f"{name}/proj/conv", graph.add("Add", f"{name}/Add", image, beside), x.channels, 1)


def yolo11n(path: Path, *, dynamic: bool = True, seed: int = 0) -> Path:
    """Writes YOLO11n: 2.62 M parameters and an output of (1, 84, 8400) at 640x640."""
    blocks = {**BLOCKS, "c3k2": c3k2_block, "c3k2 inner": c3k2_block, "c2psa": c2psa_block}
    graph = Graph11("yolo11n", calibration_images(), dynamic=dynamic, seed=seed)
    made: list[Tensor] = []
    x = graph.images
    for index, layer in enumerate(YOLO11N):
        x = blocks[layer.kind](graph, f"/model.{index}", x, layer, made)
        made.append(x)
    head = anchor_free(graph, [made[tap] for tap in TAPS], f"/model.{len(YOLO11N)}")
    for level, wanted in zip(head.levels, (20, 14, 8), strict=True):
        graph.shift(level.bias, shift_for(level.score_at, wanted), level.rows)
    graph.save(path, head.output, axes=head.axes, metadata=metadata("yolo11n", dynamic=dynamic))
    return path


def main() -> None:
    """Writes the model and prints what it costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--static", action="store_true", help="fix batch 1 and 640x640, as most people export")
    options = parser.parse_args()
    total = cost(yolo11n(options.out, dynamic=not options.static))
    print(f"{options.out}: {total.parameters:,} parameters, {total.macs / 1e9:.2f} GMAC at 640x640")


if __name__ == "__main__":
    main()
