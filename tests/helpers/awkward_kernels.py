"""Call the compiled kernels on awkward sizes, on arrays and scratch that end where their last sample does.

    valgrind ... python awkward_kernels.py [beyond]

Run under memcheck, which sees every access outside them. `beyond` reads on purpose outside an array, once.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from framefuse import kernels
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.kernels import cpu
from framefuse.kernels.boxes import call as boxes
from framefuse.kernels.preprocess import call as preprocessing
from preprocess_frames import GREY, IMAGENET, INTERPOLATIONS, MATRICES, ROTATIONS, random_frame

Array = np.ndarray[Any, Any]

SIZES = ((1, 1), (2, 2), (1, 7), (3, 1), (37, 23), (131, 5), (6, 258))
PLACEMENTS = (
    ((20, 14), (0, 0, 20, 14)),
    ((21, 13), (4, 0, 13, 13)),
    ((20, 14), (-7, -3, 41, 22)),
    ((1, 1), (0, 0, 1, 1)),
    ((6, 5), (9, 1, 4, 2)),
    ((67, 3), (0, 1, 67, 1)),
)
OUTPUTS = ("float32", "float16", "uint16", "uint8", "int8")


def fresh() -> None:
    """Forget all scratch, which otherwise has the size of the largest call so far."""
    cpu._scratch.buffers.clear()
    preprocessing._calls.known.clear()
    boxes._work.capacity = boxes._work.detections = 0


def tight(array: Array, gap: int) -> Array:
    """The values with `gap` elements between the rows, and none after the last one."""
    row = array[0].size + gap
    memory = np.zeros((len(array) - 1) * row + array[0].size, array.dtype)
    inner = np.empty(array.shape[1:], array.dtype).strides
    view = as_strided(memory, array.shape, (row * array.itemsize, *inner))
    view[...] = array
    return view


def tight_frame(frame: Frame, gap: int) -> Frame:
    return dataclasses.replace(frame, planes=tuple(tight(plane, gap) for plane in frame.planes))


def preprocess() -> None:
    for index, (name, (width, height)) in enumerate(itertools.product(PIXEL_FORMATS, SIZES)):
        (across, down), content = PLACEMENTS[index % len(PLACEMENTS)]
        facts: dict[str, Any] = {"matrix": MATRICES[index % 3], "rotation": ROTATIONS[index % 4]}
        channels = (None, 3, 4, 8)[index // 3 % 4]
        shape = (3, down, across) if channels is None else (down, across, channels)
        fresh()
        kernels.preprocess(
            tight_frame(random_frame(name, width, height, seed=index, **facts), index % 3),
            np.zeros(shape, OUTPUTS[index % len(OUTPUTS)]),
            content=content,
            interpolation=INTERPOLATIONS[index // 2 % 4],
            pad_value=114.0,
            channel_order=("rgb", "bgr")[index % 2],
            memory_format="nchw" if channels is None else "nhwc",
            **(GREY, IMAGENET)[index % 2],
        )


def detect() -> None:
    rng = np.random.default_rng(1)
    maps = np.array([[64, 48, 0, 0, 1, 1, 64, 48]], np.float32)
    options: dict[str, Any] = {"conf": 0.25, "iou": 0.5}
    for anchors, classes in itertools.product((1, 7, 33, 1025), (1, 3, 81)):
        corners = rng.uniform(0, 64, (anchors, 4)).astype(np.float32)
        scores = rng.random((anchors, classes), np.float32)
        ones = np.ones((anchors, 1), np.float32)
        for layout, output in (
            ("yolov8", np.concatenate((corners, scores), 1).T[None]),
            ("yolov5", np.concatenate((corners, ones, scores), 1)[None]),
        ):
            for kind, most in ((np.float32, 1), (np.float16, 300)):
                fresh()
                kernels.detections([output.astype(kind, order="C")], layout, maps, max_det=most, **options)
        fresh()
        kernels.nms(corners, scores[:, 0], (scores * 9)[:, 0].astype(np.int32), iou=0.5)
        fresh()
        kernels.nms(np.concatenate((corners, ones), 1), scores[:, 0], iou=0.5, max_det=3)
    for grid, classes, bins in (((1, 1), 1, 1), ((3, 11), 3, 16), ((33, 1), 81, 7), ((1, 257), 2, 16)):
        shapes = (1, *grid, 4 * bins), (1, *grid, classes)
        outputs = [rng.normal(0, 3, shape).astype(np.float32) for shape in shapes]
        for head in (outputs, [(output.view(np.uint32) >> 16).astype(np.uint16) for output in outputs]):
            fresh()
            kernels.detections(head, "yolov8_head", maps, max_det=30, **options)


def masks() -> None:
    rng = np.random.default_rng(2)
    for (width, height), gap in zip(SIZES, itertools.cycle((0, 1, 5)), strict=False):
        mask = tight((rng.random((height, width)) > 0.5).astype(np.uint8) * 255, gap)
        floats = tight(rng.random((height, width), np.float32), gap)
        image = tight(rng.integers(0, 256, (height, width, 3), np.uint8), gap)
        for one in (mask, floats):
            fresh()
            kernels.box_blur(one, 2)
            kernels.gaussian_blur(one, 1.3)
            kernels.ema(one, tight(np.zeros((height, width), np.float32), 1), 0.25)
            kernels.upsample(one, (height * 2 + 1, width + 3))
        kernels.matte(mask, 0.8)
        kernels.composite(image, image[::-1], mask)
        for classes in (1, 2, 21):
            fresh()
            kernels.argmax(rng.normal(size=(1, classes, height, width)).astype(np.float32))
        fresh()
        kernels.mask_runs(mask[None]).to_coco()
        found = rng.uniform(-3, max(width, height) + 3, (5, 4)).astype(np.float32)
        prototypes, coefficients = (rng.normal(size=size).astype(np.float32) for size in ((32, 9, 7), (5, 32)))
        fresh()
        kernels.instance_masks(prototypes, coefficients, found, (height, width))
        kernels.instance_labels(prototypes, coefficients, found, (height, width), crop="prototypes")
        kernels.instance_runs(prototypes, coefficients, found, (height, width)).to_coco()


def beyond() -> None:
    frame = random_frame("gray", 64, 48)
    short = as_strided(frame.planes[0][:40].copy(), (48, 64), (64, 1))
    out = np.zeros((3, 48, 64), np.float32)
    options: dict[str, Any] = {"interpolation": "linear", "pad_value": 114.0, "channel_order": "rgb", **GREY}
    kernels.preprocess(dataclasses.replace(frame, planes=(short,)), out, content=(0, 0, 64, 48), **options)


if __name__ == "__main__":
    cpu.cpu_flags = lambda: cpu.V3_FLAGS  # valgrind has no AVX-512
    for part in (beyond,) if sys.argv[1:] else (preprocess, detect, masks):
        part()
        print(part.__name__)
