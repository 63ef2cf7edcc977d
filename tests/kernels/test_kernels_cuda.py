"""kernels.preprocess on a GPU: against the reference, on streams, in graphs, in batches; and the launcher itself."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framefuse import kernels
from framefuse.cuda import cubins, device, kernel
from framefuse.errors import CapabilityError, UsageError
from framefuse.frame import PIXEL_FORMATS
from framefuse.kernels.preprocess.cuda import PreprocessTable
from preprocess_cases import TOLERANCE, blank, cases, difference, filter_cases, moved
from preprocess_frames import GREY, random_frame

try:
    cp = device.cupy()
except CapabilityError as error:
    cp, missing = None, error.message
else:
    missing = ""
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(cp is None, reason=missing)]

OPTIONS: dict[str, Any] = {"interpolation": "linear", "pad_value": 114.0, "channel_order": "rgb", **GREY}
FAMILIES = (
    ("yuv420p", "yuv422p", "yuv444p", "gbrp", "yuv411p", "yuv440p"),
    ("yuv420p10", "yuv444p16", "gbrp12"),
    ("nv12", "nv21", "nv16"),
    ("p010", "p016"),
    ("bgr24", "rgba", "rgb0"),
    ("rgb48",),
    ("gray",),
    ("gray12",),
)


@pytest.mark.parametrize("channels", [None, 3, 4, 8])
@pytest.mark.parametrize("formats", FAMILIES, ids=lambda formats: formats[0])
def test_against_the_reference(formats: tuple[str, ...], channels: int | None) -> None:
    known = tuple(name for name in formats if name in PIXEL_FORMATS)
    memory = {} if channels is None else {"memory_format": "nhwc"}
    dtypes = itertools.cycle(TOLERANCE)
    for case in cases(known, 40, seed=channels or 0):
        dtype = next(dtypes)
        found = cp.asarray(blank(case.size, dtype, channels))
        kernels.preprocess(moved(case.frame, cp.asarray), found, content=case.content, **case.options, **memory)
        assert difference(found.get(), case, dtype, channels) <= TOLERANCE[dtype], (dtype, case)


@pytest.mark.parametrize(("width", "height", "side"), [(1920, 1080, 640), (1366, 768, 640), (1440, 1080, 608)])
def test_integers_are_off_by_one_at_most_in_one_of_a_thousand(width: int, height: int, side: int) -> None:
    frame = random_frame("nv12", width, height, pitch=64)
    wanted, found = np.zeros((3, side, side), np.uint8), cp.zeros((3, side, side), np.uint8)
    kernels.reference.preprocess(frame, wanted, content=(0, 0, side, side), **OPTIONS)
    kernels.preprocess(moved(frame, cp.asarray), found, content=(0, 0, side, side), **OPTIONS)
    off = np.abs(found.get().astype(int) - wanted)
    assert off.max() <= 1 and (off > 0).mean() <= 0.001


@pytest.mark.parametrize("channels", [None, 3, 8])
@pytest.mark.parametrize("formats", FAMILIES, ids=lambda formats: formats[0])
def test_filters_of_a_table_against_the_reference(formats: tuple[str, ...], channels: int | None) -> None:
    """The second slot is never set."""
    known = tuple(name for name in formats if name in PIXEL_FORMATS)
    memory = {} if channels is None else {"memory_format": "nhwc"}
    dtypes = itertools.cycle(TOLERANCE)
    for case in filter_cases(known, 60, seed=channels or 0):
        dtype = next(dtypes)
        found = cp.asarray(np.stack([blank(case.size, dtype, channels)] * 2))
        table = PreprocessTable(case.frame.format, found, filters=True, **memory)
        frame = moved(case.frame, cp.asarray)
        table.set(0, frame, content=case.content, **case.options)
        table.upload()
        table.launch()
        assert difference(found[0].get(), case, dtype, channels) <= TOLERANCE[dtype], (dtype, case)
        assert not found[1].any()


@pytest.mark.parametrize(("name", "width"), [("nv12", 3840), ("rgb24", 1919), ("bgra", 1280), ("p010", 1366)])
@pytest.mark.parametrize("side", [224, 512])
def test_filters_of_a_large_frame(name: str, width: int, side: int) -> None:
    """Many tiles, and some of fewer columns."""
    frame, options = random_frame(name, width, 720, pitch=2), {**OPTIONS, "interpolation": "antialias"}
    wanted, found = np.zeros((3, side, side), np.float32), cp.full((1, 3, side, side), np.nan, np.float32)
    kernels.reference.preprocess(frame, wanted, content=(0, 8, side, side - 16), **options)
    there = moved(frame, cp.asarray)
    table = PreprocessTable(frame.format, found, filters=True)
    table.set(0, there, content=(0, 8, side, side - 16), **options)
    table.upload()
    table.launch()
    np.testing.assert_allclose(found[0].get(), wanted, atol=0.02)


def many(
    count: int, options: dict[str, Any] = OPTIONS
) -> tuple[list[Any], list[tuple[int, int, int, int]], np.ndarray[Any, Any]]:
    """NV12 frames of different sizes, where they go, and what must come out."""
    frames = [random_frame("nv12", 64 + 13 * i, 48 + 7 * i, pitch=i % 5, seed=i) for i in range(count)]
    contents = [(i % 7, i % 5, 60 + i % 9, 50 + i % 3) for i in range(count)]
    wanted = np.zeros((count, 3, 64, 80), np.float32)
    for frame, slot, content in zip(frames, wanted, contents, strict=True):
        kernels.reference.preprocess(frame, slot, content=content, **options)
    return frames, contents, wanted


@pytest.mark.parametrize("count", [1, 3, 64])
def test_a_batch_of_differently_sized_frames(count: int) -> None:
    frames, contents, wanted = many(count)
    out = cp.full((count + 1, 3, 64, 80), np.nan, np.float32)
    kernels.preprocess_batch([moved(frame, cp.asarray) for frame in frames], out, contents=contents, **OPTIONS)
    np.testing.assert_allclose(out[:count].get(), wanted, atol=0.02)
    assert cp.isnan(out[count]).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
def test_output_is_a_torch_tensor(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    frame = random_frame("yuv420p", 99, 77)
    out = torch.zeros((3, 40, 50), dtype=getattr(torch, dtype), device="cuda")
    torch.cuda.synchronize()
    kernels.preprocess(moved(frame, cp.asarray), out, content=(0, 0, 50, 40), **OPTIONS)
    cp.cuda.get_current_stream().synchronize()
    wanted = np.zeros((3, 40, 50), np.float32)
    kernels.reference.preprocess(frame, wanted, content=(0, 0, 50, 40), **OPTIONS)
    assert np.abs(out.float().cpu().numpy() - wanted).max() <= {"float32": 0.02, "float16": 0.1}.get(dtype, 1.0)


def test_runs_in_order_on_the_callers_stream() -> None:
    """The planes are written late on a stream of its own; nobody waits, and the kernel still sees them."""
    frame = random_frame("gray", 640, 480)
    image = cp.asarray(frame.planes[0])
    wanted = np.zeros((3, 64, 64), np.float32)
    kernels.reference.preprocess(frame, wanted, content=(0, 0, 64, 64), **OPTIONS)
    late = moved(frame, lambda plane: cp.zeros(plane.shape, plane.dtype))
    out = cp.zeros((3, 64, 64), np.float32)
    kernels.preprocess(late, out, content=(0, 0, 64, 64), **OPTIONS)  # so that nothing is compiled below
    busy = cp.ones((4096, 4096), np.float32)
    cp.cuda.Device().synchronize()
    with cp.cuda.Stream(non_blocking=True) as stream:
        for _ in range(20):
            busy @ busy
        late.planes[0][...] = image
        kernels.preprocess(late, out, content=(0, 0, 64, 64), **OPTIONS)
        stream.synchronize()
    np.testing.assert_allclose(out.get(), wanted, atol=0.02)
    late.planes[0][...] = 0
    cp.cuda.Device().synchronize()
    kernels.preprocess(late, out, content=(0, 0, 64, 64), stream=stream.ptr, **OPTIONS)
    stream.synchronize()
    assert float(out.max()) == 0.0


def test_graph_of_a_plan() -> None:
    """A plan is captured; the call itself uploads a table, so it is not."""
    frames, contents, wanted = many(4)
    frames = [moved(frame, cp.asarray) for frame in frames]
    out = cp.full((4, 3, 64, 80), np.nan, np.float32)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        plan = kernels.record_launches(kernels.preprocess_batch, frames, out, contents=contents, **OPTIONS)
        stream.begin_capture()
        plan()
        with pytest.raises(UsageError, match="before the capture"):
            kernels.preprocess_batch(frames, out, contents=contents, **OPTIONS)
        graph = stream.end_capture()
        for _ in range(2):
            out.fill(np.nan)
            graph.launch(stream)
            np.testing.assert_allclose(out.get(), wanted, atol=0.02)


@pytest.mark.parametrize("interpolation", ["linear", "antialias"])
def test_graph_of_a_single_frame(interpolation: str) -> None:
    """Taps beyond the linear ones lie in tables, which nobody would keep for the graph."""
    frame, options = random_frame("nv12", 99, 77), {**OPTIONS, "interpolation": interpolation}
    wanted = np.zeros((3, 40, 50), np.float32)
    kernels.reference.preprocess(frame, wanted, content=(0, 0, 50, 40), **options)
    frame, out = moved(frame, cp.asarray), cp.zeros((3, 40, 50), np.float32)
    call = partial(kernels.preprocess, frame, out, content=(0, 0, 50, 40), **options)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        plan = kernels.record_launches(call)
        stream.begin_capture()
        if interpolation == "linear":
            call()
        else:
            with pytest.raises(UsageError, match="before the capture"):
                call()
            plan()
        graph = stream.end_capture()
        out.fill(np.nan)
        graph.launch(stream)
        np.testing.assert_allclose(out.get(), wanted, atol=0.02)


@pytest.mark.parametrize(("interpolation", "filters"), [("linear", False), ("antialias", False), ("antialias", True)])
def test_table_is_updated_without_capturing_again(interpolation: str, filters: bool) -> None:
    options = {**OPTIONS, "interpolation": interpolation}
    frames, contents, wanted = many(6, options)
    frames = [moved(frame, cp.asarray) for frame in frames]
    out = cp.full((3, 3, 64, 80), np.nan, np.float32)
    table = PreprocessTable(frames[0].format, out, filters=filters)
    stream = cp.cuda.Stream(non_blocking=True)
    stream.begin_capture()
    table.launch(stream.ptr)
    graph = stream.end_capture()
    graph.launch(stream)
    assert not out.get(stream).any()  # slots that were never set
    for first in (0, 3, 1):
        for slot in range(3):
            table.set(slot, frames[first + slot], content=contents[first + slot], **options)
        table.upload(stream.ptr)
        graph.launch(stream)
        np.testing.assert_allclose(out.get(stream), wanted[first : first + 3], atol=0.02)


def test_views_of_the_next_frame_need_only_its_addresses() -> None:
    """Three rows of one frame, as views have them; a frame that is turned is none of them, and changes no row."""
    contents = [(0, 0, 80, 64), (8, 4, 40, 32), (0, 0, 64, 64)]
    pictures = [random_frame("nv12", 99, 77, seed=seed) for seed in range(3)]
    wanted = np.zeros((3, 3, 3, 64, 80), np.float32)
    for picture, rows in zip(pictures, wanted, strict=True):
        for content, row in zip(contents, rows, strict=True):
            kernels.reference.preprocess(picture, row, content=content, **OPTIONS)
    frames = [moved(picture, cp.asarray) for picture in pictures]
    out = cp.full((3, 3, 64, 80), np.nan, np.float32)
    table = PreprocessTable(frames[0].format, out)
    for slot, content in enumerate(contents):
        table.set(slot, frames[0], content=content, **OPTIONS)
    for number, frame in enumerate(frames):
        assert table.replace_frame(3, frame)
        table.upload()
        table.launch()
        np.testing.assert_allclose(out.get(), wanted[number], atol=0.02)
    assert not table.replace_frame(3, replace(frames[0], rotation=90))
    table.upload()
    table.launch()
    np.testing.assert_allclose(out.get(), wanted[2], atol=0.02)


def test_launches_from_threads() -> None:
    frames, contents, wanted = many(8)
    frames = [moved(frame, cp.asarray) for frame in frames]
    out = cp.full((8, 3, 64, 80), np.nan, np.float32)
    cp.cuda.Device().synchronize()

    def job(slot: int) -> None:
        with cp.cuda.Stream(non_blocking=True) as stream:
            for _ in range(50):
                kernels.preprocess(frames[slot], out[slot], content=contents[slot], **OPTIONS)
            stream.synchronize()

    threads = [threading.Thread(target=job, args=(slot,)) for slot in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(out.get(), wanted, atol=0.02)


def test_every_kernel_loads_on_this_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where the cache cannot be written: a file lies in the place of its folder."""
    (tmp_path / "framefuse").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernel, "_kernels", {})
    kernel.prepare(cubins.descriptions())


def test_arrays_on_the_host_are_refused() -> None:
    frame = moved(random_frame("gray", 16, 16), cp.asarray)
    with pytest.raises(UsageError, match="not an array on a GPU"):
        kernels.preprocess(frame, np.zeros((3, 8, 8), np.float32), content=(0, 0, 8, 8), **OPTIONS)
