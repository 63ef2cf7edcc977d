"""NVDEC in sources and pipelines, on a fake GPU: decoding, several readers, leases, errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fake_gpu
import media
from framefuse.cuda import device as gpus
from framefuse.cuda import driver as cuda_driver
from framefuse.errors import GpuLostError, GpuMemoryError
from framefuse.pipeline import Pipeline
from framefuse.sources import SourceOptions, nvdec, open_source
from framefuse.sources.nvdec import SurfaceLease
from training.squares import write_squares
from training.squares_clip import squares_clip

FRAMES = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvdec")


@pytest.fixture(scope="module")
def clips(folder: Path) -> list[Path]:
    """Eight clips with different squares."""
    paths = [folder / f"clip{number}.mp4" for number in range(8)]
    for number, path in enumerate(paths):
        squares_clip(path, frames=FRAMES - number, size=(320, 192), seed=number)
    return paths


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return write_squares(folder / "squares.onnx")


def planes(frame: Any) -> list[Any]:
    luma, chroma = (np.array(plane) for plane in frame.planes)
    frame.lease.release()
    return [luma, chroma[:, :, 0], chroma[:, :, 1]]


@pytest.mark.parametrize("held", [1, 4])
@pytest.mark.parametrize("options", [{}, {"start": 0.4, "end": 0.9}, {"vid_stride": 3}, {"low_latency": True}])
def test_frames_and_facts_are_those_of_ffmpeg(
    monkeypatch: pytest.MonkeyPatch, clips: list[Path], options: dict[str, Any], held: int
) -> None:
    fake_gpu.install(monkeypatch)
    source = open_source(clips[0], SourceOptions(device="cuda", held=held, **options))
    assert "decoded by NVDEC (h264)" in source.info.notes
    count = 0
    for expected in open_source(clips[0], SourceOptions(**options)):
        frame = next(source)
        for name in ("index", "pts", "time_base", "matrix", "full_range", "rotation", "source_id"):
            assert getattr(frame, name) == getattr(expected, name), name
        for plane, other in zip(planes(frame), expected.planes, strict=True):
            np.testing.assert_array_equal(plane, other)
        count += 1
    assert count >= 10
    with pytest.raises(StopIteration):
        next(source)


def test_frames_that_are_held_keep_their_pixels(monkeypatch: pytest.MonkeyPatch, clips: list[Path]) -> None:
    fake_gpu.install(monkeypatch)
    source = open_source(clips[0], SourceOptions(device="cuda", held=6))
    frames = [next(source) for _ in range(6)]
    for frame, expected in zip(frames, open_source(clips[0]), strict=False):
        np.testing.assert_array_equal(planes(frame)[0], expected.planes[0])
    source.close()


@pytest.mark.parametrize("refused", ["this driver has no H264", "no engine"])
def test_why_the_host_decodes(monkeypatch: pytest.MonkeyPatch, clips: list[Path], refused: str) -> None:
    fake_gpu.install(monkeypatch, fake_gpu.codec(H264=refused))
    source = open_source(clips[0], SourceOptions(device="cuda"))
    assert any(text.startswith("decoded by FFmpeg on the host") and refused in text for text in source.info.notes)
    assert isinstance(next(source).planes[0], np.ndarray)


def test_odd_sizes_and_unknown_formats_stay_on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_gpu.install(monkeypatch)
    full = media.video(tmp_path / "444.mp4", pixel_format="yuv444p")
    jpeg = media.video(tmp_path / "mjpeg.avi", codec="mjpeg", pixel_format="yuvj420p")
    for path, reason in ((full, "no surface for yuv444p"), (jpeg, "NVDEC has no mjpeg")):
        assert any(reason in text for text in open_source(path, SourceOptions(device="cuda")).info.notes)


def test_what_is_odd_about_frames_is_counted_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The host decodes the first frame too, for its colours and rotation."""
    fake_gpu.install(monkeypatch)
    source = open_source(media.video(tmp_path / "444.h264", pixel_format="yuv444p"), SourceOptions(device="cuda"))
    count = len(list(source))
    notes = [text for text in source.info.notes if "without pts" in text]
    assert notes == [f"frames without pts, filled from the frame rate: {count}"]


def found(results: Any) -> dict[str, list[Any]]:
    """Per file: index and boxes of each frame, in order of arrival."""
    rows: dict[str, list[Any]] = {}
    for result in results:
        rows.setdefault(Path(result.frame.source_id).name, []).append(
            (result.frame.index, result.detections.xyxy.round(2).tolist())
        )
    return rows


