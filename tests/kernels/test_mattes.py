"""Mattes on a GPU against the same functions on the host: of shares to 1e-5, of pixels to one grey level."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cuda_on_cpu import on_device
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.kernels.arrays import to_host
from framefuse.kernels.masks import mattes
from framefuse.kernels.masks.call import composite, upsample
from framefuse.kernels.masks.canvas import Canvas, Layers, alike, compose, guides_of, is_composable
from framefuse.kernels.masks.grids import TOGETHER, Grid, grids_of, joined, new_samples
from framefuse.kernels.masks.guided import guided, shrink, shrunk
from framefuse.kernels.masks.mattes import REACH, DeviceShare, Moment, compare, steadied

Move = Callable[[NDArray[Any]], Any]
SIZES = [((1, 1), (1, 1)), ((96, 65), (1, 1)), ((97, 61), (13, 7)), ((64, 515), (16, 129)), ((8, 8), (8, 8))]


@pytest.fixture(params=["fibres", pytest.param("cuda", marks=pytest.mark.gpu)])
def move(request: pytest.FixtureRequest) -> Move:
    """Puts an array where the kernels under test run."""
    if request.param == "fibres":
        request.getfixturevalue("fibres")
        return on_device
    module: Any = pytest.importorskip("cupy")
    return lambda array: module.asarray(array)


def host(array: Any) -> NDArray[Any]:
    return np.asarray(array.get() if hasattr(array, "get") else array)


def within_one(found: Any, expected: NDArray[Any]) -> None:
    """Halves may be rounded to either side."""
    difference = np.abs(host(found).astype(int) - expected)
    assert difference.max(initial=0) <= 1 and (difference == 0).mean() > 0.99


@pytest.mark.parametrize("classes", [1, 2, 5, 8, 9, 21])
@pytest.mark.parametrize("scale", [0.4, 8.0])
def test_shares(classes: int, scale: float, move: Move) -> None:
    scores = np.random.default_rng(classes).normal(0.5, scale, (3, classes, 9, 31)).astype(np.float32)
    scores[1] = scores[1].clip(0, 1)
    wanted = [0] if classes == 1 else sorted({1, classes - 1})
    share = DeviceShare(scores.shape, wanted)
    share(move(scores))
    expected = [mattes.share(image, wanted) for image in scores]
    np.testing.assert_allclose(host(share.alpha), expected, atol=1e-5)


@pytest.mark.parametrize(("shape", "size"), SIZES)
def test_shrunk_planes(shape: tuple[int, int], size: tuple[int, int], move: Move) -> None:
    wide = np.random.default_rng(1).integers(0, 256, (shape[0], shape[1] + 7), np.uint8)
    there = move(wide)[:, 3 : 3 + shape[1]]
    expected = shrink(wide[:, 3 : 3 + shape[1]], size)
    np.testing.assert_allclose(host(shrink(there, size)), expected, atol=1e-6)
    np.testing.assert_allclose(host(shrink(there, size, white=255)), expected * 255, atol=1e-3)


@pytest.mark.parametrize("sizes", [[(1, 1)], [(7, 13), (7, 12)], [(5, 300)]])
def test_samples_follow_each_other(sizes: list[tuple[int, int]], move: Move) -> None:
    made = new_samples(grids_of(sizes))
    assert [part.shape for part in made] == sizes and joined(made) is made[0]
    values = [np.random.default_rng(1).uniform(0, 1, size).astype(np.float32) for size in sizes]
    apart = [move(np.pad(value.ravel(), 3))[3:-3].reshape(value.shape) for value in values]
    whole = host(joined(apart))
    assert len(sizes) == 1 or joined(apart) is not apart[0]
    np.testing.assert_array_equal(whole, values[0])


def test_every_view_is_shrunk_at_once(move: Move) -> None:
    plane = np.random.default_rng(1).integers(0, 1024, (61, 97), np.uint16)
    grids = [Grid((0, 3, 48, 58), (7, 12)), Grid((48, 0, 49, 61), (7, 13))]
    seen = ((plane.astype(int) + 2) >> 2).clip(0, 255).astype(np.uint8)
    for found, ((x, y, width, height), size) in zip(shrunk([move(plane)], grids, shift=2), grids, strict=True):
        expected = shrink(np.ascontiguousarray(seen[y : y + height, x : x + width]), size)
        np.testing.assert_allclose(host(found), expected, atol=1e-6)


def moments(count: int, sizes: list[tuple[int, int]], cuts: tuple[int, ...], move: Move) -> list[Moment]:
    """Frames of two eyes that drift, and change at the cuts: in one eye only at the last."""
    random, made = np.random.default_rng(3), list[Moment]()
    base = [random.uniform(0, 0.4, size) for size in sizes]
    for index in range(count):
        if index in cuts:
            base = [(part + 0.5 * (eye == 0 or index != cuts[-1])) % 0.9 for eye, part in enumerate(base)]
        guides = [(part + random.normal(0, 0.004, part.shape)).astype(np.float32) for part in base]
        alphas = [random.uniform(0, 1, size).astype(np.float32) for size in sizes]
        made.append(Moment(list(map(move, alphas)), list(map(move, guides))))
        if index:
            compare(made[-2], made[-1:])
    return made


@pytest.mark.parametrize("sizes", [[(1, 1)], [(7, 13), (7, 12)], [(5, 300)]])
@pytest.mark.parametrize("cuts", [(), (4,), (1, 7), (3, 4, 9)])
@pytest.mark.parametrize("medians", [True, False])
def test_steadied_mattes(sizes: list[tuple[int, int]], cuts: tuple[int, ...], medians: bool, move: Move) -> None:
    here, there = (moments(11, sizes, cuts, how) for how in (lambda array: array, move))
    for at in range(11):
        first = max(0, at - REACH - 1)
        end = min(11, at + REACH + 2) if medians else at + 1
        options: dict[str, Any] = {"weight": 0.8, "medians": medians}
        expected, found = (
            steadied(moments[first:end], range(at - first, at - first + 1), **options)[0] for moments in (here, there)
        )
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(host(one), other, atol=2e-5)


def test_a_change_that_is_not_a_number_is_a_cut(move: Move) -> None:
    both = [moments(2, [(2, 3)], (), move) for _ in range(2)]
    for one in both:
        one[1].change = move(np.full((1, mattes.PARTS), np.nan, np.float32))
        np.testing.assert_array_equal(
            host(steadied(one, range(1, 2), weight=1.0, medians=False)[0][0]), host(one[1].alphas[0])
        )


def surface(name: str, size: tuple[int, int], move: Move, seed: int = 4) -> tuple[Frame, list[NDArray[Any]]]:
    """A frame where the kernels run, and its planes Y, U, V, rounded to 8 bits and of even size."""
    format, (width, height) = PIXEL_FORMATS[name], size
    random, most = np.random.default_rng(seed), (1 << format.bits) - 1
    planes = [(random.integers(0, most + 1, shape) << format.shift).astype(format.dtype)
              for shape in format.plane_shapes(width, height)]  # fmt: skip
    frame = Frame(tuple(map(move, planes)), format)
    assert is_composable(frame)
    luma, *chroma = [
        ((plane.astype(int) >> format.shift) + (1 << format.bits - 8) // 2 >> format.bits - 8).clip(0, 255)
        for plane in planes
    ]
    if len(chroma) == 1:
        chroma = [chroma[0][..., (format.channels or "uv").index(role)] for role in "uv"]
    luma = np.pad(luma, ((0, height % 2), (0, width % 2)), mode="edge")
    return frame, [np.ascontiguousarray(plane, np.uint8) for plane in (luma, *chroma)]


def eyes(size: tuple[int, int], content: str) -> list[tuple[Grid, NDArray[np.float32], NDArray[np.float32]]]:
    """Two views beside each other, of which the second is wider and higher, or one alone; their mattes and guides."""
    (width, height), random = size, np.random.default_rng(2)
    regions = [(0, 0, width // 2, max(1, height - 3)), (width // 2, 0, width - width // 2, height)]
    found = []
    for region in regions[width < 2 :]:
        shape = max(1, region[3] // 5), max(1, region[2] // 7)
        alpha = random.uniform(-0.5, 1.5, shape).clip(0, 1)
        alpha = {"none": 0 * alpha, "all": 0 * alpha + 1}.get(content, alpha).astype(np.float32)
        found.append((Grid(region, shape), alpha, random.uniform(0, 1, shape).astype(np.float32)))
    return found


@pytest.mark.parametrize("name", ["nv12", "nv21", "yuv420p", "p010", "yuv420p10"])
@pytest.mark.parametrize("size", [(8, 6), (7, 5), (1, 1), (300, 4), (530, 31), (67, 130)])
@pytest.mark.parametrize("content", ["random", "none", "all"])
def test_composed_frames(name: str, size: tuple[int, int], content: str, move: Move) -> None:
    """Y, U, V and the matte of surfaces, with colours on either side, against the host's."""
    frame, planes = surface(name, size, move)
    views, (height, width) = eyes(size, content), planes[0].shape
    there = [(grid, move(alpha), move(guide)) for grid, alpha, guide in views]
    for (grid, _, _), found in zip(views, guides_of([frame], [grid for grid, _, _ in views])[0], strict=True):
        x, y, wide, high = grid.region
        seen = np.ascontiguousarray(planes[0][y : y + high, x : x + wide])
        np.testing.assert_allclose(host(found), shrink(seen, grid.shape), atol=1e-6)
    for feather in (0.0, 2.0, 1000.0):
        matte = np.zeros((size[1], size[0]), np.uint8)
        for grid, alpha, guide in views:
            x, y, wide, high = grid.region
            gain = max(1.0, wide / grid.shape[1] / max(feather, 0.1))
            part = np.ascontiguousarray(planes[0][y : y + high, x : x + wide])
            matte[y : y + high, x : x + wide] = guided(alpha, guide, part, gain=gain)
        matte = np.pad(matte, ((0, size[1] % 2), (0, size[0] % 2)), mode="edge")
        canvas = Canvas((planes[0].shape, planes[1].shape, planes[1].shape, planes[0].shape))
        compose([(frame, there, canvas.planes)], Layers((None,) * 3, (None,) * 3), feather)
        *same, alpha = canvas.download()
        for found, expected in zip(same, planes, strict=True):
            np.testing.assert_array_equal(found, expected)
        within_one(alpha, matte)
        alpha = alpha.copy()
        own = None, None, None
        for layers in (Layers(own, (16, 200, 90)), Layers((255, 0, 33), own, 127), Layers((9,), (240,))):
            opacity = np.full(alpha.shape, layers.opacity, np.uint8)
            weight = composite(opacity, np.zeros_like(alpha), alpha)
            coarse = upsample(weight, (height // 2, width // 2))
            canvas = Canvas((planes[0].shape, planes[1].shape, planes[1].shape)[: len(layers.over)])
            compose([(frame, there, canvas.planes)], layers, feather)
            sides = zip(canvas.download(), planes, (weight, coarse, coarse), layers.over, layers.under, strict=False)
            for found, plane, matte_of_plane, *values in sides:
                over, under = (plane if value is None else np.full_like(plane, value) for value in values)
                np.testing.assert_array_equal(found, composite(over, under, matte_of_plane))


@pytest.mark.parametrize("count", range(1, TOGETHER + 1))
@pytest.mark.parametrize("apart", [False, True])
def test_frames_together_are_what_each_is_alone(count: int, apart: bool, move: Move) -> None:
    """Whether or not what belongs to them follows each other in memory."""
    random, regions = np.random.default_rng(6), [(0, 0, 33, 30), (33, 1, 31, 30)]
    frames = [surface("nv12", (64, 31), move, seed)[0] for seed in range(9 + count)]
    grids = [Grid(region, size) for region, size in zip(regions, [(4, 5), (3, 5)], strict=True)]
    assert alike(frames) and not alike([*frames, surface("nv12", (66, 31), move)[0]])
    guides = [found for frame in frames for found in guides_of([frame], grids)]
    together = [guide for at in range(len(frames)) for guide in guides_of(frames[at : at + 1], grids)]
    joint = guides_of(frames[4 : 4 + count], grids)
    for one, other in zip(guides[4 : 4 + count], joint, strict=True):
        for guide, expected in zip(one, other, strict=True):
            np.testing.assert_array_equal(host(guide), host(expected))
    together[4 : 4 + count] = guides[4 : 4 + count] if apart else joint
    alphas = [[move(random.uniform(0, 1, grid.shape).astype(np.float32)) for grid in grids] for _ in frames]
    alone, both = ([Moment(*parts) for parts in zip(alphas, every, strict=True)] for every in (guides, together))
    for before, after in itertools.pairwise(alone):
        compare(before, [after])
    compare(both[0], both[1:])
    for one, other in zip(alone[1:], both[1:], strict=True):
        np.testing.assert_array_equal(host(one.change), host(other.change))
    options: dict[str, Any] = {"weight": 0.8, "medians": True}
    steady = steadied(both, range(4, 4 + count), **options)
    for at, found in enumerate(steady, 4):
        (expected,) = steadied(alone[at - 4 : at + 5], range(4, 5), **options)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(host(one), host(other))
    for layers in (Layers((None,) * 3, (16, 200, 90)), Layers((9,), (240,))):
        canvases = [[Canvas(((32, 64), (16, 32), (16, 32))[: len(layers.over)]) for _ in range(count)] for _ in "ab"]
        drawn = [
            (frame, [*zip(grids, parts, guide, strict=True)], canvas.planes)
            for frame, parts, guide, canvas in zip(frames[4:], steady, together[4:], canvases[0], strict=False)
        ]
        compose(drawn, layers, 2.0)
        for (frame, views, _), canvas, other in zip(drawn, *canvases, strict=True):
            compose([(frame, views, other.planes)], layers, 2.0)
            for found, expected in zip(canvas.download(), other.download(), strict=True):
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("regions", [[(0, 0, 40, 30), (25, 3, 39, 20)], [(0, 0, 64, 31), (10, 5, 20, 9)]])
def test_where_views_overlap_the_last_counts(regions: list[tuple[int, int, int, int]], move: Move) -> None:
    frame, planes = surface("nv12", (64, 31), move)
    random, views, matte = np.random.default_rng(8), list[Any](), np.zeros((31, 64), np.uint8)
    for region in regions:
        x, y, wide, high = region
        alpha, guide = (random.uniform(0, 1, (4, 5)).astype(np.float32) for _ in range(2))
        part = np.ascontiguousarray(planes[0][y : y + high, x : x + wide])
        matte[y : y + high, x : x + wide] = guided(alpha, guide, part, gain=max(1.0, wide / 5 / 2))
        views.append((Grid(region, (4, 5)), move(alpha), move(guide)))
    canvas = Canvas((planes[0].shape, planes[1].shape, planes[1].shape, planes[0].shape))
    compose([(frame, views, canvas.planes)], Layers((None,) * 3, (None,) * 3), 2.0)
    within_one(canvas.download()[3][:31], matte)


def test_what_only_the_host_composes() -> None:
    for name, facts in (("yuv422p", {}), ("rgb24", {"matrix": "rgb"}), ("nv12", {"rotation": 90})):
        format = PIXEL_FORMATS[name]
        planes = tuple(np.zeros(shape, format.dtype) for shape in format.plane_shapes(8, 4))
        assert not is_composable(Frame(planes, format, **facts)), name  # type: ignore[arg-type]


def test_stretched_to_bytes(move: Move) -> None:
    plane = np.random.default_rng(5).uniform(0, 255, (5, 9)).astype(np.float32)
    expected = (upsample(plane, (31, 40)) + 0.5).astype(np.uint8)
    out = np.empty((31, 40), np.uint8)
    assert upsample(plane, (31, 40), out=out) is out
    np.testing.assert_array_equal(out, expected)
    there = move(np.empty((31, 40), np.uint8))
    within_one(upsample(move(plane), (31, 40), out=there), expected)


def test_arrays_come_to_the_host() -> None:
    array = np.arange(3)
    assert to_host(array) is array
