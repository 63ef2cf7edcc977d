"""Images in memory: NumPy arrays and PIL images, and iterables of them."""

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
    """Whether this is a NumPy array or a PIL image."""
    pillow = sys.modules.get("PIL.Image")
    return isinstance(item, np.ndarray) or (pillow is not None and isinstance(item, pillow.Image))


def open_arrays(source: Any, options: SourceOptions) -> PullSource:
    """Read images from memory, without a copy if the rows of an array are contiguous.

    Images of an iterator are copied: it may reuse one array, as `capture.read(array)` does, while the pipeline still
    reads earlier images.

    Args:
        source: (h, w), (h, w, 3) BGR or (h, w, 4) BGRA array, (n, h, w, 3) stack, PIL image, or an iterable of such
            images, which is consumed lazily; its exceptions reach the caller unchanged. Arrays have no timestamps: pts
            is None, and `start` and `end` do not apply.

    Raises:
        UsageError: an item is not an image, or its dtype or shape is not supported.
        SourceError: there are no images.
    """
    info = SourceInfo(SOURCE_ID, "array")
    if options.start is not None or options.end is not None:
        note(info, "start and end are ignored: arrays have no timestamps")
    images: Iterable[Any] = [source] if is_image(source) and getattr(source, "ndim", 3) < 4 else source
    if isinstance(images, Sized):
        if len(images) == 0:
            raise SourceError("the array or list has no images")
        first = _frame(next(iter(images)), 0, info)
        info.width, info.height = first.width, first.height
        info.frames = -(-len(images) // options.vid_stride)
        if isinstance(images, list | tuple):  # anything else may create each image on access
            info.mixed = len({_size(image) for image in images}) > 1
    else:
        note(info, "images of an iterator: one copy per frame")
    return PullSource(info, lambda closed: _frames(images, info, options, closed))


def _size(image: Any) -> Any:
    return image.shape[:2] if isinstance(image, np.ndarray) else getattr(image, "size", None)


def _frames(images: Iterable[Any], info: SourceInfo, options: SourceOptions, closed: threading.Event) -> Frames:
    persistent = isinstance(images, Sized)
    for index, image in enumerate(images):
        if closed.is_set():
            return
        if index % options.vid_stride == 0:
            frame = _frame(image, index, info)
            if not persistent:
                frame = replace(frame, planes=tuple(plane.copy() for plane in frame.planes), owner=None)
            yield frame


def _frame(image: Any, index: int, info: SourceInfo) -> Frame:
    if not is_image(image):
        raise UsageError(
            f"item {index} is a {type(image).__name__}, not an image",
            remedy="pass NumPy arrays or PIL images; put paths into a list",
        )
    if isinstance(image, np.ndarray):
        return Frame.from_array(image, index=index, source_id=SOURCE_ID)
    from framefuse.sources.images import to_array

    name, pixels = to_array(image, info, f"{SOURCE_ID} {index}")
    return Frame((pixels,), PIXEL_FORMATS[name], index=index, source_id=SOURCE_ID, matrix="rgb", full_range=True)
