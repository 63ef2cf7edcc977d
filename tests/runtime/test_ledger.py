"""The copy ledger: what it counts, and on a GPU whether CUDA's own records agree."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from test_cuda_program import SIZE, scores

from fake_gpu import install
from framefuse.engines.null import CudaNullEngine
from framefuse.errors import UsageError
from framefuse.frame import Frame
from framefuse.models.card import read_card
from framefuse.pipeline import Pipeline
from framefuse.preprocess import Preprocess
from framefuse.runtime.cuda.program import CudaProgram
from framefuse.runtime.ledger import Copy, Ledger
from framefuse.runtime.program import Selection
from segmenter import write_segmenter
from training.squares import write_squares
from training.squares_clip import squares_clip


def test_rows_are_kept_apart_and_threads_may_share_it() -> None:
    ledger = Ledger()

    def work() -> None:
        for _ in range(500):
            ledger.add("preprocess", "h2d", "pixels", 3)
            ledger.add("preprocess", "h2d", "control", 2)
            ledger.add("decode", "d2d", "pixels", 5)
            ledger.frame()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.frames == 2000
    assert ledger.totals()[Copy("preprocess", "h2d", "control")] == 4000
    assert ledger.crossed("pixels") == 6000  # what stays on the GPU crosses nothing
    assert ledger.crossed("results") == 0


def test_it_counts_every_copy_that_the_program_asks_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each copy function of the fake GPU is counted beside the ledger."""
    gpu = install(monkeypatch, sources=True)
    program = CudaProgram(
        CudaNullEngine(scores), read_card(write_segmenter(tmp_path / "seg.onnx", stride=2)), Preprocess(*SIZE),
        Selection(), batch=2,
    )  # fmt: skip
    frames = [Frame.from_array(np.full((61, 80, 3), level, np.uint8)) for level in (1, 2)]
    [*program.submit(frames), *program.drain()]
    before, seen = program.ledger.totals(), gpu.copied.copy()
    [*program.submit(frames), *program.drain()]
    ledger: Counter[str] = Counter()
    for copy, size in program.ledger.totals().items():
        ledger[copy.direction] += size - before.get(copy, 0)
    assert ledger == gpu.copied - seen
    assert ledger["h2d"] >= 2 * 61 * 80 * 3
    assert program.ledger.crossed("pixels") == 2 * 2 * 61 * 80 * 3
    program.close()


def test_a_way_into_a_gpu_without_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="memory mapped was asked for, but on device"):
        Pipeline([np.zeros((8, 8, 3), np.uint8)], "squares", memory="mapped")


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["copy", "mapped", "managed"])
def test_every_way_in_gives_the_same_boxes(way: str, tmp_path: Path) -> None:
    clip = tmp_path / "clip.avi"
    squares_clip(clip, frames=12, size=(320, 180))
    model = write_squares(tmp_path / "squares.onnx")
    picture = np.random.default_rng(0).integers(0, 255, (180, 320, 3), np.uint8)
    pipeline = Pipeline([picture] * 3, model, device="cuda", engine="null", memory=way)
    assert len(list(pipeline)) == 3
    assert any(f"memory {way}: as asked" in text for text in pipeline.report.choices)
    assert pipeline._program.ledger.crossed("pixels") == 3 * picture.nbytes


@pytest.mark.gpu
def test_nvdec_frames_never_cross_the_bus(tmp_path: Path) -> None:
    """By CUDA's own records: not one copy between host and device is as large as a row of the picture's pixels, and all
    of them together are what the ledger says."""
    pytest.importorskip("cupti")
    from benchmarks.gpu.cupti_trace import Trace, come_to_rest

    clip = tmp_path / "clip.mp4"
    squares_clip(clip, frames=200, size=(1280, 720))
    model = write_squares(tmp_path / "squares.onnx")
    with Trace() as trace:
        pipeline = Pipeline(clip, model, device="cuda", engine="null")
        ledger = pipeline._program.ledger
        before, first = ledger.totals(), 0
        for number, _ in enumerate(pipeline, 1):
            if number == 20:  # what is in flight while the books are opened would be in one of them only
                come_to_rest(lambda: ledger.frames)
                trace.begin()
                before, first = ledger.totals(), ledger.frames
        seen = trace.end()
    assert any("decoded by NVDEC" in note for info in pipeline.report.sources for note in info.notes)
    assert ledger.crossed("pixels") == 0
    count = ledger.frames - first
    booked: Counter[str] = Counter()
    for copy, size in ledger.totals().items():
        booked[copy.direction] += size - before.get(copy, 0)
    (on_the_gpu,) = (copy for copy in pipeline.report.copies if copy.direction == "d2d")
    assert on_the_gpu.bytes_per_frame == pytest.approx(seen.copied["d2d"] / count, rel=0.01)
    pixels = 1280 * 720 * 3 // 2
    assert seen.copied["h2d"] + seen.copied["d2h"] < count * pixels / 50
    for way in ("h2d", "d2h"):
        assert seen.copied[way] == pytest.approx(booked[way], rel=0.01), way
    calls = seen.of_launching_threads()
    launches = sum(number for name, number in calls.items() if "GraphLaunch" in name)
    assert count - 3 <= launches <= count + 3
    waits = sum(number for name, number in calls.items() if name in ("cudaEventSynchronize", "cudaStreamSynchronize"))
    assert waits <= launches + 3
    assert calls["cudaDeviceSynchronize"] == 0
    assert calls["cuCtxSynchronize"] <= 2  # the decoder, closed at the end of the file
