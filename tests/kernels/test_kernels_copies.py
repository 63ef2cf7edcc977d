"""Copies of many arrays are those of NumPy, whatever their sizes and pitches, and however many threads."""

from __future__ import annotations

import subprocess
import sys
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


@pytest.mark.parametrize("worth", [100, call.WORTH])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("pads", [(0, 0), (5, 0), (0, 3), (1, 2)])
def test_copies(monkeypatch: pytest.MonkeyPatch, pads: tuple[int, int], dtype: Any, worth: int) -> None:
    monkeypatch.setattr(call, "WORTH", worth)
    random = np.random.default_rng(1)
    sources = [pitched(random.integers(0, 255, shape).astype(dtype), pads[0]) for shape in SHAPES]
    expected, found = ([pitched(np.zeros(shape, dtype), pads[1]) for shape in SHAPES] for _ in range(2))
    for source, target in zip(sources, expected, strict=True):
        np.copyto(target, source)
    call.copy_all(sources, found)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.base is None or not one.base[:, one.shape[1] :].any()  # what lies between the rows stays


def test_nothing() -> None:
    call.copy_all([], [])


def test_many_threads_copy_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "WORTH", 100)

    def copy(seed: int) -> bool:
        random = np.random.default_rng(seed)
        for _ in range(50):
            sources = [random.integers(0, 255, (9, 1000), np.uint8) for _ in range(int(random.integers(1, 12)))]
            targets = [np.zeros_like(source) for source in sources]
            call.copy_all(sources, targets)
            if not all(map(np.array_equal, sources, targets)):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(copy, range(8)))


HELPED = """
import os, sys, threading
import numpy as np
from framefuse.kernels.copies import call

def helpers():
    return [thread.name for thread in threading.enumerate()].count("ff-copy")

def copied():
    sources = [np.full((100, 1000), number, np.uint8) for number in range(5)]
    targets = [np.zeros_like(source) for source in sources]
    call.copy_all(sources, targets)
    return all(map(np.array_equal, sources, targets))

call.WORTH = 100
assert copied()
child = os.fork()
if not child:
    os._exit(0 if copied() and copied() else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert copied()
count = helpers()
call._helpers.stop()
assert helpers() == 0
assert copied() and helpers() == count
"""


def test_helpers_survive_a_fork_and_end_with_the_process() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", HELPED], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


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
