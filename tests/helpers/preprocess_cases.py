"""Awkward cases of kernels.preprocess on CUDA: for the GPU, and for the generated source on the CPU."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from framefuse import kernels
from framefuse.frame import Frame
from preprocess_frames import GREY, IMAGENET, random_frame

TOLERANCE = {"float32": 0.02, "float16": 0.1, "uint16": 1.0, "uint8": 1.0, "int8": 1.0}
"""Grey levels by which the kernel may differ from the reference; uint16 holds bfloat16."""

Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    frame: Frame
    size: tuple[int, int]
    content: tuple[int, int, int, int]
    options: dict[str, Any]


def cases(formats: tuple[str, ...], number: int, seed: int = 0) -> Iterator[Case]:
    """Sizes of 1x1 to 4,097, pitches, rotations, regions and placements; each format meets all of them by turns."""
    sizes = ((1, 1), (2, 2), (1, 7), (3, 1), (37, 23), (64, 48), (4097, 3), (3, 4097), (1366, 768))
    placements = (
        ((20, 14), (0, 0, 20, 14)),
        ((21, 14), (4, 0, 13, 14)),
        ((20, 14), (-7, -3, 41, 22)),
        ((64, 48), (0, 0, 64, 48)),
        ((1, 1), (0, 0, 1, 1)),
        ((6, 5), (9, 1, 4, 2)),
        ((160, 96), (0, 3, 160, 90)),
    )
    turns = itertools.product(
        ("linear", "nearest", "asymmetric", "area", "antialias"),
        (0, 90, 180, 270),
        (False, True),
        ("bt601", "bt709", "bt2020"),
    )
    rng = np.random.default_rng(seed)
    everything = list(itertools.product(formats, sizes, placements, turns, ({**GREY}, IMAGENET), ("rgb", "bgr")))
    for index in rng.choice(len(everything), number, replace=False):
        name, (width, height), (size, content), turn, normalise, order = everything[index]
        interpolation, rotation, full_range, matrix = turn
        frame = random_frame(
            name, width, height, pitch=index % 3, seed=index, rotation=rotation, full_range=full_range, matrix=matrix
        )
        options = {"interpolation": interpolation, "pad_value": 114.0, "channel_order": order, **normalise}
        if index % 4 == 0 and min(frame.width, frame.height) > 2:
            options["roi"] = (1, 1, frame.width - 2, frame.height - 2)
        yield Case(frame, size, content, options)


def filter_cases(formats: tuple[str, ...], number: int, seed: int = 0) -> Iterator[Case]:
    """Those of so many cases that have filters of many taps."""
    return (case for case in cases(formats, number, seed) if case.options["interpolation"] in ("area", "antialias"))


def moved(frame: Frame, move: Callable[[Array], Any]) -> Frame:
    """The frame with its planes moved, pitch included."""
    planes = []
    for plane in frame.planes:
        wide = np.zeros((plane.shape[0], plane.strides[0] // plane.itemsize), plane.dtype)
        wide[:, : plane[0].size] = plane.reshape(plane.shape[0], -1)
        planes.append(move(wide).reshape(plane.shape[0], -1, *plane.shape[2:])[:, : plane.shape[1]])
    return dataclasses.replace(frame, planes=tuple(planes))


def blank(size: tuple[int, int], dtype: str, channels: int | None) -> Array:
    """An output of the case's size: NCHW, or NHWC of so many channels. Floats start as NaN."""
    shape = (3, size[1], size[0]) if channels is None else (size[1], size[0], channels)
    return np.full(shape, np.nan if dtype.startswith("float") else 77, dtype)


def difference(found: Array, case: Case, dtype: str, channels: int | None) -> float:
    """Largest difference from the reference, in grey levels. Channels after the third must be 0."""
    memory = {} if channels is None else {"memory_format": "nhwc"}
    wanted = blank(case.size, dtype if dtype.endswith("int8") else "float32", channels)  # not rounded twice
    kernels.reference.preprocess(case.frame, wanted, content=case.content, **case.options, **memory)
    if channels is not None:
        assert not found[:, :, 3:].any()
        found, wanted = (np.moveaxis(a[:, :, :3], 2, 0) for a in (found, wanted))
    if dtype == "uint16":
        found = (found.astype(np.uint32) << 16).view(np.float32)
    scale = 1 if dtype.endswith("int8") else np.abs(np.array(case.options["std"]))[:, None, None]
    return float(np.abs((found.astype(np.float64) - wanted) * scale).max())
