"""Every kernel in plain numpy float64: the executable specification, slow and simple on purpose."""

from __future__ import annotations

from framefuse.kernels.boxes.reference import Found, detections, nms, rotated_intersection
from framefuse.kernels.colour.reference import change_layout, normalize, rgb_to_yuv, yuv_to_rgb
from framefuse.kernels.geometry.reference import remap, warp_affine, warp_perspective
from framefuse.kernels.masks.reference import (
    argmax,
    composite,
    draw_boxes,
    ema,
    gaussian_weights,
    instance_logits,
    instance_masks,
    overlay,
    run_text,
    runs,
    smooth,
    upsample,
)
from framefuse.kernels.preprocess.reference import preprocess
from framefuse.kernels.signals.reference import shrink, signals

__all__ = [
    "Found",
    "argmax",
    "change_layout",
    "composite",
    "detections",
    "draw_boxes",
    "ema",
    "gaussian_weights",
    "instance_logits",
    "instance_masks",
    "nms",
    "normalize",
    "overlay",
    "preprocess",
    "remap",
    "rgb_to_yuv",
    "rotated_intersection",
    "run_text",
    "runs",
    "shrink",
    "signals",
    "smooth",
    "upsample",
    "warp_affine",
    "warp_perspective",
    "yuv_to_rgb",
]