@pytest.mark.parametrize("batch", [1, 4])
def test_eight_files_at_once_give_what_each_gives_alone(
    monkeypatch: pytest.MonkeyPatch, clips: list[Path], model: Path, batch: int
) -> None:
    expected = found(Pipeline(clips, model, device="cpu", engine="null"))
    fake_gpu.install(monkeypatch)
    pipeline = Pipeline(clips, model, device="cuda", engine="null", batch=batch)
    assert len(pipeline.sources) == 8
    assert found(pipeline) == expected
    assert [len(rows) for rows in expected.values()] == [FRAMES - number for number in range(8)]


def test_a_folder_is_read_side_by_side_and_readers_says_how_many(
    monkeypatch: pytest.MonkeyPatch, clips: list[Path], model: Path
) -> None:
    fake_gpu.install(monkeypatch)
    pipeline = Pipeline(str(clips[0].parent / "*.mp4"), model, device="cuda", engine="null", readers=3)
    assert len(pipeline.sources) == 3
    assert "batch 8: several videos are read side by side" in pipeline.report.choices
    assert sorted(map(len, found(pipeline).values())) == sorted(FRAMES - number for number in range(8))
    alone = Pipeline(clips, model, device="cuda", engine="null", readers=1)
    assert len(alone.sources) == 1
    alone.close()


