"""Views of frames: which parts of a frame the model sees, each as one row of a batch. Policy only: nothing waits."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from framefuse.common.polygons import in_pixels
from framefuse.common.redact import brief
from framefuse.config import Settings
from framefuse.errors import CapabilityError, FramefuseError, UsageError
from framefuse.frame import Frame, Region, View
from framefuse.models.card import Card
from framefuse.postprocess.merge import merge
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.preprocess import Preprocess
from framefuse.runtime.program import FrameResult

Choose = Callable[[Frame, Sequence[Result]], Sequence[View]]
"""(frame, latest results of its source, oldest first) -> its views; none: the frame has no objects."""
Fixed = Callable[[int, int], Sequence[View]]
"""(width, height) -> the views of every frame of that size."""

OVERLAP = 0.2
"""Of neighbouring tiles, as a share of a tile's side: as much as the largest object that only tiles show."""
MOST_VIEWS = 256
REMEMBERED = 8
"""Results that a `Choose` gets."""
LEFT, RIGHT = {"left": (0.0, 0.0, 0.5, 1.0)}, {"right": (0.5, 0.0, 0.5, 1.0)}
TOP, BOTTOM = {"top": (0.0, 0.0, 1.0, 0.5)}, {"bottom": (0.0, 0.5, 1.0, 0.5)}
EYES = {"sbs": LEFT | RIGHT, "tb": TOP | BOTTOM, "left": LEFT, "right": RIGHT}
"""Setting `stereo` -> tag and region of each eye, in shares of the frame."""


class Tiles(NamedTuple):
    """A grid of `rows` x `columns` tiles, or of as many with sides of `side` pixels as are needed."""

    rows: int
    columns: int
    side: int
    overlap: float
    """Share of a tile's side that neighbours have in common, at least."""

    def of(self, region: Region) -> list[Region]:
        """The tiles of a region, row by row."""
        x, y, width, height = region
        across = self._spans(width, self.columns)
        return [(x + left, y + top, w, h) for top, h in self._spans(height, self.rows) for left, w in across]

    def _spans(self, length: int, count: int) -> list[tuple[int, int]]:
        """Start and length of the tiles along one axis."""
        side = math.ceil(length / (count - (count - 1) * self.overlap)) if count else self.side
        side = min(length, side)
        count = count or max(1, math.ceil((length - side * self.overlap) / (side * (1 - self.overlap)) - 1e-9))
        return [(round(step * (length - side) / max(1, count - 1)), side) for step in range(count)]


def parse_tiles(text: str) -> Tiles:
    """Read "2x3" (rows and columns) or "640" (pixels), each with an overlap such as "640:0.25" if it is not OVERLAP.

    Raises:
        UsageError: it is neither, or a number is out of range.
    """
    found = re.fullmatch(r"(?:(\d{1,5})x(\d{1,5})|(\d{1,5}))(?::(\d*\.?\d+))?", text.strip())
    rows, columns, side = (int(number or 0) for number in found.groups()[:3]) if found else (0, 0, 0)
    overlap = float(found[4]) if found and found[4] else OVERLAP
    if overlap >= 0.9:
        raise UsageError(f"tiles that overlap by {overlap:g} of their side", remedy="use an overlap below 0.9")
    if rows * columns > MOST_VIEWS or (not rows * columns and side < 16):
        raise UsageError(
            f"tiles is {brief(text)}",
            remedy=f"write rows x columns (1 to {MOST_VIEWS} tiles) or the side of a tile (16 pixels or more), and the "
            "overlap if you like: 2x3, 640, 640:0.25",
        )
    return Tiles(rows, columns, side, overlap)


def parse_roi(text: str) -> list[tuple[float, ...]]:
    """Read regions separated by semicolons: x,y,width,height, or the corners of a polygon x1,y1,x2,y2,x3,y3,...

    Numbers are pixels, or shares of the frame if all of a region are at most 1.

    Raises:
        UsageError: a region has other numbers than these, or no area.
    """
    found = []
    for region in text.split(";"):
        try:
            numbers = tuple(float(number) for number in region.split(","))
        except ValueError:
            numbers = ()
        if len(numbers) < 4 or len(numbers) % 2 or not all(0 <= number < 1e6 for number in numbers):
            raise UsageError(
                f"roi is {brief(region.strip())}",
                remedy="write x,y,width,height, or the corners of a polygon x1,y1,x2,y2,x3,y3, in pixels or as shares "
                "of the frame from 0 to 1; separate several by semicolons",
            )
        if len(numbers) == 4 and 0 in numbers[2:]:
            raise UsageError(f"roi {brief(region.strip())} has no area", remedy="give it a width and a height")
        found.append(numbers)
    return found


