"""Convolutions on tensor cores, on fibres and on a GPU, against NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from cuda_on_cpu import on_device
from cudnn_on_cpu import NumpyPlan
from framefuse.cuda import cubins
from framefuse.engines.cudnn.convolutions import BIAS, RESIDUAL, TRIED, WEIGHT, Layer, Plan, TensorPlan, X, Y, tiles
from framefuse.engines.cudnn.plans import kernel_text
from framefuse.kernels.network.call import (
    PATCH,
    PATCH_HEIGHT,
    PATCH_MEMORY,
    PATCH_WIDTH,
    PATCHES_AT_ONCE,
    TILES,
    WIDE,
    Tile,
)

Arrays = dict[int, NDArray[np.float16]]
AROUND = 8
"""Channels beside those of x and y: they are slices of wider images."""


class Case(NamedTuple):
    x: tuple[int, int, int, int]
    """Batch, channels, height, width."""
    channels: int
    filter: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    activation: str = "identity"
    residual: bool = False
    last: str = "none"

    @property
    def layer(self) -> Layer:
        batch, inner, *size = self.x
        height, width = (
            (size[k] + 2 * self.pads[k] - self.dilation[k] * (self.filter[k] - 1) - 1) // self.stride[k] + 1
            for k in range(2)
        )

        def strides(channels: int, height: int, width: int) -> tuple[int, int, int, int]:
            pitch = channels + 2 * AROUND
            return height * width * pitch, 1, width * pitch, pitch

        y = batch, self.channels, height, width
        beside = strides(*y[1:]) if self.residual else None
        pads = (*self.pads, *self.pads)
        return Layer(self.x, strides(*self.x[1:]), (self.channels, inner, *self.filter), y, strides(*y[1:]), beside,
                     self.stride, pads, self.dilation, self.activation, last=self.last)  # fmt: skip


CASES = (
    Case((1, 16, 7, 9), 24, (3, 3), pads=(1, 1), activation="silu", residual=True),
    Case((2, 40, 9, 8), 72, activation="relu"),
    Case((1, 8, 12, 11), 136, (3, 3), (2, 2), (1, 1), residual=True, last="relu"),
    Case((3, 72, 5, 6), 16, (3, 3), pads=(2, 2), dilation=(2, 2), activation="silu"),
    Case((1, 320, 8, 8), 64, last="relu", residual=True),
    Case((1, 256, 6, 5), 24, (3, 3), pads=(1, 1)),  # each of eight parts goes round its ring
    Case((2, 64, 9, 7), 40, (3, 2), (2, 1), (1, 1), activation="silu"),
    Case((1, 8, 13, 5), 8, (7, 1), (2, 1), (3, 0)),
    Case((1, 72, 24, 8), 40, (3, 3), pads=(9, 9), dilation=(9, 9)),  # blocks see padding under rows of the filter
    Case((2, 16, 17, 9), 24, (5, 3), pads=(12, 6), dilation=(6, 6), activation="relu", residual=True),
    Case((1, 8, 2, 130), 16, pads=(3, 0), activation="silu"),  # and some see nothing else
    Case((2, 8, 30, 37), 64, (7, 4), (2, 1), (3, 2), activation="relu"),
    Case((1, 8, 21, 18), 24, (3, 3), (2, 2), (1, 1), activation="silu"),
)


def arrays(layer: Layer) -> Arrays:
    random = np.random.default_rng(layer.weight[0])

    def values(size: Sequence[int], scale: float = 1.0) -> NDArray[np.float16]:
        return (random.standard_normal(size) * scale).astype(np.float16)

    def image(shape: tuple[int, int, int, int]) -> NDArray[np.float16]:
        batch, channels, height, width = shape
        return values((batch, height, width, channels + 2 * AROUND))

    fan_in = int(np.prod(layer.weight[1:]))
    found = {X: image(layer.x), Y: image(layer.y), BIAS: values(layer.weight[:1])}
    found[WEIGHT] = values((layer.weight[0], *layer.weight[2:], layer.weight[1]), fan_in**-0.5)
    return found | ({RESIDUAL: image(layer.y)} if layer.residual_strides else {})


def run(plan: Plan | NumpyPlan, given: Arrays, move: Callable[[Any], Any]) -> NDArray[np.float16]:
    """Y with what lies beside it."""
    there = {uid: move(array) for uid, array in given.items()}
    offsets = {uid: 2 * AROUND if uid in (X, Y, RESIDUAL) else 0 for uid in there}
    plan.run(None, {uid: int(array.data.ptr) + offsets[uid] for uid, array in there.items()}, 0, 0)
    return np.asarray(there[Y].get())


@pytest.fixture(params=["fibres", pytest.param("cuda", marks=pytest.mark.gpu)])
def move(request: pytest.FixtureRequest) -> Callable[[NDArray[Any]], Any]:
    """Takes an array to where the kernel under test runs."""
    if request.param == "fibres":
        request.getfixturevalue("fibres")
        return lambda array: on_device(array.copy())
    module: Any = pytest.importorskip("cupy")
    return lambda array: module.array(array)


LARGE = Tile(128, 128, 1), Tile(128, 128, 2, WIDE)
"""Large tiles that the quick tests take, too."""


@pytest.mark.parametrize(
    "tile",
    [
        pytest.param(tile, marks=pytest.mark.slow if tile.rows * tile.columns > 8192 and tile not in LARGE else ())
        for tile in TILES
    ],
    ids=lambda tile: tile.symbol,
)
def test_convolutions_of_many_shapes(tile: Tile, move: Callable[[Any], Any]) -> None:
    for case in CASES:
        if tile.kind == PATCH and tile not in tiles(case.layer, 90, 132):
            continue
        given = arrays(case.layer)
        found = run(TensorPlan(case.layer, tile), given, move)
        expected = run(NumpyPlan(case.layer), given, lambda array: on_device(array.copy()))
        np.testing.assert_allclose(found.astype(np.float32), expected, rtol=2e-3, atol=2e-3, err_msg=str(case))
        for beside in (slice(AROUND), slice(-AROUND, None)):
            np.testing.assert_array_equal(found[..., beside], given[Y][..., beside])


def test_there_is_a_kernel_for_every_tile() -> None:
    assert {tile.symbol for tile in TILES} == {name for name in cubins.descriptions() if "_tensor_" in name}
    assert cubins.describe(Tile(64, 64, 1).symbol).shared == 64 << 10
    assert cubins.describe(Tile(128, 128, 8).symbol).shared == 96 << 10  # consumer GPUs give a block 99


def test_what_is_known_of_patches_is_what_their_kernels_say() -> None:
    """call.py decides with its own numbers which layers fit, and how many blocks there are."""
    patches = [tile for tile in TILES if tile.kind == PATCH]
    assert {tile.rows for tile in patches} == {PATCH_HEIGHT * PATCH_WIDTH}
    assert {cubins.describe(tile.symbol).shared for tile in patches} == {PATCH_MEMORY}
    assert f"__launch_bounds__(128, {PATCHES_AT_ONCE})" in cubins.describe(patches[0].symbol).source


def test_the_hash_of_choices_covers_every_kernel() -> None:
    """A choice is kept as long as the text is the same, so what decides its time has to be in there."""
    files = {cubins.describe(tile.symbol).file for tile in TILES}
    assert {file.name for file in files} == {"tensor.cu", "patch.cu"}
    for file in files:
        assert file.read_text(encoding="utf-8").splitlines()[0] in kernel_text()


def test_tiles_that_a_layer_may_take() -> None:
    small, large = Case((1, 512, 7, 7), 512, (3, 3), pads=(1, 1)).layer, Case((8, 64, 160, 160), 64).layer
    assert sorted(tiles(small, 90, 132)) == sorted(tile for tile in TILES if tile.kind != PATCH)
    first = Case((1, 8, 224, 112), 64, (7, 4), (2, 1), (3, 2)).layer
    assert tiles(first, 90, 132)[0].kind == PATCH
    assert PATCH not in {tile.kind for tile in tiles(replace(first, dilation=(2, 2)), 90, 132)}
    assert tiles(small, 90, 132)[0].parts > 1  # eight blocks alone would sum 4,608 numbers each
    assert tiles(large, 90, 132)[0].parts == 1
    deep = Case((1, 2048, 32, 32), 256, (3, 3), pads=(12, 12), dilation=(12, 12)).layer
    assert Tile(128, 128, 8) in tiles(deep, 90, 132)[:TRIED]  # L2 limits what smaller ones read
    assert {tile.parts for tile in tiles(small, 89, 60)} == {1}
    assert tiles(small, 75, 60) == []
    odd = Case((1, 12, 7, 7), 16).layer, Case((1, 16, 7, 7), 20).layer
    assert [tiles(layer, 90, 132) for layer in odd] == [[], []]
    for other in ({"x_type": "int8"}, {"y_type": "fp8"}, {"weight": (512, 256, 3, 3)}):
        assert tiles(replace(small, **other), 90, 132) == []
