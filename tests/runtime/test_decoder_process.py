"""A video that a process of its own decodes gives the frames that the run would have decoded, whatever ends first."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_gpu
from framefuse.config import settings_from
from framefuse.cuda import device
from framefuse.errors import DecodeError
from framefuse.runtime import decoder_process
from framefuse.runtime.decoder_process import DecoderProcess, Server, start_process
from framefuse.runtime.readers import open_sources
from framefuse.sources import open_source, segments
from framefuse.sources.segments import Segmented
from framefuse.sources.source import SourceOptions
from media import cuttable, truncate

FRAMES = 100
Reading = Callable[..., DecoderProcess]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "AHEAD_SECONDS", 0.5)
    monkeypatch.setattr(segments, "AHEAD_WORTH", 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return cuttable(tmp_path / "a.mp4", frames=FRAMES)


@pytest.fixture
def reading(path: Path) -> Iterator[Reading]:
    """Opens a video as a run does, and closes it after the test; no thread is left then."""
    sources = list[DecoderProcess]()

    def read(waiting: int = 20, file: Path = path) -> DecoderProcess:
        (source,) = open_sources(Segmented(file, 2, waiting), settings_from({"device": "cuda"}), 1)
        assert isinstance(source, DecoderProcess)
        sources.append(source)
        return source

    yield read
    for source in sources:
        source.close()
    threads = [thread.name for thread in threading.enumerate()]
    assert not [name for name in threads if name.startswith(("ff-", "decoder process"))]


def check(source: DecoderProcess, path: Path, until: int | None = None) -> int:
    """Compare frames, which are released one by one, with those of one decoder; how many came."""
    number = 0
    for number, (frame, wanted) in enumerate(zip(source, open_source(path, SourceOptions()), strict=False), 1):
        assert (frame.index, frame.pts, frame.time_base) == (wanted.index, wanted.pts, wanted.time_base)
        planes = [device.cupy().asnumpy(plane) for plane in frame.planes]
        if len(planes) == 2:
            planes = [planes[0], planes[1][..., 0], planes[1][..., 1]]
        for plane, expected in zip(planes, wanted.planes, strict=True):
            np.testing.assert_array_equal(plane, expected)
        if frame.lease is not None:
            frame.lease.release(device.cupy().cuda.Event() if number % 3 else None)
            frame.lease.release()
        if number == until:
            break
    return number


def notes_of(source: DecoderProcess) -> str:
    return "; ".join(source.info.notes)


def cut_off(connection: Any) -> None:
    """End a connection as a process does that is killed."""
    with socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)


def test_few_frames_of_memory_are_enough_for_all(path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.install(monkeypatch)
    source, steps = reading(3), list[tuple[float, float, float]]()
    source.on_step = lambda *seconds: steps.append(seconds)
    assert check(source, path) == FRAMES
    assert len(steps) == FRAMES and "decoded by NVDEC (h264)" in notes_of(source)
    size = fake_gpu.PITCH * 120 * 3 // 2
    assert source.info.copied == 2 * size * FRAMES, "by PyNvVideoCodec, and into the ring"
    assert len(source._memory) == 2, "a ring of each decoder"


def test_without_a_gpu_the_process_says_so_and_the_run_decodes(
    path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process: to it, the GPU of this one is no fake."""
    fake_gpu.install(monkeypatch)
    monkeypatch.setattr(decoder_process, "start_process", start_process)
    source = reading()
    assert check(source, path) == FRAMES
    assert "decoded in the process of the run: CUDA needs CuPy" in notes_of(source)


