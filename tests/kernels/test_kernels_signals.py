"""Signal kernels against their reference and OpenCV: all of it is integer arithmetic, so exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from cuda_on_cpu import on_device
from framefuse.errors import UsageError
from framefuse.kernels import reference
from framefuse.kernels.signals.call import signals

Move = Callable[[NDArray[Any]], Any]


@pytest.fixture(params=["cpu", "fibres", pytest.param("cuda", marks=pytest.mark.gpu)])
def move(request: pytest.FixtureRequest) -> Move:
    """Puts an array where the kernels under test run."""
    if request.param == "cpu":
        return lambda array: array
    if request.param == "fibres":
        request.getfixturevalue("fibres")
        return on_device
    cupy = pytest.importorskip("cupy")
    return lambda array: cupy.asarray(array)


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (33, 61), (9, 4097), (135, 240)])
@pytest.mark.parametrize("step", [1, 2, 3, 8])
@pytest.mark.parametrize("bits", [8, 10, 16])
def test_signals(size: tuple[int, int], step: int, bits: int, move: Move) -> None:
    if step > min(size):
        pytest.skip("the image is smaller than a block")
    rng = np.random.default_rng(0)
    dtype = np.uint8 if bits == 8 else np.uint16
    padded = rng.integers(0, 1 << bits, (size[0], size[1] + 3)).astype(dtype)
    luma = padded[:, : size[1]]
    previous = rng.integers(0, 256, (size[0] // step, size[1] // step), np.uint8)
    for before in (None, previous):
        # Columns are cut off after the move, so that rows are padded.
        there = move(padded)[:, : size[1]]
        counts = signals(there, None if before is None else move(before), step=step, edge_threshold=200, shift=bits - 8)
        found = counts.read()
        density, difference, histogram, small = reference.signals(
            luma, before, step=step, edge_threshold=200, shift=bits - 8
        )
        np.testing.assert_array_equal(counts.small.get() if hasattr(counts.small, "get") else counts.small, small)
        np.testing.assert_array_equal(found.histogram, histogram)
        assert found.edge_density == density and found.frame_difference == difference


def test_edges_are_opencvs_sobel() -> None:
    luma = cv2.GaussianBlur(np.random.default_rng(1).integers(0, 256, (90, 120), np.uint8), (5, 5), 1)
    gx, gy = (cv2.Sobel(luma, cv2.CV_32F, *order).astype(np.int64) for order in ((1, 0), (0, 1)))
    expected = (gx * gx + gy * gy > 96 * 96)[1:-1, 1:-1].mean()
    assert signals(luma, step=1).read().edge_density == expected > 0


def test_a_still_image_differs_by_nothing_from_itself() -> None:
    luma = np.full((64, 64), 77, np.uint8)
    first = signals(luma)
    again = signals(luma, first.small, out=np.empty((8, 8), np.uint8)).read()
    assert first.read().frame_difference is None and again.frame_difference == 0 and again.edge_density == 0
    assert again.histogram[77] == again.histogram.sum() == 64


def test_bad_arguments_are_named() -> None:
    luma = np.zeros((16, 16), np.uint8)
    with pytest.raises(UsageError, match="step 17 is not between 1 and 16"):
        signals(luma, step=17)
    with pytest.raises(UsageError, match=r"previous is uint8 \(3, 3\)"):
        signals(luma, np.zeros((3, 3), np.uint8))
    with pytest.raises(UsageError, match="luma is float32"):
        signals(luma.astype(np.float32))
    with pytest.raises(UsageError, match="edge_threshold -1"):
        signals(luma, edge_threshold=-1)
