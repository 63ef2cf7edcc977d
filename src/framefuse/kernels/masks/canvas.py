"""Frames on a GPU as planes of 8 bits that are composed there, and copied to the host at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, kernel
from framefuse.frame import Frame, PixelFormat
from framefuse.kernels.arrays import checked, kind, new, on_gpu, pitch


def is_composable(frame: Frame) -> bool:
    """Whether a GPU can compose a frame like this one: 4:2:0 that is displayed as it is coded."""
    return frame.format.subsample == (2, 2) and frame.rotation == 0 and frame.matrix != "rgb"


def lies_on_gpu(frame: Frame) -> bool:
    return on_gpu(frame.planes[0])


def luma_of(frame: Frame) -> Any:
    """(height, width) uint8 of a composable frame on a GPU, without a copy if it has 8 bits."""
    luma = frame.planes[0]
    return luma if luma.dtype == np.uint8 else _narrowed(luma, frame.format, new(True, luma.shape, np.uint8))


def planes_of(frame: Frame, out: tuple[Any, ...]) -> None:
    """The planes Y, U, V of a composable frame on a GPU, each into one of `out`; what is missing at the right and below
    is repeated."""
    luma, *chroma = frame.planes
    if len(chroma) == 1:
        order = "uv" if not frame.format.channels else frame.format.channels
        chroma = [chroma[0][..., order.index(role)] for role in "uv"]
    for source, target in zip((luma, *chroma), out, strict=True):
        _narrowed(source, frame.format, target)


def repeated(plane: Any, out: Any) -> None:
    """A uint8 plane on a GPU into one that is as large or larger, where its last column and row are repeated."""
    _launch(plane, 0, out)


def _narrowed(source: Any, format: PixelFormat, out: Any) -> Any:
    _launch(source, format.bits + format.shift - 8, out)
    return out


def _launch(source: Any, shift: int, out: Any) -> None:
    out = checked("out", out, True, out.shape, "uint8")
    places = {"source_address": source, "source_pitch": pitch(source, 0), "step": pitch(source, 1), "shift": shift}
    places |= {"target_address": out, "target_pitch": pitch(out, 0)}
    sizes = dict(zip(("height", "width", "target_height", "target_width"), (*source.shape, *out.shape), strict=True))
    kernel.launch(f"matte_plane_{kind(source)}", **places, **sizes)


class Canvas:
    """Planes on the GPU, and page-locked memory for them on the host.

    Args:
        shapes: (height, width) of each plane.
    """

    def __init__(self, shapes: tuple[tuple[int, int], ...]) -> None:
        kinds = [(shape, np.uint8) for shape in shapes]
        self.planes, self._memory = device.packed_allocation(kinds, lambda size: new(True, (size,), np.uint8))
        self._host, self._bytes = device.packed_allocation(kinds, lambda size: device.pinned((size,), np.uint8))
        self.nbytes = self._bytes.nbytes

    def download(self) -> list[NDArray[np.uint8]]:
        """The planes on the host, once the work on CuPy's current stream has ended; the next call overwrites them."""
        device.copy_to_host(self._memory, self._bytes, None)
        device.cupy().cuda.runtime.streamSynchronize(device.current_stream())
        return self._host
