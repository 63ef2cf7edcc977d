"""Kernels: what happens to pixels between the decoder and the model, compiled ahead of time.

`preprocess` is the compiled kernel; `reference.preprocess` is the same function in plain numpy, its specification.
"""

from __future__ import annotations

from framefuse.kernels import reference
from framefuse.kernels.boxes import detections, nms
from framefuse.kernels.calls import Recorded, recorded
from framefuse.kernels.colour import rgb_to_yuv, yuv_to_rgb
from framefuse.kernels.cpu import Library, describe
from framefuse.kernels.drawing import draw_boxes, overlay
from framefuse.kernels.geometry import flip, remap, split_stereo, warp_affine, warp_perspective
from framefuse.kernels.instances import (
    Runs,
    instance_labels,
    instance_masks,
    instance_runs,
    mask_runs,
    native_content,
)
from framefuse.kernels.instances_cuda import DeviceRuns
from framefuse.kernels.layout import change_layout, normalize
from framefuse.kernels.masks import argmax, box_blur, composite, ema, gaussian_blur, matte, upsample
from framefuse.kernels.preprocess import preprocess, preprocess_batch
from framefuse.kernels.preprocess_cuda import PreprocessTable
from framefuse.kernels.projections import equirectangular_to_perspective, fisheye_to_perspective
from framefuse.kernels.signals import SignalCounts, Signals, signals
from framefuse.kernels.workspace_cuda import Workspace

__all__ = [
    "DeviceRuns",
    "Library",
    "PreprocessTable",
    "Recorded",
    "Runs",
    "SignalCounts",
    "Signals",
    "Workspace",
    "argmax",
    "box_blur",
    "change_layout",
    "composite",
    "describe",
    "detections",
    "draw_boxes",
    "ema",
    "equirectangular_to_perspective",
    "fisheye_to_perspective",
    "flip",
    "gaussian_blur",
    "instance_labels",
    "instance_masks",
    "instance_runs",
    "mask_runs",
    "matte",
    "native_content",
    "nms",
    "normalize",
    "overlay",
    "preprocess",
    "preprocess_batch",
    "recorded",
    "reference",
    "remap",
    "rgb_to_yuv",
    "signals",
    "split_stereo",
    "upsample",
    "warp_affine",
    "warp_perspective",
    "yuv_to_rgb",
]