def test_a_corrupt_stream_among_eight_is_the_only_one_that_suffers(
    monkeypatch: pytest.MonkeyPatch, clips: list[Path], model: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.mp4"
    damaged.write_bytes(clips[3].read_bytes())
    media.scramble(damaged, 0.4, 0.6)
    files = [*clips[:3], damaged, *clips[4:]]
    fake_gpu.install(monkeypatch)
    expected = found(Pipeline(clips, model, device="cuda", engine="null", batch=4))
    pipeline = Pipeline(files, model, device="cuda", engine="null", batch=4)
    rows = found(pipeline)
    for clip in (*clips[:3], *clips[4:]):
        assert rows[clip.name] == expected[clip.name]
    assert 5 < len(rows["damaged.mp4"]) <= FRAMES
    notes = {Path(fact.uri).name: " ".join(fact.notes) for fact in pipeline.report.sources}
    assert "damaged" in notes["damaged.mp4"] and not any("damaged" in notes[clip.name] for clip in clips[4:])


@pytest.mark.parametrize("sizes", [[(320, 192), (192, 128)], [(192, 128), (320, 192)]])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_size_that_changes_in_the_stream_runs_another_graph(
    monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path, sizes: list[Any], batch: int
) -> None:
    stream = tmp_path / "changes.ts"
    with stream.open("wb") as joined:
        for number, size in enumerate(sizes):
            part = tmp_path / f"{number}.ts"
            squares_clip(part, frames=12, size=size, seed=number)
            joined.write(part.read_bytes())
    expected = [(frame.index, frame.width) for frame in open_source(stream)]
    assert len({width for _, width in expected}) == 2
    fake_gpu.install(monkeypatch)
    pipeline = Pipeline(stream, model, device="cuda", engine="null", batch=batch)
    results = list(pipeline)
    assert [(result.frame.index, result.frame.width) for result in results] == expected
    assert "the frame size changes in the video" in pipeline.sources[0].info.notes


@pytest.mark.parametrize("given", ["folder", "list", "arrays"])
@pytest.mark.parametrize("options", [{}, {"rect": True}])
def test_images_of_many_sizes_share_one_graph(
    monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path, options: dict[str, Any], given: str
) -> None:
    """Each input size requires kernel measurements and its own graph, of which only a few are cached."""
    sizes = [(320, 192), (192, 128), (100, 300)]
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for path, size in zip(paths, sizes, strict=True):
        Image.new("RGB", size).save(path)
    fake_gpu.install(monkeypatch)
    source = {"folder": tmp_path, "list": paths, "arrays": [np.zeros((*size[::-1], 3), np.uint8) for size in sizes]}
    pipeline = Pipeline(source[given], model, device="cuda", engine="null", imgsz=320, **options)
    found = [(result.frame.width, result.frame.height) for result in pipeline]
    assert sorted(found) == sorted(sizes)
    said = any("share one CUDA graph" in choice for choice in pipeline.report.choices)
    assert said == (not options)
    assert (pipeline.report.model.input == "320x320") == said


def test_a_lease_waits_for_its_release_or_for_close(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(cuda_driver, "wait", lambda event, stream: waited.append(event))
    closed, lease, stream = threading.Event(), SurfaceLease(), object()
    thread = threading.Thread(target=lease.wait, args=(closed, stream))
    thread.start()
    lease.release("event")
    lease.release("again")  # a second release changes nothing
    thread.join(5)
    assert waited == ["event"]
    closed.set()
    SurfaceLease().wait(closed, stream)
    assert waited == ["event"]


def test_leaving_early_ends_every_decoder(monkeypatch: pytest.MonkeyPatch, clips: list[Path], model: Path) -> None:
    fake_gpu.install(monkeypatch)
    pipeline = Pipeline(clips, model, device="cuda", engine="null", batch=4)
    for number, _ in enumerate(pipeline):
        if number == 7:
            break
    pipeline.close()
    assert all(next(source, None) is None for source in pipeline.sources)


def pixels(source: Any) -> list[list[Any]]:
    return [[np.array(plane) for plane in frame.planes] for frame in source]


def test_the_host_decodes_where_memory_for_nvdec_has_gone(monkeypatch: pytest.MonkeyPatch, clips: list[Path]) -> None:
    gpu = fake_gpu.install(monkeypatch)
    monkeypatch.setattr(nvdec, "_started", set())
    source = open_source(clips[0], SourceOptions(device="cuda"))
    gpu.room = 84 * 10**6  # the model has taken the rest
    np.testing.assert_equal(pixels(source), pixels(open_source(clips[0])))
    reason = "decoded by FFmpeg on the host: NVDEC: needs 600 MB of GPU memory, and 84 MB are free"
    assert reason in source.info.notes
    assert not any("decoded by NVDEC" in text or "copied" in text for text in source.info.notes)
    gpu.room = None
    source = open_source(clips[0], SourceOptions(device="cuda"))
    next(source).lease.release()
    other = open_source(clips[1], SourceOptions(device="cuda"))
    gpu.room = 84 * 10**6
    next(other).lease.release()  # its CUDA context already exists
    assert "decoded by NVDEC (h264)" in other.info.notes


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("options", [{}, {"start": 0.6}])
def test_the_host_decodes_what_nvdec_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, clips: list[Path], calls: int, options: dict[str, Any]
) -> None:
    """CreateDecoder may fail, and so may a call of Decode, some packets later."""

    class Full(fake_gpu.Decoder):
        left = calls

        def __init__(self, codec: str, **options: Any) -> None:
            if not calls:
                raise RuntimeError("cuvidCreateDecoder: out of sessions\nin file x.cpp")
            super().__init__(codec, **options)
            self.held: list[Any] = []

        def Decode(self, data: Any) -> list[Any]:
            self.left -= 1
            if not self.left:
                raise RuntimeError("HandleVideoSequence: out of memory")
            return []

    module = fake_gpu.codec()
    module.CreateDecoder = Full
    fake_gpu.install(monkeypatch, module)
    source = open_source(clips[0], SourceOptions(device="cuda", **options))
    expected = open_source(clips[0], SourceOptions(**options))
    np.testing.assert_equal(pixels(source), pixels(expected))
    assert any("decoded by FFmpeg on the host: NVDEC: " in text and "out of" in text for text in source.info.notes)
    assert not source.info.drops


@pytest.mark.parametrize("batch", [1, 4])
def test_files_without_room_for_copies_of_their_surfaces_lose_no_frame(
    monkeypatch: pytest.MonkeyPatch, clips: list[Path], model: Path, batch: int
) -> None:
    expected = found(Pipeline(clips, model, device="cpu", engine="null"))
    begun: list[Any] = []
    make = nvdec.NvDecoder._make_ring

    def make_or_not(self: Any, decoded: Any) -> None:
        if self not in begun:
            begun.append(self)
        if begun.index(self) in (1, 3, 4):
            raise fake_gpu.OutOfMemory("Out of memory allocating 92,160 bytes")
        make(self, decoded)

    fake_gpu.install(monkeypatch)
    monkeypatch.setattr(nvdec.NvDecoder, "_make_ring", make_or_not)
    pipeline = Pipeline(clips, model, device="cuda", engine="null", batch=batch)
    assert found(pipeline) == expected
    without = [fact.uri for fact in pipeline.report.sources if any("on the host: NVDEC" in text for text in fact.notes)]
    assert len(without) == (3 if batch > 1 else 0)


def test_cuda_errors_in_a_readers_thread_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.install(monkeypatch)

    def reader() -> Iterator[int]:
        yield 1
        raise fake_gpu.CudaError(2)

    frames = gpus.on(0, reader(), "decode")
    assert next(frames) == 1
    with pytest.raises(GpuMemoryError, match="the GPU has no room to decode"):
        next(frames)


@pytest.mark.parametrize("held", [1, 4])
def test_a_gpu_that_is_lost_ends_the_source(monkeypatch: pytest.MonkeyPatch, clips: list[Path], held: int) -> None:
    gpu = fake_gpu.install(monkeypatch)
    source = open_source(clips[0], SourceOptions(device="cuda", held=held))
    next(source).lease.release()
    gpu.lost = fake_gpu.LAUNCH_FAILURE
    with pytest.raises(GpuLostError):
        next(source)
