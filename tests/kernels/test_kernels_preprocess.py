"""kernels.preprocess: the compiled kernel against its numpy reference."""

from __future__ import annotations

import importlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from framefuse import kernels
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.kernels import cpu
from framefuse.kernels.preprocess import plan as plan_module
from framefuse.preprocess import Preprocess
from preprocess_frames import (
    GREY,
    IMAGENET,
    INTERPOLATIONS,
    MATRICES,
    ROTATIONS,
    TOLERANCE,
    compare,
    made_by,
    random_frame,
)

preprocess_module = importlib.import_module(
    "framefuse.kernels.preprocess.call"
)  # the package has a function of its name


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


EVERY_NEST = pytest.mark.parametrize("nest", ["best", "x86-64-v3", "any"], indirect=True)
"""As the first decorator of a test: its other parameters change less often, and the nests share their `exact`."""


@lru_cache(maxsize=4)
def exact(
    name: str,
    source: tuple[int, int],
    size: tuple[int, int],
    content: tuple[int, int, int, int],
    interpolation: str,
    pitch: int = 0,
) -> tuple[Frame, Any]:
    """A frame of a real size, for which the reference takes long, and what the reference makes of it."""
    frame = random_frame(name, *source, pitch=pitch)
    return frame, made_by(kernels.reference.preprocess, frame, size, content, interpolation=interpolation)


def letterbox(width: int, height: int, side: int) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    placement = Preprocess(width=side, height=side).place(width, height)
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


@EVERY_NEST
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
    place = letterbox(width, height, side)
    for interpolation in ("linear", INTERPOLATIONS[width % 4]):
        frame, wanted = exact(name, (width, height), *place, interpolation, pitch=64)
        assert compare(frame, *place, wanted=wanted, interpolation=interpolation) <= TOLERANCE


@EVERY_NEST
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_1080p_stretched_to_a_square(interpolation: str, nest: str) -> None:
    place = (640, 640), (0, 0, 640, 640)
    frame, wanted = exact("nv12", (1920, 1080), *place, interpolation)
    assert compare(frame, *place, wanted=wanted, interpolation=interpolation) <= TOLERANCE


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
    else:  # a few rows of a turned image are too narrow for the nest of the whole one: other roundings
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


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("name", ["yuv420p", "p010", "bgr24"])
def test_region_of_interest(name: str, interpolation: str, rotation: Any) -> None:
    """A region at odd positions, so that chroma samples reach across its edges."""
    frame = random_frame(name, 37, 23, rotation=rotation)
    roi = (3, 5, 13, 11)
    for size, content in (((20, 20), (1, 2, 17, 15)), ((8, 6), (0, 0, 8, 6)), ((13, 11), (0, 0, 13, 11))):
        assert compare(frame, size, content, interpolation=interpolation, roi=roi) <= TOLERANCE


def test_a_region_is_as_a_cropped_image_and_boxes_come_back_from_it() -> None:
    image = np.random.default_rng(3).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    outs = [np.empty((3, 32, 32), np.float32) for _ in range(2)]
    spec, frame = Preprocess(width=32, height=32, interpolation="antialias"), Frame.from_array(image)
    placement = spec(frame, outs[0], spec.place(60, 40, (7, 9, 41, 23)))
    spec(Frame.from_array(image[9:32, 7:48]), outs[1])
    np.testing.assert_array_equal(*outs)
    left, top, width, height = placement.content
    corners = np.array([[left, top, left + width, top + height]], np.float32)
    boxes = (corners - np.tile(placement.offset, 2)) / np.tile(placement.scale, 2)
    np.testing.assert_allclose(boxes, [[7, 9, 48, 32]], atol=1e-4)


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


@EVERY_NEST
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("name", ["yuv420p", "nv12", "bgr24"])
@pytest.mark.parametrize(("width", "height"), [(1366, 768), (1440, 1080), (1918, 1078)])
def test_bytes_of_real_sizes(name: str, width: int, height: int, interpolation: str, nest: str) -> None:
    """At most one value in a thousand is rounded the other way, of those that are not halfway between two levels."""
    size, content = letterbox(width, height, 640)
    frame, wanted = exact(name, (width, height), size, content, interpolation)
    found = np.full(wanted.shape, 99, np.uint8)
    kernels.preprocess(
        frame, found, content=content, interpolation=interpolation, pad_value=114.0, channel_order="rgb", **GREY
    )
    clear = np.abs(wanted % 1 - 0.5) > 1e-4
    assert np.abs(found - wanted).max() <= 0.505
    assert (found != np.floor(wanted + 0.5))[clear].mean() <= 0.001


PLACEMENTS = (
    ((300, 200), (0, 0, 300, 200)),
    ((500, 90), (11, 5, 477, 80)),
    ((400, 400), (-30, -41, 470, 490)),
    ((61, 40), (20, 1, 33, 37)),
    ((70, 17), (0, 0, 70, 17)),
    ((1100, 300), (0, 0, 1100, 300)),
)
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"roi": (7, 3, 281, 250), "channel_order": "bgr"},
    {"memory_format": "nhwc", "interpolation": "nearest"},
)
LARGE = ("bgr24", "rgba", "nv12", "nv21", "yuv420p", "yuv411p", "yuv444p", "gbrp", "gray")
FAST = [(name, 0) for name in ("bgr24", "rgba", "nv12", "yuv420p", "gbrp")]
FAST += [("bgr24", 180), ("nv12", 90), ("yuv420p", 270)]
"""What is in the fast suite: formats of each number of planes, and every rotation of one."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(param, marks=() if param in FAST else pytest.mark.slow)
        for param in itertools.product(LARGE, ROTATIONS)
    ],
    ids=lambda param: "{}-{}".format(*param),
)
def large(request: pytest.FixtureRequest) -> tuple[Frame, list[Any]]:
    """An image, and what the reference makes of it: once for all nests, since that takes longest."""
    name, rotation = request.param
    frame = random_frame(name, 1100, 300, pitch=5, rotation=rotation)
    every = [(*place, options) for place in PLACEMENTS for options in WAYS]
    return frame, [(*given, made_by(kernels.reference.preprocess, frame, *given[:2], **given[2])) for given in every]


@pytest.mark.slow
def test_every_placement_of_large_images(large: tuple[Frame, list[Any]], nest: str) -> None:
    """Wide enough for windows of 128 bytes, at scales that need one or two of them, or are too large for any."""
    frame, every = large
    for size, content, options, wanted in every:
        assert compare(frame, size, content, wanted=wanted, **options) <= TOLERANCE, (size, content, options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float16", "bfloat16 bits", "uint8", "int8"])
@pytest.mark.parametrize("name", ["bgr24", "nv12", "yuv420p", "gray"])
def test_other_output_types_of_large_images(name: str, kind: str, nest: str) -> None:
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
