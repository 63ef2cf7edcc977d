"""Frames on a GPU as planes of 8 bits that are composed there, and copied to the host at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, driver, kernel
from framefuse.cuda.launch_plan import keep
from framefuse.frame import Frame, PixelFormat
from framefuse.kernels.arrays import address, kind, new, on_gpu, pitch, to_host
from framefuse.kernels.masks.grids import TOGETHER, Grid, follow, joined, most, table
from framefuse.kernels.masks.guided import SHARPEST, SMALLEST_VARIANCE, shrunk

OPAQUE = 255
_PLANES = "luma", "u", "v", "y_target", "u_target", "v_target", "alpha"
_NOWHERE = {f"{name}_{n}_address": 0 for name in _PLANES for n in range(TOGETHER)}
"""The planes of no frame, as the kernel takes them."""


def is_composable(frame: Frame) -> bool:
    """Whether a GPU can compose a frame like this one: 4:2:0 that is displayed as it is coded."""
    return frame.format.subsample == (2, 2) and frame.rotation == 0 and frame.matrix != "rgb"


def lies_on_gpu(frame: Frame) -> bool:
    return on_gpu(frame.planes[0])


def downloaded(frame: Frame) -> Frame:
    """A frame on a GPU, in the memory of the host. It keeps its lease."""
    if frame.ready is not None:
        frame.ready.synchronize()
    return replace(frame, planes=tuple(map(to_host, frame.planes)), ready=None, owner=None)


def alike(frames: Sequence[Frame]) -> bool:
    """Whether frames on a GPU, such as those of a video, differ in nothing but where they lie."""
    first, *others = frames
    return all(
        other.format == first.format
        and all((a.shape, a.strides) == (b.shape, b.strides) for a, b in zip(other.planes, first.planes, strict=True))
        for other in others
    )


def guides_of(frames: Sequence[Frame], grids: Sequence[Grid]) -> list[list[Any]]:
    """Luma in 0..1 at the samples of each view of composable frames on a GPU, which lie alike in all of them. Those of
    up to TOGETHER frames that are `alike` follow each other in memory."""
    count = TOGETHER if alike(frames[:TOGETHER]) else 1
    if len(frames) > count:
        return [*guides_of(frames[:count], grids), *guides_of(frames[count:], grids)]
    found = shrunk([frame.planes[0] for frame in frames], grids, shift=_shift(frames[0].format))
    return [found[at : at + len(grids)] for at in range(0, len(found), len(grids))]


def _shift(format: PixelFormat) -> int:
    """Bits of a sample beyond 8."""
    return format.bits + format.shift - 8


class Layers(NamedTuple):
    """What is composed: in each of Y, U and V, or in Y alone, one value over another by the matte. None stands for the
    frame's own."""

    over: tuple[int | None, ...]
    under: tuple[int | None, ...]
    opacity: int = OPAQUE
    """Of what is over, 0..255."""

    @property
    def values(self) -> dict[str, int]:
        """As the kernel takes them; those of the frame are below 0."""
        return {
            f"{role}_{side}": -1 if value is None else value
            for side, given in (("over", self.over), ("under", self.under))
            for role, value in zip("yuv", (*given, None, None), strict=False)
        }


Views = Sequence[tuple[Grid, Any, Any]]
"""Of each its place, its matte and its guide, (rows, columns) float32 in 0..1. Elsewhere the matte is 0."""


