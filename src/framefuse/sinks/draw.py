"""Draw boxes, labels, trails and masks into the planes of a frame: no conversion, a few slice assignments per box.

Each plane is split into components (Y, U, V, or R, G, B), which are 2-D views with their own subsampling. A line is one
assignment per component, a label one copy of a cached tile per component.
"""

import colorsys
import functools
import itertools
import math
import unicodedata
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from framefuse.common.polygons import clipped, in_pixels
from framefuse.errors import UsageError
from framefuse.frame import Matrix, PixelFormat, View
from framefuse.kernels.drawing import call as drawing
from framefuse.kernels.masks.call import composite
from framefuse.kernels.preprocess.plan import LUMA_WEIGHTS
from framefuse.prediction import Classification, Detections, Masks, Result
from framefuse.sinks import UNTINTED, USUAL, VISIBLE, Style, tracks_of

Plane = NDArray[np.uint8]
Colour = tuple[int, int, int]
"""Red, green, blue in 0..255."""

TINT = 115
"""Opacity of masks, 0..255."""

KEPT_CLEAR = 64
"""Number of labels, of the most confident detections, that others must not cover if there is space beside them."""
COLOURS = 1 << 10
"""Number of colours of tracks."""
OUTLINE = -1
"""Stands for the class of views: white, with tags in black."""
DASH = 6
"""Lengths of a dash, and of the gap after it, in line widths."""
TILES_KEPT = 2048
"""Maximum number of cached parts of labels, which are a name or a two-digit confidence on the colour of a class or
track: about 6 MB for 1080p."""
FONTS = ("NotoSansCJK-Regular.ttc", "DejaVuSans.ttf", "NotoSans-Regular.ttf")
"""System fonts for labels with more than ASCII, which is all that Pillow's own font has."""

Place = tuple[int, int, int, int]
"""Left, top, right and bottom of a label in pixels; the last two are exclusive."""
Component = tuple[str, Plane, int, int]
"""One component of a frame: its role (y, u, v, r, g or b), samples, and luma samples per sample in x and y."""
Trail = tuple[int, NDArray[np.float64]]
"""Id of a track, and the centres of its boxes (n, 2) in pixels, oldest first."""


class Tile(NamedTuple):
    """Text on the colour of a class."""

    samples: dict[str, Plane]
    """Component -> its samples."""
    height: int
    width: int
    """In pixels."""


Label = list[Tile]
"""What is drawn side by side, of one height."""


class Inks(NamedTuple):
    """The colours of a class, as component values."""

    line: dict[str, int]
    """Component -> value."""
    ramps: dict[str, Plane]
    """Component -> its values at text coverage 0..255."""


def components(planes: Sequence[Plane], format: PixelFormat) -> list[Component]:
    """The planes as 2-D views, one per component."""
    if format.layout == "packed":
        found = [(role, planes[0][..., i]) for i, role in enumerate(format.channels) if role in "rgb"]
    elif format.layout == "semiplanar":
        found = [("y", planes[0]), *((role, planes[1][..., i]) for i, role in enumerate(format.channels or "uv"))]
    else:
        roles = "y" if format.layout == "gray" else "gbr" if format.name.startswith("gbr") else "yuv"
        found = list(zip(roles, planes, strict=True))
    return [(role, samples, *(format.subsample if role in "uv" else (1, 1))) for role, samples in found]


def encode_colour(colour: Colour, matrix: Matrix, full_range: bool) -> dict[str, int]:
    """8-bit component values (y, u, v, r, g, b) of a colour.

    y = kr r + (1 - kr - kb) g + kb b; u = (b - y) / (2 (1 - kb)); v = (r - y) / (2 (1 - kr)), then scaled to the range.
    """
    red, green, blue = (channel / 255 for channel in colour)
    kr, kb = LUMA_WEIGHTS.get(matrix, LUMA_WEIGHTS["bt601"])
    luma = kr * red + (1 - kr - kb) * green + kb * blue
    u, v = (blue - luma) / (2 * (1 - kb)), (red - luma) / (2 * (1 - kr))
    base, luma_span, chroma_span = (0, 255, 255) if full_range else (16, 219, 224)
    values = {"y": base + luma_span * luma, "u": 128 + chroma_span * u, "v": 128 + chroma_span * v}
    values |= dict(zip("rgb", map(float, colour), strict=True))
    return {role: min(255, max(0, round(value))) for role, value in values.items()}


