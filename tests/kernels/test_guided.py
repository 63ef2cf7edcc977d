"""Guided upsampling of mattes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from framefuse.errors import UsageError
from framefuse.kernels.masks.guided import guided, shrink


@pytest.mark.parametrize(
    ("shape", "size"), [((96, 64), (12, 8)), ((97, 61), (13, 7)), ((5, 4), (5, 4)), ((3, 9), (1, 1))]
)
def test_shrink_is_the_mean_of_each_cell(shape: tuple[int, int], size: tuple[int, int]) -> None:
    plane = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    wide = np.random.default_rng(2).integers(0, 256, (shape[0], 2 * shape[1]), np.uint8)
    wide[:, ::2] = plane
    down, across = ([i * side // count for i in range(count + 1)] for side, count in zip(shape, size, strict=True))
    cells = [[plane[a:b, c:d].mean() / 255 for c, d in pairwise(across)] for a, b in pairwise(down)]
    for view in (plane, wide[:, ::2]):
        np.testing.assert_allclose(shrink(view, size), cells, atol=1e-6)


@pytest.mark.parametrize("size", [(0, 4), (9, 4), (4, 9)])
def test_shrink_refuses_sizes(size: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="cannot be shrunk to"):
        shrink(np.zeros((8, 8), np.uint8), size)


def test_the_matte_follows_the_edge_of_the_picture() -> None:
    """The model sees the edge between samples; the picture says where it is, within a pixel."""
    for edge in range(100, 116, 3):
        picture = np.full((128, 256), 40, np.uint8)
        picture[:, edge:] = 200
        low = shrink(picture, (16, 32))
        alpha = shrink(np.where(np.arange(256) >= edge, 255, 0).astype(np.uint8)[None].repeat(128, 0), (16, 32))
        found = guided(alpha, low, picture, gain=4)
        assert (found[:, : edge - 1] < 30).all() and (found[:, edge + 1 :] > 225).all(), edge
        stretched = guided(alpha, np.zeros_like(low), np.zeros_like(picture), gain=4)
        assert np.abs(np.diff(stretched.astype(int))).max() < 150, "without a guide the edge is as wide as a sample"


def test_ranges_and_out() -> None:
    picture, low = np.full((30, 50), 90, np.uint8), np.full((6, 10), 90 / 255, np.float32)
    for value, expected in ((0.0, 0), (1.0, 255), (0.5, 128)):
        out = np.empty((30, 50), np.uint8)
        assert guided(np.full((6, 10), value, np.float32), low, picture, out=out) is out
        assert np.abs(out.astype(int) - expected).max() <= 1
