"""Which frames run together; time is passed in."""

from __future__ import annotations

import pytest

from framefuse.runtime.batching import FrameBatcher


def test_a_full_batch_leaves_at_once() -> None:
    batcher: FrameBatcher[int] = FrameBatcher(2, timeout=1.0)
    assert batcher.add(1, shape="a", reader="s", now=0.0) == []
    assert batcher.add(2, shape="a", reader="s", now=0.1) == [[1, 2]]
    assert batcher.deadline is None


def test_a_partial_batch_leaves_when_its_oldest_item_has_waited() -> None:
    batcher: FrameBatcher[int] = FrameBatcher(4, timeout=1.0)
    batcher.add(1, shape="a", reader="s", now=0.0)
    batcher.add(2, shape="a", reader="s", now=0.9)
    assert batcher.deadline == 1.0
    assert batcher.due(0.99) == []
    assert batcher.due(1.0) == [[1, 2]]


def test_shapes_of_different_sources_collect_side_by_side() -> None:
    batcher: FrameBatcher[int] = FrameBatcher(2, timeout=1.0)
    assert batcher.add(1, shape="a", reader="s", now=0.0) == []
    assert batcher.add(2, shape="b", reader="t", now=0.0) == []
    assert batcher.add(3, shape="b", reader="t", now=0.0) == [[2, 3]]
    assert batcher.flush() == [[1]]


def test_a_source_that_changes_shape_stays_in_order() -> None:
    batcher: FrameBatcher[int] = FrameBatcher(3, timeout=1.0)
    batcher.add(1, shape="a", reader="s", now=0.0)
    batcher.add(2, shape="a", reader="s", now=0.0)
    assert batcher.add(3, shape="b", reader="s", now=0.0) == [[1, 2]]
    assert batcher.flush() == [[3]]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_nothing_is_lost_or_reordered_within_a_source(size: int) -> None:
    batcher: FrameBatcher[tuple[str, int]] = FrameBatcher(size, timeout=1e9)
    out: list[tuple[str, int]] = []
    for number in range(60):
        source = "st"[number % 2]
        for batch in batcher.add((source, number), shape=number // 7 % 3, reader=source, now=0.0):
            assert len(batch) <= size
            out += batch
    out += [item for batch in batcher.flush() for item in batch]
    assert sorted(number for _, number in out) == list(range(60))
    for source in "st":
        own = [number for name, number in out if name == source]
        assert own == sorted(own)
