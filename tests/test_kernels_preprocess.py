"""kernels.preprocess: the compiled kernel against its numpy reference, and the reference against OpenCV and swscale."""

from __future__ import annotations

import ctypes
import importlib
import itertools
import mmap
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import ml_dtypes
import numpy as np
import pytest
from PIL import Image

from framefuse import kernels
from framefuse.errors import CapabilityError, UsageError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.kernels import cpu
from framefuse.kernels import plan as plan_module
from framefuse.kernels.build import build, build_cpu
from framefuse.preprocess import Preprocess

preprocess_module = importlib.import_module("framefuse.kernels.preprocess")  # the package has a function of its name

GREY = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
"""Output in grey levels."""
TOLERANCE = 0.02
"""Grey levels by which the compiled kernel may differ from the reference."""
IMAGENET = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}

MATRICES = ("bt601", "bt709", "bt2020")
ROTATIONS = (0, 90, 180, 270)
INTERPOLATIONS = ("linear", "nearest", "area", "antialias")


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The kernels of this checkout are built and current."""
    build()


@pytest.fixture(params=["best", "x86-64-v3", "any"])
def nest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernels that this CPU uses for bytes, then those that it uses without AVX-512 VBMI, then without AVX2."""
    if request.param != "best":
        if request.param == "x86-64-v3" and not cpu.wide():
            pytest.skip("they are the same on this CPU")
        monkeypatch.setattr(plan_module, "byte_level", lambda: request.param)
    plan_module.plan.cache_clear()
    preprocess_module._calls.known.clear()
    yield request.param
    plan_module.plan.cache_clear()
    preprocess_module._calls.known.clear()


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


def letterbox(frame: Frame, side: int) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    placement = Preprocess(width=side, height=side).place(frame.width, frame.height)
    return placement.size, placement.content


@pytest.mark.parametrize("name", PIXEL_FORMATS)
def test_every_pixel_format_and_awkward_size(name: str, nest: str) -> None:
    """Each format meets each size and each placement; matrix, range, rotation and interpolation go round with them."""
    sizes = ((1, 1), (2, 2), (1, 7), (3, 1), (5, 5), (37, 23), (64, 48))
    placements = (
        ((20, 14), (0, 0, 20, 14)),  # stretch
        ((20, 14), (4, 0, 13, 14)),  # letterbox
        ((20, 14), (-7, -3, 41, 22)),  # crop
        ((64, 48), (0, 0, 64, 48)),  # the frame's own size
        ((1, 1), (0, 0, 1, 1)),
        ((6, 5), (9, 1, 4, 2)),  # wholly outside: padding alone
    )
    round_trip = itertools.cycle(
        itertools.product(INTERPOLATIONS, ROTATIONS, (False, True), MATRICES, ({**GREY}, IMAGENET), ("rgb", "bgr"))
    )
    step = sum(map(ord, name)) % 7 + 1  # formats begin at different places of the round
    for seed, ((width, height), (size, content)) in enumerate(itertools.product(sizes, placements)):
        interpolation, rotation, full_range, matrix, normalise, order = next(itertools.islice(round_trip, step, None))
        frame = random_frame(
            name, width, height, pitch=seed % 3, seed=seed, rotation=rotation, full_range=full_range, matrix=matrix
        )
        difference = compare(frame, size, content, interpolation=interpolation, channel_order=order, **normalise)
        assert difference <= TOLERANCE, (width, height, size, content, interpolation, rotation, full_range, matrix)


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("name", ["yuv420p", "nv12", "p010", "bgr24", "bgra", "gray"])
def test_rotation(name: str, interpolation: str, rotation: Any) -> None:
    """Odd sizes, where chroma reaches beyond the edge, so that a rotation of the wrong kind cannot hide."""
    frame = random_frame(name, 37, 23, rotation=rotation)
    for size, content in (((30, 40), (3, 5, 22, 31)), ((16, 12), (-4, -6, 30, 25))):
        assert compare(frame, size, content, interpolation=interpolation) <= TOLERANCE


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("name", ["yuv420p", "nv21", "yuv444p10", "p010", "gray"])
def test_colour(name: str, full_range: bool, matrix: Any) -> None:
    frame = random_frame(name, 40, 30, matrix=matrix, full_range=full_range)
    assert compare(frame, (25, 21), (0, 0, 25, 21)) <= TOLERANCE
    assert compare(frame, (40, 30), (0, 0, 40, 30), interpolation="nearest") <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "width", "height", "side"),
    [
        ("yuv420p", 1366, 768, 640),
        ("nv12", 1440, 1080, 640),
        ("bgr24", 1918, 1078, 640),
        ("yuv420p", 1920, 1080, 640),
        ("yuv420p", 1920, 1080, 608),
        ("yuv420p10", 4097, 3, 640),
        ("rgb24", 4097, 5, 1000),
        ("yuv422p", 3, 4097, 640),
    ],
)
def test_real_sizes_letterboxed(name: str, width: int, height: int, side: int, nest: str) -> None:
    frame = random_frame(name, width, height, pitch=64)
    for interpolation in ("linear", INTERPOLATIONS[width % 4]):
        assert compare(frame, *letterbox(frame, side), interpolation=interpolation) <= TOLERANCE


