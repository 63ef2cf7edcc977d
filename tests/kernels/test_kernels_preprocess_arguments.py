"""kernels.preprocess: planes and outputs as users have them are read and written in place, or refused by value."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest

from framefuse import kernels
from framefuse.errors import UsageError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.preprocess import Preprocess
from preprocess_frames import GREY, INTERPOLATIONS, TOLERANCE, compare, random_frame


def test_output_is_a_slot_of_a_batch_and_nothing_else_is_touched() -> None:
    batch = np.full((3, 3, 16, 20), -1.0, np.float32)
    Preprocess(width=20, height=16)(random_frame("nv12", 64, 48), batch[1])
    assert (batch[1] >= 0).all() and (batch[[0, 2]] == -1).all()


def test_arguments_may_be_lists_and_outputs_may_change_between_calls() -> None:
    """What one call leaves behind must not decide another: same shapes, another pitch, type or permission to write."""
    frame = random_frame("bgr24", 300, 200)
    options = {"interpolation": "linear", "pad_value": 0.0, "channel_order": "rgb"}
    wanted, found = np.empty((3, 32, 48), np.float32), np.empty((3, 32, 48), np.float32)
    kernels.preprocess(frame, wanted, content=(0, 0, 48, 32), **options, **GREY)
    lists: Any = {"content": [0, 0, 48, 32], "mean": [0.0] * 3, "std": [1.0] * 3, "roi": [0, 0, 300, 200]}
    kernels.preprocess(frame, found, **lists, **options)
    np.testing.assert_array_equal(found, wanted)
    padded = random_frame("bgr24", 300, 200, pitch=3)
    found[:] = 0
    kernels.preprocess(Frame((padded.planes[0],), frame.format), found, content=(0, 0, 48, 32), **options, **GREY)
    assert compare(padded, (48, 32), (0, 0, 48, 32)) <= TOLERANCE
    found.flags.writeable = False
    with pytest.raises(UsageError, match="writeable False"):
        kernels.preprocess(frame, found, content=(0, 0, 48, 32), **options, **GREY)


@pytest.mark.parametrize("rotation", [0, 180])
@pytest.mark.parametrize("name", ["bgr24", "rgba"])
def test_packed_rows_are_not_read_past_their_end(name: str, rotation: Any) -> None:
    """16 bytes are read at once. The frame ends where its memory does; what follows may not be touched."""
    channels = len(PIXEL_FORMATS[name].channels)
    for width, height in ((1, 1), (2, 3), (5, 2), (6, 1), (64, 2), (300, 3)):
        size = width * height * channels
        memory = mmap.mmap(-1, mmap.PAGESIZE * 2)
        protect_last_page(memory)
        end = np.frombuffer(memory, np.uint8, size, mmap.PAGESIZE - size)
        end[:] = np.arange(size) % 251
        frame = Frame((end.reshape(height, width, channels),), PIXEL_FORMATS[name], rotation=rotation)
        for interpolation in INTERPOLATIONS:
            for side in (1, 3, 64, 100):
                assert compare(frame, (side, side), (0, 0, side, side), interpolation=interpolation) <= TOLERANCE


def protect_last_page(memory: mmap.mmap) -> None:
    """Any access to the second page from now on is a segmentation fault."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory, mmap.PAGESIZE))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 0) == 0


def test_read_only_reversed_and_padded_planes_are_read_in_place() -> None:
    frame = random_frame("yuv420p", 33, 21, pitch=31)
    upside_down = tuple(np.ascontiguousarray(plane[::-1])[::-1] for plane in frame.planes)
    for plane in upside_down:
        plane.flags.writeable = False
    outs = [np.empty((3, 16, 16), np.float32) for _ in range(2)]
    for planes, out in zip((frame.planes, upside_down), outs, strict=True):
        Preprocess(width=16, height=16)(Frame(planes, frame.format), out)
    np.testing.assert_array_equal(*outs)


def test_planes_of_a_decoder_are_read_in_place() -> None:
    """PyAV's planes: one buffer a plane, rows padded to the decoder's alignment."""
    av = pytest.importorskip("av")
    image = av.VideoFrame(50, 38, "yuv420p")
    rng = np.random.default_rng(5)
    for plane in image.planes:
        plane.update(rng.integers(0, 256, plane.buffer_size, dtype=np.uint8).tobytes())
    planes = tuple(np.frombuffer(p, np.uint8).reshape(p.height, p.line_size)[:, : p.width] for p in image.planes)
    frame = Frame(planes, PIXEL_FORMATS["yuv420p"], owner=image)
    assert compare(frame, (32, 32), (0, 4, 32, 24)) <= TOLERANCE


def bad_calls() -> dict[str, tuple[dict[str, Any], str]]:
    out = np.empty((3, 8, 8), np.float32)
    frozen = out.copy()
    frozen.flags.writeable = False
    return {
        "out channels": ({"out": np.empty((4, 8, 8), np.float32)}, r"\(4, 8, 8\)"),
        "out dtype": ({"out": np.empty((3, 8, 8), np.float64)}, "float64"),
        "out strides": ({"out": np.empty((3, 8, 16), np.float32)[:, :, ::2]}, "strides"),
        "out read-only": ({"out": frozen}, "writeable False"),
        "content": ({"content": (0, 0, 0, 8)}, r"\(0, 0, 0, 8\)"),
        "rows": ({"rows": (4, 9)}, r"\(4, 9\)"),
        "interpolation": ({"interpolation": "cubic"}, "cubic"),
        "memory format": ({"memory_format": "nchwc"}, "nchwc"),
        "nhwc out": ({"memory_format": "nhwc", "out": np.empty((8, 8, 2), np.float32)}, r"\(8, 8, 2\)"),
        "roi outside": ({"roi": (4, 0, 5, 8)}, r"\(4, 0, 5, 8\)"),
        "roi empty": ({"roi": (4, 0, 0, 8)}, r"\(4, 0, 0, 8\)"),
        "channel order": ({"channel_order": "gbr"}, "gbr"),
        "std": ({"std": (1.0, 0.0, 1.0)}, "zero"),
    }


@pytest.mark.parametrize("case", bad_calls())
@pytest.mark.parametrize("implementation", [kernels.preprocess, kernels.reference.preprocess])
def test_bad_arguments_name_the_value(implementation: Any, case: str) -> None:
    change, message = bad_calls()[case]
    arguments = {
        "out": np.empty((3, 8, 8), np.float32),
        "content": (0, 0, 8, 8),
        "interpolation": "linear",
        "pad_value": 0.0,
        "channel_order": "rgb",
        **GREY,
        **change,
    }
    with pytest.raises(UsageError, match=message):
        implementation(random_frame("gray", 8, 8), arguments.pop("out"), **arguments)


def test_samples_that_are_not_adjacent_are_refused() -> None:
    every_second = np.zeros((4, 8), np.uint8)[:, ::2]
    with pytest.raises(UsageError, match="ascontiguousarray"):
        compare(Frame((every_second,), PIXEL_FORMATS["gray"]), (4, 4), (0, 0, 4, 4))
