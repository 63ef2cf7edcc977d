"""Kernels between decoder and result, compiled ahead of time for CPUs and NVIDIA GPUs.

Each function has a reference of the same name in `reference`, in plain numpy, which is its specification. Functions on
arrays of a GPU run there; `record_launches` makes a `LaunchPlan` that repeats such a call without its checks.
"""

from __future__ import annotations

from framefuse.cuda.launch_plan import LaunchPlan, Workspace, record_launches
from framefuse.kernels import reference
from framefuse.kernels.boxes.call import detections, nms
from framefuse.kernels.colour.call import rgb_to_yuv, yuv_to_rgb
from framefuse.kernels.colour.layout import change_layout, normalize
from framefuse.kernels.cpu import Library, describe
from framefuse.kernels.drawing.call import draw_boxes, overlay
from framefuse.kernels.geometry.call import flip, remap, split_stereo, warp_affine, warp_perspective
from framefuse.kernels.geometry.projections import equirectangular_to_perspective, fisheye_to_perspective
from framefuse.kernels.masks.call import argmax, box_blur, composite, ema, gaussian_blur, matte, upsample
from framefuse.kernels.masks.instances import (
    DeviceRuns,
    Runs,
    instance_labels,
    instance_masks,
    instance_runs,
    mask_runs,
    native_content,
)
from framefuse.kernels.preprocess.call import preprocess, preprocess_batch
from framefuse.kernels.preprocess.cuda import PreprocessTable
from framefuse.kernels.signals.call import SignalCounts, Signals, signals

__all__ = [
    "DeviceRuns",
    "LaunchPlan",
    "Library",
    "PreprocessTable",
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
    "record_launches",
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