def _region(numbers: tuple[float, ...], size: tuple[int, int]) -> View:
    """The view of a region of `parse_roi` in a frame of that size."""
    numbers = in_pixels(numbers, size)
    if len(numbers) == 4:
        x, y, width, height = map(round, numbers)
        return View((x, y, max(1, width), max(1, height)))
    left, top = math.floor(min(numbers[::2])), math.floor(min(numbers[1::2]))
    right, bottom = math.ceil(max(numbers[::2])), math.ceil(max(numbers[1::2]))
    corners = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    return View((left, top, right - left, bottom - top), outline=corners)


def fixed_views(settings: Settings) -> Fixed | None:
    """The views that `stereo`, `roi` and `tiles`, which divide each eye or region, ask for; None: the whole frame.

    Raises:
        UsageError: a setting cannot be read, or two contradict each other.
    """
    if not (settings.tiles or settings.roi or settings.stereo):
        return None
    if settings.roi and settings.stereo:
        raise UsageError("roi and stereo were asked for", remedy="choose one of them")
    tiles = parse_tiles(settings.tiles) if settings.tiles else None
    regions = {f"roi {n}": region for n, region in enumerate(parse_roi(settings.roi), 1)} if settings.roi else {}
    if settings.stereo:
        regions = dict(EYES[settings.stereo])

    def views(width: int, height: int) -> list[View]:
        bases = [replace(_region(region, (width, height)), tag=tag) for tag, region in regions.items()] or [View()]
        if tiles is None:
            return bases
        found = list(bases) if settings.tiles_whole else []
        for base in bases:
            whole = base.region or (0, 0, width, height)
            grid, name = tiles.of(whole), f"{base.tag} " if base.region else ""
            if grid != [whole] or not settings.tiles_whole:  # otherwise it is no larger than a tile
                found += [replace(base, region=tile, tag=f"{name}tile {n}") for n, tile in enumerate(grid, 1)]
        return found

    return views


def viewer_for(settings: Settings, card: Card, preprocess: Preprocess, choose: Choose | None = None) -> Viewer | None:
    """What splits frames into views, by the settings or by a function of the caller; None: nothing does.

    Raises:
        UsageError, CapabilityError: a setting cannot be used, or contradicts another one or the model.
    """
    fixed = fixed_views(settings)
    if fixed is None and choose is None:
        return None
    if fixed is not None and choose is not None:
        raise UsageError("views was given beside tiles, roi or stereo", remedy="let the function return all views")
    if choose is not None and not callable(choose):
        raise UsageError(f"views is {brief(choose)}", remedy="pass a function of a frame and the latest results")
    if card.task != "detect":
        raise CapabilityError(
            f"{card.path.name} segments, and views are joined for detectors only",
            remedy="leave out tiles, roi, stereo and views",
        )
    return Viewer(choose, fixed, card, preprocess, settings)


class _Pending(NamedTuple):
    """A frame whose views are on their way."""

    frame: Frame
    views: tuple[View, ...]
    found: list[FrameResult]


