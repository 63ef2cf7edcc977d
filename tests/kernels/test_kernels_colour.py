"""Colour conversion, normalisation and layout: every implementation against the reference, that against others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest

from cuda_on_cpu import install, on_device
from framefuse.cuda.launch_plan import record_launches
from framefuse.errors import UsageError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.kernels import reference as kernel_references
from framefuse.kernels.colour import reference
from framefuse.kernels.colour.call import rgb_to_yuv, yuv_to_rgb
from framefuse.kernels.colour.layout import change_layout, normalize
from preprocess_frames import random_frame

Move = Callable[[np.ndarray[Any, Any]], Any]

TOLERANCE = {np.dtype(np.float32): 0.02, np.dtype(np.float16): 0.13}
"""Grey levels; float16 holds 0..255 to 1/16."""
MATRICES: Any = ("bt601", "bt709", "bt2020", "rgb")


@pytest.fixture(
    params=["cpu", pytest.param("loops", marks=pytest.mark.slow), pytest.param("gpu", marks=pytest.mark.gpu)]
)
def move(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Move:
    """Puts an array where the implementation under test runs: compiled, generated CUDA in loops, or on a GPU."""
    if request.param == "cpu":
        return lambda array: array
    if request.param == "gpu":
        cupy = pytest.importorskip("cupy")
        return lambda array: cupy.asarray(array)
    if shutil.which("g++") is None:
        pytest.skip("g++ stands in for the GPU")
    install(monkeypatch)
    return on_device


def host(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array.get() if hasattr(array, "get") else array)


def moved(frame: Frame, move: Move) -> Frame:
    return replace(frame, planes=tuple(move(plane) for plane in frame.planes))


def agree(found: Any, wanted: np.ndarray[Any, Any]) -> None:
    """uint8: one level on 0.1 % of the samples (but one sample is forgiven)."""
    found = host(found)
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    difference = np.abs(found.astype(np.float64) - wanted)
    if wanted.dtype == np.uint8:
        assert difference.max() <= 1 and (difference > 0).sum() <= max(1, 1e-3 * difference.size)
    else:
        assert difference.max() <= TOLERANCE[wanted.dtype]


def noise_frame(name: str, width: int, height: int, pitch: int = 0, **facts: Any) -> Frame:
    """A frame of noise; `pitch` is the number of unused samples after each row."""
    return random_frame(name, width, height, pitch=pitch, seed=width, **facts)


@pytest.mark.parametrize("name", PIXEL_FORMATS)
def test_every_pixel_format(move: Move, name: str) -> None:
    """Sizes, pitches, matrices, ranges, output types, layouts, orders and chroma filters go round."""
    for i, (width, height) in enumerate(((1, 1), (2, 2), (3, 5), (37, 23), (64, 12), (5, 7), (24, 6))):
        matrix = MATRICES[i % (3 if name == "nv21" else 4)]
        frame = noise_frame(name, width, height, i % 3, matrix=matrix, full_range=bool(i & 1))
        for j, dtype in enumerate((np.uint8, np.float32, np.float16)):
            options: dict[str, Any] = {
                "dtype": dtype,
                "layout": ("HWC", "CHW")[(i + j) % 2],
                "chroma": ("nearest", "linear")[(i // 2 + j) % 2],
                "channel_order": ("rgb", "bgr")[j % 2],
            }
            agree(yuv_to_rgb(moved(frame, move), **options), reference.yuv_to_rgb(frame, **options))


@pytest.mark.parametrize("chroma", ["nearest", "linear"])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("name", ["yuv420p", "nv12", "yuv411p", "yuv440p"])
def test_wide_rows(move: Move, name: str, layout: Any, chroma: Any) -> None:
    frame = noise_frame(name, 4097, 3, 7)
    options: dict[str, Any] = {"layout": layout, "chroma": chroma, "dtype": np.float32}
    agree(yuv_to_rgb(moved(frame, move), **options), reference.yuv_to_rgb(frame, **options))


def test_batch_of_frames_and_scale(move: Move) -> None:
    frames = [noise_frame("nv12", 20, 10, matrix="bt709"), noise_frame("nv12", 20, 10, matrix="bt709")]
    frames[1] = replace(frames[1], planes=tuple(255 - plane for plane in frames[1].planes))
    out = move(np.zeros((2, 3, 10, 20), np.float32))
    assert yuv_to_rgb([moved(frame, move) for frame in frames], out, layout="CHW", scale=1 / 255) is out
    for found, frame in zip(host(out), frames, strict=True):
        wanted = reference.yuv_to_rgb(frame, dtype=np.float32, layout="CHW", scale=1 / 255)
        assert np.abs(found - wanted).max() < 1e-4


def test_out_may_have_a_pitch(move: Move) -> None:
    frame = noise_frame("yuv420p", 22, 8)
    target = move(np.zeros((12, 30, 3), np.uint8))
    yuv_to_rgb(moved(frame, move), target[2:10, 5:27])
    outside = host(target).copy()
    agree(outside[2:10, 5:27], reference.yuv_to_rgb(frame))
    outside[2:10, 5:27] = 0
    assert not outside.any()


def test_reference_is_preprocess_at_the_same_size() -> None:
    """The specification of `preprocess` resizes, and takes chroma, in its own words."""
    for chroma in ("nearest", "linear"):
        frame = noise_frame("yuv420p", 19, 14, matrix="bt709")
        wanted = np.zeros((3, 14, 19), np.float32)
        kernel_references.preprocess(
            frame,
            wanted,
            content=(0, 0, 19, 14),
            interpolation=chroma,  # type: ignore[arg-type]
            pad_value=0.0,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            channel_order="rgb",
        )
        agree(wanted, reference.yuv_to_rgb(frame, dtype=np.float32, layout="CHW", chroma=chroma))  # type: ignore[arg-type]


def test_reference_is_opencv_and_swscale_within_their_rounding() -> None:
    """Both convert in integers of a few bits: two levels for OpenCV, three for swscale."""
    image = cv2.GaussianBlur(np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8), (0, 0), 3)
    i420 = cv2.cvtColor(image, cv2.COLOR_RGB2YUV_I420)
    y, u, v = i420[:48], i420[48:60].reshape(24, 32), i420[60:].reshape(24, 32)
    frame = Frame((y, u, v), PIXEL_FORMATS["yuv420p"])
    found = yuv_to_rgb(frame)
    assert np.abs(found.astype(int) - cv2.cvtColor(i420, cv2.COLOR_YUV2RGB_I420)).max() <= 2
    av = pytest.importorskip("av")
    coded = av.VideoFrame(64, 48, "yuv420p")
    for plane, samples in zip(coded.planes, frame.planes, strict=True):
        np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width] = samples
    assert np.abs(found.astype(int) - coded.to_ndarray(format="rgb24")).max() <= 3
    # OpenCV takes the chroma of one pixel of four; swscale averages them.
    planes = rgb_to_yuv(image)
    assert np.abs(planes[0].astype(int) - y).max() <= 1
    averaged = av.VideoFrame.from_ndarray(image, "rgb24").reformat(format="yuv420p")
    for plane, samples in zip(averaged.planes, planes, strict=True):
        wanted = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]
        assert np.abs(samples.astype(int) - wanted).max() <= 3


@pytest.mark.parametrize("format", ["yuv420p", "nv12", "yuv444p"])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_rgb_to_yuv(move: Move, format: Any, layout: Any) -> None:
    rng = np.random.default_rng(1)
    for i, (width, height) in enumerate(((1, 1), (2, 2), (3, 5), (37, 23), (64, 48))):
        for channels, dtype in ((3, np.uint8), (4, np.uint8), (3, np.float32)):
            shape = (height, width, channels) if layout == "HWC" else (channels, height, width)
            image = (rng.random(shape) * 255.99).astype(dtype)
            options: dict[str, Any] = {
                "format": format,
                "matrix": MATRICES[i % 3],
                "full_range": bool(i & 1),
                "layout": layout,
                "channel_order": ("rgb", "bgr")[i % 2],
            }
            wanted = reference.rgb_to_yuv(image, **options)
            for plane, expected in zip(rgb_to_yuv(move(image), **options), wanted, strict=True):
                agree(plane, expected)


def test_there_and_back_keeps_gray() -> None:
    gray = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)
    for full_range in (False, True):
        planes = rgb_to_yuv(gray, format="yuv444p", full_range=full_range, matrix="bt709")
        assert (planes[1] == 128).all() and (planes[2] == 128).all()
        back = yuv_to_rgb(Frame(planes, PIXEL_FORMATS["yuv444p"], matrix="bt709", full_range=full_range))
        assert np.abs(back.astype(int) - gray).max() <= (0 if full_range else 1)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float16])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_normalize_and_change_layout(move: Move, layout: Any, channels: int, dtype: Any) -> None:
    rng = np.random.default_rng(2)
    mean, std = (120.0, 110.0, 100.0, 90.0)[:channels], (58.0, 57.0, -56.0, 55.0)[:channels]
    for width, height in ((1, 1), (3, 5), (37, 6), (4097, 1)):
        batch = (rng.random((2, height, width, channels)) * 255).astype(dtype)
        batch = batch if layout == "HWC" else np.ascontiguousarray(batch.transpose(0, 3, 1, 2))
        for image in (batch, batch[0]):
            swapped = change_layout(move(image), layout=layout)
            assert np.array_equal(host(swapped), reference.change_layout(image, layout=layout))
            for out_layout in ("HWC", "CHW"):
                for out_dtype, tolerance in ((np.float32, 1e-5), (np.float16, 4e-3)):
                    options: dict[str, Any] = {"layout": layout, "out_layout": out_layout, "dtype": out_dtype}
                    found = host(normalize(move(image), mean, std, **options))
                    wanted = reference.normalize(image, mean, std, **options)
                    assert found.shape == wanted.shape and found.dtype == wanted.dtype
                    assert np.abs(found.astype(np.float64) - wanted).max() <= tolerance


def test_wrong_arguments_are_named(move: Move) -> None:
    frame = moved(noise_frame("yuv420p", 8, 6), move)
    other = moved(noise_frame("yuv420p", 10, 6), move)
    image = move(np.zeros((6, 8, 3), np.uint8))
    wrong: list[tuple[str, Callable[[], Any]]] = [
        ("shape", lambda: yuv_to_rgb(frame, move(np.zeros((6, 9, 3), np.uint8)))),
        ("float64", lambda: yuv_to_rgb(frame, move(np.zeros((6, 8, 3))))),
        ("chroma", lambda: yuv_to_rgb(frame, chroma="cubic")),  # type: ignore[arg-type]
        ("scale", lambda: yuv_to_rgb(frame, scale=0)),
        ("differ", lambda: yuv_to_rgb([frame, other])),
        ("matrix", lambda: rgb_to_yuv(image, matrix="rgb")),
        ("format", lambda: rgb_to_yuv(image, format="yuv422p")),  # type: ignore[arg-type]
        ("channels", lambda: rgb_to_yuv(move(np.zeros((6, 8, 1), np.uint8)))),
        ("planes", lambda: rgb_to_yuv(image, [image])),
        ("std", lambda: normalize(image, (0, 0, 0), (1, 0, 1))),
        ("mean", lambda: normalize(image, (0, 0), (1, 1))),
        ("out is uint8", lambda: normalize(image, (0, 0, 0), (1, 1, 1), move(np.zeros((6, 8, 3), np.uint8)))),
        ("out has shape", lambda: change_layout(image, move(np.zeros((3, 6, 9), np.uint8)))),
    ]
    for message, call in wrong:
        with pytest.raises(UsageError, match=message):
            call()


def test_in_place_is_refused() -> None:
    image = np.zeros((6, 8, 3), np.float32)
    with pytest.raises(UsageError, match="overlaps"):
        normalize(image, (0, 0, 0), (1, 1, 1), image)


@pytest.mark.gpu
def test_captured_graph_replays() -> None:
    cupy = pytest.importorskip("cupy")
    frames = [moved(noise_frame("nv12", 64, 32), cupy.asarray) for _ in range(3)]
    out = cupy.empty((3, 3, 32, 64), cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        plan = record_launches(yuv_to_rgb, frames, out, layout="CHW")
        stream.begin_capture()
        plan()
        with pytest.raises(UsageError, match="before the capture"):
            yuv_to_rgb(frames, out, layout="CHW")
        graph = stream.end_capture()
        frames[1].planes[0][:] = 77
        graph.launch(stream)
    stream.synchronize()
    changed = moved(frames[1], lambda plane: plane.get())
    agree(out[1], reference.yuv_to_rgb(changed, dtype=np.float32, layout="CHW"))
