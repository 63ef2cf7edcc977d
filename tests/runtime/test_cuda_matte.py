"""Mattes that are composed on a GPU are those that the host composes; on a fake GPU, and on a real one."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from fake_gpu import Array, Gpu
from framefuse.engines.null import CudaNullEngine, NullEngine, NullExecution
from framefuse.errors import SinkError
from framefuse.frame import PIXEL_FORMATS, Frame, View
from framefuse.kernels.masks.canvas import lies_on_gpu
from framefuse.kernels.masks.grids import TOGETHER
from framefuse.models.card import Card
from framefuse.pipeline import Pipeline
from framefuse.prediction import Detections, FrameInfo, Matte, MattePart, Result
from framefuse.runtime import matting, memory
from framefuse.runtime.ledger import Copy
from framefuse.runtime.readers import READERS
from framefuse.runtime.rectilinear import Rectilinear
from framefuse.sinks import CallbackSink, SinkSet
from framefuse.sinks import matte as matte_sink
from framefuse.sinks.images import FrameConverter, Meaning, planes_of
from framefuse.sinks.matte import MatteSink
from framefuse.sinks.mp4 import Mp4File
from framefuse.sinks.video import VideoFormat, VideoSink, fill
from framefuse.sources import segments
from framefuse.sources.nvdec import SurfaceLease
from framefuse.world import World
from media import video

Planes = list[tuple[NDArray[np.uint8], ...]]
FRAMES, CUT_AT = 14, 8


def bright(luminance: NDArray[Any]) -> NDArray[np.float32]:
    """(batch, h, w) to scores of three classes at half the size: what is bright is foreground."""
    coarse = luminance.astype(np.float32).reshape(len(luminance), luminance.shape[1] // 2, 2, -1, 2).mean((2, 4))
    return np.stack((np.zeros_like(coarse), 8 * coarse - 3, np.full_like(coarse, -5)), axis=1)


class BrightExecution(NullExecution):
    gpu: Gpu

    def start(self, stream: Any) -> None:
        def run() -> None:
            self.results[0][...] = bright(self.input[..., :3].mean(-1))

        self.gpu.do(stream.ptr, run)


class BrightEngine(CudaNullEngine):
    """A model on the fake GPU that looks at its input."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(lambda batch, height, width: [np.zeros((batch, 3, height // 2, width // 2), np.float32)])
        self._gpu = gpu

    def _make_execution(self, batch: int, height: int, width: int) -> NullExecution:
        made = super()._make_execution(batch, height, width)
        own = BrightExecution()
        own.input, own.results, own.gpu = made.input, made.results, self._gpu
        return own


