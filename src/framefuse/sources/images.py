"""Images: files, decoded by Pillow, NumPy and PIL images in memory, and those of the synthetic world."""

from __future__ import annotations

import itertools
import math
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from framefuse.common.redact import brief
from framefuse.errors import DecodeError, SourceError, UsageError
from framefuse.frame import PIXEL_FORMATS, Frame, Rotation
from framefuse.sources.ffmpeg import LIMITED, check_size, wrap
from framefuse.sources.source import FORMATS, Frames, PullSource, SourceInfo, SourceOptions, is_image

if TYPE_CHECKING:
    from PIL import Image

SOURCE_ID = "array"
"""Of images in memory."""
MILLISECOND = Fraction(1, 1000)
SEQUENCES = frozenset({"GIF", "PNG", "WEBP", "TIFF", "AVIF"})
"""Formats whose further images are frames or pages. In others (MPO of phones) they are previews and gain maps."""
ORIENTATION_TAG = 0x0112
ROTATIONS: dict[int, Rotation] = {3: 180, 6: 90, 8: 270}
"""EXIF orientations that are pure rotations, in degrees clockwise."""
MIRRORED = frozenset({2, 4, 5, 7})
MODES = {"1": "L", "L": "L", "LA": "L", "La": "L", "RGBA": "RGBA"}
"""Pillow's modes that are not read as RGB."""
_filters = threading.Lock()
"""Held while the filters of warnings are changed, which all threads share."""
NAMED_FAILURES = 10
"""Number of unreadable images that get a note each; further ones are only counted."""


