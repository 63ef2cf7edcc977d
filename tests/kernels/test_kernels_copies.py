"""Copies of many arrays are those of NumPy, whatever their sizes and pitches, and however many threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from framefuse.errors import UsageError
from framefuse.kernels.copies import call

SHAPES = [(1, 1), (3, 7), (48, 62, 3), (5, 4, 2), (0, 3), (37, 1025)]


def pitched(array: np.ndarray[Any, Any], more: int) -> np.ndarray[Any, Any]:
    """The same array with `more` elements behind each row."""
    wide = np.zeros((array.shape[0], array.shape[1] + more, *array.shape[2:]), array.dtype)
    wide[:, : array.shape[1]] = array
    return wide[:, : array.shape[1]]


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("pads", [(0, 0), (5, 0), (0, 3), (1, 2)])
def test_copies(monkeypatch: pytest.MonkeyPatch, pads: tuple[int, int], dtype: Any, threads: int) -> None:
    monkeypatch.setattr(call, "WORTH", 100)
    random = np.random.default_rng(1)
    sources = [pitched(random.integers(0, 255, shape).astype(dtype), pads[0]) for shape in SHAPES]
    expected, found = ([pitched(np.zeros(shape, dtype), pads[1]) for shape in SHAPES] for _ in range(2))
    for source, target in zip(sources, expected, strict=True):
        np.copyto(target, source)
    with ThreadPoolExecutor(3) as pool:
        call.copy_all(sources, found, threads=pool if threads else None)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.base is None or not one.base[:, one.shape[1] :].any()  # what lies between the rows stays


def test_nothing() -> None:
    call.copy_all([], [])


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (np.zeros((2, 3), np.uint8), np.zeros((3, 2), np.uint8), r"a copy of uint8 \(2, 3\) into uint8 \(3, 2\)"),
        (np.zeros((2, 3), np.uint8), np.zeros((2, 3), np.uint16), "into uint16"),
        (np.zeros((4, 6), np.uint8)[:, ::2], np.zeros((4, 3), np.uint8), "not adjacent"),
    ],
)
def test_what_cannot_be_copied(source: Any, target: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call.copy_all([source], [target])