def stereo_clip(path: Path, size: tuple[int, int] = (264, 128), pixels: str = "yuv420p") -> Path:
    """Bodies for both eyes, with a cut to the negative."""
    world = World(scene="bodies", seed=5, split="test", frames=FRAMES, size=size, stereo="sbs")
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=30, options={"crf": "18", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        for index in range(FRAMES):
            image = world[index].image if index < CUT_AT else 255 - world[index].image
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")))
        container.mux(stream.encode(None))
    return path


def composed(
    monkeypatch: pytest.MonkeyPatch, clip: Path, model: Path, folder: Path, **options: Any
) -> tuple[Planes, list[bool], Pipeline]:
    """The planes of all frames as they reach the encoder, and whether each came from a GPU."""
    seen, there = Planes(), list[bool]()
    encode, write = Mp4File.encode, MatteSink.write

    def encoded(self: Mp4File, *given: Any, **more: Any) -> None:
        seen.append(tuple(plane.copy() for plane in planes_of(self._av_frame)))
        encode(self, *given, **more)

    def written(self: MatteSink, result: Any, frame: Any) -> None:
        there.append(lies_on_gpu(frame))
        write(self, result, frame)

    with monkeypatch.context() as patch:
        patch.setattr(Mp4File, "encode", encoded)
        patch.setattr(MatteSink, "write", written)
        pipeline = Pipeline(clip, model, project=folder, **{"encoder": "libx264", **options})
        pipeline.run()
    return seen, there, pipeline


def same(found: Planes, expected: Planes) -> None:
    assert len(found) == len(expected) == FRAMES
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert len(one) == len(other)
        for plane, wanted in zip(one, other, strict=True):
            share = (np.abs(plane.astype(int) - wanted) <= 1).mean()
            assert share >= 0.99, f"frame {number}: {share:.4f} of a plane is within one grey level"


@pytest.mark.parametrize(
    ("mode", "steady"),
    [
        *(
            pytest.param(mode, 1.0, marks=() if mode in ("green", "alpha") else pytest.mark.slow)
            for mode in ("gray", "green", "overlay", "blur", "alpha", "packed")
        ),
        ("gray", 0.0),
    ],
)
def test_composed_planes_are_those_of_the_host(
    mode: str, steady: float, gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = stereo_clip(tmp_path / "clip_FISHEYE190.mp4")
    options: dict[str, Any] = {"save_matte": mode, "stereo": "sbs", "matte_steady": steady, "matte_view": "panorama",
                               "batch_timeout": 60}  # fmt: skip
    if mode == "alpha":
        options["encoder"] = "auto"
    host = NullEngine(lambda pixels: [bright(pixels.mean(1))])
    expected, there, _ = composed(
        monkeypatch, clip, segmenter.path, tmp_path / "host", device="cpu", engine=host, **options
    )
    assert not any(there)
    found, there, pipeline = composed(
        monkeypatch, clip, segmenter.path, tmp_path / "gpu", device="cuda", engine=BrightEngine(gpu), **options
    )
    same(found, expected)
    assert "batch 8: the views of 4 frames" in pipeline.report.choices
    assert gpu.launches == -(-FRAMES // 4), "both eyes of four frames are in one"
    assert all(there) == (mode != "packed")
    luma = np.concatenate([planes[3 if mode == "alpha" else 0].ravel() for planes in expected])
    assert luma.std() > 20, "there is something to see"
    copies = pipeline._program.ledger.totals()
    assert not any(copy.direction == "d2d" for copy in copies), "frames stay where the decoder has put them"
    written = sum(size for copy, size in copies.items() if copy.stage == "write")
    sizes = {"gray": 1.0, "alpha": 2.5}
    assert written == pytest.approx(FRAMES * 264 * 128 * sizes.get(mode, 1.5), rel=0.05)


def test_holes_and_both_eyes(gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = stereo_clip(tmp_path / "clip.mp4")
    options: dict[str, Any] = {"save_matte": "gray", "stereo": "sbs", "matte_holes": 0.01, "matte_eyes": 1.0}
    host = NullEngine(lambda pixels: [bright(pixels.mean(1))])
    expected, _, _ = composed(
        monkeypatch, clip, segmenter.path, tmp_path / "host", device="cpu", engine=host, **options
    )
    found, there, _ = composed(
        monkeypatch, clip, segmenter.path, tmp_path / "gpu", device="cuda", engine=BrightEngine(gpu), **options
    )
    assert all(there)
    same(found, expected)
    plain, _, _ = composed(
        monkeypatch, clip, segmenter.path, tmp_path / "plain", device="cpu", engine=host,
        **options | {"matte_holes": 0.0, "matte_eyes": 0.0},
    )  # fmt: skip
    changed = [(one[0] != other[0]).mean() for one, other in zip(plain, expected, strict=True)]
    assert min(changed) > 0.01, "there is something to fill, or to agree about"


@pytest.mark.parametrize(
    ("name", "pixels"),
    [
        ("clip_FISHEYE190.mp4", "yuv420p"),
        pytest.param("clip_180_LR.mp4", "yuv420p", marks=pytest.mark.slow),
        ("clip_FISHEYE190.mp4", "yuv444p"),
    ],
)
def test_rectilinear_views(
    name: str, pixels: str, gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of surfaces of NVDEC they are made there; of what FFmpeg decodes, on the host."""
    clip = stereo_clip(tmp_path / name, pixels=pixels)
    options: dict[str, Any] = {"save_matte": "gray", "stereo": "auto", "matte_view": "rectilinear"}
    host = NullEngine(lambda pixels: [bright(pixels.mean(1))])
    expected, _, _ = composed(
        monkeypatch, clip, segmenter.path, tmp_path / "host", device="cpu", engine=host, **options
    )
    made, rows = list[bool](), Rectilinear.rows

    def seen(self: Rectilinear, frame: Frame, eyes: Any) -> Any:
        made.append(lies_on_gpu(frame))
        return rows(self, frame, eyes)

    monkeypatch.setattr(Rectilinear, "rows", seen)
    found, there, pipeline = composed(
        monkeypatch, clip, segmenter.path, tmp_path / "gpu", device="cuda", engine=BrightEngine(gpu), **options
    )
    assert set(made) == set(there) == {pixels == "yuv420p"}
    same(found, expected)
    assert gpu.launches == 2 * FRAMES, "both eyes are in one, and both views in another"
    assert any("matte view rectilinear" in choice for choice in pipeline.report.choices)
    if pixels == "yuv420p":
        ledger = pipeline._program.ledger
        kept = sum(size for copy, size in ledger.totals().items() if copy == Copy("preprocess", "d2d", "pixels"))
        assert ledger.frames == FRAMES
        assert not kept, "nobody needs the planes of the views, and frames stay where the decoder has put them"


def test_frames_that_only_the_host_composes(
    gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4:4:4, which FFmpeg decodes: the mattes come to the host, too."""
    source = stereo_clip(tmp_path / "clip.mp4", (128, 64), "yuv444p")
    options: dict[str, Any] = {"save_matte": "green", "stereo": "sbs"}
    host = NullEngine(lambda pixels: [bright(pixels.mean(1))])
    runs = [
        composed(monkeypatch, source, segmenter.path, tmp_path / device, device=device, engine=engine, **options)
        for device, engine in (("cpu", host), ("cuda", BrightEngine(gpu)))
    ]
    same(runs[1][0], runs[0][0])
    assert not any(runs[1][1])


def test_frames_without_views_are_composed_on_the_host(
    gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is found in them. The decoder gets their surfaces back."""
    source = stereo_clip(tmp_path / "clip.mp4", (128, 64))

    def looks(frame: Frame, latest: Any) -> list[View]:
        return [] if frame.index % 3 == 1 else [View()]

    options: dict[str, Any] = {"save_matte": "gray", "views": looks, "matte_steady": 0.0}
    host = NullEngine(lambda pixels: [bright(pixels.mean(1))])
    expected, _, _ = composed(
        monkeypatch, source, segmenter.path, tmp_path / "cpu", device="cpu", engine=host, **options
    )
    found, there, _ = composed(
        monkeypatch, source, segmenter.path, tmp_path / "gpu", device="cuda", engine=BrightEngine(gpu), **options
    )
    same(found, expected)
    assert there == [index % 3 != 1 for index in range(FRAMES)]


def test_another_sink_that_needs_frames_brings_them_to_the_host(
    gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip, lumas = stereo_clip(tmp_path / "clip.mp4"), list[bool]()
    seen, there, _ = composed(
        monkeypatch, clip, segmenter.path, tmp_path, device="cuda", engine=BrightEngine(gpu), save_matte="gray",
        sinks=[lambda: CallbackSink(lambda result, frame: lumas.append(lies_on_gpu(frame)), needs_frame=True)],
    )  # fmt: skip
    assert len(seen) == len(lumas) == FRAMES and not any(there) and not any(lumas)


def matte_of(size: tuple[int, int], content: str, move: Callable[[Any], Any]) -> Matte:
    """Of two eyes, of which one may be a pixel wider, and nothing of what is below them."""
    width, height = size
    eye, random = width // 2, np.random.default_rng(7)
    grid = {"one sample": (1, 1)}.get(content, (max(1, height // 3), max(1, eye // 4)))
    parts = []
    for left, wide in ((0, eye), (eye, width - eye)):
        alpha = random.uniform(-0.5, 1.5, grid).clip(0, 1)
        alpha = {"none": 0 * alpha, "all": 0 * alpha + 1}.get(content, alpha).astype(np.float32)
        guide = random.uniform(0, 1, grid).astype(np.float32)
        parts.append(MattePart((left, 0, wide, max(1, height - 3)), move(alpha), move(guide)))
    return Matte(tuple(parts), size)


@pytest.mark.parametrize("mode", ["gray", "green", "overlay", "blur", "alpha"])
@pytest.mark.parametrize("content", ["random", "one sample", "none", "all"])
@pytest.mark.parametrize(("size", "name"), [((97, 63), "yuv420p"), ((64, 34), "nv12"), ((34, 18), "p010")])
def test_frames_of_any_size(
    mode: str, content: str, size: tuple[int, int], name: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Composed in a sink: on the host from planes that are 8-bit 4:2:0 already, on the GPU from any."""
    format = PIXEL_FORMATS[name]
    random, (width, height) = np.random.default_rng(6), size
    shapes = [shape for shape in PIXEL_FORMATS["yuv420p"].plane_shapes(width, height)]
    planar = [random.integers(16, 236, shape, np.uint8) for shape in shapes]
    planes = [planar[0], np.stack(planar[1:], -1)] if format.layout == "semiplanar" else planar
    scaled = [plane.astype(format.dtype) << (format.bits + format.shift - 8) for plane in planes]
    frames = Frame(tuple(planar), PIXEL_FORMATS["yuv420p"]), Frame(tuple(one.view(Array) for one in scaled), format)
    found = []
    for frame, move in zip(frames, (lambda array: array, lambda array: array.view(Array)), strict=True):
        sink: Any = MatteSink(mode=mode)
        copied = list[int]()
        sink._context = SimpleNamespace(copied=copied.append)
        seen = Result(FrameInfo.of(frame), Detections.none({}), matte=matte_of(size, content, move))
        written = list[Any]()
        monkeypatch.setattr(VideoSink, "write", lambda sink, result, frame, to=written: to.append(frame))
        sink.write(seen, frame)
        (shown,) = written
        assert bool(copied) == lies_on_gpu(frame)
        video = VideoFormat(width, height, Meaning("bt601", False))
        even = video.even[::-1]
        target = [np.zeros(shape, np.uint8) for shape in (even, *2 * [(even[0] // 2, even[1] // 2)], even)]
        fill(tuple(target), FrameConverter().yuv420p(shown)[0], 0)
        sink._draw(tuple(target if mode == "alpha" else target[:3]), video, seen)
        found.append(target)
    for number, (one, other) in enumerate(zip(*found, strict=True)):
        difference = np.abs(one.astype(int) - other)
        assert difference.max() <= 1 and (difference == 0).mean() > 0.98, (number, difference.max())


@pytest.mark.parametrize("options", [{}, {"preset": "vr"}])
def test_frames_are_composed_by_the_thread_that_runs_the_model(
    options: dict[str, Any], gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those that come before the first has opened the sink. Nobody gets a result whose matte a GPU still
    computes."""
    happened, clip = list[tuple[str, int]](), stereo_clip(tmp_path / "clip.mp4")
    compose, download = MatteSink._compose_on_gpu, MatteSink._downloaded
    threads, opened, begin = dict[int, str](), threading.Event(), SinkSet.begin

    def beginning(sinks: SinkSet, results: Any, *given: Any) -> bool:
        assert results[0][0].frame.index == 0 or opened.wait(60)
        return begin(sinks, results, *given)

    def composing(sink: MatteSink, given: Any) -> Any:
        for frame, _ in given:
            happened.append(("compose", frame.index))
            threads[frame.index] = threading.current_thread().name
        return compose(sink, given)

    def downloading(sink: MatteSink, frame: Frame, result: Result) -> Frame:
        found = download(sink, frame, result)
        happened.append(("wait", frame.index))
        opened.set()
        return found

    monkeypatch.setattr(SinkSet, "begin", beginning)
    monkeypatch.setattr(MatteSink, "_compose_on_gpu", composing)
    monkeypatch.setattr(MatteSink, "_downloaded", downloading)
    options = {"device": "cuda", "engine": BrightEngine(gpu), "save_matte": "gray", "stereo": "sbs", **options}
    pipeline = Pipeline(clip, segmenter.path, project=tmp_path, **options)
    for result in pipeline:
        happened.append(("result", result.frame.index))
    assert sorted(step for step in happened if step[0] == "compose") == [("compose", index) for index in range(FRAMES)]
    assert [step for step in happened if step[0] == "wait"] == [("wait", index) for index in range(FRAMES)]
    for index in range(FRAMES):
        steps = [happened.index((word, index)) for word in ("compose", "wait", "result")]
        assert steps == sorted(steps)
    first = range(1 if "preset" in options else TOGETHER)  # which open the file
    assert threads == {**dict.fromkeys(range(FRAMES), "ff-program"), **dict.fromkeys(first, "ff-write")}


@pytest.mark.parametrize(("live", "each", "most"), [(True, 3, 4), (False, 3, 4), (True, 100, 6), (False, 100, 24)])
def test_what_is_composed_of_dropped_frames_serves_later_ones(
    live: bool, each: int, most: int, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live source may drop frames that are composed already. Where writing stalls, no more are.

    Args:
        each: so many frames are begun for one that is written.
        most: planes at the same time: of those that were begun, and of the one that was written before.
    """
    made, canvas = list[Any](), matte_sink.Canvas

    def making(shapes: Any) -> Any:
        made.append(canvas(shapes))
        return made[-1]

    monkeypatch.setattr(matte_sink, "Canvas", making)
    sink: Any = MatteSink(mode="gray")
    sink._context = SimpleNamespace(copied=lambda size: None, source=SimpleNamespace(live=live))
    monkeypatch.setattr(VideoSink, "write", lambda sink, result, frame: None)
    for number in range(60):
        planes = (np.full((34, 64), number, np.uint8).view(Array), np.full((17, 32, 2), 128, np.uint8).view(Array))
        frame = Frame(planes, PIXEL_FORMATS["nv12"], number)
        matte = matte_of((64, 34), "all", lambda array: array.view(Array))
        seen = Result(FrameInfo.of(frame), Detections.none({}), matte=matte)
        assert sink.begin([(seen, frame)]) == (number < most or each < most)
        if number % each == each - 1:
            sink.write(seen, frame)
    assert len(made) == most


def test_what_a_gpu_reads_is_kept_until_it_has(
    gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mattes of the frames around one, at a cut too."""
    read, download, steady = list[list[Any]](), MatteSink._downloaded, matting.steadied

    def steadying(around: list[Any], frames: range, **options: Any) -> Any:
        read.extend([[weakref.ref(moment.alphas[0]) for moment in around]] * len(frames))
        return steady(around, frames, **options)

    def downloading(sink: MatteSink, frame: Frame, result: Result) -> Frame:
        assert all(alpha() is not None for alpha in read[frame.index])
        return download(sink, frame, result)

    monkeypatch.setattr(matting, "steadied", steadying)
    monkeypatch.setattr(MatteSink, "_downloaded", downloading)
    clip = stereo_clip(tmp_path / "clip.mp4")
    seen, there, _ = composed(monkeypatch, clip, segmenter.path, tmp_path, device="cuda", engine=BrightEngine(gpu),
                              save_matte="gray", stereo="sbs")  # fmt: skip
    assert len(seen) == len(read) == FRAMES and all(there)
    gc.collect()
    assert not any(alpha() is not None for looks in read[:4] for alpha in looks), "those before the cut"


def test_what_is_composed_is_written_where_the_next_frame_cannot_be(
    gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose = MatteSink._compose_on_gpu

    def composing(sink: MatteSink, given: Any) -> Any:
        if any(frame.index == 5 for frame, _ in given):
            raise SinkError("no more")
        return compose(sink, given)

    monkeypatch.setattr(MatteSink, "_compose_on_gpu", composing)
    clip = stereo_clip(tmp_path / "clip.mp4")
    with pytest.raises(SinkError, match="no more"):
        composed(monkeypatch, clip, segmenter.path, tmp_path, device="cuda", engine=BrightEngine(gpu),
                 save_matte="gray", stereo="sbs")  # fmt: skip
    (path,) = tmp_path.rglob("clip_gray.mp4")
    with av.open(str(path)) as written:
        assert sum(1 for _ in written.decode(video=0)) == 5


@pytest.mark.parametrize(
    ("options", "lent"),
    [
        ({"stereo": "sbs", "matte_view": "panorama"}, True),
        ({}, True),
        ({"preset": "vr"}, True),
        ({"stereo": "sbs", "batch": 3}, False),
        ({"stereo": "sbs", "max_memory": (memory.CONTEXT + 33.68e6) / 2**20}, False),
    ],
)
def test_decoded_frames_are_lent_until_they_are_written(
    options: dict[str, Any], lent: bool, gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A video has more frames than its decoder has memory for. Where the eyes of one may be in two batches, which the
    last two options bring about, frames are copied."""
    released, release, download = list[SurfaceLease](), SurfaceLease.release, MatteSink._downloaded

    def releasing(self: SurfaceLease, after: Any = None) -> None:
        released.append(self)
        release(self, after)

    def downloading(sink: MatteSink, frame: Frame, result: Result) -> Frame:
        assert (isinstance(frame.lease, SurfaceLease) and not frame.lease.released) == lent
        return download(sink, frame, result)

    monkeypatch.setattr(SurfaceLease, "release", releasing)
    monkeypatch.setattr(MatteSink, "_downloaded", downloading)
    clip = video(tmp_path / "clip.mp4", frames=60, size=(264, 128))
    seen, there, pipeline = composed(
        monkeypatch, clip, segmenter.path, tmp_path, device="cuda", engine=BrightEngine(gpu), save_matte="gray",
        readers=1, **options,
    )  # fmt: skip
    assert lent or pipeline._batcher.size in (1, 3)
    assert len(seen) == 60 and all(there)
    assert len(released) == len(set(released)) == 60, "each once"


@pytest.mark.slow
def test_several_decoders_of_a_long_video(
    gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a ring of its own, in which frames wait; without memory for them one decoder reads."""
    monkeypatch.setattr(segments, "AHEAD_WORTH", 3)
    monkeypatch.setattr(segments, "AHEAD_SECONDS", 1)
    encoder = {"g": "10", "bf": "2", "x264-params": "open-gop=0:scenecut=0"}
    clip = video(tmp_path / "clip.mp4", frames=120, size=(128, 64), options=encoder)
    said, planes, little = [], list[Planes](), (memory.CONTEXT + 34e6) / 2**20
    for options in ({"readers": 1}, {}, {"max_memory": little}):
        seen, there, pipeline = composed(
            monkeypatch, clip, segmenter.path, tmp_path / str(len(said)), device="cuda", engine=BrightEngine(gpu),
            save_matte="gray", **options,
        )  # fmt: skip
        assert len(seen) == 120 and all(there)
        planes.append(seen)
        said.append([choice for choice in pipeline.report.choices if "the file" in choice])
        assert "decoded by NVDEC (h264)" in pipeline.report.sources[0].notes
        assert pipeline.settings.batch == 1
    part = "cut at key frames, it has parts of up to 30 frames"
    assert said[:2] == [[], [f"8 decoders read the file side by side: {part}, and up to 30 of each wait"]]
    assert said[2][0].startswith(f"one decoder reads the file: {part}, and ")
    for others in planes[1:]:
        for one, other in zip(planes[0], others, strict=True):
            np.testing.assert_array_equal(one[0], other[0])


@pytest.mark.gpu
def test_several_real_decoders_of_a_long_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = {"g": "50", "bf": "3", "x264-params": "open-gop=0:scenecut=0"}
    clip = video(tmp_path / "clip.mp4", frames=600, size=(1280, 640), options=encoder)
    found = []
    for options in ({"readers": 1}, {}):
        folder = tmp_path / str(len(found))
        seen, there, pipeline = composed(
            monkeypatch, clip, Path("body-n"), folder, device="cuda", save_matte="green", **options
        )
        assert len(seen) == 600 and all(there)
        assert "decoded by NVDEC (h264)" in pipeline.report.sources[0].notes
        assert any(f"{READERS} decoders read" in choice for choice in pipeline.report.choices) == (not options)
        found.append((seen, Path(pipeline.report.outputs[0]).read_bytes()))
    for one, other in zip(found[0][0], found[1][0], strict=True):
        for plane, wanted in zip(one, other, strict=True):
            np.testing.assert_array_equal(plane, wanted)
    assert found[0][1] == found[1][1]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["gray", "green", "overlay", "blur", "alpha"])
def test_composed_planes_of_a_real_gpu(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the host composes of the same mattes; and those of a run on the CPU, whose model is more precise."""
    clip, model = stereo_clip(tmp_path / "clip.mp4", (1280, 640)), Path("body-n")
    options: dict[str, Any] = {"save_matte": mode, "stereo": "sbs", "encoder": "auto" if mode == "alpha" else "libx264"}
    found, there, pipeline = composed(monkeypatch, clip, model, tmp_path / "gpu", device="cuda", **options)
    assert all(there)
    copies = pipeline._program.ledger.totals()
    assert not any(copy.direction == "d2d" for copy in copies), "frames stay where the decoder has put them"
    written = sum(size for copy, size in copies.items() if copy.stage == "write")
    assert written == pytest.approx(FRAMES * 1280 * 640 * {"gray": 1.0, "alpha": 2.5}.get(mode, 1.5), rel=0.01)
    needing = [lambda: CallbackSink(lambda result, frame: None, needs_frame=True)]
    expected, there, _ = composed(monkeypatch, clip, model, tmp_path / "both", device="cuda", sinks=needing, **options)
    assert not any(there)
    same(found, expected)
    alike, _, _ = composed(monkeypatch, clip, model, tmp_path / "host", device="cpu", **options)
    for one, other in zip(found, alike, strict=True):
        for plane, wanted in zip(one, other, strict=True):
            assert np.abs(plane.astype(int) - wanted).mean() < 1
