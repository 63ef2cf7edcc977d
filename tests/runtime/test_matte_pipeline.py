"""Mattes that are composed on a GPU are those that the host composes; on a fake GPU, and on a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from fake_gpu import Gpu
from framefuse.cuda import device
from framefuse.engines.null import CudaNullEngine, NullEngine, NullExecution
from framefuse.kernels.masks.canvas import lies_on_gpu
from framefuse.models.card import Card
from framefuse.pipeline import Pipeline
from framefuse.sinks.images import planes_of
from framefuse.sinks.matte import MatteSink
from framefuse.sinks.mp4 import Mp4File
from framefuse.world import World

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


def stereo_clip(path: Path, size: tuple[int, int] = (264, 128)) -> Path:
    """Bodies for both eyes, with a cut to the negative."""
    world = World(scene="bodies", seed=5, split="test", frames=FRAMES, size=size, stereo="sbs")
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=30, options={"crf": "18", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
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
    [*((mode, 1.0) for mode in ("gray", "green", "overlay", "blur", "alpha", "packed")), ("gray", 0.0)],
)
def test_composed_planes_are_those_of_the_host(
    mode: str, steady: float, gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = stereo_clip(tmp_path / "clip_FISHEYE190.mp4")
    options: dict[str, Any] = {"save_matte": mode, "stereo": "sbs", "matte_steady": steady}
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
    assert all(there) == (mode != "packed")
    luma = np.concatenate([planes[3 if mode == "alpha" else 0].ravel() for planes in expected])
    assert luma.std() > 20, "there is something to see"
    written = sum(size for copy, size in pipeline._program.ledger.totals().items() if copy.stage == "write")
    sizes = {"gray": 1.0, "alpha": 2.5}
    assert written == pytest.approx(FRAMES * 264 * 128 * sizes.get(mode, 1.5), rel=0.05)


def test_another_sink_that_needs_frames_brings_them_to_the_host(
    gpu: Gpu, segmenter: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from framefuse.sinks import CallbackSink

    clip, lumas = stereo_clip(tmp_path / "clip.mp4"), list[bool]()
    seen, there, _ = composed(
        monkeypatch, clip, segmenter.path, tmp_path, device="cuda", engine=BrightEngine(gpu), save_matte="gray",
        sinks=[lambda: CallbackSink(lambda result, frame: lumas.append(lies_on_gpu(frame)), needs_frame=True)],
    )  # fmt: skip
    assert len(seen) == len(lumas) == FRAMES and not any(there) and not any(lumas)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["gray", "green", "overlay", "blur", "alpha"])
def test_composed_planes_of_a_real_gpu(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """body-n in half precision there and in single precision here moves a few edges: one pixel in a hundred at most."""
    clip = stereo_clip(tmp_path / "clip.mp4", (1280, 640))
    options: dict[str, Any] = {"save_matte": mode, "stereo": "sbs", "encoder": "libx264"}
    if mode == "alpha":
        options["encoder"] = "auto"
    model = Path("body-n")
    expected, _, _ = composed(monkeypatch, clip, model, tmp_path / "host", device="cpu", **options)
    found, there, pipeline = composed(monkeypatch, clip, model, tmp_path / "gpu", device="cuda", **options)
    assert all(there)
    same(found, expected)
    ledger = pipeline._program.ledger
    assert ledger.crossed("pixels") <= FRAMES * 1280 * 640 * 4, "each plane once, and frames of the host once"
    assert device.cupy() is not None
