"""The GPU's memory is short: at the start of a run, in the middle, once or for good; on a fake GPU."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any, cast

import numpy as np
import pytest
from test_cuda_program import on_cuda, pictures, run, scores, without_collector

from fake_gpu import Gpu
from framefuse.errors import GpuMemoryError
from framefuse.models.card import Card
from framefuse.runtime.cuda import program as cuda_program
from framefuse.runtime.cuda.captured_batch import CapturedBatch
from framefuse.runtime.stages import warm_up


def need(gpu: Gpu, card: Card, slots: int) -> int:
    """Bytes on the GPU of the models of so many slots."""
    gpu.room = before = 10**9
    program = on_cuda(card, batch=1, slots=slots)
    program.prepare(80, 61)
    used = before - gpu.room
    program.close()
    return used


def test_where_memory_is_short_fewer_batches_are_in_flight(gpu: Gpu, segmenter: Card) -> None:
    def answer(batch: int, height: int, width: int) -> list[np.ndarray[Any, Any]]:
        return scores(batch, height, width)

    one = need(gpu, segmenter, 1)
    gpu.room = one * 2 + one // 2
    program = on_cuda(segmenter, batch=1, answer=answer, slots=4)
    program.prepare(80, 61)
    assert len(program._executions[64, 96]) == 2
    (reason,) = program.reasons
    assert reason.startswith("2 batches captured, not 4: the GPU has no room to load a batch of 1 x 96x64")
    gpu.room = None
    assert len(run(program, pictures(3), 1)) == 3
    program.close()


def captured_batches() -> int:
    """Number of captured batches alive; tests of a lost GPU leave some behind."""
    return sum(isinstance(item, CapturedBatch) for item in gc.get_objects())


@pytest.mark.slow
def test_where_only_one_batch_can_be_captured_one_is_in_flight(gpu: Gpu, segmenter: Card) -> None:
    gpu.room = before = 10**9
    on_cuda(segmenter, batch=1, slots=1).warm_up(pictures(1)[0])
    captured = before - gpu.room
    gpu.room = captured + need(gpu, segmenter, 1)
    program = on_cuda(segmenter, batch=1, slots=2)
    with without_collector():  # what was half made goes at once, or its memory would be missing
        before = captured_batches()
        program.warm_up(pictures(1)[0])
        assert captured_batches() == before + 1
    gpu.room = None
    assert [done.result.frame.index for done in run(program, pictures(3), 1)] == [0, 1, 2]
    (reason,) = program.reasons
    assert reason.startswith("1 batch captured, not 2: the GPU has no room to capture batches of 1 x 96x64")
    program.close()


def test_what_is_closed_is_freed_at_once(gpu: Gpu, segmenter: Card) -> None:
    """Not whenever Python looks for cycles: until then its memory would be missing."""
    program = on_cuda(segmenter, batch=1)
    run(program, pictures(2), 1)
    models = [weakref.ref(model) for model in program._executions[64, 96]]
    with without_collector():
        program.close()
        assert [model() for model in models] == [None, None]


def test_where_nothing_fits_the_sizes_are_named(gpu: Gpu, segmenter: Card) -> None:
    gpu.room = 1000
    program = on_cuda(segmenter, batch=1)
    with pytest.raises(
        GpuMemoryError, match=r"no room to load a batch of 1 x 96x64 .*MB are free.*allocating"
    ) as error:
        program.prepare(80, 61)
    assert "smaller batch" in str(error.value.remedy)
    with pytest.raises(GpuMemoryError, match=r"\[program\] the GPU has no room"):
        list(warm_up(cast(Any, pictures(1)), program))  # of which nobody should say that decoding failed
    program.close()


def test_memory_that_runs_out_in_flight_loses_no_frame(gpu: Gpu, segmenter: Card) -> None:
    program = on_cuda(segmenter, batch=1, slots=2)
    frames = pictures(2)
    done = list(program.submit(frames[:1]))
    gpu.room = 5000
    with pytest.raises(GpuMemoryError, match=r"capture batches of 1 x 96x64|load a batch"):
        for item in program.submit(pictures(1, 1200, 800)):
            done.append(item)
    done += list(program.drain())
    assert [item.result.frame.index for item in done] == [0]
    gpu.room = None
    assert len(run(program, frames, 1)) == 2  # and it goes on where there is room again
    assert any("were freed" in reason for reason in program.reasons)
    program.close()


ON_GPU: dict[str, Any] = {"keep_frames": True, "frames_on_gpu": True, "mattes": ()}
"""Frames and mattes stay there until somebody has written them."""


@pytest.mark.parametrize("options", [{}, pytest.param(ON_GPU, marks=pytest.mark.slow)])
def test_an_allocation_that_fails_once_loses_no_frame(gpu: Gpu, segmenter: Card, options: dict[str, Any]) -> None:
    """Whichever it is: of the model, a captured batch, the planes of a frame, what is kept of it, or another size."""
    parts = pictures(3), pictures(3, 50, 70)
    number, indices = 0, [frame.index for part in parts for frame in part]
    while gpu.failing is None:  # until there are fewer allocations
        program, gpu.failing = on_cuda(segmenter, **options), number
        found = [result for part in parts for result in run(program, part, 2)]
        assert [one.result.frame.index for one in found] == indices
        assert all(one.result.masks is not None or one.result.matte is not None for one in found)
        program.close()
        number += 1
    assert number > 12


def test_a_batch_waits_for_memory(gpu: Gpu, segmenter: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    program = on_cuda(segmenter, **ON_GPU)
    assert len(run(program, pictures(2), 2)) == 2
    gpu.room = 0
    timer = threading.Timer(0.2, lambda: setattr(gpu, "room", None))  # a frame has been written
    timer.start()
    assert len(run(program, pictures(2), 2)) == 2
    timer.join()
    gpu.room = 0
    monkeypatch.setattr(cuda_program, "MEMORY_WAIT", 0.1)
    with pytest.raises(GpuMemoryError, match="no room to start a batch"):
        run(program, pictures(2), 2)
    gpu.room = None
    assert len(run(program, pictures(2), 2)) == 2
    program.close()