def test_a_process_that_ends_in_the_middle_is_an_error_and_its_frames_stay(
    path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.install(monkeypatch)
    row = Server._row

    def dying(server: Server, number: int, frame: Any) -> Any:
        if number == 40:
            cut_off(server._connection)
        return row(server, number, frame)

    monkeypatch.setattr(Server, "_row", dying)
    source, kept = reading(), list[Any]()
    with pytest.raises(DecodeError, match="ended with code 0") as caught:
        for frame in source:
            kept.append(frame)
            if len(kept) > 20:
                kept[-20].lease.release()
    assert "readers 1" in str(caught.value.remedy)
    assert [frame.index for frame in kept] == list(range(len(kept))) and 0 < len(kept) <= 40
    for frame, wanted in list(zip(kept, open_source(path, SourceOptions()), strict=False))[-19:]:
        np.testing.assert_array_equal(np.array(frame.planes[0]), wanted.planes[0])


def test_a_process_that_ends_before_the_first_frame_leaves_the_video_to_the_run(
    path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.install(monkeypatch)
    row = Server._row

    def dying(server: Server, number: int, frame: Any) -> Any:
        cut_off(server._connection)
        return row(server, number, frame)

    monkeypatch.setattr(Server, "_row", dying)
    source = reading()
    assert check(source, path) == FRAMES
    assert "decoded in the process of the run: the process" in notes_of(source)


def test_where_cuda_shares_no_memory_the_run_decodes(
    path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.install(monkeypatch)

    def refused(handle: bytes, size: int) -> Any:
        raise fake_gpu.CudaError(801, "cudaErrorNotSupported")

    monkeypatch.setattr(device, "opened", refused)
    source = reading()
    assert check(source, path) == FRAMES
    assert "decoded in the process of the run: CUDA shares no memory: cudaErrorNotSupported" in notes_of(source)
    assert "decoded by NVDEC (h264)" in notes_of(source)


def test_frames_that_nvdec_does_not_decode_come_from_the_host(
    path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = fake_gpu.codec()

    def fails(**options: Any) -> Any:
        raise RuntimeError("no decoder is free")

    module.CreateDecoder = fails
    fake_gpu.install(monkeypatch, module)
    source = reading()
    assert check(source, path) == FRAMES
    assert "decoded by FFmpeg on the host" in notes_of(source)


def test_frames_for_which_there_is_no_memory_come_from_the_host(
    path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = fake_gpu.install(monkeypatch)
    source = reading()
    gpu.room = 100_000
    assert check(source, path) == FRAMES
    assert "decoded by FFmpeg on the host" in notes_of(source)


@pytest.mark.parametrize("after", [0, 1, 30])
def test_closing_in_the_middle_from_another_thread(
    path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    fake_gpu.install(monkeypatch)
    source = reading(5)
    if after:
        assert check(source, path, after) == after
    reader = threading.Thread(target=lambda: list(source))
    reader.start()
    source.close()
    reader.join(5)
    assert not reader.is_alive()
    source.close()


def test_a_truncated_video_says_so(tmp_path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.install(monkeypatch)
    path = truncate(cuttable(tmp_path / "long.mkv", frames=400), 0.7)
    source = reading(20, path)
    assert 0 < check(source, path) < 400
    assert "header states" in notes_of(source)


@pytest.mark.gpu
def test_a_real_process_decodes_into_memory_of_the_run(path: Path, reading: Reading) -> None:
    with device.current(0):
        source = reading()
        assert check(source, path) == FRAMES
    assert "decoded by NVDEC (h264)" in notes_of(source)
    assert "in the process of the run" not in notes_of(source)


@pytest.mark.gpu
def test_frames_of_a_real_process_that_was_killed_stay(path: Path, reading: Reading) -> None:
    with device.current(0):
        source = reading(5)
        frames = iter(source)
        kept = [next(frames) for _ in range(5)]
        source._stop(0)
        with pytest.raises(DecodeError, match="ended with code -9"):
            deque(frames, maxlen=0)
        for frame, wanted in zip(kept, open_source(path, SourceOptions()), strict=False):
            np.testing.assert_array_equal(device.cupy().asnumpy(frame.planes[0]), wanted.planes[0])
