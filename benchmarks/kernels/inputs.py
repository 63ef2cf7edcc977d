"""Inputs of the kernel benchmark: images, detector outputs, class scores and prototypes that look like real ones."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from framefuse.frame import PIXEL_FORMATS, Frame

SEED = 7
F32 = NDArray[np.float32]
SIZES: dict[str, tuple[tuple[int, int], tuple[int, int], str]] = {
    "1920x1080 -> 640 letterbox": ((1920, 1080), (640, 640), "letterbox"),
    "1366x768 -> 640 letterbox": ((1366, 768), (640, 640), "letterbox"),
    "1440x1080 -> 640 letterbox": ((1440, 1080), (640, 640), "letterbox"),
    "1918x1078 -> 640 letterbox": ((1918, 1078), (640, 640), "letterbox"),
    "1920x1080 -> 608 letterbox": ((1920, 1080), (608, 608), "letterbox"),
    "1920x1080 -> 640 stretch": ((1920, 1080), (640, 640), "stretch"),
}
"""1080p to 640 is a scale of exactly 3, where bilinear picks single pixels; the others are not."""


def smooth(rng: np.random.Generator, width: int, height: int) -> F32:
    """Shapes of some 40 pixels with a little noise, in about 20..230."""
    coarse = rng.uniform(20, 230, (max(2, height // 40), max(2, width // 40))).astype(np.float32)
    fine = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return fine + rng.normal(0, 3, (height, width)).astype(np.float32)


def image(width: int, height: int, kind: str, seed: int = SEED) -> tuple[NDArray[np.uint8], ...]:
    """Planes of an image like a video's, in bgr24, rgb24, yuv420p or nv12; all samples in the legal range."""
    rng = np.random.default_rng(seed)
    if kind in ("bgr24", "rgb24"):
        return (np.stack([smooth(rng, width, height) for _ in range(3)], axis=2).clip(0, 255).astype(np.uint8),)
    luma = smooth(rng, width, height).clip(16, 235).astype(np.uint8)
    half = -(-width // 2), -(-height // 2)
    chroma = [smooth(rng, *half).clip(16, 240).astype(np.uint8) for _ in range(2)]
    return (luma, *chroma) if kind == "yuv420p" else (luma, np.stack(chroma, axis=2))


def frame_of(planes: tuple[Any, ...], kind: str) -> Frame:
    """A Frame over planes, on the host or a GPU."""
    if kind in ("bgr24", "rgb24"):
        return Frame(planes, PIXEL_FORMATS[kind], matrix="rgb", full_range=True)
    return Frame(planes, PIXEL_FORMATS[kind])


def detections(candidates: int, *, classes: int = 80, anchors: int = 8400, conf: float = 0.25, seed: int = SEED) -> F32:
    """(4 + classes, anchors) of a YOLOv8 head at 640: `candidates` scores above `conf`, the others well below.

    Candidates crowd around one object for every eight of them, as a detector's do: the best class of a crowd is one,
    its boxes differ by some pixels, its scores spread over `conf`..0.95.
    """
    rng = np.random.default_rng(seed)
    output = np.empty((4 + classes, anchors), np.float32)
    output[:2] = rng.uniform(0, 640, (2, anchors))
    output[2:4] = rng.uniform(8, 200, (2, anchors))
    output[4:] = rng.uniform(0, conf * 0.6, (classes, anchors))
    chosen = rng.permutation(anchors)[:candidates]
    objects = max(1, candidates // 8)
    owner = rng.integers(0, objects, candidates)
    centre, size = rng.uniform(40, 600, (objects, 2)), rng.uniform(16, 160, (objects, 2))
    output[:2, chosen] = (centre[owner] + rng.normal(0, 3, (candidates, 2))).T
    output[2:4, chosen] = (size[owner] * rng.uniform(0.85, 1.15, (candidates, 2))).T
    output[4 + rng.integers(0, classes, objects)[owner], chosen] = rng.uniform(conf + 0.01, 0.95, candidates)
    return output


def class_scores(classes: int = 21, size: int = 512, seed: int = SEED) -> F32:
    """(1, classes, size, size) logits of a segmentation model: smooth fields, so that regions win and not pixels."""
    rng = np.random.default_rng(seed)
    return np.stack([smooth(rng, size, size) / 25 for _ in range(classes)])[None]


def instances(count: int = 100, size: tuple[int, int] = (1920, 1080), seed: int = SEED) -> tuple[F32, F32, F32]:
    """Prototypes (32, 160, 160), coefficients (count, 32), and boxes (count, 4) in pixels of an image of `size`."""
    rng = np.random.default_rng(seed)
    prototypes = np.stack([smooth(rng, 160, 160) / 60 - 2 for _ in range(32)]).astype(np.float32)
    coefficients = rng.normal(0, 1, (count, 32)).astype(np.float32)
    wide, high = rng.uniform(40, 400, (2, count))
    left, top = rng.uniform(0, size[0] - wide), rng.uniform(0, size[1] - high)
    return prototypes, coefficients, np.stack((left, top, left + wide, top + high), axis=1).astype(np.float32)
