"""How long memory of a GPU lives, on a fake one: neither longer than it is needed, nor shorter."""

from __future__ import annotations

import gc
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_cuda_program import on_cuda, pictures, run, scores, without_collector

import cuda_on_cpu
from benchmarks.growth import CLEAR_NAMES
from cuda_on_cpu import on_device
from fake_gpu import Array, Gpu
from framefuse import FrameFeed, Pipeline, kernels
from framefuse.cuda import device, driver, kernel
from framefuse.cuda.device import StreamPool
from framefuse.cuda.launch_plan import graph_memory
from framefuse.engines.cudnn import convolutions
from framefuse.engines.null import CudaNullEngine
from framefuse.engines.requests import device_request_pool
from framefuse.errors import EngineError, UsageError
from framefuse.frame import Frame
from framefuse.kernels import arrays
from framefuse.kernels.boxes import call as boxes
from framefuse.kernels.boxes import cuda as boxes_cuda
from framefuse.kernels.boxes.reference import Found
from framefuse.kernels.preprocess import cuda as preprocess_cuda
from framefuse.models.card import Card
from training.squares import write_squares

RUNS = 12

# --- runs


def test_runs_that_come_and_go_leave_nothing(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No object, no memory of Python's, no text that Python keeps for good."""
    model, image, intern = write_squares(tmp_path / "squares.onnx"), np.zeros((48, 64, 3), np.uint8), sys.intern
    texts = set[str]()

    def note(text: str) -> str:
        texts.add(text)
        return intern(text)

    def cycle() -> tuple[int, int, int]:
        feed = FrameFeed("stays")
        engine: Any = CudaNullEngine(lambda batch, height, width: [np.zeros((batch, 7, 84), np.float32)])
        with Pipeline(feed, model, device="cuda", engine=engine, imgsz=64).start() as pipeline:
            for _ in range(3):
                feed.submit(image)
                assert pipeline.get_result(60) is not None
            feed.finish()
        del pipeline, feed, engine
        gpu.graphs.clear()  # which the fake keeps
        gc.collect()
        CLEAR_NAMES()
        return len(gc.get_objects()), len(texts), tracemalloc.get_traced_memory()[0]

    monkeypatch.setattr(sys, "intern", note)
    found = np.zeros((RUNS + 1, 3), np.int64)  # which does not grow
    tracemalloc.start()
    try:
        for _ in range(5):
            cycle()
        for number in range(RUNS + 1):
            found[number] = cycle()
    finally:
        tracemalloc.stop()
    objects, kept, _ = found[-1] - found[0]
    assert objects < RUNS / 2 and kept == 0
    assert np.median(np.diff(found[:, 2])) < 100, "other threads of the process may take something now and then"


# --- programs


def test_host_frames_of_many_sizes_share_memory(gpu: Gpu) -> None:
    """As large as the largest of them, and not one beside the other."""
    from framefuse.runtime.cuda.uploads import Staging
    from framefuse.runtime.ledger import Ledger

    gpu.room = 10**9
    staging = Staging(1, device.cupy().cuda.Stream(), Ledger())
    rooms = []
    for width, height in ((64, 48), (160, 120), (32, 24), (120, 160), (158, 2), (160, 120)):
        (frame,) = pictures(1, width, height)
        staging.write([(0, frame)])
        there = staging.upload(0, frame)
        np.testing.assert_array_equal(np.asarray(there.planes[0]), frame.planes[0])
        rooms.append(gpu.room)
    assert rooms[1] == rooms[-1] < rooms[0]


def test_frames_that_are_written_together(gpu: Gpu) -> None:
    """Whoever brought them may overwrite them once they are uploaded, and rows may be padded."""
    from framefuse.runtime.cuda.uploads import Staging
    from framefuse.runtime.ledger import Ledger

    staging = Staging(5, device.cupy().cuda.Stream(), Ledger())
    for _ in range(2):
        frames = [*pictures(4, 62, 48), pictures(1, 64, 48)[0]]
        padded = frames[2].planes[0]
        wide = np.zeros((padded.shape[0], padded.shape[1] + 9, *padded.shape[2:]), padded.dtype)
        wide[:, : padded.shape[1]] = padded
        frames[2] = replace(frames[2], planes=(wide[:, : padded.shape[1]], *frames[2].planes[1:]))
        pixels = [[plane.copy() for plane in frame.planes] for frame in frames]
        staging.write(list(enumerate(frames)))
        there = [staging.upload(slot, frame) for slot, frame in enumerate(frames)]
        for frame in frames:
            for plane in frame.planes:
                plane[...] = 7
        for found, expected in zip(there, pixels, strict=True):
            for plane, wanted in zip(found.planes, expected, strict=True):
                np.testing.assert_array_equal(np.asarray(plane), wanted)


def test_an_error_that_is_kept_keeps_no_memory(gpu: Gpu, segmenter: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    program = on_cuda(segmenter, batch=1)
    run(program, pictures(2), 1)
    models = [weakref.ref(model) for model in program._executions[64, 96]]
    with without_collector():
        monkeypatch.setattr("framefuse.runtime.cuda.captured_batch.CapturedBatch.launch", lambda self, *rows: 1 / 0)
        with pytest.raises(ZeroDivisionError) as caught:
            list(program.submit(pictures(1)))
        program.close()
        assert [model() for model in models] == [None, None]
    assert caught.value.__traceback__ is not None


def test_two_threads_may_close(gpu: Gpu, segmenter: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a batch reads is kept until it has ended, also when another thread waits for the one before."""

    class Owner:
        pass

    class Ended:
        def __init__(self, number: int) -> None:
            self.number = number
            self.end = time.monotonic() + 0.1 + 0.2 * self.number  # a GPU that is busy, longer with what comes after

        @property
        def done(self) -> bool:
            if time.monotonic() < self.end:
                return False
            seen.append((self.number, owners[self.number]() is not None))
            return True

    monkeypatch.setattr(driver, "has_ended", attrgetter("done"))
    program, owners, seen = on_cuda(segmenter, batch=1), list[Any](), list[Any]()
    for picture in pictures(2):
        owner = Owner()
        owners.append(weakref.ref(owner))
        planes = tuple(plane.view(Array) for plane in picture.planes)
        list(program.submit([replace(picture, planes=planes, owner=owner)]))
    for number, flight in enumerate(program._in_flight):
        flight.captured.ended = Ended(number)
    del owner, flight
    threads = [threading.Thread(target=program.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(0, True), (1, True)]
    assert program.in_flight == 0


def test_closing_does_not_wait_for_a_batch_without_an_end(
    gpu: Gpu, segmenter: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framefuse.runtime.cuda.program.CLOSE_SECONDS", 0.2)
    program = on_cuda(segmenter, batch=1)
    list(program.submit(pictures(1)))
    captured = program._in_flight[0].captured
    assert program.request is program._in_flight[0]
    monkeypatch.setattr(driver, "has_ended", attrgetter("done"))
    captured.ended = SimpleNamespace(done=False)
    started = time.monotonic()
    program.close()
    program.close()
    assert time.monotonic() - started < 2
    assert program.request is None and vars(captured), "freed what the GPU still uses"


def test_a_program_that_is_closed_while_it_captures_keeps_nothing(gpu: Gpu, segmenter: Card) -> None:
    models: list[Any] = []

    def answer(batch: int, height: int, width: int) -> Any:
        if models:
            program.close()  # as another thread does that has waited long enough
        models.append(None)
        return scores(batch, height, width)

    program = on_cuda(segmenter, batch=1, slots=2, answer=answer)
    with pytest.raises(EngineError, match="was closed"):
        list(program.submit(pictures(1)))
    assert not program._captured and not program._executions


def test_what_was_launched_is_waited_for(gpu: Gpu, segmenter: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    program = on_cuda(segmenter, batch=1, keep_frames=True)
    monkeypatch.setattr(program, "_to_host", lambda frame: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(program.submit(pictures(1)))
    assert program.in_flight == 1
    assert list(program.drain()) == []  # without its frame a result is none
    assert program.in_flight == 0
    program.close()


def test_closing_while_it_is_closed(gpu: Gpu, segmenter: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the handler of a signal does that comes in the middle."""
    program, entered = on_cuda(segmenter, batch=1), list[Any]()
    list(program.submit(pictures(1)))

    def wait(self: Any, timeout: float | None, alone: bool = False) -> bool:
        if not entered:
            entered.append(self)
            program.close()
        return True

    monkeypatch.setattr("framefuse.runtime.cuda.captured_batch.CapturedBatch.wait", wait)
    program.close()
    assert entered and program.in_flight == 0


def test_what_a_captured_batch_reads_lives_as_long(gpu: Gpu, segmenter: Card) -> None:
    """Tables that a bounded cache has dropped in the meantime."""
    arrays._device_table.cache_clear()
    program = on_cuda(segmenter, batch=1)
    list(program.submit(pictures(1)))
    arrays._device_table.cache_clear()
    captured = [batch for batches in program._captured.values() for batch in batches]
    tables = [weakref.ref(table) for batch in captured for kept in batch._graph_memory for table in kept]
    assert tables and all(table() is not None for table in tables)
    del captured
    list(program.drain())
    program.close()
    gc.collect()
    assert all(table() is None for table in tables)


def test_a_request_pool_frees_its_model(gpu: Gpu) -> None:
    class Execution:
        memory_format, layout, capturable, version = "nchw", None, True, 0

        def __init__(self) -> None:
            self.input = device.cupy().zeros((1, 3, 4, 4), np.float32)
            self.results = [device.cupy().zeros((1, 3), np.float32)]

        def start(self, stream: Any) -> None: ...
        def finish(self, stream: Any) -> None: ...

    execution: Any = Execution()
    alive = weakref.ref(execution)
    with without_collector():
        pool = device_request_pool((1, 3, 4, 4), [execution])
        del execution
        pool.close()
        del pool
        assert alive() is None


def test_a_handle_of_cudnn_is_used_again(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    made, streams = list[int](), dict[int, int]()

    def create_handle() -> int:
        made.append(len(made) + 1)
        return made[-1]

    def set_stream(handle: int, stream: int) -> None:
        streams[handle] = stream

    cudnn = SimpleNamespace(create_handle=create_handle, set_stream=set_stream, backend_version=lambda: 91900)
    monkeypatch.setattr(convolutions, "frontend", lambda: cudnn)
    monkeypatch.setattr(convolutions, "_handles", StreamPool(convolutions._handles._make))
    first, second = convolutions.Builder(), convolutions.Builder()
    assert (first.handle, second.handle) == (1, 2)
    stream = first.stream
    del first
    third = convolutions.Builder()
    assert (third.handle, third.stream) == (1, stream)  # which has not gone: cuDNN would crash
    assert streams[1] == stream.ptr and made == [1, 2]


def test_what_is_lent_outlives_a_user_that_is_garbage(gpu: Gpu) -> None:
    """In a cycle, where Python ends all of it, in any order, also what comes back: CuPy destroys a stream then."""
    destroyed = []

    class Stream:
        def __del__(self) -> None:
            destroyed.append(id(self))

    class User:
        def __init__(self) -> None:
            self.itself = self
            self.stream, self.release = pool.acquire()

        def __del__(self) -> None:
            self.release()

    pool = StreamPool(Stream)
    for _ in range(3):
        User()
        gc.collect()
        assert not destroyed
    assert len(pool._all) == 1


# --- kernels


class Launch:
    """A launch that does nothing, and may be recorded."""

    def __call__(self, stream: int | None = None) -> None:
        launches: Any = kernel.recording.launches
        if launches is not None:
            launches.append(self)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_on_cpu.install(monkeypatch)
    monkeypatch.setattr(kernel, "launch", lambda symbol, *, stream=None, **arguments: Launch()(stream))
    monkeypatch.setattr(kernel, "bind", lambda symbol, **arguments: Launch())
    arrays._device_table.cache_clear()


@contextmanager
def capturing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every stream is being captured."""
    with monkeypatch.context() as capture:
        capture.setattr(device, "capturing", lambda stream: True)
        yield


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return on_device(np.zeros(shape, dtype))


def scratches() -> list[boxes_cuda.Scratch]:
    return [item for item in gc.get_objects() if isinstance(item, boxes_cuda.Scratch)]


class Detect:
    """A call of `detections` that can be made again."""

    def __init__(self, anchors: int, batch: int = 1) -> None:
        self.outputs, self.maps = [zeros(batch, 84, anchors)], zeros(batch, 8)
        integers = [zeros(batch, *shape, dtype=np.int32) for shape in ((300,), (), (), (300,))]
        self.out = Found(zeros(batch, 300, 4), zeros(batch, 300), *integers)
        self.options: dict[str, Any] = {"conf": 0.3, "iou": 0.5, "max_det": 300, "out": self.out}

    def __call__(self, **options: Any) -> Any:
        return boxes.detections(self.outputs, "yolov8", self.maps, **self.options, **options)


@pytest.mark.usefixtures("launches")
def test_a_plain_call_keeps_no_memory() -> None:
    before = len(scratches())
    for count in range(1, 40):
        boxes.nms(zeros(count, 4), zeros(count), iou=0.5, out=(zeros(40, dtype=np.int32), zeros(1, dtype=np.int32)))
        Detect(100 + count)()
    gc.collect()
    assert len(scratches()) == before


@pytest.mark.usefixtures("launches")
def test_scratch_memory_comes_from_the_stream_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """To whose pool it returns: on another stream it could be used again too early."""
    entered = []
    monkeypatch.setattr(device, "stream_at", lambda pointer: nullcontext(entered.append(pointer)))
    boxes_cuda.nms(zeros(9, 4), zeros(9), None, threshold=0.5, max_det=None, out=None, stream=7)
    device.upload(np.zeros(3), 8)
    assert entered == [7, 8]


@pytest.mark.usefixtures("launches")
def test_a_capture_needs_a_workspace_that_has_served_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    call, workspace = Detect(8400), kernels.Workspace()
    call()
    with capturing(monkeypatch), graph_memory(), pytest.raises(UsageError, match="record_launches before the capture"):
        call()
    call(workspace=workspace)
    with capturing(monkeypatch), graph_memory() as kept:
        call(workspace=workspace)
        with pytest.raises(UsageError, match="during the capture"):
            Detect(8401)(workspace=workspace)
    assert any(isinstance(memory, boxes_cuda.Scratch) for memory in kept)


@pytest.mark.usefixtures("launches")
def test_cached_tables_are_captured_by_an_owner_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plane, out = zeros(9, 9), zeros(20, 20)

    def call() -> None:
        kernels.upsample(plane, (20, 20), out=out)

    with capturing(monkeypatch), graph_memory(), pytest.raises(UsageError, match="not on the GPU yet"):
        call()
    call()
    with capturing(monkeypatch), pytest.raises(UsageError, match="record_launches before the capture"):
        call()
    with capturing(monkeypatch), graph_memory() as kept:
        call()
    tables = [weakref.ref(table) for tables in kept for table in tables]
    arrays._device_table.cache_clear()
    assert len(tables) == 4 and all(table() is not None for table in tables)
    kept.clear()
    assert all(table() is None for table in tables)


@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize("interpolation", ["linear", "antialias"])
def test_a_plan_keeps_what_it_launches_on(interpolation: str) -> None:
    """The arguments, what the call has allocated, and tables of caches that forget."""

    def batch(count: int) -> tuple[list[Frame], Any]:
        arrays = [zeros(40, 60, 3, dtype=np.uint8) for _ in range(count)]
        frames = [replace(Frame.from_array(np.zeros((40, 60, 3), np.uint8)), planes=(array,)) for array in arrays]
        return frames, zeros(count, 3, 32, 32)

    def memory_of(kept: Any) -> Iterator[Any]:
        if isinstance(kept, list | tuple):
            for item in kept:
                yield from memory_of(item)
        elif isinstance(kept, np.ndarray | boxes_cuda.Scratch):
            yield kept

    spec: dict[str, Any] = {"pad_value": 114, "mean": (0, 0, 0), "std": (255, 255, 255), "channel_order": "rgb",
                            "interpolation": interpolation}  # fmt: skip
    plans = [kernels.record_launches(Detect(840))]
    frames, out = batch(2)
    contents = [(0, 0, 32, 32)] * 2
    plans.append(kernels.record_launches(kernels.preprocess_batch, frames, out, contents=contents, **spec))
    memory = [weakref.ref(array) for plan in plans for array in memory_of(plan._kept[0])]
    memory += [weakref.ref(out), weakref.ref(frames[0].planes[0])]
    assert len(memory) == 2 + 1 + 2 + 4 * (interpolation == "antialias")
    del frames, out
    preprocess_cuda._geometry.cache_clear()
    preprocess_cuda._filter.cache_clear()
    arrays._device_table.cache_clear()
    gc.collect()
    assert all(array() is not None for array in memory)
    plans.clear()
    gc.collect()
    assert all(array() is None for array in memory)


@pytest.mark.usefixtures("launches")
def test_a_plan_that_is_recorded_or_captured_is_kept() -> None:
    plan = kernels.record_launches(Detect(840))
    outer = kernels.record_launches(plan)
    assert len(outer._launches) == len(plan._launches) == 3
    with graph_memory() as kept:
        plan()
    assert kept == [plan._kept]
    with pytest.raises(UsageError, match="started no kernel"):
        kernels.record_launches(lambda: None)


@pytest.mark.usefixtures("launches")
def test_threads_record_apart() -> None:
    """Launches of another thread belong to no plan of this one."""

    def both() -> None:
        thread = threading.Thread(target=Detect(9))
        thread.start()
        thread.join()
        Detect(840)()

    assert len(kernels.record_launches(both)._launches) == 3
