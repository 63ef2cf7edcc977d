"""Mask kernels against their reference, and against numpy, OpenCV and pycocotools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from cuda_on_cpu import on_device
from framefuse.cuda.launch_plan import graph_memory
from framefuse.errors import UsageError
from framefuse.frame import PIXEL_FORMATS
from framefuse.kernels.drawing import call as drawing
from framefuse.kernels.masks import call as masks
from framefuse.kernels.masks import instances, reference

coco = pytest.importorskip("pycocotools.mask")

Move = Callable[[NDArray[Any]], Any]

SIZES = [(1, 1), (1, 7), (9, 1), (33, 61), (5, 4097), (135, 240)]


@pytest.fixture(params=["cpu", "fibres", pytest.param("cuda", marks=pytest.mark.gpu)])
def move(request: pytest.FixtureRequest) -> Move:
    """Puts an array where the kernels under test run; padded rows stay padded."""
    if request.param == "cpu":
        return lambda array: array
    if request.param == "fibres":
        request.getfixturevalue("fibres")
        return on_device
    cupy = pytest.importorskip("cupy")

    def to_device(array: NDArray[Any]) -> Any:
        if array.flags.c_contiguous or not isinstance(array.base, np.ndarray):
            return cupy.asarray(array)
        return cupy.asarray(array.base)[tuple(slice(size) for size in array.shape)]

    return to_device


def host(array: Any) -> NDArray[Any]:
    return np.asarray(array.get() if hasattr(array, "get") else array)


def pitched(array: NDArray[Any], extra: int = 5) -> NDArray[Any]:
    """The same values with `extra` elements between the rows."""
    wide = np.empty((*array.shape[:-1], array.shape[-1] + extra), array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide[..., : array.shape[-1]]


def blobs(size: tuple[int, int], seed: int = 0) -> NDArray[np.uint8]:
    noise = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    return (cv2.GaussianBlur(noise, (7, 7), 2) > 0).reshape(size).astype(np.uint8) * 255


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("classes", [1, 2, 21, 256])
def test_argmax_is_numpys_with_the_lowest_class_on_ties(size: tuple[int, int], classes: int, move: Move) -> None:
    # Few distinct values, so that ties are common.
    scores = np.random.default_rng(1).integers(-3, 3, (2, classes, *size)).astype(np.float32)
    found = host(masks.argmax(move(scores)))
    np.testing.assert_array_equal(found, scores.argmax(axis=1))
    np.testing.assert_array_equal(found, reference.argmax(scores))
    np.testing.assert_array_equal(host(masks.argmax(move(scores), foreground=1)), np.where(found == 1, 255, 0))


def test_argmax_of_infinities_nans_and_a_view_of_rows(move: Move) -> None:
    scores = np.random.default_rng(2).standard_normal((1, 5, 40, 30)).astype(np.float32)
    scores[0, 1, :3], scores[0, 2, 5:9], scores[0, :, 11] = np.inf, np.nan, -np.inf
    expected = reference.argmax(scores)
    np.testing.assert_array_equal(host(masks.argmax(move(scores))), expected)
    there, out = move(scores), move(np.zeros((1, 40, 30), np.uint8))
    for first, last in ((0, 13), (13, 40)):
        masks.argmax(there[:, :, first:last], out=out[:, first:last])
    np.testing.assert_array_equal(host(out), expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("radius", [0, 1, 3, 64])
def test_box_blur_of_uint8_is_exact(size: tuple[int, int], radius: int, move: Move) -> None:
    mask = np.random.default_rng(3).integers(0, 256, size, np.uint8)
    found = host(masks.box_blur(move(pitched(mask)), radius))
    side = 2 * radius + 1
    rows = np.pad(mask.astype(np.int64), radius, mode="edge")
    sums = np.lib.stride_tricks.sliding_window_view(rows, (side, side)).sum((2, 3)) if mask.size < 9999 else None
    if sums is not None:
        np.testing.assert_array_equal(found, (2 * sums + side * side) // (2 * side * side))
    expected = cv2.blur(mask, (side, side), borderType=cv2.BORDER_REPLICATE).reshape(size)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sigma", [0.6, 2.0])
def test_gaussian_blur_agrees_with_the_reference_and_opencv(size: tuple[int, int], sigma: float, move: Move) -> None:
    mask = blobs(size)
    weights = reference.gaussian_weights(sigma)
    exact = reference.smooth(mask, weights)
    found = host(masks.gaussian_blur(move(pitched(mask)), sigma))
    off = np.abs(found.astype(int) - np.floor(exact + 0.5))
    assert off.max() <= 1 and (off > 0).mean() <= 0.001
    peer = cv2.GaussianBlur(mask, (len(weights),) * 2, sigma, borderType=cv2.BORDER_REPLICATE).reshape(size)
    assert np.abs(found.astype(int) - peer).max() <= 2  # OpenCV's weights are 8-bit fractions
    np.testing.assert_allclose(host(masks.gaussian_blur(move(mask.astype(np.float32)), sigma)), exact, atol=2e-4)
    np.testing.assert_allclose(host(masks.matte(move(mask), sigma)), exact / 255, atol=1e-6)


def test_smoothing_takes_batches(move: Move) -> None:
    mask = np.stack([blobs((50, 31), seed) for seed in range(3)])
    found = host(masks.box_blur(move(mask), 4))
    for plane, single in zip(mask, found, strict=True):
        np.testing.assert_array_equal(single, masks.box_blur(plane, 4))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("size", SIZES)
def test_ema(dtype: Any, size: tuple[int, int], move: Move) -> None:
    mask = blobs(size).astype(dtype)
    state = np.random.default_rng(4).uniform(0, 255, size).astype(np.float32)
    expected = reference.ema(mask, state, 0.3)
    there = move(state)
    assert masks.ema(move(pitched(mask)), there, 0.3) is there
    np.testing.assert_allclose(host(there), expected, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("source", [(1, 1), (7, 9), (40, 3), (1, 64)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("part", [None, (0.1, 0.3, 0.8, 0.45)])
def test_upsample(dtype: Any, source: tuple[int, int], size: tuple[int, int], part: Any, move: Move) -> None:
    plane = np.random.default_rng(5).uniform(0, 255, source).astype(dtype)
    content = part and tuple(float(f * source[1 - k % 2]) for k, f in enumerate(part))
    found = host(masks.upsample(move(pitched(plane)), size, content=content))
    exact = reference.upsample(plane, size, content=content)
    if dtype == np.float32:
        np.testing.assert_allclose(found, exact, atol=2e-3)
    else:
        # Rounded to nearest. Simple ratios make many exact halves, which float32 taps may round either way.
        np.testing.assert_allclose(found, exact, atol=0.5 + 1e-4, rtol=0)
    if part is None and dtype == np.float32:
        peer = cv2.resize(plane, size[::-1], interpolation=cv2.INTER_LINEAR)
        np.testing.assert_allclose(found, peer.reshape(size), atol=0.05)


@pytest.mark.parametrize("source", [(1, 1), (7, 9), (40, 3)])
@pytest.mark.parametrize("size", [*SIZES, (300, 700)])
@pytest.mark.parametrize("part", [None, (0.1, 0.3, 0.8, 0.45)])
def test_classes_are_the_argmax_of_upsampled_scores(
    source: tuple[int, int], size: tuple[int, int], part: Any, move: Move
) -> None:
    scores = np.random.default_rng(6).standard_normal((2, 11, *source)).astype(np.float32)
    scores[0, 3] = scores[0, 5]  # a tie everywhere
    scores[1, 2, 0, 0] = np.nan
    content = part and tuple(float(f * source[1 - k % 2]) for k, f in enumerate(part))
    found = host(masks.classes(move(scores), size, content=content))
    stretched = [host(masks.upsample(move(item), size, content=content)) for item in scores]
    np.testing.assert_array_equal(found, reference.argmax(np.stack(stretched)))


def test_classes_of_a_part_of_an_array(move: Move) -> None:
    whole = np.random.default_rng(7).standard_normal((3, 4, 12, 20)).astype(np.float32)
    out = move(np.full((2, 30, 40), 9, np.uint8))
    found = masks.classes(move(whole)[1:, :3, 2:, 4:], (30, 40), out=out)
    assert found is out
    np.testing.assert_array_equal(host(out), host(masks.classes(move(whole[1:, :3, 2:, 4:].copy()), (30, 40))))


def scene(n: int, samples: tuple[int, int], size: tuple[int, int], channels: int = 8) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(6)
    noise = rng.standard_normal((channels, *samples)).astype(np.float32)
    prototypes = np.stack([cv2.GaussianBlur(plane, (7, 7), 2).reshape(samples) for plane in noise])
    coefficients = rng.standard_normal((n, channels)).astype(np.float32)
    extent = np.array(size[::-1])
    centre, half = rng.uniform(-0.1, 1.1, (n, 2)) * extent, rng.uniform(0, 0.4, (n, 2)) * extent
    boxes = np.concatenate((centre - half, centre + half), axis=1).astype(np.float32)
    if n > 4:
        boxes[0] = 0, 0, *extent  # all of the image
        boxes[1] = 3, 3, 3, 9  # no area
        boxes[2] = np.nan, 0, 5, 5
        boxes[3] = extent[0] + 2, 1, extent[0] + 9, 7  # outside
        boxes[4] = -np.inf, -5, np.inf, extent[1] * 2
    return prototypes, coefficients, boxes


SCENES = [
    (9, (40, 40), (135, 240)),
    (6, (1, 1), (1, 1)),
    (6, (7, 9), (33, 61)),
    (7, (20, 30), (10, 13)),
    (6, (5, 64), (2, 4097)),
    (6, (3, 50), (9, 2)),
    (0, (4, 4), (8, 8)),
]


@pytest.mark.parametrize(("n", "samples", "size"), SCENES)
@pytest.mark.parametrize("crop", ["image", "prototypes"])
@pytest.mark.parametrize(
    ("part", "whole"),
    [(None, 0), ((0.02, 0.2, 0.9, 0.6), 0), ((0, 0, 1, 0.5), 0), ((0, 0.3, 1, 0.5), 2), ((0.2, 0, 0.7, 0.9), 4)],
)
def test_instances(
    n: int, samples: tuple[int, int], size: tuple[int, int], crop: Any, part: Any, whole: int, move: Move
) -> None:
    """Also where the content begins or ends at a half or a quarter of a sample, so that logits are enlarged."""
    prototypes, coefficients, boxes = scene(n, samples, size)
    content = part and tuple(float(f * samples[1 - k % 2]) for k, f in enumerate(part))
    if whole:
        left, top, width, height = (round(value * whole) for value in content)
        content = left / whole, top / whole, max(width, 1) / whole, max(height, 1) / whole
    expected = reference.instance_masks(prototypes, coefficients, boxes, size, content=content, crop=crop)
    arguments = move(prototypes), move(coefficients), move(boxes), size
    found = host(instances.instance_masks(*arguments, content=content, crop=crop))
    assert (found != expected).sum() <= 0.001 * found.size
    # Every other form is exactly that mask.
    runs = instances.instance_runs(*arguments, content=content, crop=crop)
    assert runs.to_coco() == instances.mask_runs(found).to_coco()
    labels = host(instances.instance_labels(*arguments, content=content, crop=crop))
    top = np.where(found.any(axis=0), found.argmax(axis=0) + 1, 0) if n else np.zeros(size)
    np.testing.assert_array_equal(labels, top)
    out = move(pitched(np.full((n, *size), 7, np.uint8)))
    np.testing.assert_array_equal(
        host(instances.instance_masks(*arguments, content=content, crop=crop, out=out)), found
    )


def test_instances_follow_the_steps_of_the_training_framework() -> None:
    """process_mask(upsample=True) and process_mask_native, written out with numpy and OpenCV."""
    prototypes, coefficients, boxes = scene(9, (40, 40), (160, 160))
    logits = (coefficients @ prototypes.reshape(8, -1)).reshape(9, 40, 40)

    def cropped(values: NDArray[Any], around: NDArray[Any]) -> NDArray[Any]:
        y, x = np.mgrid[: values.shape[1], : values.shape[2]]
        x1, y1, x2, y2 = (around[:, k, None, None] for k in range(4))
        return values * ((x >= x1) & (x < x2) & (y >= y1) & (y < y2))

    steps = np.stack([cv2.resize(plane, (160, 160)) for plane in cropped(logits, boxes * np.float32(0.25))]) > 0
    found = instances.instance_masks(prototypes, coefficients, boxes, (160, 160), crop="prototypes")
    assert (found != steps).mean() <= 0.001
    assert found.sum() > 1000

    size = 120, 213  # letterboxed into 160 x 160: 35 rows of padding above and below are 8.75 samples
    left, top, width, height = 0, 9, 40, 22  # in whole samples, rounded as `scale_masks` does
    inner = logits[:, top : top + height, left : left + width]
    steps = cropped(np.stack([cv2.resize(plane, size[::-1]) for plane in inner]), boxes) > 0
    found = instances.instance_masks(prototypes, coefficients, boxes, size, content=(left, top, width, height))
    assert (found != steps).mean() <= 0.001

    # 3 and 6 rows of padding are no whole samples: logits four and two times as large are cut and stretched.
    for rows, factor in ((3, 4), (6, 2)):
        size = 160 - 2 * rows, 160
        large = [cv2.resize(plane, (40 * factor, 40 * factor)) for plane in logits]
        cut = rows * factor // 4
        inner = np.stack([cv2.resize(plane[cut : len(plane) - cut], size[::-1]) for plane in large])
        steps = cropped(inner, boxes) > 0
        found = instances.instance_masks(
            prototypes, coefficients, boxes, size, content=(0, rows / 4, 40, 40 - rows / 2)
        )
        assert (found != steps).mean() <= 0.001


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools' decode
@pytest.mark.parametrize("size", [*SIZES, (70, 64), (64, 65)])
@pytest.mark.parametrize("kind", ["empty", "full", "blobs", "noise", "stripes", "corner"])
def test_runs_and_their_text_are_those_of_pycocotools(size: tuple[int, int], kind: str, move: Move) -> None:
    mask = {
        "empty": np.zeros(size, np.uint8),
        "full": np.ones(size, np.uint8),
        "blobs": blobs(size),
        "noise": np.random.default_rng(7).integers(0, 2, size, np.uint8),
        "stripes": np.broadcast_to(np.arange(size[1]) % 2, size).astype(np.uint8),
        "corner": np.eye(*size, dtype=np.uint8)[::-1, ::-1],
    }[kind]
    both = pitched(np.stack([mask, mask == 0]).astype(np.uint8), 3)
    runs = instances.mask_runs(move(both), capacity=mask.size + 1)
    lengths = reference.runs(mask)
    assert host(runs.lengths).ravel()[: len(lengths)].tolist() == lengths
    expected = coco.encode(np.asfortranarray(mask > 0).view(np.uint8))
    assert runs.to_coco()[0] == expected
    assert reference.run_text(lengths) == expected["counts"]
    np.testing.assert_array_equal(coco.decode(runs.to_coco()), np.stack([mask > 0, mask == 0], axis=2))


def test_runs_of_no_masks(move: Move) -> None:
    assert instances.mask_runs(move(np.zeros((0, 4, 5), np.bool_))).to_coco() == []


def image(name: str, size: tuple[int, int]) -> tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    """Planes of an image with pitch, and its components as 2-D views."""
    rng = np.random.default_rng(8)
    kind = PIXEL_FORMATS[name]
    shapes = kind.plane_shapes(size[1], size[0])
    planes = []
    for shape in shapes:
        rows = rng.integers(0, 256, (shape[0], 2 * shape[1] + 6), np.uint8)
        flat = rows[:, : int(np.prod(shape[1:]))]
        pitches = (rows.strides[0], 2, 1) if len(shape) == 3 else (rows.strides[0], 1)
        planes.append(np.lib.stride_tricks.as_strided(flat, shape, pitches))
    if kind.layout == "planar":
        return planes, planes
    u, v = planes[1][:, :, 0], planes[1][:, :, 1]
    return planes, [planes[0], v, u] if kind.channels == "vu" else [planes[0], u, v]


def components_of(planes: list[Any], name: str) -> list[NDArray[Any]]:
    """Y, U and V on the host."""
    y, *chroma = (host(plane) for plane in planes)
    if name == "yuv420p":
        return [y, *chroma]
    order = (1, 0) if name == "nv21" else (0, 1)
    return [y, *(chroma[0][:, :, k] for k in order)]


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "nv21"])
@pytest.mark.parametrize("size", [*SIZES, (64, 130)])
def test_overlay(name: str, size: tuple[int, int], move: Move) -> None:
    rng = np.random.default_rng(9)
    planes, components = image(name, size)
    labels = pitched((blobs(size) > 0) * rng.integers(0, 5, size, np.uint8))
    inks = rng.integers(0, 256, (256, 3), np.uint8)
    opacity = np.array([0, 128, 255, 1, 77] + [0] * 251, np.uint8)
    expected = [np.array(component) for component in components]
    reference.overlay(expected, labels, inks, opacity)
    there = [move(plane) for plane in planes]
    drawing.overlay(there, PIXEL_FORMATS[name], move(labels), inks, opacity)
    for component, want in zip(components_of(there, name), expected, strict=True):
        np.testing.assert_array_equal(component, want)


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "nv21"])
@pytest.mark.parametrize("size", [*SIZES, (64, 130)])
@pytest.mark.parametrize("line", [1, 2, 5, 1000])
def test_draw_boxes(name: str, size: tuple[int, int], line: int, move: Move) -> None:
    rng = np.random.default_rng(10)
    planes, components = image(name, size)
    boxes = rng.integers(-10, max(size) + 10, (12, 4)).astype(np.int32)
    boxes[0], boxes[1] = (0, 0, size[1], size[0]), (3, 3, 3, 3)
    inks = rng.integers(0, 256, (12, 3), np.uint8)
    expected = [np.array(component) for component in components]
    reference.draw_boxes(expected, boxes, inks, line)
    there = [move(plane) for plane in planes]
    drawing.draw_boxes(there, PIXEL_FORMATS[name], move(boxes), move(inks), line_width=line)
    for component, want in zip(components_of(there, name), expected, strict=True):
        np.testing.assert_array_equal(component, want)


@pytest.mark.parametrize("name", ["yuv422p", "yuv444p", "yuv411p", "nv16", "nv24", "yuv420p10", "yuv422p10", "p010"])
@pytest.mark.parametrize("size", [*SIZES, (64, 130)])
def test_draw_boxes_into_other_formats(name: str, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(12)
    kind = PIXEL_FORMATS[name]
    top = 1 << kind.bits
    planes = []
    for shape in kind.plane_shapes(size[1], size[0]):
        wide = rng.integers(0, top, (shape[0], shape[1] + 3, *shape[2:])).astype(kind.dtype) << kind.shift
        planes.append(wide[:, : shape[1]])
    components = planes if kind.layout == "planar" else [planes[0], planes[1][:, :, 0], planes[1][:, :, 1]]
    boxes = rng.integers(-10, max(size) + 10, (12, 4)).astype(np.int32)
    boxes[0] = (0, 0, size[1], size[0])
    inks = rng.integers(0, top, (12, 3)).astype(kind.dtype) << kind.shift
    for line in (1, 2, 5):
        expected = [np.array(component) for component in components]
        reference.draw_boxes(expected, boxes, inks, line, kind.subsample)
        drawing.draw_boxes(planes, kind, boxes, inks, line_width=line)
        for component, want in zip(components, expected, strict=True):
            np.testing.assert_array_equal(component, want)


@pytest.mark.parametrize("channels", [(), (1,), (3,), (4,)])
@pytest.mark.parametrize("size", SIZES)
def test_composite(channels: tuple[int, ...], size: tuple[int, int], move: Move) -> None:
    rng = np.random.default_rng(11)
    foreground, background = rng.integers(0, 256, (2, *size, *channels), np.uint8)
    alpha = pitched(rng.choice([0, 1, 100, 254, 255], size).astype(np.uint8))
    expected = reference.composite(foreground, background, alpha)
    arguments = move(foreground), move(background), move(alpha)
    np.testing.assert_array_equal(host(masks.composite(*arguments)), expected)
    assert masks.composite(*arguments, out=arguments[1]) is arguments[1]
    np.testing.assert_array_equal(host(arguments[1]), expected)


def test_composite_is_exact_for_every_value() -> None:
    values = np.arange(256, dtype=np.uint8)
    foreground, alpha = np.meshgrid(values, values)
    for level in (0, 1, 127, 254, 255):
        background = np.full_like(foreground, level)
        found = masks.composite(foreground, background, alpha)
        np.testing.assert_array_equal(found, reference.composite(foreground, background, alpha))


def test_bad_arguments_are_named() -> None:
    f32, u8 = np.zeros((1, 3, 4, 4), np.float32), np.zeros((4, 4), np.uint8)
    with pytest.raises(UsageError, match=r"scores is float64"):
        masks.argmax(f32.astype(np.float64))
    with pytest.raises(UsageError, match=r"out is uint8 \(4, 4\) .*expected uint8 \(1, 4, 4\)"):
        masks.argmax(f32, out=u8)
    with pytest.raises(UsageError, match="radius 65"):
        masks.box_blur(u8, 65)
    with pytest.raises(UsageError, match="sigma 0"):
        masks.gaussian_blur(u8, 0)
    with pytest.raises(UsageError, match="last 1 axes are contiguous"):
        masks.box_blur(np.zeros((4, 8), np.uint8)[:, ::2], 1)
    with pytest.raises(UsageError, match="weight 2"):
        masks.ema(u8, u8.astype(np.float32), 2)
    with pytest.raises(UsageError, match="cannot be stretched"):
        masks.upsample(u8, (0, 4))
    with pytest.raises(UsageError, match="expected"):
        masks.classes(f32[0], (4, 4))
    with pytest.raises(UsageError, match="cannot be stretched"):
        masks.classes(f32, (0, 4))
    with pytest.raises(UsageError, match="unknown crop 'box'"):
        instances.instance_masks(f32[0], np.zeros((2, 3)), np.zeros((2, 4)), (4, 4), crop="box")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"coefficients is float32 \(2, 5\)"):
        instances.instance_runs(f32[0], np.zeros((2, 5)), np.zeros((2, 4)), (4, 4))
    with pytest.raises(UsageError, match="masks is float32"):
        instances.mask_runs(f32[0])
    with pytest.raises(UsageError, match="cannot draw into rgb24"):
        drawing.overlay([u8], PIXEL_FORMATS["rgb24"], u8, np.zeros((256, 3), np.uint8), np.zeros(256, np.uint8))


@pytest.mark.gpu
def test_cuda_takes_half_precision_a_count_and_a_stream_and_tells_when_the_capacity_is_too_small() -> None:
    cupy = pytest.importorskip("cupy")
    prototypes, coefficients, boxes = (cupy.asarray(part) for part in scene(9, (40, 40), (135, 240)))
    arguments = coefficients, boxes, (135, 240)
    count = cupy.asarray(np.array([4], np.int32))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    halves = prototypes.astype(np.float16)
    cupy.cuda.Device().synchronize()
    found = instances.instance_masks(halves, *arguments, count=count, stream=stream.ptr)
    stream.synchronize()
    expected = reference.instance_masks(halves.get(), coefficients.get(), boxes.get(), (135, 240))
    expected[4:] = False
    assert (found.get() != expected).mean() <= 0.001
    scores = np.random.default_rng(12).integers(-3, 3, (2, 21, 9, 31)).astype(np.float16)
    np.testing.assert_array_equal(masks.argmax(cupy.asarray(scores)).get(), scores.argmax(axis=1))
    with pytest.raises(UsageError, match="more than the capacity of 3") as caught:
        instances.instance_runs(prototypes, *arguments, capacity=3).to_coco()
    assert "pass capacity=" in str(caught.value)


@pytest.mark.gpu
def test_cuda_instances_are_captured_in_a_graph() -> None:
    cupy = pytest.importorskip("cupy")
    prototypes, coefficients, boxes = (cupy.asarray(part) for part in scene(9, (40, 40), (135, 240)))
    arguments = prototypes, coefficients, boxes, (135, 240)
    stream, workspace = cupy.cuda.Stream(non_blocking=True), instances.Workspace()
    cupy.cuda.Device().synchronize()
    with stream:
        instances.instance_runs(*arguments, workspace=workspace)  # compiles, uploads the tables, allocates
        stream.synchronize()
        stream.begin_capture()
        with pytest.raises(UsageError, match="before the capture"):
            instances.instance_runs(*arguments, workspace=workspace)
        with graph_memory() as kept:
            runs = instances.instance_runs(*arguments, workspace=workspace)
        graph = stream.end_capture()
        boxes[:] = boxes[::-1].copy()
        graph.launch()
        stream.synchronize()
        expected = instances.mask_runs(instances.instance_masks(*arguments)).to_coco()
    assert kept and runs.to_coco() == expected
