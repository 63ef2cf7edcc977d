"""Frames of noise for kernels.preprocess, and its result beside that of its numpy reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from framefuse import kernels
from framefuse.frame import PIXEL_FORMATS, Frame

GREY = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
"""Output in grey levels."""
TOLERANCE = 0.02
"""Grey levels by which the compiled kernel may differ from the reference."""
IMAGENET = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}

MATRICES = ("bt601", "bt709", "bt2020")
ROTATIONS = (0, 90, 180, 270)
INTERPOLATIONS = ("linear", "nearest", "area", "antialias")


def random_frame(name: str, width: int, height: int, *, pitch: int = 0, seed: int = 0, **facts: Any) -> Frame:
    """A frame of noise over the whole range of its samples; `pitch` is the number of unused samples after each row."""
    form = PIXEL_FORMATS[name]
    rng = np.random.default_rng(seed)
    planes = []
    for shape in form.plane_shapes(width, height):
        wide = (shape[0], (shape[1] + pitch) * (shape[2] if len(shape) == 3 else 1))
        samples = rng.integers(0, 1 << form.bits, wide, dtype=form.dtype) << form.shift
        planes.append(samples.reshape(shape[0], -1, *shape[2:])[:, : shape[1]])
    return Frame(tuple(planes), form, **facts)


def compare(
    frame: Frame, size: tuple[int, int], content: tuple[int, int, int, int], *, channels: int = 3, **options: Any
) -> float:
    """Largest difference of kernel and reference in grey levels. Both begin with NaN, so unwritten values show."""
    arguments = {"interpolation": "linear", "pad_value": 114.0, "channel_order": "rgb", **GREY, **options}
    planar = arguments.get("memory_format", "nchw") == "nchw"
    shape = (3, size[1], size[0]) if planar else (size[1], size[0], channels)
    found, wanted = (np.full(shape, np.nan, np.float32) for _ in range(2))
    kernels.preprocess(frame, found, content=content, **arguments)
    kernels.reference.preprocess(frame, wanted, content=content, **arguments)
    difference = np.abs(found - wanted) if planar else np.abs(found - wanted).transpose(2, 0, 1)
    assert planar or not found[:, :, 3:].any()
    return float((difference[:3] * np.abs(np.array(arguments["std"]))[:, None, None]).max())