class Viewer:
    """Turns frames into one row for each view, and joins their results again. Frames keep their order.

    Attributes:
        notes: what was unusual, such as a region that was clipped; each once.
    """

    def __init__(
        self, choose: Choose | None, fixed: Fixed | None, card: Card, preprocess: Preprocess, settings: Settings
    ) -> None:
        """One of `choose` and `fixed` is given. Boxes that only a tracker needs change nothing about the others."""
        self._choose, self._fixed, self._preprocess, self._names = choose, fixed, preprocess, card.names
        self._join = partial(merge, max_det=settings.max_det, agnostic=settings.agnostic_nms)
        self._least = np.float32(settings.conf) if settings.track and settings.track_low < settings.conf else None
        self._pending: deque[_Pending] = deque()
        self._latest: dict[str, deque[Result]] = {}
        self.notes: dict[str, None] = {}
        self._frames = self._views = 0
        self._share = 0.0

    def rows(self, frame: Frame) -> list[Frame]:
        """The frame once for each view. A lease stays with the viewer until all of them have been read.

        Raises:
            UsageError: the callable failed, or returned something that is not views of this frame.
        """
        views = self._views_of(frame)
        self._pending.append(_Pending(frame, views, []))
        self._frames, self._views = self._frames + 1, self._views + len(views)
        pixels = frame.width * frame.height
        self._share += sum(view.region[2] * view.region[3] if view.region else pixels for view in views) / pixels
        return [frame.replace_unchecked(view=view, lease=None) for view in views]

    def join(self, results: Iterable[FrameResult | None]) -> Iterator[FrameResult]:
        """One result for each frame from those of its views. None: a frame without views may be due."""
        for result in results:
            if result is not None:
                of = result.result.frame.source_id, result.result.frame.index
                next(
                    found
                    for frame, views, found in self._pending
                    if (frame.source_id, frame.index) == of and len(found) < len(views)
                ).append(result)
            while self._pending and len(self._pending[0].found) == len(self._pending[0].views):
                yield self._merged(*self._pending.popleft())

    def forget(self) -> None:
        """Drop the frames whose views are not complete, after an error."""
        self._pending.clear()

    def expected(self, width: int, height: int) -> View | None:
        """A view of frames of this size, with the model input that all of them share; None: nobody knows yet."""
        if self._fixed is None:
            return None
        views = [self._clipped(view, (width, height), "a frame") for view in self._fixed(width, height)]
        return self._sized(views, width, height)[0]

    def example(self, frame: Frame) -> Frame:
        """The frame with a view of it as `expected`, for warming up."""
        return frame.replace_unchecked(view=self.expected(frame.width, frame.height))

    def summary(self) -> list[str]:
        """What was looked at, for the report."""
        if not self._frames:
            return []
        each, share = self._views / self._frames, self._share / self._frames
        return [f"views: {each:.3g} a frame, together {share:.3g} times its pixels"]

    def _views_of(self, frame: Frame) -> tuple[View, ...]:
        where = f"frame {frame.index} of {frame.source_id or 'the source'}"
        latest = self._latest.setdefault(frame.source_id, deque(maxlen=REMEMBERED))
        size = frame.width, frame.height
        try:
            chosen: Any = self._fixed(*size) if self._fixed else self._choose(frame, tuple(latest))  # type: ignore[misc]
        except FramefuseError:
            raise
        except Exception as error:
            raise UsageError(f"views raised {type(error).__name__} for {where}: {error}") from error
        if not isinstance(chosen, Sequence) or not all(isinstance(view, View) for view in chosen):
            raise UsageError(f"views returned {brief(chosen)} for {where}", remedy="return a list of framefuse.View")
        if len(chosen) > MOST_VIEWS:
            raise UsageError(f"{len(chosen)} views of {where}", remedy=f"use at most {MOST_VIEWS}")
        return self._sized([self._clipped(view, size, where) for view in chosen], *size)

    def _clipped(self, view: View, size: tuple[int, int], where: str) -> View:
        if view.region is None:
            return view
        try:
            x, y, width, height = map(int, view.region)
        except (TypeError, ValueError):
            raise UsageError(f"a view of {where} has the region {brief(view.region)}") from None
        left, top, right, bottom = max(0, x), max(0, y), min(size[0], x + width), min(size[1], y + height)
        if right <= left or bottom <= top:
            raise UsageError(
                f"view {view.tag!r} of {where} is {width}x{height} at ({x}, {y}), and the frame "
                f"{size[0]}x{size[1]}: nothing of it is inside",
                remedy="give x, y, width and height in pixels of the frame as displayed",
            )
        clipped = (left, top, right - left, bottom - top)
        if clipped != (x, y, width, height):
            self.notes[f"view {view.tag!r} was clipped to the frame of {size[0]}x{size[1]}"] = None
        return replace(view, region=clipped)

    def _sized(self, views: Sequence[View], width: int, height: int) -> tuple[View, ...]:
        """The views with one size of the model input, which fits each of them."""
        sizes = {self._preprocess.place(width, height, view.region).size for view in views}
        if len(sizes) < 2:
            return tuple(views)
        shared = max(across for across, _ in sizes), max(down for _, down in sizes)
        return tuple(replace(view, size=shared) for view in views)

    def _merged(self, frame: Frame, views: tuple[View, ...], found: Sequence[FrameResult]) -> FrameResult:
        kept: Frame | None = frame
        result = Result(FrameInfo.of(frame), Detections.none(self._names), arrival=frame.arrival)
        if found:
            parts, size = [row.result.detections for row in found], (frame.width, frame.height)
            result, kept = (
                replace(found[-1].result, detections=self._join(parts, views, size), views=views),
                found[0].frame,
            )
        shown = result
        if found and self._least is not None:
            strong = self._join([part[part.confidence > self._least] for part in parts], views, size)
            weak = result.detections[result.detections.confidence <= self._least]
            shown, result = replace(result, detections=strong), replace(result, detections=strong.followed_by(weak))
        self._latest[frame.source_id].append(shown)
        if kept is not None and kept.planes is frame.planes:
            return FrameResult(result, frame)  # whose lease the last stage releases
        if frame.lease is not None:
            frame.lease.release()
        return FrameResult(result, kept)