def test_1080p_stretched_to_a_square(nest: str) -> None:
    frame = random_frame("nv12", 1920, 1080)
    for interpolation in INTERPOLATIONS:
        assert compare(frame, (640, 640), (0, 0, 640, 640), interpolation=interpolation) <= TOLERANCE


def test_positions_are_exact_where_float32_positions_are_not() -> None:
    """A ramp over 16,384 pixels, at whose end a float32 position is wrong by a thousandth of a pixel."""
    ramp = np.linspace(0, 65535, 16384).astype(np.uint16)[None].repeat(2, axis=0)
    frame = Frame((ramp,), PIXEL_FORMATS["gray16"], full_range=True)
    assert compare(frame, (1023, 2), (0, 0, 1023, 2)) < 0.0005


def test_nearest_picks_whole_samples(nest: str) -> None:
    """Every output of `nearest` is exactly one of the frame's pixels: the one that holds the output's centre."""
    frame = random_frame("rgb24", 31, 17)
    out = np.empty((3, 40, 50), np.float32)
    kernels.preprocess(
        frame, out, content=(0, 0, 50, 40), interpolation="nearest", pad_value=0.0, channel_order="rgb", **GREY
    )
    rows = [(2 * i + 1) * 17 // 80 for i in range(40)]
    columns = [(2 * i + 1) * 31 // 100 for i in range(50)]
    picked = frame.planes[0][rows][:, columns].transpose(2, 0, 1)
    np.testing.assert_array_equal(out, picked.astype(np.float32))


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_row_ranges_compose_and_leave_the_rest_alone(rotation: Any, nest: str) -> None:
    frame = random_frame("yuv420p", 61, 45, rotation=rotation)
    options = {
        "content": (2, 9, 40, 33),
        "interpolation": "linear",
        "pad_value": 7.0,
        "channel_order": "rgb",
        **IMAGENET,
    }
    whole, parts = np.full((3, 50, 44), np.nan, np.float32), np.full((3, 50, 44), np.nan, np.float32)
    kernels.preprocess(frame, whole, **options)
    kernels.preprocess(frame, parts, rows=(0, 13), **options)
    assert np.isfinite(parts[:, :13]).all() and np.isnan(parts[:, 13:]).all()
    with ThreadPoolExecutor(2) as pool:
        for job in [
            pool.submit(kernels.preprocess, frame, parts, rows=rows, **options) for rows in ((13, 14), (14, 50))
        ]:
            job.result()
    if rotation in (0, 180):
        np.testing.assert_array_equal(parts, whole)
    else:  # a few rows of a turned picture are too narrow for the nest of the whole one: other roundings
        np.testing.assert_allclose(parts, whole, rtol=0, atol=2e-6)


def test_random_cases_in_threads(nest: str) -> None:
    """Whatever was painted before in a thread, and whichever case comes first in it, scratch never shows."""

    def job(seed: int) -> list[float]:
        rng = np.random.default_rng(seed)
        differences = []
        for case in range(12):
            name = str(rng.choice(list(PIXEL_FORMATS)))
            width, height = map(int, rng.integers(1, 120, 2))
            frame = random_frame(name, width, height, seed=seed + case, rotation=int(rng.choice(ROTATIONS)))
            left, top = map(int, rng.integers(-50, 60, 2)) if case else (500, 0)
            content = (left, top, *map(int, rng.integers(1, 150, 2)))
            size = (int(rng.integers(1, 99)), int(rng.integers(1, 99)))
            x, y = int(rng.integers(frame.width)), int(rng.integers(frame.height))
            roi = (x, y, int(rng.integers(1, frame.width - x + 1)), int(rng.integers(1, frame.height - y + 1)))
            options = {"interpolation": str(rng.choice(INTERPOLATIONS)), "roi": roi if case % 2 else None}
            memory = {"memory_format": str(rng.choice(["nchw", "nhwc"])), "channels": int(rng.choice([3, 4, 8]))}
            differences.append(compare(frame, size, content, **options, **memory))
        return differences

    with ThreadPoolExecutor(4) as pool:
        for differences in pool.map(job, range(0, 1200, 100)):
            assert max(differences) <= TOLERANCE


def test_output_is_a_slot_of_a_batch_and_nothing_else_is_touched() -> None:
    batch = np.full((3, 3, 16, 20), -1.0, np.float32)
    Preprocess(width=20, height=16)(random_frame("nv12", 64, 48), batch[1])
    assert (batch[1] >= 0).all() and (batch[[0, 2]] == -1).all()


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("name", ["yuv420p", "p010", "bgr24"])
def test_region_of_interest(name: str, interpolation: str, rotation: Any) -> None:
    """A region at odd positions, so that chroma samples reach across its edges."""
    frame = random_frame(name, 37, 23, rotation=rotation)
    roi = (3, 5, 13, 11)
    for size, content in (((20, 20), (1, 2, 17, 15)), ((8, 6), (0, 0, 8, 6)), ((13, 11), (0, 0, 13, 11))):
        assert compare(frame, size, content, interpolation=interpolation, roi=roi) <= TOLERANCE


def test_a_region_is_as_a_cropped_picture_and_boxes_come_back_from_it() -> None:
    image = np.random.default_rng(3).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    outs = [np.empty((3, 32, 32), np.float32) for _ in range(2)]
    spec, frame = Preprocess(width=32, height=32, interpolation="antialias"), Frame.from_array(image)
    placement = spec(frame, outs[0], spec.place(60, 40, (7, 9, 41, 23)))
    spec(Frame.from_array(image[9:32, 7:48]), outs[1])
    np.testing.assert_array_equal(*outs)
    left, top, width, height = placement.content
    corners = np.array([[left, top, left + width, top + height]], np.float32)
    np.testing.assert_allclose(placement.unmap(corners), [[7, 9, 48, 32]], atol=1e-4)


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("channels", [3, 4, 8, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
def test_nhwc_is_the_same_values_and_zeros(dtype: Any, channels: int, rotation: Any) -> None:
    for width, height in ((61, 45), (1, 1), (2, 37)):
        frame = random_frame("nv12", width, height, rotation=rotation)
        planar, beside = np.empty((3, 33, 40), dtype), np.full((33, 40, channels), 99, dtype)
        for out, memory in ((planar, "nchw"), (beside, "nhwc")):
            for rows in ((0, 5), (5, 33)):
                kernels.preprocess(
                    frame,
                    out,
                    content=(3, -2, 31, 37),
                    interpolation="linear",
                    pad_value=50.0,
                    channel_order="rgb",
                    memory_format=memory,  # type: ignore[arg-type]
                    rows=rows,
                    **GREY,
                )
        np.testing.assert_array_equal(beside[:, :, :3], planar.transpose(1, 2, 0))
        assert not beside[:, :, 3:].any()


def both(frame: Frame, dtype: Any, size: tuple[int, int], **options: Any) -> tuple[Any, Any]:
    """What the kernel makes of a frame as `dtype`, and the exact values."""
    arguments = {"interpolation": "linear", "pad_value": 114.0, "channel_order": "rgb", **GREY, **options}
    found, exact = np.full((3, size[1], size[0]), 99, dtype), np.zeros((3, size[1], size[0]), np.float32)
    kernels.preprocess(frame, found, **arguments)
    kernels.reference.preprocess(frame, exact, **arguments)
    values = found.view(ml_dtypes.bfloat16) if found.dtype == np.uint16 else found
    return values.astype(np.float64), exact.astype(np.float64)


OUTPUTS = {
    "float16": (np.dtype(np.float16), 0.1),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), 1.0),
    "bfloat16 bits": (np.dtype(np.uint16), 1.0),
    "uint8": (np.dtype(np.uint8), 0.505),
    "int8": (np.dtype(np.int8), 0.505),
}
"""Output type, and grey levels by which it may differ from the exact value."""


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("name", ["yuv420p", "p010", "nv12", "rgb24", "bgra", "rgb48", "gray"])
@pytest.mark.parametrize("rotation", [0, 90])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_other_output_types(name: str, kind: str, rotation: Any, interpolation: str) -> None:
    dtype, tolerance = OUTPUTS[kind]
    found, exact = both(
        random_frame(name, 61, 45, rotation=rotation),
        dtype,
        (40, 33),
        content=(3, -2, 31, 40),
        interpolation=interpolation,
        pad_value=114.4,
        mean=(128.0 if kind == "int8" else 0.0,) * 3,
        std=(1.0,) * 3,
    )
    assert np.abs(found - exact).max() <= tolerance


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("name", ["yuv420p", "nv12", "bgr24"])
@pytest.mark.parametrize(("width", "height"), [(1366, 768), (1440, 1080), (1918, 1078)])
def test_bytes_of_real_sizes(name: str, width: int, height: int, interpolation: str, nest: str) -> None:
    """At most one value in a thousand is rounded the other way, of those that are not halfway between two levels."""
    frame = random_frame(name, width, height)
    size, content = letterbox(frame, 640)
    found, exact = both(frame, np.uint8, size, content=content, interpolation=interpolation)
    clear = np.abs(exact % 1 - 0.5) > 1e-4
    assert np.abs(found - exact).max() <= 0.505
    assert (found != np.floor(exact + 0.5))[clear].mean() <= 0.001


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("name", ["bgr24", "rgba", "nv12", "nv21", "yuv420p", "yuv411p", "yuv444p", "gbrp", "gray"])
def test_every_placement_of_large_pictures(name: str, rotation: Any, nest: str) -> None:
    """Wide enough for windows of 128 bytes, at scales that need one or two of them, or are too large for any."""
    frame = random_frame(name, 1100, 300, pitch=5, rotation=rotation)
    roi = (7, 3, 281, 250)
    for size, content in (
        ((300, 200), (0, 0, 300, 200)),
        ((500, 90), (11, 5, 477, 80)),
        ((400, 400), (-30, -41, 470, 490)),
        ((61, 40), (20, 1, 33, 37)),
        ((70, 17), (0, 0, 70, 17)),
        ((1100, 300), (0, 0, 1100, 300)),
    ):
        for options in (
            {},
            {"roi": roi, "channel_order": "bgr"},
            {"memory_format": "nhwc", "interpolation": "nearest"},
        ):
            assert compare(frame, size, content, **options) <= TOLERANCE, (size, content, options)


@pytest.mark.parametrize("kind", ["float16", "bfloat16 bits", "uint8", "int8"])
@pytest.mark.parametrize("name", ["bgr24", "nv12", "yuv420p", "gray"])
def test_other_output_types_of_large_pictures(name: str, kind: str, nest: str) -> None:
    dtype, tolerance = OUTPUTS[kind]
    zero = 128.0 if kind == "int8" else 0.0
    for order, mean in (("rgb", zero), ("bgr", zero + 3.25)):
        options = {"content": (9, -2, 213, 140), "mean": (mean,) * 3, "channel_order": order}
        found, exact = both(random_frame(name, 640, 360), dtype, (230, 136), **options)
        clipped = exact.clip(np.iinfo(dtype).min, np.iinfo(dtype).max) if kind in ("uint8", "int8") else exact
        assert np.abs(found - clipped).max() <= tolerance


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("memory", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", ["bgr24", "yuv420p"])
def test_padding_can_be_left_alone(name: str, memory: Any, rotation: Any, nest: str) -> None:
    frame = random_frame(name, 300, 200, rotation=rotation)
    for size, content in (((64, 48), (3, 5, 50, 40)), ((40, 30), (-5, -6, 60, 30)), ((6, 5), (9, 1, 4, 2))):
        for rows in (None, (2, 5)):
            outs = [np.full((3, *size[::-1]) if memory == "nchw" else (*size[::-1], 3), -7, np.float32) for _ in "ab"]
            for out, pad_value in zip(outs, (-7.0, None), strict=True):
                kernels.preprocess(frame, out, content=content, interpolation="linear", pad_value=pad_value, rows=rows,
                                   channel_order="rgb", memory_format=memory, **GREY)  # fmt: skip
            np.testing.assert_array_equal(*outs)


def test_arguments_may_be_lists_and_outputs_may_change_between_calls() -> None:
    """What one call leaves behind must not decide another: same shapes, another pitch, type or permission to write."""
    frame = random_frame("bgr24", 300, 200)
    options = {"interpolation": "linear", "pad_value": 0.0, "channel_order": "rgb"}
    wanted, found = np.empty((3, 32, 48), np.float32), np.empty((3, 32, 48), np.float32)
    kernels.preprocess(frame, wanted, content=(0, 0, 48, 32), **options, **GREY)
    lists: Any = {"content": [0, 0, 48, 32], "mean": [0.0] * 3, "std": [1.0] * 3, "roi": [0, 0, 300, 200]}
    kernels.preprocess(frame, found, **lists, **options)
    np.testing.assert_array_equal(found, wanted)
    padded = random_frame("bgr24", 300, 200, pitch=3)
    found[:] = 0
    kernels.preprocess(Frame((padded.planes[0],), frame.format), found, content=(0, 0, 48, 32), **options, **GREY)
    assert compare(padded, (48, 32), (0, 0, 48, 32)) <= TOLERANCE
    found.flags.writeable = False
    with pytest.raises(UsageError, match="writeable False"):
        kernels.preprocess(frame, found, content=(0, 0, 48, 32), **options, **GREY)


def test_bfloat16_rounds_as_ml_dtypes() -> None:
    """The bits of a float32 output, rounded to nearest even, are those of a bfloat16 output and of the reference."""
    frame = random_frame("bgr24", 61, 45)
    options = {
        "content": (0, 0, 40, 33),
        "interpolation": "linear",
        "pad_value": 0.0,
        "channel_order": "rgb",
        **IMAGENET,
    }
    exact, rounded, bits = (np.empty((3, 33, 40), t) for t in (np.float32, ml_dtypes.bfloat16, np.uint16))
    for out in (exact, rounded, bits):
        kernels.preprocess(frame, out, **options)
    np.testing.assert_array_equal(bits, rounded.view(np.uint16))
    np.testing.assert_array_equal(bits, exact.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("name", ["bgr24", "rgba"])
@pytest.mark.parametrize(("dtype", "zero"), [(np.uint8, 0.0), (np.int8, 128.0)])
def test_bytes_that_go_by_without_colour(dtype: Any, zero: float, name: str, interpolation: str) -> None:
    """Packed bytes in, plain bytes out, in both channel orders: a way of its own in the kernel."""
    frame = random_frame(name, 300, 200)
    for order, size in (("rgb", (100, 40)), ("bgr", (300, 200)), ("rgb", (321, 234)), ("bgr", (7, 5))):
        options = {"interpolation": interpolation, "mean": (zero,) * 3, "channel_order": order}
        found, exact = both(frame, dtype, size, content=(0, 0, *size), **options)
        assert np.abs(found - exact).max() <= 0.505


@pytest.mark.parametrize("rotation", [0, 180])
@pytest.mark.parametrize("name", ["bgr24", "rgba"])
def test_packed_rows_are_not_read_past_their_end(name: str, rotation: Any) -> None:
    """16 bytes are read at once. The frame ends where its memory does; what follows may not be touched."""
    channels = len(PIXEL_FORMATS[name].channels)
    for width, height in ((1, 1), (2, 3), (5, 2), (6, 1), (64, 2), (300, 3)):
        size = width * height * channels
        memory = mmap.mmap(-1, mmap.PAGESIZE * 2)
        protect_last_page(memory)
        end = np.frombuffer(memory, np.uint8, size, mmap.PAGESIZE - size)
        end[:] = np.arange(size) % 251
        frame = Frame((end.reshape(height, width, channels),), PIXEL_FORMATS[name], rotation=rotation)
        for interpolation in INTERPOLATIONS:
            for side in (1, 3, 64, 100):
                assert compare(frame, (side, side), (0, 0, side, side), interpolation=interpolation) <= TOLERANCE


def protect_last_page(memory: mmap.mmap) -> None:
    """Any access to the second page from now on is a segmentation fault."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory, mmap.PAGESIZE))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0) == 0


def test_uint8_output_saturates() -> None:
    frame = Frame.from_array(np.array([[[0, 128, 255]]], np.uint8), channels="rgb")
    out = np.empty((3, 1, 2), np.uint8)
    kernels.preprocess(
        frame,
        out,
        content=(0, 0, 1, 1),
        interpolation="linear",
        pad_value=200.0,
        mean=(10.0, 0.0, -10.0),
        std=(1.0, 0.5, 1.0),
        channel_order="rgb",
    )
    assert out[:, 0].tolist() == [[0, 190], [255, 255], [255, 210]]


def test_read_only_reversed_and_padded_planes_are_read_in_place() -> None:
    frame = random_frame("yuv420p", 33, 21, pitch=31)
    upside_down = tuple(np.ascontiguousarray(plane[::-1])[::-1] for plane in frame.planes)
    for plane in upside_down:
        plane.flags.writeable = False
    outs = [np.empty((3, 16, 16), np.float32) for _ in range(2)]
    for planes, out in zip((frame.planes, upside_down), outs, strict=True):
        Preprocess(width=16, height=16)(Frame(planes, frame.format), out)
    np.testing.assert_array_equal(*outs)


def test_planes_of_a_decoder_are_read_in_place() -> None:
    """PyAV's planes: one buffer a plane, rows padded to the decoder's alignment."""
    av = pytest.importorskip("av")
    picture = av.VideoFrame(50, 38, "yuv420p")
    rng = np.random.default_rng(5)
    for plane in picture.planes:
        plane.update(rng.integers(0, 256, plane.buffer_size, dtype=np.uint8).tobytes())
    planes = tuple(np.frombuffer(p, np.uint8).reshape(p.height, p.line_size)[:, : p.width] for p in picture.planes)
    frame = Frame(planes, PIXEL_FORMATS["yuv420p"], owner=picture)
    assert compare(frame, (32, 32), (0, 4, 32, 24)) <= TOLERANCE


def reference_rgb(frame: Frame, width: int, height: int, interpolation: str = "linear") -> np.ndarray[Any, Any]:
    out = np.empty((3, height, width), np.float32)
    kernels.reference.preprocess(
        frame,
        out,
        content=(0, 0, width, height),
        interpolation=interpolation,  # type: ignore[arg-type]
        pad_value=0.0,
        channel_order="rgb",
        **GREY,
    )
    return out.transpose(1, 2, 0)


NAMED = {"linear": cv2.INTER_LINEAR, "nearest": cv2.INTER_NEAREST_EXACT, "area": cv2.INTER_AREA}
SHRINKING = [(33, 20), (97, 61), (40, 60), (48, 30)]


def named_resize(image: np.ndarray[Any, Any], size: tuple[int, int], interpolation: str) -> np.ndarray[Any, Any]:
    if interpolation == "antialias":
        return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))
    return cv2.resize(image, size, interpolation=NAMED[interpolation])


@pytest.mark.parametrize("size", [*SHRINKING, (640, 360), (33, 77), (300, 200)])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_reference_resizes_as_the_named_library(interpolation: str, size: tuple[int, int]) -> None:
    """OpenCV and Pillow round to whole levels, with weights of 8 to 22 bits: within 1 level of the exact result.

    OpenCV's area is another thing where one axis grows.
    """
    image = np.random.default_rng(1).integers(0, 256, (61, 97, 3), dtype=np.uint8)
    found = reference_rgb(Frame.from_array(image, channels="rgb"), *size, interpolation=interpolation)
    wanted = named_resize(image, size, interpolation)
    if interpolation != "area" or size in SHRINKING:
        assert np.abs(found - wanted).max() <= (0 if interpolation == "nearest" else 1)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_kernel_resizes_1080p_as_the_named_library(interpolation: str) -> None:
    """896 of 1920: no output's centre is exactly between two pixels, where OpenCV's 16 bits take either."""
    image = np.random.default_rng(1).integers(0, 256, (1080, 1920, 3), dtype=np.uint8)
    out = np.empty((608, 896, 3), np.uint8)
    kernels.preprocess(
        Frame.from_array(image, channels="rgb"),
        out,
        content=(0, 0, 896, 608),
        interpolation=interpolation,  # type: ignore[arg-type]
        pad_value=0.0,
        channel_order="rgb",
        memory_format="nhwc",
        **GREY,
    )
    wanted = named_resize(image, (896, 608), interpolation)
    difference = np.abs(out.astype(int) - wanted.astype(int))
    assert difference.max() <= (0 if interpolation == "nearest" else 1)


def swscale_rgb(frame: Frame, name: str) -> np.ndarray[Any, Any]:
    """The frame at its own size as (h, w, 3) RGB by swscale at its most accurate, chroma centred."""
    av = pytest.importorskip("av")
    picture = av.VideoFrame(frame.width, frame.height, name)
    for plane, samples in zip(picture.planes, frame.planes, strict=True):
        rows = np.zeros((plane.height, plane.line_size), np.uint8)
        flat = np.ascontiguousarray(samples).reshape(plane.height, -1).view(np.uint8)
        rows[:, : flat.shape[1]] = flat
        plane.update(rows.tobytes())
    graph = pytest.importorskip("av.filter").Graph()
    nodes = [
        graph.add_buffer(width=frame.width, height=frame.height, format=name, time_base=Fraction(1, 25)),
        graph.add(
            "scale",
            f"flags=bilinear+accurate_rnd+full_chroma_int+full_chroma_inp:in_color_matrix={frame.matrix}"
            f":in_range={'full' if frame.full_range else 'limited'}:out_range=full:in_h_chr_pos=128:in_v_chr_pos=128",
        ),
        graph.add("format", "rgb24"),
        graph.add("buffersink"),
    ]
    graph.link_nodes(*nodes).configure()
    graph.push(picture)
    return graph.pull().to_ndarray()


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("name", ["yuv444p", "yuv420p", "nv12", "yuv422p10le"])
def test_reference_converts_colour_as_swscale(name: str, matrix: Any, full_range: bool) -> None:
    """On a smooth picture: within swscale's own rounding (0.5 levels without, 2 with chroma to be resized)."""
    width, height = 64, 48
    form = PIXEL_FORMATS[name.removesuffix("le")]
    waves = ((60, 2, 1), (100, 1, 0), (150, 0, -1))  # value at the top left, slope in x and in y per pixel
    planes = []
    for shape in form.plane_shapes(width, height):
        y, x = np.mgrid[0 : height : height // shape[0], 0 : width : width // shape[1]]
        own = waves[len(planes) :][: shape[2] if len(shape) == 3 else 1]
        values = [(start + right * x + down * y) * (1 << (form.bits - 8)) for start, right, down in own]
        planes.append(np.stack(values, axis=2).astype(form.dtype).reshape(shape))
    frame = Frame(tuple(planes), form, matrix=matrix, full_range=full_range)
    difference = np.abs(reference_rgb(frame, width, height) - swscale_rgb(frame, name))
    assert difference.max() <= 2.0 and difference.mean() <= 0.75


def test_reference_of_known_colours() -> None:
    """Black, white and the primaries of BT.709 limited range, as the standard gives them."""
    codes = {(16, 128, 128): (0, 0, 0), (235, 128, 128): (255, 255, 255), (63, 102, 240): (255, 0, 0)}
    codes |= {(173, 42, 26): (0, 255, 0), (32, 240, 118): (0, 0, 255)}
    for ycc, rgb in codes.items():
        planes = tuple(np.full((1, 1), value, np.uint8) for value in ycc)
        found = reference_rgb(Frame(planes, PIXEL_FORMATS["yuv444p"], matrix="bt709"), 1, 1)
        assert np.abs(found[0, 0] - rgb).max() <= 1.5, (ycc, found)


def bad_calls() -> dict[str, tuple[dict[str, Any], str]]:
    out = np.empty((3, 8, 8), np.float32)
    frozen = out.copy()
    frozen.flags.writeable = False
    return {
        "out channels": ({"out": np.empty((4, 8, 8), np.float32)}, r"\(4, 8, 8\)"),
        "out dtype": ({"out": np.empty((3, 8, 8), np.float64)}, "float64"),
        "out strides": ({"out": np.empty((3, 8, 16), np.float32)[:, :, ::2]}, "strides"),
        "out read-only": ({"out": frozen}, "writeable False"),
        "content": ({"content": (0, 0, 0, 8)}, r"\(0, 0, 0, 8\)"),
        "rows": ({"rows": (4, 9)}, r"\(4, 9\)"),
        "interpolation": ({"interpolation": "cubic"}, "cubic"),
        "memory format": ({"memory_format": "nchwc"}, "nchwc"),
        "nhwc out": ({"memory_format": "nhwc", "out": np.empty((8, 8, 2), np.float32)}, r"\(8, 8, 2\)"),
        "roi outside": ({"roi": (4, 0, 5, 8)}, r"\(4, 0, 5, 8\)"),
        "roi empty": ({"roi": (4, 0, 0, 8)}, r"\(4, 0, 0, 8\)"),
        "channel order": ({"channel_order": "gbr"}, "gbr"),
        "std": ({"std": (1.0, 0.0, 1.0)}, "zero"),
    }


@pytest.mark.parametrize("case", bad_calls())
@pytest.mark.parametrize("implementation", [kernels.preprocess, kernels.reference.preprocess])
def test_bad_arguments_name_the_value(implementation: Any, case: str) -> None:
    change, message = bad_calls()[case]
    arguments = {
        "out": np.empty((3, 8, 8), np.float32),
        "content": (0, 0, 8, 8),
        "interpolation": "linear",
        "pad_value": 0.0,
        "channel_order": "rgb",
        **GREY,
        **change,
    }
    with pytest.raises(UsageError, match=message):
        implementation(random_frame("gray", 8, 8), arguments.pop("out"), **arguments)


def test_samples_that_are_not_adjacent_are_refused() -> None:
    every_second = np.zeros((4, 8), np.uint8)[:, ::2]
    with pytest.raises(UsageError, match="ascontiguousarray"):
        compare(Frame((every_second,), PIXEL_FORMATS["gray"]), (4, 4), (0, 0, 4, 4))


def test_level_is_chosen_by_the_features_of_the_cpu() -> None:
    assert cpu.select("x86_64", cpu.V3_FLAGS)[0] == "x86-64-v3"
    level, reason = cpu.select("x86_64", cpu.V3_FLAGS - {"avx2"})
    assert level == "x86-64-v2" and "avx2" in reason
    assert cpu.select("aarch64", frozenset())[0] == "armv8-a"
    with pytest.raises(CapabilityError, match="riscv64"):
        cpu.select("riscv64", frozenset())
    assert kernels.describe().path.is_file()


def test_avx512_without_vbmi_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, expected in ((cpu.WIDE_FLAGS, True), (cpu.WIDE_FLAGS - {"avx512vbmi"}, False)):
        monkeypatch.setattr(cpu, "_flags", lambda _, flags=flags: flags)
        monkeypatch.setattr(cpu.platform, "machine", lambda: "x86_64")
        cpu.wide.cache_clear()
        assert cpu.wide() is expected
        assert ("v4" in cpu.describe().reason) is expected
    cpu.wide.cache_clear()


RUN_ONE = """
import sys
import numpy as np
from framefuse import kernels
from framefuse.frame import Frame
from framefuse.kernels import cpu
{setup}
out = np.full((3, 4, 4), np.nan, np.float32)
kernels.preprocess(Frame.from_array(np.full((8, 8, 3), 7, np.uint8)), out, content=(0, 0, 4, 4), interpolation="linear",
    pad_value=0.0, mean=(0.0,) * 3, std=(1.0,) * 3, channel_order="rgb")
assert (out == 7).all()
assert "tvm" not in sys.modules
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, where nothing has been imported or loaded."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=False
    )


@pytest.mark.parametrize("setup", ["", "cpu._flags = lambda path: frozenset()"], ids=["best", "x86-64-v2"])
def test_each_level_runs_without_importing_tvm(setup: str) -> None:
    done = run_python(RUN_ONE.format(setup=setup))
    assert done.returncode == 0, done.stderr


def test_a_current_build_is_kept_and_an_unknown_machine_is_refused() -> None:
    before = [path.stat().st_mtime_ns for path in build()]
    assert [path.stat().st_mtime_ns for path in build()] == before
    with pytest.raises(ValueError, match="riscv64"):
        build("riscv64")


@pytest.mark.slow
def test_libraries_of_another_machine_are_built_here(tmp_path: Path) -> None:
    library, _index = build_cpu("aarch64", directory=tmp_path)
    elf_machine = int.from_bytes(library.read_bytes()[18:20], "little")
    assert elf_machine == 183  # EM_AARCH64


def test_a_missing_library_names_the_command_that_builds_it() -> None:
    done = run_python(RUN_ONE.format(setup="cpu.LIBRARIES /= 'absent'"))
    assert "CapabilityError" in done.stderr and "python -m framefuse.kernels.build" in done.stderr
