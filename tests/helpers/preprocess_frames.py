"""Frames of noise for kernels.preprocess, and its result beside that of its numpy reference."""

from __future__ import annotations

from collections.abc import Callable
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
INTERPOLATIONS = ("linear", "nearest", "asymmetric", "area", "antialias")


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


def made_by(
    function: Callable[..., None], frame: Frame, size: tuple[int, int], content: tuple[int, int, int, int], *,
    channels: int = 3, **options: Any,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """What the kernel or its reference makes of a frame. It begins with NaN, so unwritten values show."""
    arguments = {"interpolation": "linear", "pad_value": 114.0, "channel_order": "rgb", **GREY, **options}
    planar = arguments.get("memory_format", "nchw") == "nchw"
    out = np.full((3, size[1], size[0]) if planar else (size[1], size[0], channels), np.nan, np.float32)
    function(frame, out, content=content, **arguments)
    return out


def compare(
    frame: Frame, size: tuple[int, int], content: tuple[int, int, int, int], *,
    wanted: np.ndarray[Any, Any] | None = None, **options: Any,
) -> float:  # fmt: skip
    """Largest difference of the kernel from its reference in grey levels; `wanted`: what the reference made before."""
    if wanted is None:
        wanted = made_by(kernels.reference.preprocess, frame, size, content, **options)
    found = made_by(kernels.preprocess, frame, size, content, **options)
    difference = np.abs(found - wanted)
    if options.get("memory_format") == "nhwc":
        assert not found[:, :, 3:].any()
        difference = difference.transpose(2, 0, 1)
    return float((difference[:3] * np.abs(np.array(options.get("std", GREY["std"])))[:, None, None]).max())