def open_images(paths: Sequence[Path], options: SourceOptions) -> PullSource:
    """Read images in the order given; animations and multi-page files deliver all their frames.

    Each Frame has its path as source_id; the index counts through all images. Only animations have pts (in ms), so
    `start` and `end` apply only to them. An image that cannot be read is skipped with a note.

    Raises:
        DecodeError: the only image cannot be read, or none of several (while reading).
    """
    name = str(paths[0]) if len(paths) == 1 else f"{len(paths)} images"
    info = SourceInfo(name, "images", frames=-(-len(paths) // options.vid_stride), mixed=len(paths) > 1, files=paths)
    if len(paths) == 1:
        with _opened(paths[0]) as image:
            check_size(*image.size, str(paths[0]), options.max_pixels)
            info.width, info.height = image.size
            if _is_sequence(image):
                info.frames = None
    return PullSource(info, lambda closed: _frames(paths, info, options, closed))


def _frames(paths: Sequence[Path], info: SourceInfo, options: SourceOptions, closed: threading.Event) -> Frames:
    index = 0
    failures: list[SourceError] = []
    start, end = options.span
    for path in paths:
        try:
            with _opened(path) as image:
                for pts in _sequence(image, info):
                    check_size(*image.size, str(path), options.max_pixels)  # the pages of a TIFF differ in size
                    if closed.is_set():
                        return
                    if pts is not None and not start <= pts * MILLISECOND < (end or math.inf):
                        continue
                    if index % options.vid_stride == 0:
                        yield _frame(image, info, index, str(path), pts)
                    index += 1
        except SourceError as error:
            failures.append(error)
            info.drops["unreadable"] = len(failures)
            if len(failures) <= NAMED_FAILURES:
                info.note(f"skipped {error.message}")
    if len(failures) > NAMED_FAILURES:
        info.note(f"images skipped in all: {len(failures)}")
    if len(failures) < len(paths) or index:
        return
    if len(failures) == 1:
        raise failures[0]
    raise DecodeError(f"none of {info.uri} can be read; the last error: {failures[-1].message}")


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """The open image; any error inside the block becomes a SourceError that names the path."""
    from PIL import Image, UnidentifiedImageError  # slow to import, and videos need none

    try:
        Image.init()  # without it, a format that this Pillow lacks is a KeyError
        formats = [name for name in FORMATS if name in Image.OPEN]
        # Pillow's warning of a large size is left out: `max_pixels` decides.
        with _filters, warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            identified = Image.open(path, formats=formats)
        with identified as image:
            yield image
    except SourceError:
        raise
    except Image.DecompressionBombError as error:
        remedy = "scale it down first; in Python, PIL.Image.MAX_IMAGE_PIXELS changes this limit"
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise SourceError(f"{path}: more than {limit} pixels, which Pillow does not read", remedy=remedy) from error
    except Exception as error:  # Pillow's plug-ins raise nearly anything on damaged bytes
        reason, remedy = str(error) or type(error).__name__, "check in an image viewer that it is complete"
        if isinstance(error, UnidentifiedImageError):  # its message only repeats the path
            reason = "not an image of a supported format, or damaged"
            remedy += f", and save it as one of {', '.join(FORMATS)}"
        raise DecodeError(f"{path}: {reason}", remedy=remedy) from error


def _is_sequence(image: Image.Image) -> bool:
    return image.format in SEQUENCES and getattr(image, "is_animated", False)


def _sequence(image: Image.Image, info: SourceInfo) -> Iterator[int | None]:
    """Seek to each frame of a file and yield its pts; None for still images and pages."""
    if not _is_sequence(image):
        if getattr(image, "is_animated", False):
            info.note(f"{image.format} images: only the first image of a file is read (no previews, no gain maps)")
        yield None
        return
    clock = 0.0
    # Counting the frames first would read the whole file, and fail on a truncated one.
    for number in itertools.count():
        try:
            image.seek(number)
        except EOFError:
            return
        yield None if image.format == "TIFF" else round(clock)
        image.load()  # some formats know the duration only then
        clock += image.info.get("duration") or 0


def _frame(image: Image.Image, info: SourceInfo, index: int, source_id: str, pts: int | None) -> Frame:
    image.load()
    # After load, because for some formats Pillow then rotates the pixels itself and removes the tag.
    orientation = image.getexif().get(ORIENTATION_TAG, 1)
    if orientation in MIRRORED:
        from PIL import ImageOps

        info.note("mirrored by EXIF: flipped in a copy")
        image = ImageOps.exif_transpose(image)
    rotation = ROTATIONS.get(orientation, 0)
    facts = {"index": index, "pts": pts, "time_base": MILLISECOND, "rotation": rotation}
    return _wrap(image, info, source_id, source_id=source_id, **facts)


def _wrap(image: Image.Image, info: SourceInfo, name: str, **facts: Any) -> Frame:
    """A Frame with the pixels of an image, 8 or 16 bits deep, else SourceError; losses are noted."""
    mode = image.mode
    if mode.startswith("I") or mode == "F":
        pixels = np.array(image)
        if mode == "F" or int(pixels.min()) < 0 or int(pixels.max()) > 65535:
            kind = "floating point" if mode == "F" else "32-bit"
            raise SourceError(f"{name}: {kind} pixels", remedy="save it with 8 or 16 bits per channel")
        return Frame((pixels.astype(np.uint16),), PIXEL_FORMATS["gray16"], matrix="rgb", full_range=True, **facts)
    transparent = image.has_transparency_data
    if transparent:
        info.note("transparency is ignored")
    target = "RGBA" if mode == "P" and transparent else MODES.get(mode, "RGB")
    if target == "RGB" and mode != "RGB":
        info.note(f"{mode} images are converted to RGB")
    pixels = np.array(image if target == mode else image.convert(target))
    format = PIXEL_FORMATS[{"L": "gray", "RGB": "rgb24", "RGBA": "rgba"}[target]]
    return Frame((pixels,), format, matrix="rgb", full_range=True, **facts)


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
        info.note("start and end are ignored: arrays have no timestamps")
    images: Iterable[Any] = [source] if is_image(source) and getattr(source, "ndim", 3) < 4 else source
    if isinstance(images, Sized):
        if len(images) == 0:
            raise SourceError(f"{brief(source)} has no images", remedy="pass a path, an address or images")
        first = array_frame(next(iter(images)), 0, info)
        info.width, info.height = first.width, first.height
        info.frames = -(-len(images) // options.vid_stride)
        if isinstance(images, list | tuple):  # anything else may create each image on access
            sizes = {it.shape[:2] if isinstance(it, np.ndarray) else getattr(it, "size", None) for it in images}
            info.mixed = len(sizes) > 1
    else:
        info.note("images of an iterator: one copy per frame")

    def frames(closed: threading.Event) -> Frames:
        for index, image in enumerate(images):
            if closed.is_set():
                return
            if index % options.vid_stride == 0:
                frame = array_frame(image, index, info)
                if not isinstance(images, Sized):
                    frame = replace(frame, planes=tuple(plane.copy() for plane in frame.planes), owner=None)
                yield frame

    return PullSource(info, frames)


def array_frame(image: Any, index: int, info: SourceInfo) -> Frame:
    if not is_image(image):
        remedy = "pass NumPy arrays or PIL images; put paths into a list"
        raise UsageError(f"item {index} is a {type(image).__name__}, not an image", remedy=remedy)
    if isinstance(image, np.ndarray):
        return Frame.from_array(image, index=index, source_id=SOURCE_ID)
    name = f"{SOURCE_ID} {index}"
    try:
        return _wrap(image, info, name, index=index, source_id=SOURCE_ID)
    except (OSError, SyntaxError) as error:  # a file that Pillow has opened, and reads only now
        raise DecodeError(
            f"{name}: {error}", remedy="load the image before it is passed on, or pass its path"
        ) from error


def open_synthetic(uri: str, options: SourceOptions) -> PullSource:
    """Open a synthetic world. `start` and `vid_stride` cost nothing, as no frame depends on an earlier one.

    Raises:
        UsageError: the address has an unknown scene or key, or a wrong value.
    """
    from framefuse.world import World

    world = World.parse(uri)
    start, end = options.span
    first = math.ceil(start * world.fps)
    last = world.frames if end is None else min(world.frames, math.ceil(end * world.fps))
    numbers = range(first, last, options.vid_stride)
    info = SourceInfo(uri, "synthetic", *world.size, world.fps, len(numbers), synthetic=True)
    info.notes.append(f"synthetic world, version {world.version}")

    def frames(closed: threading.Event) -> Frames:
        for number in numbers:
            av_frame, index = to_video(world[number].image), number - first
            yield wrap(av_frame, info, index=index, source_id=uri, pts=number, time_base=1 / world.fps)

    return PullSource(info, frames)


def to_video(image: Any) -> av.VideoFrame:
    """(h, w, 3) uint8 RGB -> yuv420p, converted to and tagged as BT.709 limited range."""
    rgb = av.VideoFrame.from_ndarray(image, format="rgb24")
    av_frame = rgb.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")
    av_frame.colorspace, av_frame.color_range = 1, LIMITED  # BT.709 (ITU-T H.273, MatrixCoefficients)
    return av_frame