@functools.cache
def class_colour(class_id: int) -> Colour:
    """A vivid colour for a class. Hues advance by the golden ratio, so that consecutive classes differ clearly."""
    if class_id == OUTLINE:
        return 255, 255, 255
    hue = (0.58 + class_id * 0.6180339887) % 1
    saturation, value = ((0.80, 1.0), (0.62, 0.94), (0.92, 0.84))[class_id // 8 % 3]
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)


def text_colour(background: Colour) -> Colour:
    """Black or white, whichever has more contrast."""
    red, green, blue = background
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else (255, 255, 255)


@functools.lru_cache(maxsize=16)
def _font(size: int, ascii_only: bool) -> Any:
    """A font; None if the system has none of FONTS."""
    if ascii_only:
        return ImageFont.load_default(size)
    for name in FONTS:
        with suppress(OSError):
            return ImageFont.truetype(name, size)
    return None


@functools.lru_cache(maxsize=1024)
def text_coverage(text: str, size: int, left: int, right: int, grid: tuple[int, int]) -> tuple[Plane, Plane]:
    """Text of `size` pixels as coverage 0..255: per pixel, and per cell of the chroma grid.

    Args:
        left, right: margins in pixels. The height depends on the grid, the size, and on whether the text is ASCII.
        grid: pixels per cell in x and y; the text's area is rounded up to whole cells.
    """
    font = _font(size, text.isascii())
    if font is None:  # omit the characters that no available font can draw
        plain = unicodedata.normalize("NFKD", text.replace("\N{LATIN SMALL LETTER SHARP S}", "ss"))
        text, font = plain.encode("ascii", "ignore").decode().strip(), _font(size, True)
    ascent, descent = font.getmetrics()
    wanted = math.ceil(font.getlength(text)) + left + right, ascent + descent + size // 8
    step_x, step_y = grid
    width, height = (-(-side // step) * step for side, step in zip(wanted, grid, strict=True))
    image = Image.new("L", (width, height))
    ImageDraw.Draw(image).text((left, ascent + size // 16), text, fill=255, font=font, anchor="ls")
    fine = np.asarray(image)
    cells = fine.reshape(height // step_y, step_y, width // step_x, step_x)
    return fine, cells.mean((1, 3)).astype(np.uint8)


def class_inks(class_id: int, *, roles: str, matrix: Matrix, full_range: bool) -> Inks:
    """The colours of a class as values of the components `roles`."""
    colour = class_colour(class_id)
    line, text = (encode_colour(one, matrix, full_range) for one in (colour, text_colour(colour)))
    ramps = {role: np.rint(np.linspace(line[role], text[role], 256)).astype(np.uint8) for role in roles}
    return Inks(line, ramps)


class Letters:
    """Text of one size on the colours of classes, as samples per component.

    Args:
        inks: the colours of a class.
        size: of the text, in pixels.
        grid: pixels per chroma sample in x and y.
    """

    def __init__(self, inks: Callable[[int], Inks], size: int, grid: tuple[int, int]) -> None:
        self._inks, self._size, self._grid = inks, size, grid
        self.tile = functools.lru_cache(TILES_KEPT)(self._tile)

    def label(self, class_id: int, name: str, score: str) -> Label:
        """A name and its score, side by side."""
        margin, words = self._size // 4, name.split()
        # Two parts, because names and scores are few but their pairs many; one part if their fonts would differ.
        if name.isascii():
            named = " ".join([*words, ""])
            return [self.tile(class_id, named, margin, 0), self.tile(class_id, score, 0, margin)]
        return [self.tile(class_id, " ".join([*words, score]), margin, margin)]

    def _tile(self, class_id: int, text: str, left: int, right: int) -> Tile:
        fine, coarse = text_coverage(text, self._size, left, right, self._grid)
        ramps = self._inks(class_id).ramps.items()
        return Tile({role: ramp.take(coarse if role in "uv" else fine) for role, ramp in ramps}, *fine.shape)


@functools.lru_cache(maxsize=64)
def dashes(view: View, size: tuple[int, int], line: int) -> NDArray[np.float64]:
    """The dashed outlines of a view, just inside it, and of its polygon, as filled boxes (n, 4) in pixels."""
    left, top, width, height = view.region or (0, 0, *size)
    right, bottom = left + width - line, top + height - line
    lines: list[tuple[tuple[float, float], ...]] = [view.outline] if view.outline else []
    if view.region:
        lines.append(((left, top), (right, top), (right, bottom), (left, bottom)))
    found, period = [np.empty((0, 4))], 2 * DASH * line
    for corners in lines:
        for start, end in map(sorted, zip(corners, (*corners[1:], corners[0]), strict=True)):
            way = np.subtract(end, start)
            length = math.hypot(*way)
            # Counted from the edge of the frame, so that the dashes of lines that lie on one another are the same.
            first = -int((start[0] if way[0] else start[1]) % period)
            for at in range(first, math.ceil(length), period):
                begin, stop = max(0, at), max(0, min(length, at + DASH * line))
                if way.all():  # a slanting dash is a row of squares
                    low = high = start + np.outer(np.arange(begin, stop, line) / length, way)
                else:
                    low, high = (start + np.outer((begin, stop), way / length))[:, None]
                found.append(np.hstack((low // line * line, high // line * line + line)))
    boxes = np.concatenate(found)
    seen = (boxes[:, 2:] > 0).all(axis=1) & (boxes[:, :2] < size).all(axis=1)
    return boxes[seen]


class Trails:
    """Remembers the centres of all tracks for some seconds of presentation time; 0: nothing. Frames without a time
    have `rate` frames per second."""

    def __init__(self, seconds: float, rate: float = 30.0) -> None:
        self._seconds, self._rate = seconds, rate
        self._paths: dict[int, deque[tuple[float, float, float]]] = {}
        self._last = 0.0

    def after(self, result: Result) -> list[Trail]:
        """The trails once this frame is shown. A time that goes back starts them anew."""
        found, frame = result.detections, result.frame
        if not self._seconds or found.tracker_id is None:
            return []
        now = frame.index / self._rate if frame.seconds is None else frame.seconds
        if now < self._last:
            self._paths.clear()
        self._last = now
        centres = ((found.xyxy[:, :2] + found.xyxy[:, 2:]) / 2).tolist()
        for number, (x, y) in zip(found.tracker_id.tolist(), centres, strict=True):
            if number >= 0:
                self._paths.setdefault(number, deque()).append((now, x, y))
        for path in self._paths.values():
            while path and now - path[0][0] > self._seconds:
                path.popleft()
        self._paths = {number: path for number, path in self._paths.items() if path}
        return [(number, np.array(path)[:, 1:]) for number, path in self._paths.items()]


class Annotator:
    """Draws results into frames of one size and pixel format (8 bits per sample).

    Line width and text size depend on the frame size. Lines lie inside their box, so they are visible at the edge of
    the frame, and start at whole chroma samples, so that their colour is pure; with 4:2:0 this moves them by at most
    one pixel.

    Args:
        width, height: frame size in pixels.
        matrix, full_range: meaning of YUV values; ignored for packed and GBR formats.
    """

    def __init__(
        self,
        width: int,
        height: int,
        format: PixelFormat,
        *,
        matrix: Matrix = "bt601",
        full_range: bool = False,
        style: Style = USUAL,
    ) -> None:
        if format.bits != 8:
            remedy = "convert the frame to an 8-bit format first, such as yuv420p"
            raise UsageError(f"cannot draw into {format.name}: {format.bits} bits per sample", remedy=remedy)
        self.format, self._grid, self._size, self._style = format, format.subsample, (width, height), style
        rgb = format.layout == "packed" or format.name.startswith("gbr")
        roles = "y" if format.layout == "gray" else "rgb" if rgb else "yuv"
        self._is_yuv = roles == "yuv"
        mean_side = (width + height) / 2
        self.text_size = max(12, round(mean_side * 0.015))
        # Lines cover whole chroma samples, otherwise their colour is diluted.
        unit = max(self._grid)
        self.line_width = max(2, unit, round((style.line_width or mean_side * 0.0025) / unit) * unit)
        self._thin = max(2, unit)
        self._places = []
        for name, points in style.places:
            flat = in_pixels([number for point in points for number in point], self._size)
            # A side on the right or lower edge of the frame is drawn inside it.
            shown = [side - self._thin if most - self._thin < side <= most else side
                     for side, most in zip(flat, itertools.cycle(self._size), strict=False)]  # fmt: skip
            self._places.append(View(None, name, tuple(zip(shown[::2], shown[1::2], strict=True))))
        inks = functools.partial(class_inks, roles=roles, matrix=matrix, full_range=full_range)
        self._inks = functools.cache(inks)
        self._letters = Letters(self._inks, self.text_size, self._grid)
        self._small_letters = Letters(self._inks, max(10, round(self.text_size * 0.75)), self._grid)

    def draw(
        self,
        planes: Sequence[Plane],
        detections: Detections,
        masks: Masks | None = None,
        trails: Sequence[Trail] = (),
        views: Sequence[View] = (),
        classification: Classification | None = None,
    ) -> None:
        """Draw into `planes` in place: masks and legend, then views and places, then trails, then boxes or oriented
        boxes, then keypoints, then labels; the most confident detection on top. Objects with a track have its colour,
        others that of their class.

        Args:
            planes: writable arrays of the shapes in `PixelFormat.plane_shapes`.
            detections, masks, trails: in pixels of this frame, which may have one column and row more than the masks.
            views: to outline, with their tags.

        Raises:
            UsageError: masks for a frame that is neither 4:2:0 nor packed RGB.
        """
        parts = components(planes, self.format)
        if masks is not None:
            known = range(min(256, len(masks.names) or 256))
            clear = [number for number, name in masks.names.items() if name.lower() == UNTINTED and number < 256]
            self._tint(planes, masks.class_id, known, clear)
            self._legend(parts, masks)
        if classification is not None:
            self._best_classes(parts, classification)
        class_ids, scores = detections.class_id.tolist(), detections.confidence.tolist()
        tracks = tracks_of(detections)
        colours = [own if track is None else track % COLOURS for own, track in zip(class_ids, tracks, strict=True)]
        if detections.runs is not None:
            # Label 0 is what no mask covers; objects beyond 255 share the labels, and colours, of others.
            numbers = (1 + np.arange(len(detections)) % 255).astype(np.uint8)
            self._tint(planes, detections.runs.labels(numbers), [OUTLINE, *colours[:255]], [0])
        if views or self._places:
            self._outline(planes, parts, [*views, *self._places])
        for number, points in trails:
            self._lines(parts, np.hstack((points[:-1], points[1:])), [number % COLOURS] * (len(points) - 1), 0.5)
        if not len(detections):
            return
        boxes = self._snap(detections.xyxy, self.line_width)
        if detections.obb is None:
            self._rectangles(planes, parts, boxes, colours, self.line_width)
        else:
            sides = np.concatenate((detections.obb, np.roll(detections.obb, -1, axis=1)), axis=2)
            self._lines(parts, sides.reshape(-1, 4), np.repeat(colours, 4).tolist())
        if detections.keypoints is not None:
            self._keypoints(parts, detections.keypoints, detections.skeleton, colours)
        if not self._style.labels:
            return
        labels: list[Label] = []
        places: list[Place] = []
        for i, box in enumerate(boxes):
            name = detections.name(class_ids[i]) + ("" if tracks[i] is None else f" {tracks[i]}")
            labels.append(self._letters.label(colours[i], name, f"{scores[i]:.2f}" if self._style.confidence else ""))
            places.append(self._place(box, labels[-1], places[:KEPT_CLEAR]))
        for (left, top, *_), label in zip(reversed(places), reversed(labels), strict=True):
            self._paste(parts, left, top, label)

    def _tint(self, planes: Sequence[Plane], labels: Plane, colours: Sequence[int], untinted: Sequence[int]) -> None:
        """Tint the pixels of each label, of which `colours` has the class whose colour it gets."""
        width, height = self._size
        rows, columns = labels.shape
        if (rows, columns) != (height, width):
            labels = np.pad(labels, ((0, height - rows), (0, width - columns)), "edge")
        opacity = np.full(256, TINT, np.uint8)
        opacity[list(untinted)] = 0
        packed = self.format.layout == "packed"
        roles = self.format.channels if packed else "yuv"
        if packed and len(roles) != 3:
            raise UsageError(f"cannot draw masks into {self.format.name}", remedy="convert the frame to rgb24 first")
        inks = np.zeros((256, 3), np.uint8)
        inks[: len(colours)] = [[self._inks(number).line[role] for role in roles] for number in colours]
        if packed:
            composite(inks[labels], planes[0], opacity[labels], out=planes[0])
        else:
            drawing.overlay(planes, self.format, labels, inks, opacity)

    def _legend(self, parts: list[Component], masks: Masks) -> None:
        """In the upper left corner: the visible classes, and the share of the frame that each covers."""
        if min(self._size) < 16 * self.text_size:
            return  # it would cover too much of a small frame
        seen = masks.class_id[::4, ::4]  # classes that this misses are too small to be visible
        top = 0
        for class_id, count in enumerate(np.bincount(seen.ravel()).tolist()):
            if count and masks.name(class_id).lower() != UNTINTED and top < self._size[1] // 2:
                label = self._letters.label(class_id, masks.name(class_id), f"{count / seen.size:.0%}")
                self._paste(parts, 0, top, label)
                top += label[0].height

    def _best_classes(self, parts: list[Component], found: Classification) -> None:
        """In the upper left corner: the best classes, as many as fit, and the confidence of each."""
        top = 0
        for (name, score), number in zip(found.top(), found.class_id.tolist(), strict=False):
            label = self._letters.label(number, name, f"{score:.2f}" if self._style.confidence else "")
            if self._style.labels and top + label[0].height <= self._size[1]:
                self._paste(parts, 0, top, label)
            top += label[0].height

    def _keypoints(
        self, parts: list[Component], points: NDArray[Any], skeleton: Sequence[tuple[int, int]], colours: Sequence[int]
    ) -> None:
        """The lines of the skeleton, then a dot for each keypoint, of those that are confident enough."""
        seen = points[:, :, 2] >= VISIBLE
        if len(skeleton):
            starts, ends = np.array(skeleton).T
            lines = np.concatenate((points[:, starts, :2], points[:, ends, :2]), axis=2)
            rows, limbs = np.nonzero(seen[:, starts] & seen[:, ends])
            self._lines(parts, lines[rows, limbs], np.take(colours, rows).tolist())
        rows, numbers = np.nonzero(seen)
        dots = points[rows, numbers, :2]
        self._lines(parts, np.hstack((dots, dots)), np.take(colours, rows).tolist(), 2.5)

    def _outline(self, planes: Sequence[Plane], parts: list[Component], views: Sequence[View]) -> None:
        """The dashed outline of each view that is not the whole frame, or of a place, and its tag in the corner."""
        boxes = self._snap(np.concatenate([dashes(view, self._size, self._thin) for view in views]), self._thin)
        if boxes:
            self._rectangles(planes, parts, boxes, [OUTLINE] * len(boxes), self._thin)
        for view in views:
            corner: Sequence[float] | None = view.region
            if view in self._places and (seen := clipped(view.outline, self._size)):
                corner = min(seen, key=lambda point: (point[1], point[0]))
            if corner is not None:
                label = self._small_letters.label(OUTLINE, view.tag, "")
                last = self._size[0] - sum(tile.width for tile in label), self._size[1] - label[0].height
                left, top = (
                    max(0, min(int(side), most)) // step * step
                    for side, most, step in zip(corner, last, self._grid, strict=False)
                )
                self._paste(parts, left, top, label)

    def _snap(self, xyxy: NDArray[Any], line_width: int) -> list[list[int]]:
        """Boxes in whole pixels, on the chroma grid, inside the frame and at least one line wide."""
        step, corner = np.array(self._grid * 2), np.array(self._size * 2)
        boxes = np.rint(np.clip(xyxy, 0, corner) / step).astype(np.int64) * step
        boxes[:, :2] = np.maximum(0, np.minimum(boxes[:, :2], corner[:2] - line_width) // step[:2] * step[:2])
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + line_width)
        return cast(list[list[int]], boxes.tolist())

    def _rectangles(
        self, planes: Sequence[Plane], parts: list[Component], boxes: list[list[int]], class_ids: list[int], width: int
    ) -> None:
        """Draw the outlines of all boxes, the first on top, with lines of that width."""
        if self._is_yuv:
            inks = np.array([[self._inks(class_id).line[role] for role in "yuv"] for class_id in class_ids], np.uint8)
            drawing.draw_boxes(planes, self.format, np.array(boxes, np.int32), inks, line_width=width)
            return
        for (x1, y1, x2, y2), class_id in zip(reversed(boxes), reversed(class_ids), strict=True):
            for role, samples, _, _ in parts:  # gray and RGB are not subsampled
                inside, value = samples[y1:y2, x1:x2], self._inks(class_id).line[role]
                inside[:width] = inside[-width:] = value
                inside[:, :width] = inside[:, -width:] = value

    def _lines(
        self, parts: list[Component], segments: NDArray[Any], class_ids: Sequence[int], widths: float = 1
    ) -> None:
        """Straight lines (n, 4), so many of the usual widths wide, the first on top."""
        width = max(1, round(self.line_width * widths))
        classes, which = np.unique(np.asarray(class_ids, np.int64), return_inverse=True)
        inks = [self._inks(class_id).line for class_id in classes.tolist()]
        for role, samples, sx, sy in parts:
            values = np.array([ink[role] for ink in inks], np.uint8)[which]
            drawing.draw_lines(samples, segments, values, line_width=width, subsample=(sx, sy))

    def _place(self, box: list[int], label: Label, taken: Sequence[Place]) -> Place:
        """Place the label of a box where it covers no label of a more confident detection: above the box, else inside,
        below, or next to a label in its way; if none of these is free, above. Labels stay inside the frame."""
        left, top, _, bottom = box
        high, wide = label[0].height, sum(tile.width for tile in label)
        step_x, step_y = self._grid
        left = max(0, min(left, (self._size[0] - wide) // step_x * step_x))
        lowest = max(0, (self._size[1] - high) // step_y * step_y)
        near = [(begin, end) for start, begin, stop, end in taken if left < stop and start < left + wide]
        tops = [min(y, lowest) for y in (top - high, top, bottom) if y >= 0]

        def is_free(y: int) -> bool:
            return not any(y < end and begin < y + high for begin, end in near)

        found = next((y for y in tops if is_free(y)), None)
        if found is None:
            beside = [y for begin, end in near for y in (begin - high, end) if 0 <= y <= lowest]
            beside = sorted((y for y in beside if abs(y - tops[0]) <= 2 * high), key=lambda y: abs(y - tops[0]))
            found = next((y for y in beside if is_free(y)), tops[0])
        return left, found, left + wide, found + high

    def _paste(self, parts: list[Component], left: int, top: int, label: Label) -> None:
        """Copy a label to where its upper left corner goes, which lies on the chroma grid; clipped to the frame."""
        for tile in label:
            for role, samples, sx, sy in parts:
                target = samples[top // sy : (top + tile.height) // sy, left // sx : (left + tile.width) // sx]
                target[:] = tile.samples[role][: target.shape[0], : target.shape[1]]
            left += tile.width
