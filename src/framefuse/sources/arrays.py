"""Pictures that are in memory already: numpy arrays and PIL images, and iterables of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sized
from dataclasses import replace
from typing import Any

import numpy as np

from framefuse.errors import SourceError, UsageError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.sources.pull import Frames, PullSource
from framefuse.sources.source import SourceInfo, SourceOptions, note

SOURCE_ID = "array"


def is_image(item: object) -> bool:
    """Whether this is a numpy array or a PIL image."""
    pillow = sys.modules.get("PIL.Image")
    return isinstance(item, np.ndarray) or (pillow is not None and isinstance(item, pillow.Image))


def open_arrays(source: Any, options: SourceOptions) -> PullSource:
    """Read pictures from memory, without a copy where the rows of an array are contiguous.

    Pictures of an iterator are copied: it may refill one array again and again, as `capture.read(array)` does, while
    the pipeline still reads earlier ones.

    Args:
        source: (h, w), (h, w, 3) BGR or (h, w, 4) BGRA array, (n, h, w, 3) stack, PIL image, or an iterable of such
            pictures, which is pulled as frames are asked for; what it raises reaches the caller unchanged. Arrays have
            no clock: pts is None, and `start` and `end` do not apply.

    Raises:
        UsageError: an item is no picture, or its dtype or shape is not supported.
        SourceError: there are no pictures.
    """
    info = SourceInfo(SOURCE_ID, "array")
    if options.start is not None or options.end is not None:
        note(info, "start and end are ignored: arrays have no time")
    pictures: Iterable[Any] = [source] if is_image(source) and getattr(source, "ndim", 3) < 4 else source
    if isinstance(pictures, Sized):
        if len(pictures) == 0:
            raise SourceError("the array or list holds no pictures")
        first = _frame(next(iter(pictures)), 0, info)
        info.width, info.height = first.width, first.height
        info.frames = -(-len(pictures) // options.vid_stride)
        if isinstance(pictures, list | tuple):  # anything else may make each picture when it is asked for it
            info.mixed = len({_size(picture) for picture in pictures}) > 1
    else:
        note(info, "pictures of an iterator: one copy a frame")
    return PullSource(info, lambda closed: _frames(pictures, info, options, closed))


def _size(picture: Any) -> Any:
    return picture.shape[:2] if isinstance(picture, np.ndarray) else getattr(picture, "size", None)


def _frames(pictures: Iterable[Any], info: SourceInfo, options: SourceOptions, closed: threading.Event) -> Frames:
    lasting = isinstance(pictures, Sized)
    for index, picture in enumerate(pictures):
        if closed.is_set():
            return
        if index % options.vid_stride == 0:
            frame = _frame(picture, index, info)
            yield frame if lasting else replace(frame, planes=tuple(plane.copy() for plane in frame.planes), owner=None)


def _frame(picture: Any, index: int, info: SourceInfo) -> Frame:
    if not is_image(picture):
        raise UsageError(
            f"item {index} is a {type(picture).__name__}, not a picture",
            remedy="give numpy arrays or PIL images; paths go into a list",
        )
    if isinstance(picture, np.ndarray):
        return Frame.from_array(picture, index=index, source_id=SOURCE_ID)
    from framefuse.sources.images import to_array

    name, pixels = to_array(picture, info, f"{SOURCE_ID} {index}")
    return Frame((pixels,), PIXEL_FORMATS[name], index=index, source_id=SOURCE_ID, matrix="rgb", full_range=True)
