"""Detectors with the layers of the real ones and few pixels, so that lowering one takes a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import models as tables
from benchmarks.detection_heads import anchor_based, anchor_free
from benchmarks.model_graph import Graph, Tensor

HEIGHT, WIDTH = 96, 160
SHAPES = {"min": (1, 3, 64, 64), "opt": (1, 3, HEIGHT, WIDTH), "max": (2, 3, HEIGHT, WIDTH)}
"""A profile of input shapes."""

TABLE_V5 = (
    tables.Layer("conv", 16, kernel=6, stride=2, pad=2),
    tables.down(16),
    tables.Layer("c3", 16),
    tables.down(32),                    # 3   stride 8
    tables.Layer("c3", 32),
    tables.down(32),                    # 5   stride 16
    tables.Layer("sppf", 32),
    tables.down(32),                    # 7   stride 32
)  # fmt: skip


def drawn_images(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """(count, HEIGHT, WIDTH, 3) uint8: rectangles of all colours and sizes on a gradient; no two alike."""
    random = np.random.default_rng(seed)
    made = np.empty((count, HEIGHT, WIDTH, 3), np.uint8)
    made[:] = np.linspace(30, 200, WIDTH, dtype=np.uint8)[None, None, :, None]
    for image in made:
        for _ in range(8):
            y, x = random.integers(0, HEIGHT - 8), random.integers(0, WIDTH - 8)
            h, w = random.integers(6, 48, 2)
            image[y : y + h, x : x + w] = random.integers(0, 256, 3)
    return made


def write(path: Path, name: str) -> Path:
    """yolov8n: its very layers, and weights. tiny_v5: an anchor-based one of 8 layers. Input (b, 3, h, w), 160x96."""
    images = drawn_images(4).transpose(0, 3, 1, 2).astype(np.float32) / 255
    table, taps, head = (
        (tables.YOLOV8N, (15, 18, 21), anchor_free) if name == "yolov8n" else (TABLE_V5, (4, 6, 7), anchor_based)
    )
    graph = Graph(name, images, dynamic=True, seed=0)
    made: list[Tensor] = []
    x = graph.images
    for index, layer in enumerate(table):
        x = tables.BLOCKS[layer.kind](graph, f"/model.{index}", x, layer, made)
        made.append(x)
    detector = head(graph, [made[tap] for tap in taps], f"/model.{len(table)}")
    for level, wanted in zip(detector.levels, (4, 2, 1), strict=True):
        graph.shift(level.bias, tables.shift_for(level.score_at, wanted), level.rows)
    facts = tables.metadata(name, dynamic=True) | {"imgsz": str([HEIGHT, WIDTH])}
    graph.save(path, detector.output, axes=detector.axes, metadata=facts)
    return path


def write_segmenter(path: Path) -> Path:
    """Two classes, told apart by brightness; input (b, 3, h, w), output (b, 2, h / 2, w / 2)."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    shapes = {"stem": (8, 3, 3, 3), "middle": (8, 8, 3, 3), "head": (2, 8, 1, 1)}
    weights = {
        name: (random.normal(1, 0.05, shape) / np.prod(shape[1:])).astype(np.float32) for name, shape in shapes.items()
    }
    weights["head"][0] *= -1
    weights |= {"stem_bias": np.full(8, -0.4, np.float32)}
    nodes = [
        helper.make_node("Conv", ["images", "stem", "stem_bias"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "middle"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["b", "head"], ["output0"]),
    ]
    graph = helper.make_graph(
        nodes,
        "segmenter",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, HEIGHT, WIDTH])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 2, HEIGHT // 2, WIDTH // 2])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, {"task": "semantic", "names": "{0: 'dark', 1: 'bright'}"})
    onnx.save(model, path)
    return path
