"""Detectors with the layers of the real ones and few pixels, so that lowering one takes a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import models as tables
from benchmarks.detection_heads import anchor_based, anchor_free
from benchmarks.model_graph import Graph, Tensor

HEIGHT, WIDTH = 96, 160

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


def pictures(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """(count, HEIGHT, WIDTH, 3) uint8: rectangles of all colours and sizes on a gradient; no two alike."""
    random = np.random.default_rng(seed)
    made = np.empty((count, HEIGHT, WIDTH, 3), np.uint8)
    made[:] = np.linspace(30, 200, WIDTH, dtype=np.uint8)[None, None, :, None]
    for picture in made:
        for _ in range(8):
            y, x = random.integers(0, HEIGHT - 8), random.integers(0, WIDTH - 8)
            h, w = random.integers(6, 48, 2)
            picture[y : y + h, x : x + w] = random.integers(0, 256, 3)
    return made


def write(path: Path, name: str) -> Path:
    """yolov8n: its very layers, and weights. tiny_v5: an anchor-based one of 8 layers. Input (b, 3, h, w), 160x96."""
    images = pictures(4).transpose(0, 3, 1, 2).astype(np.float32) / 255
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
