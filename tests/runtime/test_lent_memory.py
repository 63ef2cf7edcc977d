"""Page-locked memory that results keep."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from fake_gpu import Gpu
from framefuse.cuda import device


def test_memory_is_lent_until_nobody_holds_a_part_of_it(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "LENT", 100)
    monkeypatch.setattr(device, "_lent", [0])
    first, second = device.lent((4, 5), np.uint16), device.lent((60,), np.uint8)
    assert first is not None and first.shape == (4, 5) and first.dtype == np.uint16
    assert second is not None
    assert device.lent((1,), np.uint8) is None
    part = first[1:, 2]
    part[...] = 7
    del first
    gc.collect()
    assert device.lent((1,), np.uint8) is None  # a view is held
    assert part.tolist() == [7, 7, 7]
    del part
    gc.collect()
    assert device.lent((40,), np.uint8) is not None


def test_where_there_is_no_such_memory_none_is_lent(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> None:
        raise MemoryError("no page-locked memory")

    monkeypatch.setattr(device, "_lent", [0])
    monkeypatch.setattr(device.cupy().cuda, "alloc_pinned_memory", full)
    assert device.lent((4,), np.uint8) is None
    assert device._lent == [0]