def compose(frames: Sequence[tuple[Frame, Views, Sequence[Any]]], layers: Layers, feather: float) -> None:
    """Compose frames on a GPU with their mattes, as `guided` and `call.composite` do on the host.

    Args:
        frames: up to TOGETHER composable frames that are `alike`, the views of each, which lie alike in all of them,
            and the planes that are made: contiguous uint8 of even size: Y; or Y, U and V; or these and the matte. What
            the frame lacks at the right and below is repeated.
        feather: width of the soft edge in pixels; one sample is the widest.
    """
    grids, alphas, guides = zip(*(view for _, views, _ in frames for view in views), strict=True)
    if len(frames) > 1 and not (follow(alphas) and follow(guides)):
        for one in frames:
            compose([one], layers, feather)
        return
    facts, lower, weights = table(grids)
    fits = keep(new(True, (sum(alpha.size for alpha in alphas), 2), np.float32))  # between both launches
    given = {"alpha_address": joined(alphas), "low_address": joined(guides), "grids_address": facts}
    soft = {"variance": SMALLEST_VARIANCE, "feather": max(feather, SHARPEST), "target_address": fits}
    kernel.launch("matte_fit", **given, **soft, **most(grids))
    places = {"grids_address": facts, "fits_address": fits, "lower_address": lower, "weight_address": weights}
    drawn = [(frame, out) for frame, _, out in frames]
    _draw(drawn, layers, views=len(grids) // len(frames), **places)


def planes_of(frame: Frame, out: Sequence[Any]) -> None:
    """The planes Y, U, V of a composable frame on a GPU, as `compose` makes them, without a matte."""
    own = None, None, None
    places = {"grids_address": 0, "fits_address": 0, "lower_address": 0, "weight_address": 0}
    _draw([(frame, out)], Layers(own, own), views=0, **places)


def _draw(frames: Sequence[tuple[Frame, Sequence[Any]]], layers: Layers, **matte: Any) -> None:
    places = dict(_NOWHERE)
    for n, (frame, out) in enumerate(frames):
        luma, *chroma = frame.planes
        coloured: Sequence[Any] = chroma
        if len(chroma) == 1:  # U and V alternate
            order, start = frame.format.channels or "uv", address(chroma[0])
            coloured = [start + order.index(role) * luma.itemsize for role in "uv"]
        every = zip(_PLANES, (luma, *coloured, *out), strict=False)
        places |= {f"{name}_{n}_address": plane for name, plane in every}
    frame, out = frames[0]
    luma, first = frame.planes[:2]
    pitches = {"luma_pitch": pitch(luma, 0), "chroma_pitch": pitch(first, 0), "chroma_step": pitch(first, 1)}
    (height, width), (rows, columns) = luma.shape, out[0].shape
    sizes = {"height": height, "width": width, "rows": rows // 2, "columns": columns // 2, "frames": len(frames)}
    more = {"shift": _shift(frame.format), "tint": layers.opacity}
    kernel.launch(f"matte_frame_{kind(luma)}", **places, **pitches, **layers.values, **sizes, **more, **matte)


class Canvas:
    """Planes on the GPU, and page-locked memory for them on the host.

    Args:
        shapes: (height, width) of each plane.

    Attributes:
        host: the planes there, (height, width) uint8, once `wait` has returned.
        ended: CUDA event after what `start` was called for.
    """

    def __init__(self, shapes: tuple[tuple[int, int], ...]) -> None:
        kinds = [(shape, np.uint8) for shape in shapes]
        self.planes, self._memory = device.packed_allocation(kinds, lambda size: new(True, (size,), np.uint8))
        self.host, self._bytes = device.packed_allocation(kinds, lambda size: device.pinned((size,), np.uint8))
        self.nbytes = self._bytes.nbytes
        self.ended = device.cupy().cuda.Event(disable_timing=True)

    def start(self) -> None:
        """Copy the planes to the host after the work on CuPy's current stream; the next copy overwrites them."""
        driver.download(self._bytes.ctypes.data, self._memory.data.ptr, self.nbytes)
        driver.record(self.ended)

    def wait(self) -> list[NDArray[np.uint8]]:
        """The planes on the host, once they are there."""
        if not driver.has_ended(self.ended):
            self.ended.synchronize()
        return self.host

    def download(self) -> list[NDArray[np.uint8]]:
        """The planes on the host, once the work on CuPy's current stream has ended; the next call overwrites them."""
        self.start()
        return self.wait()
