"""Warps, remaps, flips and stereo splits: every implementation against the reference, and that against OpenCV."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import cv2
import numpy as np
import pytest

from cuda_fibres import Fibres
from cuda_on_cpu import install, on_device
from framefuse.errors import UsageError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.kernels.geometry import call as geometry
from framefuse.kernels.geometry import reference
from framefuse.kernels.geometry.call import flip, remap, split_stereo, warp_affine, warp_perspective
from framefuse.kernels.geometry.projections import (
    equirectangular_to_fisheye,
    equirectangular_to_perspective,
    fisheye_to_perspective,
)

Move = Callable[[np.ndarray[Any, Any]], Any]


def noise(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


def smooth(height: int, width: int) -> np.ndarray[Any, Any]:
    """An image whose steps are small, so that OpenCV's positions of 1/32 pixel do little harm."""
    return cv2.GaussianBlur(noise((height, width, 3), np.uint8), (0, 0), 4)


def turned(width: int, height: int) -> np.ndarray[Any, Any]:
    return cv2.getRotationMatrix2D((width / 2, height / 2), 17, 1.1)


@pytest.fixture(
    params=["cpu", pytest.param("loops", marks=pytest.mark.slow), pytest.param("gpu", marks=pytest.mark.gpu)]
)
def move(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Move:
    """Puts an array where the implementation under test runs: compiled, generated CUDA in loops, or on a GPU."""
    if request.param == "cpu":
        return lambda array: array
    if request.param == "gpu":
        cupy = pytest.importorskip("cupy")
        return lambda array: cupy.asarray(array)
    if shutil.which("g++") is None:
        pytest.skip("g++ stands in for the GPU")
    install(monkeypatch, Fibres)
    return on_device


def host(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array.get() if hasattr(array, "get") else array)


def agree(found: Any, wanted: np.ndarray[Any, Any], exact: bool = False) -> None:
    """uint8: one level on 0.1 % of the samples (but one sample is forgiven). Float: 0.01 levels."""
    difference = np.abs(host(found).astype(np.float64) - wanted)
    assert host(found).shape == wanted.shape
    if wanted.dtype == np.uint8:
        assert difference.max() <= (0 if exact else 1)
        assert (difference > 0).sum() <= max(1, 1e-3 * difference.size)
    else:
        assert difference.max() <= (0 if exact else 0.01)


SHAPES = [((1, 1, 3), "HWC"), ((7, 5), "HWC"), ((33, 47, 3), "HWC"), ((20, 31, 4), "HWC"), ((19, 40, 1), "HWC")]
SHAPES += [((2, 24, 36, 3), "HWC"), ((3, 17, 21), "CHW"), ((2, 4, 12, 16), "CHW")]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(("shape", "layout"), SHAPES)
def test_warps_match_the_reference(move: Move, shape: tuple[int, ...], layout: Any, dtype: Any) -> None:
    image = noise(shape, dtype)
    planar = layout == "CHW" or len(shape) == 2
    height, width = shape[-2:] if planar else shape[-3:-1]
    channels = 1 if len(shape) == 2 else shape[-3] if planar else shape[-1]
    affine = turned(width, height)
    homography = np.vstack([affine, (1e-3, -2e-3, 1)])
    rng = np.random.default_rng(3)
    maps = [rng.uniform(-3, size + 3, (11, 24)).astype(np.float32) for size in (width, height)]
    maps[0][2, 3], maps[1][4, 5], maps[0][6, 7] = np.nan, np.inf, -np.inf
    for border in ("constant", "replicate"):
        for interpolation in ("linear", "nearest"):
            options: dict[str, Any] = {"border": border, "interpolation": interpolation, "layout": layout}
            options["value"] = tuple(range(100, 100 + channels))
            exact = interpolation == "nearest"
            for inverse, size in ((False, None), (True, (width + 5, height + 2)), (True, (24, 8))):
                agree(
                    warp_affine(move(image), affine, inverse=inverse, size=size, **options),
                    reference.warp_affine(image, affine, inverse=inverse, size=size, **options),
                    exact,
                )
                agree(
                    warp_perspective(move(image), homography, inverse=inverse, size=size, **options),
                    reference.warp_perspective(image, homography, inverse=inverse, size=size, **options),
                )
            agree(remap(move(image), *map(move, maps), **options), reference.remap(image, *maps, **options), exact)


TILES = [  # height and width of the source, of the result, degrees, zoom, border
    ((96, 112), (112, 96), 7, 0.9, "constant"),
    ((96, 112), (100, 70), -50, 1.1, "replicate"),
    ((40, 48), (64, 100), 90, 1.0, "constant"),
    ((130, 160), (160, 130), 180, 1.5, "constant"),
    ((17, 16), (40, 33), 3, 0.8, "replicate"),
]


@pytest.mark.parametrize(("source", "size", "degrees", "zoom", "border"), TILES)
def test_turns_of_aligned_images(
    move: Move, source: tuple[int, int], size: tuple[int, int], degrees: float, zoom: float, border: Any
) -> None:
    images = noise((2, *source, 3), np.uint8, 1)
    matrix = cv2.getRotationMatrix2D((source[1] / 2, source[0] / 2), degrees, zoom)
    options: dict[str, Any] = {"size": size, "border": border, "value": (1.0, 2.0, 200.0)}
    for found, image in zip(host(warp_affine(move(images), matrix, **options)), images, strict=True):
        agree(found, reference.warp_affine(image, matrix, **options))


@pytest.mark.parametrize("interpolation", ["linear", "nearest"])
def test_whole_pixels_are_moved_exactly(move: Move, interpolation: Any) -> None:
    image = noise((37, 41, 3), np.uint8)
    same = warp_affine(move(image), np.eye(2, 3), interpolation=interpolation)
    assert np.array_equal(host(same), image)
    mirrored = warp_affine(move(image), [[-1, 0, 40], [0, 1, 0]], interpolation=interpolation)
    assert np.array_equal(host(mirrored), image[:, ::-1])
    shifted = host(warp_affine(move(image), [[1, 0, 3], [0, 1, 2]], interpolation=interpolation, value=9))
    assert np.array_equal(shifted[2:, 3:], image[:-2, :-3])
    assert (shifted[:2] == 9).all() and (shifted[:, :3] == 9).all()


def test_positions_hold_at_4097_pixels(move: Move) -> None:
    """A black-to-white edge shows the error of a position as 255 grey levels a pixel."""
    image = np.zeros((3, 4097), np.float32)
    image[:, ::2] = 255
    matrix = [[1.0001234567, 0.01, 0.3], [0, 1, 0.25]]
    agree(
        warp_affine(move(image), matrix, border="replicate"), reference.warp_affine(image, matrix, border="replicate")
    )


def test_pitch_out_and_views(move: Move) -> None:
    wide = noise((30, 64, 3), np.uint8)
    backing, target = move(wide), move(np.zeros((40, 80, 3), np.uint8))
    matrix = turned(50, 30)
    view, window = backing[:, 5:55], target[3:33, 7:57]
    assert warp_affine(view, matrix, window) is window
    agree(window, reference.warp_affine(wide[:, 5:55], matrix))
    outside = host(target).copy()
    outside[3:33, 7:57] = 0
    assert not outside.any()
    agree(warp_affine(flip(view, vertical=True), matrix), reference.warp_affine(wide[::-1, 5:55], matrix))


@pytest.mark.parametrize("border", ["constant", "replicate"])
def test_reference_is_opencv_within_its_rounding(border: Any) -> None:
    image = smooth(120, 160)
    mode = {"constant": cv2.BORDER_CONSTANT, "replicate": cv2.BORDER_REPLICATE}[border]
    matrix = turned(160, 120)
    homography = np.vstack([matrix, (1e-4, 2e-4, 1)])
    size = (150, 130)
    y, x = np.mgrid[:130, :150].astype(np.float32)
    map_x, map_y = x * 1.1 - 3 + 2 * np.sin(y / 9), y * 0.9 + 5 * np.cos(x / 11)
    pairs = [
        (warp_affine(image, matrix, size=size, border=border), cv2.warpAffine(image, matrix, size, borderMode=mode)),
        (
            warp_perspective(image, homography, size=size, border=border),
            cv2.warpPerspective(image, homography, size, borderMode=mode),
        ),
        (remap(image, map_x, map_y, border=border), cv2.remap(image, map_x, map_y, cv2.INTER_LINEAR, borderMode=mode)),
    ]
    for found, wanted in pairs:
        difference = np.abs(found.astype(int) - wanted)
        # Its positions are multiples of 1/32 pixel, which at the border of a constant makes several levels.
        assert np.percentile(difference, 97) <= 1 and difference.max() <= (8 if border == "constant" else 2)


def test_wrong_arguments_are_named(move: Move) -> None:
    image = move(noise((8, 9, 3), np.uint8))
    wrong: list[tuple[str, Callable[[], Any]]] = [
        ("no inverse", lambda: warp_affine(image, np.zeros((2, 3)))),
        ("finite", lambda: warp_affine(image, [[1, 0, np.nan], [0, 1, 0]])),
        ("finite", lambda: warp_perspective(image, np.eye(2))),
        ("pixels away|entry", lambda: warp_affine(image, [[1, 0, 2.0**31], [0, 1, 0]])),
        ("interpolation", lambda: warp_affine(image, np.eye(2, 3), interpolation="cubic")),  # type: ignore[arg-type]
        ("border", lambda: warp_affine(image, np.eye(2, 3), border="wrap")),  # type: ignore[arg-type]
        ("layout", lambda: warp_affine(image, np.eye(2, 3), layout="NHWC")),  # type: ignore[arg-type]
        ("value", lambda: warp_affine(image, np.eye(2, 3), value=(1, 2))),
        ("0..255", lambda: warp_affine(image, np.eye(2, 3), value=256)),
        ("size", lambda: warp_affine(image, np.eye(2, 3), size=(0, 4))),
        ("adjacent", lambda: warp_affine(image[:, ::-1], np.eye(2, 3))),
        ("out is", lambda: warp_affine(image, np.eye(2, 3), move(np.zeros((8, 9, 4), np.uint8)))),
        ("map_x", lambda: remap(image, move(np.zeros((4, 4))), move(np.zeros((4, 4), np.float32)))),
        ("float64", lambda: warp_affine(move(np.zeros((4, 4))), np.eye(2, 3))),
    ]
    for message, call in wrong:
        with pytest.raises(UsageError, match=message):
            call()


def test_in_place_and_read_only_are_refused() -> None:
    image = noise((8, 9, 3), np.uint8)
    with pytest.raises(UsageError, match="overlaps"):
        warp_affine(image, np.eye(2, 3), image)
    out = np.zeros_like(image)
    out.flags.writeable = False
    with pytest.raises(UsageError, match="read-only"):
        warp_affine(image, np.eye(2, 3), out)


def test_flips_are_views() -> None:
    image = noise((5, 7, 3), np.uint8)
    assert np.shares_memory(flip(image, horizontal=True, vertical=True), image)
    assert np.array_equal(flip(image, horizontal=True), image[:, ::-1])
    planar = image.transpose(2, 0, 1)
    assert np.array_equal(flip(planar, vertical=True, layout="CHW"), planar[:, ::-1])
    out = np.empty_like(image)
    assert flip(image, out, vertical=True) is out and np.array_equal(out, image[::-1])


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "p010", "rgb24", "gray"])
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("arrangement", ["side-by-side", "top-bottom"])
def test_stereo_halves_are_views_of_what_is_shown(name: str, rotation: Any, arrangement: Any) -> None:
    form = PIXEL_FORMATS[name]
    planes = tuple(noise(shape, form.dtype, k) for k, shape in enumerate(form.plane_shapes(16, 8)))
    frame = Frame(planes, form, rotation=rotation, pts=7, time_base=Fraction(1, 30))

    def shown(some: Frame) -> np.ndarray[Any, Any]:
        return np.rot90(some.planes[0], -some.rotation // 90)

    halves = split_stereo(frame, arrangement)
    axis = 1 if arrangement == "side-by-side" else 0
    assert np.array_equal(np.concatenate([shown(half) for half in halves], axis), shown(frame))
    for half in halves:
        assert half.pts == 7 and half.owner is frame
        assert all(np.shares_memory(a, b) for a, b in zip(half.planes, planes, strict=True))


def test_stereo_needs_whole_chroma_samples() -> None:
    def frame(name: str, width: int) -> Frame:
        form = PIXEL_FORMATS[name]
        return Frame(tuple(np.zeros(shape, form.dtype) for shape in form.plane_shapes(width, 6)), form)

    with pytest.raises(UsageError, match="multiple of 4"):
        split_stereo(frame("yuv420p", 18), "side-by-side")
    with pytest.raises(UsageError, match="multiple of 2"):
        split_stereo(frame("rgb24", 9), "side-by-side")
    split_stereo(frame("rgb24", 18), "side-by-side")


def test_equirectangular_table() -> None:
    """Forward is the middle of the panorama; turned by 90 degrees, a quarter further; the corners obey the formula."""
    source = (400, 200)
    map_x, map_y = equirectangular_to_perspective(source, (65, 49), horizontal_fov=90)
    assert map_x.shape == (49, 65) and map_x.dtype == np.float32
    assert (map_x[24, 32], map_y[24, 32]) == pytest.approx((199.5, 99.5))
    assert map_x[24, -1] == pytest.approx(199.5 + 400 * np.arctan(64 / 65) / (2 * np.pi), abs=1e-3)
    right = equirectangular_to_perspective(source, (65, 49), horizontal_fov=90, yaw=90)
    assert (right[0][24, 32], right[1][24, 32]) == pytest.approx((299.5, 99.5))
    up = equirectangular_to_perspective(source, (65, 49), horizontal_fov=90, pitch=30)
    assert up[1][24, 32] == pytest.approx(99.5 - 200 * 30 / 180, abs=1e-3)
    half = equirectangular_to_perspective(source, (65, 49), horizontal_fov=90, yaw=45, span=180)
    assert half[0][24, 32] == pytest.approx(299.5, abs=1e-3)


@pytest.mark.parametrize("projection", ["equidistant", "equisolid", "stereographic", "orthographic"])
def test_fisheye_table(projection: Any) -> None:
    """The axis is the centre; the edge of the circle is at half of its field of view; beyond it there is nothing."""
    map_x, map_y = fisheye_to_perspective((200, 200), (41, 41), horizontal_fov=60, fov=180, projection=projection)
    assert (map_x[20, 20], map_y[20, 20]) == pytest.approx((99.5, 99.5))
    aside = fisheye_to_perspective((200, 200), (41, 41), horizontal_fov=60, fov=180, projection=projection, yaw=89.999)
    assert aside[0][20, 20] == pytest.approx(199.5, abs=1e-2)
    assert np.isnan(aside[0][20, -1])
    image = remap(np.full((200, 200), 200, np.uint8), *aside, value=3)
    assert image[20, -1] == 3 and image[20, 0] == 200


def test_a_panorama_as_fisheye() -> None:
    """The middle stays; 90 degrees aside and up are the edges of VR180; beyond the circle is nothing."""
    map_x, map_y = equirectangular_to_fisheye((400, 400), (201, 201), fov=180, span=180)
    np.testing.assert_allclose((map_x[100, 100], map_y[100, 100]), (199.5, 199.5), atol=1e-3)
    for x in range(0, 201, 20):
        along = (x - 100) / 100.5 * 200
        np.testing.assert_allclose((map_x[100, x], map_y[100, x]), (199.5 + along, 199.5), atol=0.01)
        np.testing.assert_allclose(map_y[x, 100], 199.5 + along, atol=0.01)
    assert np.isnan(map_x[0, 0]) and np.isnan(map_y[200, 200])
    wide = equirectangular_to_fisheye((400, 400), (201, 201), fov=190, span=180)[0]
    assert wide[100, 0] < -5, "the outermost five degrees are outside of VR180"


def test_tables_refuse_impossible_views() -> None:
    with pytest.raises(UsageError, match="horizontal_fov"):
        equirectangular_to_perspective((400, 200), (64, 48), horizontal_fov=180)
    with pytest.raises(UsageError, match="projection"):
        fisheye_to_perspective((9, 9), (4, 4), horizontal_fov=60, projection="flat")  # type: ignore[arg-type]


@pytest.mark.gpu
def test_captured_graph_replays() -> None:
    cupy = pytest.importorskip("cupy")
    image = cupy.asarray(noise((64, 64, 3), np.uint8))
    out = cupy.empty_like(image)
    warp_affine(image, turned(64, 64), out)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        warp_affine(image, turned(64, 64), out)
        graph = stream.end_capture()
        image[:] = cupy.asarray(noise((64, 64, 3), np.uint8, 1))
        graph.launch(stream)
    stream.synchronize()
    agree(out, reference.warp_affine(noise((64, 64, 3), np.uint8, 1), turned(64, 64)))


def test_every_public_function_has_a_docstring() -> None:
    assert all(getattr(geometry, name).__doc__ for name in ("warp_affine", "warp_perspective", "remap", "flip"))
