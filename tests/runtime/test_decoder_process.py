"""A video that a process of its own decodes gives the frames that the run would have decoded, whatever ends first."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from time import monotonic
from typing import Any

import av
import numpy as np
import pytest

import fake_gpu
from framefuse.config import settings_from
from framefuse.cuda import device
from framefuse.errors import DecodeError, EngineError, GpuLostError
from framefuse.frame import Frame
from framefuse.runtime import decoder_process
from framefuse.runtime.decoder_process import DecoderProcess, Server, start_process
from framefuse.runtime.readers import open_sources
from framefuse.sources import Source, open_source, segments
from framefuse.sources.segments import Segmented
from framefuse.sources.source import SourceOptions
from media import cuttable, truncate, video

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

    def read(waiting: int = 20, file: Path = path, **options: Any) -> DecoderProcess:
        (source,) = open_sources(Segmented(file, 2, waiting), settings_from({"device": "cuda", **options}), 1)
        assert isinstance(source, DecoderProcess)
        sources.append(source)
        return source

    yield read
    for source in sources:
        source.close()
    threads = [thread.name for thread in threading.enumerate()]
    assert not [name for name in threads if name.startswith(("ff-", "decoder process"))]


def check(source: Source, path: Path, until: int | None = None) -> int:
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


def resizing(path: Path) -> Path:
    """Frames of two sizes, 20 of each by turns: the headers are in the stream."""
    options = {"g": "10", "bf": "0", "x264-params": "open-gop=0:scenecut=0:repeat-headers=1"}
    with av.open(str(path), "w") as whole:
        stream, number = None, 0
        for part in range(8):
            size = (320, 192) if part % 2 else (192, 128)
            piece = video(path.with_name(f"{part}.ts"), size=size, frames=20, rate=25, options=options)
            with av.open(str(piece)) as source:
                stream = stream or whole.add_stream_from_template(source.streams.video[0])
                for packet in source.demux(video=0):
                    if packet.size:
                        packet.pts = packet.dts = number * 3600
                        packet.time_base, packet.stream, number = Fraction(1, 90_000), stream, number + 1
                        whole.mux(packet)
    return path


def notes_of(source: DecoderProcess) -> str:
    return "; ".join(source.info.notes)


def before_rows(monkeypatch: pytest.MonkeyPatch, act: Callable[[Server, int], None]) -> None:
    """Let the thread that sends frames do something before it describes each of them, which it numbers from 1."""
    row = Server._row

    def acting(server: Server, number: int, frame: Any) -> Any:
        act(server, number)
        return row(server, number, frame)

    monkeypatch.setattr(Server, "_row", acting)


def without_decoders() -> Any:
    """PyNvVideoCodec where no decoder can be made."""

    def fails(**options: Any) -> Any:
        raise RuntimeError("no decoder is free")

    module = fake_gpu.codec()
    module.CreateDecoder = fails
    return module


def give_back(frame: Frame) -> None:
    assert frame.lease is not None
    frame.lease.release()


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

    def dies(server: Server, number: int) -> None:
        if number == 40:
            cut_off(server._connection)

    before_rows(monkeypatch, dies)
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
    before_rows(monkeypatch, lambda server, number: cut_off(server._connection))
    source = reading()
    assert check(source, path) == FRAMES
    assert "decoded in the process of the run: the process" in notes_of(source)


def test_where_cuda_shares_no_memory_the_run_decodes(
    path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.install(monkeypatch)

    def refused(*given: Any) -> Any:
        raise fake_gpu.CudaError(801, "cudaErrorNotSupported")

    monkeypatch.setattr(device, "opened", refused)
    source = reading()
    assert check(source, path) == FRAMES
    assert "decoded in the process of the run: CUDA shares no memory: cudaErrorNotSupported" in notes_of(source)
    assert "decoded by NVDEC (h264)" in notes_of(source)


def test_frames_that_nvdec_does_not_decode_come_from_the_host(
    path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.install(monkeypatch, without_decoders())
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


def test_few_frames_of_the_host_wait(path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    servers, real = list[Server](), Server.run
    fake_gpu.install(monkeypatch, without_decoders())
    monkeypatch.setattr(Server, "run", lambda server: servers.append(server) or real(server))
    frames, most = iter(reading()), 0
    for _ in range(20):
        next(frames)
        time.sleep(0.01)  # in which the process would decode far more
        most = max(most, len(servers[0]._decoded))
    assert most <= decoder_process.HOST_FRAMES


@pytest.mark.parametrize("number", [1, 97])
def test_an_error_between_the_decoders_and_the_run_loses_no_frame_unsaid(
    path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fake_gpu.install(monkeypatch)

    def fails(server: Server, at: int) -> None:
        if at == number:
            raise GpuLostError("the GPU is lost")

    before_rows(monkeypatch, fails)
    source = reading()
    if number == 1:  # before anything was sent
        assert check(source, path) == FRAMES
        assert "decoded in the process of the run: the GPU is lost" in notes_of(source)
    else:
        with pytest.raises(GpuLostError, match="the GPU is lost"):
            check(source, path)


def test_a_lost_message_is_an_error(path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.install(monkeypatch)
    send = Server._send

    def losing(server: Server, *message: Any) -> None:
        if message[0] == "frames" and any(row.number == 50 for row in message[1]):
            message = message[0], message[1][:-1], *message[2:]
        send(server, *message)

    monkeypatch.setattr(Server, "_send", losing)
    with pytest.raises(EngineError, match=r"100 frames of .*a.mp4 were decoded, 99 have arrived"):
        for frame in reading():
            give_back(frame)


def test_when_the_run_decodes_nothing_is_left_of_the_process_and_all_counts_are_its_own(
    path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.install(monkeypatch)
    row = Server._row

    def failing(server: Server, at: int, frame: Any) -> Any:
        row(server, at, frame)
        raise GpuLostError("the GPU is lost")

    monkeypatch.setattr(Server, "_row", failing)
    source = reading()
    frames = iter(source)
    give_back(next(frames))
    assert not [thread for thread in threading.enumerate() if thread.name == "decoder process"]
    assert not source._memory and not source._planes
    steps = list[Any]()
    source.on_step = lambda *seconds: steps.append(seconds)  # as a pipeline sets it, after the first frame
    for frame in frames:
        give_back(frame)
    assert len(steps) >= FRAMES - 1
    size = fake_gpu.PITCH * 120 * 3 // 2
    assert source.info.copied == 2 * size * FRAMES


def test_an_error_of_the_video_is_no_reason_to_read_it_again(
    tmp_path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.install(monkeypatch)
    file = cuttable(tmp_path / "half.mp4", frames=FRAMES)
    data = bytearray(file.read_bytes())
    with av.open(str(file)) as container:
        for number, packet in enumerate(container.demux(video=0)):
            if packet.size and number >= FRAMES // 2:
                data[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    file.write_bytes(data)
    source = reading(20, file, start=2.4)
    with pytest.raises(DecodeError, match="could be decoded"):
        list(source)
    assert "in the process of the run" not in notes_of(source)

    def none() -> Any:
        raise OSError("too many processes")

    monkeypatch.setattr(decoder_process, "start_process", none)
    (own,) = open_sources(Segmented(file, 2, 20), settings_from({"device": "cuda", "start": 2.4}), 1)
    with pytest.raises(DecodeError, match="could be decoded"):
        list(own)
    assert source.info.drops == own.info.drops and source.info.drops["corrupt"] > 20


def test_memory_of_frames_of_another_size_is_given_back(
    tmp_path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.install(monkeypatch)
    closed = list[int]()
    monkeypatch.setattr(device, "close_opened", closed.append)
    path = resizing(tmp_path / "sizes.mkv")
    source, sizes = reading(20, path), Counter[tuple[int, int]]()
    for frame, wanted in zip(source, open_source(path, SourceOptions()), strict=True):
        sizes[frame.width, frame.height] += 1
        np.testing.assert_array_equal(np.array(frame.planes[0]), wanted.planes[0])
        give_back(frame)
        del frame
    assert len(sizes) == 2
    lent, kept = len(source._memory), sum(memory is not None for memory in source._memory)
    assert lent > 4 and kept <= 4 and len(closed) == lent - kept


def test_frames_arrive_when_the_run_gets_them(path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.install(monkeypatch)
    frames = iter(reading())
    next(frames)
    time.sleep(0.3)  # in which the next ones are decoded, and wait
    arrival = next(frames).arrival
    assert arrival is not None and monotonic() - arrival < 0.1


def test_copies_of_all_decoders_count_in_a_run_that_ends_early(
    path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.install(monkeypatch)
    source, size = reading(5), fake_gpu.PITCH * 120 * 3 // 2
    assert check(source, path, 60) == 60
    source.close()
    assert source.info.copied >= 2 * size * 60


def test_where_no_process_can_be_started_the_run_decodes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.install(monkeypatch)
    monkeypatch.setattr(decoder_process, "start_process", start_process)
    monkeypatch.setattr(sys, "executable", "")
    (source,) = open_sources(Segmented(path, 2, 20), settings_from({"device": "cuda"}), 1)
    assert check(source, path) == FRAMES
    assert any("no other can be started" in note for note in source.info.notes)


def test_no_file_stays_open(path: Path, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.install(monkeypatch)
    counts = []
    for source in [reading() for _ in range(3)]:
        assert check(source, path) == FRAMES
        gc.collect()  # what the test itself has opened
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts == sorted(counts, reverse=True)


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
