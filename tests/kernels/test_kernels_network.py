"""kernels.network: how calls become launches. What the kernels compute is tested with engine cudnn."""

from __future__ import annotations

from typing import Any

import pytest

from framefuse.cuda import kernel
from framefuse.errors import UsageError
from framefuse.kernels.boxes.head_cuda import Head
from framefuse.kernels.network import call as network

Launch = tuple[str, dict[str, Any]]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    found: list[Launch] = []
    monkeypatch.setattr(kernel, "launch", lambda symbol, **arguments: found.append((symbol, arguments)))
    return found


def block(address: int, column: int = 32, itemsize: int = 2) -> network.Block:
    return network.Block(address, 2, 16, 10, 12, 10 * 12 * column, 12 * column, column, itemsize)


@pytest.mark.parametrize(("window", "expected"), [(5, [3, 1]), (7, [2, 2]), (13, [1, 1, 1, 1])])
def test_a_pyramid_takes_as_few_launches_as_its_windows_allow(
    launches: list[Launch], window: int, expected: list[int]
) -> None:
    network.pool(block(100), [block(200 + k) for k in range(4)], window, stream=0)
    assert [arguments["pools"] for _, arguments in launches] == expected
    read, written = [arguments["x_"] for _, arguments in launches], 100
    for (_, arguments), address in zip(launches, read, strict=True):
        assert address == written
        written = arguments[f"y{arguments['pools'] - 1}_"]
    assert written == 203


def test_results_of_other_pitches_take_another_launch(launches: list[Launch]) -> None:
    network.pool(block(100), [block(200), block(201, column=48), block(202, column=48)], 3, stream=0)
    assert [(arguments["pools"], arguments["y_column"]) for _, arguments in launches] == [(1, 32), (2, 48)]


@pytest.mark.parametrize("window", [1, 4, 15])
def test_windows_that_no_launch_can_make(launches: list[Launch], window: int) -> None:
    with pytest.raises(UsageError, match=f"windows of {window} pixels"):
        network.pool(block(100), [block(200)], window, stream=0)


def test_bytes_move_in_pairs(launches: list[Launch]) -> None:
    network.upsample(block(100, itemsize=1), block(200, itemsize=1), 2, stream=0)
    ((_, arguments),) = launches
    assert (arguments["x_column"], arguments["y_row"], arguments["groups"]) == (16, 12 * 16, 1)


def test_too_many_bins(launches: list[Launch]) -> None:
    with pytest.raises(UsageError, match="65 bins"):
        network.decode(Head((), (), (), 1, 65, 3), levels=0, cells=0, output=0, stream=0)
