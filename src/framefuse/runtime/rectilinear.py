"""Eyes of panoramas and fisheye videos as a pinhole camera sees them, which is what segmenters have learned from; and
the mattes of these views as parts of those of the eyes."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.config import Settings
from framefuse.cuda import device, driver
from framefuse.errors import UsageError
from framefuse.frame import PIXEL_FORMATS, Frame, Region
from framefuse.kernels.arrays import device_table, new, on_gpu, zeros
from framefuse.kernels.geometry.call import remap
from framefuse.kernels.geometry.projections import (
    equirectangular_to_perspective,
    fisheye_to_perspective,
    perspective_to_equirectangular,
    perspective_to_fisheye,
)
from framefuse.kernels.masks.canvas import downloaded, is_composable, lies_on_gpu, planes_of
from framefuse.models.card import Card
from framefuse.prediction import MattePart
from framefuse.sources import SourceInfo
from framefuse.sources.stereo import find

DEGREES = 110
"""Across a view, and down."""
SIDE = 768
"""Pixels of a view, across and down."""
FINER = 5 / 3
"""Samples of a matte of an eye for each of one of a view: nearly as many for a degree."""

Size = tuple[int, int]
"""Width and height."""
Tables = tuple[NDArray[np.float32], NDArray[np.float32]]


def chosen(settings: Settings, card: Card, info: SourceInfo, *, views: bool = False) -> tuple[Settings, str | None]:
    """The settings with `matte_view`, where that is left open, and why. Others than fisheye videos have rectilinear
    views only if that is asked for.

    Args:
        views: whether a function of the caller gives the views.

    Raises:
        UsageError: rectilinear views were asked for where there are none.
    """
    if settings.save_matte is None or settings.matte_view == "panorama":
        return settings, None
    found = find(info)
    others = [name for name in ("tiles", "roi", "adaptive") if getattr(settings, name)]
    if views and settings.matte_view == "auto":
        others.append("views")
    problem = f"{info.uri} is neither VR180 nor fisheye, as far as its metadata and its name say"
    if found.projection == "equirect180" or _fisheye(str(found.projection)):
        simple = card.task == "semantic" and not card.states
        problem = "" if simple else f"{card.path.name} is no segmenter that looks at each frame by itself"
        problem = f"{' and '.join(others)} was asked for, too" if others else problem
        if found.arrangement in ("sbs", "tb") and settings.stereo is None:
            problem = "its eyes are not looked at by themselves"
    if problem and settings.matte_view == "rectilinear":
        raise UsageError(f"matte_view rectilinear was asked for, and {problem}", remedy="leave it out")
    if problem or (settings.matte_view == "auto" and found.projection == "equirect180"):
        return settings.model_copy(update={"matte_view": "panorama"}), None
    why = f"matte view rectilinear: {found.projection}, {found.source}"
    return settings.model_copy(update={"matte_view": "rectilinear"}), why


def rectilinear_for(settings: Settings, info: SourceInfo) -> "Rectilinear | None":
    """What makes views of the eyes of a video, by settings of `chosen`; None: nothing does."""
    asked = settings.save_matte is not None and settings.matte_view == "rectilinear"
    return Rectilinear(str(find(info).projection)) if asked else None


class Rectilinear:
    """Makes the view of each eye, straight ahead, and puts together what is found in eyes and views.

    Args:
        projection: equirect180, or fisheye with its degrees, such as fisheye190.
    """

    def __init__(self, projection: str) -> None:
        from framefuse.sinks.images import FrameConverter  # PyAV, which may only come after OpenCV's windows

        self._projection = projection
        self._converter = FrameConverter()
        self._stream: Any = None

    def rows(self, frame: Frame, eyes: Sequence[Region]) -> tuple[Frame, list[Frame]]:
        """The views of these eyes of a frame, each a frame of its own, of 8 bits and 4:2:0, where the frame lies; and
        the frame, which on a GPU may be read, and so given back, only after what makes the views has read it."""
        facts: dict[str, Any] = {"format": PIXEL_FORMATS["yuv420p"], "rotation": 0, "lease": None, "owner": None}
        facts["aside"] = True
        if not (lies_on_gpu(frame) and is_composable(frame)):
            there = downloaded(frame) if lies_on_gpu(frame) else frame
            coded, (matrix, full_range) = self._converter.yuv420p(there)
            planes = tuple(np.rot90(plane, -frame.rotation // 90) for plane in coded)
            facts |= {"matrix": matrix, "full_range": full_range, "ready": None}
            return frame, [replace(frame, planes=self._turned(planes, eye), **facts) for eye in eyes]
        cp = device.cupy()
        if self._stream is None:
            self._stream = cp.cuda.Stream(non_blocking=True)
        if frame.ready is not None:
            driver.wait(frame.ready, self._stream)
        height, width = frame.planes[0].shape
        with self._stream:
            shapes = PIXEL_FORMATS["yuv420p"].plane_shapes(width + width % 2, height + height % 2)
            whole = tuple(new(True, shape, np.uint8) for shape in shapes)
            planes_of(frame, whole)
            turned = [self._turned(whole, eye) for eye in eyes]
            done = cp.cuda.Event(disable_timing=True)
            driver.record(done, self._stream)
        facts["ready"] = done
        return frame.replace_unchecked(ready=done), [replace(frame, planes=one, **facts) for one in turned]

    def joined(self, parts: Sequence[MattePart]) -> tuple[MattePart, ...]:
        """The mattes of the eyes from their own, which come first, and those of their views, which count where they
        show something."""
        count = len(parts) // 2
        return tuple(
            eye._replace(alpha=self._joined(eye.alpha, view.alpha, eye.region[2:]), guide=None)
            for eye, view in zip(parts[:count], parts[count:], strict=True)
        )

    def _turned(self, planes: Sequence[Any], eye: Region) -> tuple[Any, ...]:
        left, top, width, height = eye
        made = []
        for plane, step in zip(planes, (1, 2, 2), strict=True):
            part = plane[top // step : (top + height) // step, left // step : (left + width) // step]
            key = self._projection, part.shape[::-1], (SIDE // step, SIDE // step)
            tables = device_table(_seen, *key) if on_gpu(plane) else _seen(*key)
            made.append(remap(part if on_gpu(plane) else np.ascontiguousarray(part), *tables, layout="CHW"))
        return tuple(made)

    def _joined(self, own: Any, view: Any, eye: Size) -> Any:
        """Both beside each other are one picture, from which each sample is taken."""
        (rows, columns), (high, wide) = own.shape, view.shape
        both = zeros(on_gpu(own), (max(rows, high), columns + wide), np.float32)  # what is between may count with 0
        both[:rows, :columns] = own
        both[:high, columns:] = view
        key = self._projection, (columns, rows), (wide, high), eye
        tables = device_table(_places, *key) if on_gpu(own) else _places(*key)
        return remap(both, *tables, layout="CHW")


@lru_cache(maxsize=8)
def _seen(projection: str, eye: Size, view: Size) -> Tables:
    """Where the pixels of a view lie in an eye."""
    if fov := _fisheye(projection):
        return fisheye_to_perspective(eye, view, horizontal_fov=DEGREES, fov=fov)
    return equirectangular_to_perspective(eye, view, horizontal_fov=DEGREES, span=180)


@lru_cache(maxsize=8)
def _places(projection: str, own: Size, view: Size, eye: Size) -> Tables:
    """Where the samples of a matte of an eye lie in its own coarser one, beside which that of the view is. There are at
    most as many as the eye has pixels."""
    size = min(round(own[0] * FINER), eye[0]), min(round(own[1] * FINER), eye[1])
    if fov := _fisheye(projection):
        x, y = perspective_to_fisheye(view, size, horizontal_fov=DEGREES, fov=fov)
    else:
        x, y = perspective_to_equirectangular(view, size, horizontal_fov=DEGREES, span=180)
    seen = np.isfinite(x)
    plain = [
        ((np.arange(count) + 0.5) * (samples / count) - 0.5).clip(0, samples - 1)
        for count, samples in zip(size, own, strict=True)
    ]
    across = np.where(seen, own[0] + x.clip(0, view[0] - 1), plain[0])
    down = np.where(seen, y.clip(0, view[1] - 1), plain[1][:, None])
    return across.astype(np.float32), down.astype(np.float32)


def _fisheye(projection: str) -> int | None:
    """Degrees of a fisheye picture."""
    return int(found[0]) if (found := re.findall(r"^fisheye(\d+)$", projection)) else None
