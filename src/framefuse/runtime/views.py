"""Views of frames: which parts of a frame the model sees, each as one row of a batch. Policy only: nothing waits."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from framefuse.common.polygons import in_pixels
from framefuse.common.redact import brief
from framefuse.config import Settings
from framefuse.errors import FramefuseError, UsageError
from framefuse.frame import Frame, View
from framefuse.models.card import Card
from framefuse.postprocess.mattes import in_views
from framefuse.postprocess.merge import join, merge
from framefuse.prediction import Detections, FrameInfo, Masks, Result
from framefuse.preprocess import Preprocess
from framefuse.runtime.program import FrameResult, Program
from framefuse.runtime.rectilinear import Rectilinear
from framefuse.runtime.tiles import AUTO, MOST_VIEWS, AutoTiles, inside, parse_tiles
from framefuse.runtime.tracking import least_confidence

Choose = Callable[[Frame, Sequence[Result]], Sequence[View]]
"""(frame, latest results of its source, oldest first) -> its views; none: the frame has no objects."""

MOST_SIZES = 64
"""Sizes of frames whose fixed views are cached."""
REMEMBERED, MOST_SOURCES = 8, 256
"""Results that a `Choose` gets, and sources, the latest ones, of which they are kept."""
LEFT, RIGHT = {"left": (0.0, 0.0, 0.5, 1.0)}, {"right": (0.5, 0.0, 0.5, 1.0)}
TOP, BOTTOM = {"top": (0.0, 0.0, 1.0, 0.5)}, {"bottom": (0.0, 0.5, 1.0, 0.5)}
EYES = {"sbs": LEFT | RIGHT, "tb": TOP | BOTTOM, "left": LEFT, "right": RIGHT}
"""Setting `stereo` -> tag and region of each eye, in shares of the frame."""


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
            remedy = "write x,y,width,height, or the corners of a polygon x1,y1,x2,y2,x3,y3, in pixels or as shares of "
            remedy += "the frame from 0 to 1; separate several by semicolons"
            raise UsageError(f"roi is {brief(region.strip())}", remedy=remedy)
        if len(numbers) == 4 and 0 in numbers[2:]:
            raise UsageError(f"roi {brief(region.strip())} has no area", remedy="give it a width and a height")
        found.append(numbers)
    return found


def _region(tag: str, numbers: tuple[float, ...], size: tuple[int, int]) -> View:
    """The view of a region of `parse_roi` in a frame of that size."""
    numbers = in_pixels(numbers, size)
    if len(numbers) == 4:
        x, y, width, height = map(round, numbers)
        return View((x, y, max(1, width), max(1, height)), tag)
    xs, ys = numbers[::2], numbers[1::2]
    left, top = math.floor(min(xs)), math.floor(min(ys))
    region = left, top, math.ceil(max(xs)) - left, math.ceil(max(ys)) - top
    return View(region, tag, tuple(zip(xs, ys, strict=True)))


def sees_both_eyes(settings: Settings) -> bool:
    """Whether the views of a frame are its two eyes, the left one first; of top and bottom that is the upper one."""
    return settings.stereo is not None and len(EYES.get(settings.stereo, {})) == 2


def viewer_for(
    settings: Settings,
    card: Card,
    preprocess: Preprocess,
    choose: Choose | None = None,
    turned: Rectilinear | None = None,
) -> "Viewer | None":
    """What splits frames into views, by the settings or by a function of the caller; None: nothing does.
    UsageError: a setting cannot be used, or contradicts another one."""
    if settings.target_fps and settings.tiles != AUTO and not settings.adaptive:
        remedy = "add tiles=auto or adaptive, or leave it out"
        raise UsageError(f"target_fps is {settings.target_fps:g}", remedy=remedy)
    if choose is None and turned is None and not (settings.tiles or settings.roi or settings.stereo):
        return None
    return Viewer(settings, card, preprocess, choose, turned)


class _Pending(NamedTuple):
    """A frame whose views are on their way."""

    frame: Frame
    views: tuple[View, ...]
    awaited: int
    """Results that belong to it: one for each view, or one if the program merges them."""
    found: list[FrameResult]


class Viewer:
    """Turns frames into one row for each view, and joins their results again. Frames keep their order.

    Attributes:
        notes: what was unusual, such as a region that was clipped; each once.
        merges: most views of a frame that the program merges, if they run in one batch; 0: it merges none.
        together: views of a frame that are in one batch, which nothing merges, if they have one size; 0: none are.
    """

    def __init__(
        self,
        settings: Settings,
        card: Card,
        preprocess: Preprocess,
        choose: Choose | None,
        turned: Rectilinear | None = None,
    ) -> None:
        """See `viewer_for`. Boxes that only a tracker needs change nothing about the others."""
        if settings.roi and settings.stereo:
            raise UsageError("roi and stereo were asked for", remedy="choose one of them")
        self._whole = settings.tiles_whole
        size = preprocess.width, preprocess.height
        self._auto = AutoTiles(size, whole=self._whole) if settings.tiles == AUTO else None
        self._tiles = self._auto or (parse_tiles(settings.tiles) if settings.tiles else None)
        self._regions: Mapping[str, tuple[float, ...]] = EYES[settings.stereo] if settings.stereo else {}
        if settings.roi:
            self._regions = {f"roi {n}": region for n, region in enumerate(parse_roi(settings.roi), 1)}
        polygons = any(len(numbers) > 4 for numbers in self._regions.values())
        if settings.save_matte and card.task == "semantic" and (self._tiles or polygons):
            message = "save_matte was asked for with tiles or polygons, at whose edges mattes are not joined"
            raise UsageError(message, remedy="use stereo, or a roi of x,y,width,height")
        if choose is not None and (self._tiles or self._regions):
            raise UsageError("views was given beside tiles, roi or stereo", remedy="let the function return all views")
        if choose is not None and turned is not None:
            raise UsageError("views was given beside matte_view", remedy="leave one of them out")
        if choose is not None and not callable(choose):
            raise UsageError(f"views is {brief(choose)}", remedy="pass a function of a frame and the latest results")
        self._choose, self._preprocess, self._names, self._turned = choose, preprocess, card.names, turned
        self._segments = card.task == "semantic"
        self._merge = partial(merge, max_det=settings.max_det, agnostic=settings.agnostic_nms)
        self._least = np.float32(settings.conf) if least_confidence(settings) < settings.conf else None
        self._pending: deque[_Pending] = deque()
        self._latest: dict[str, deque[Result]] = {}
        """By source, for a `Choose`; the last is that of the last frame."""
        self._known: dict[tuple[int, int], tuple[View, ...]] = {}
        """Size of a frame -> its views, where they are fixed."""
        self.notes: dict[str, None] = {}
        self._frames = self._views = 0
        self._share = 0.0
        self.merges = self.together = 0

    def rows(self, frame: Frame) -> list[tuple[list[Frame], int]]:
        """The frame once for each view: rows that run in one batch, and the places that are kept for them in it. A
        lease stays with the viewer until all of them have been read, unless one batch reads them.

        Raises:
            UsageError: the callable failed, or returned something that is not views of this frame.
        """
        views = self._views_of(frame)
        more: list[Frame] = []
        if self._turned is not None:
            eyes = [view.region or (0, 0, frame.width, frame.height) for view in views]
            frame, more = self._turned.rows(frame, eyes)
        self._frames, self._views = self._frames + 1, self._views + len(views)
        pixels = frame.width * frame.height
        self._share += sum(view.region[2] * view.region[3] if view.region else pixels for view in views) / pixels
        joined = len(views) if len(views) <= self.merges and not any(view.outline for view in views) else 0
        rows = [frame.replace_unchecked(view=view, lease=None, joined=joined) for view in views]
        alike = len(views) == self.together and len({view.region[2:] if view.region else () for view in views}) == 1
        if joined or alike:  # one batch reads all of them, so that the program can release the lease
            rows[-1] = rows[-1].replace_unchecked(lease=frame.lease)
            frame = frame.replace_unchecked(lease=None)
        self._pending.append(_Pending(frame, views, 1 if joined else len(views) + len(more), []))
        return [(rows, self.merges)] if joined else [([row], 1) for row in (*rows, *more)]

    def join(
        self, results: Iterable[FrameResult | None], passed: Callable[[Frame], Frame | None] | None = None
    ) -> Iterator[FrameResult]:
        """One result for each frame from those of its views. None: a frame without views may be due.

        Args:
            passed: `Program.passed`, for frames without views; None: they stay as they are.
        """
        for result in results:
            if result is not None:
                of = result.result.frame.source_id, result.result.frame.index
                next(
                    found
                    for frame, _, awaited, found in self._pending
                    if (frame.source_id, frame.index) == of and len(found) < awaited
                ).append(result)
            while self._pending and len(self._pending[0].found) == self._pending[0].awaited:
                frame, views, _, found = self._pending.popleft()
                merged = self._merged(frame, views, found)
                yield merged if found or passed is None else merged._replace(frame=passed(frame))

    def forget(self) -> None:
        """Drop the frames whose views are not complete, after an error."""
        self._pending.clear()

    def keep_up(self, program: Program, rate: float | None) -> None:
        """Choose tiles, where that is left open, by the time of the model on an idle program, so that so many frames
        per second can be done; None: any number."""
        if self._auto is not None:
            seconds = self._auto.seconds or (program.row_seconds() if rate else 0.0)
            self._auto.limit(rate, seconds)
            self._known.clear()

    @property
    def is_fixed(self) -> bool:
        """Whether all frames of a size have the same views."""
        return self._choose is None

    @property
    def reasons(self) -> list[str]:
        """What was chosen, and why."""
        return self._auto.reasons if self._auto else []

    def expected(self, width: int, height: int) -> View | None:
        """A view of frames of this size, with the model input that all of them share; None: nobody knows yet."""
        if self._choose is not None:
            return None
        views = [self._clipped(view, (width, height), "a frame") for view in self._fixed(width, height)]
        return self._sized(views, width, height)[0]

    def most(self, width: int, height: int, batch: int) -> int:
        """Views of a frame of this size; as many as a batch has if the frame decides."""
        return len(self._fixed(width, height)) if self._choose is None else batch

    def example(self, frame: Frame) -> Frame:
        """The frame with a view of it as `expected`, for warming up."""
        return frame.replace_unchecked(view=self.expected(frame.width, frame.height))

    @property
    def looked(self) -> tuple[float, float] | None:
        """Views a frame so far, and their pixels over those of the frame; None: there was no frame."""
        return (self._views / self._frames, self._share / self._frames) if self._frames else None

    def _fixed(self, width: int, height: int) -> list[View]:
        """The views of every frame of this size that `stereo`, `roi` and `tiles`, which divide each eye or region, ask
        for."""
        bases = [_region(tag, region, (width, height)) for tag, region in self._regions.items()] or [View()]
        if self._tiles is None:
            return bases
        found = list(bases) if self._whole else []
        for base in bases:
            region = base.region or (0, 0, width, height)
            whole = inside(region, (width, height))
            grid = self._tiles.of(whole, len(bases)) if min(whole[2:]) > 0 else [region]
            name = f"{base.tag} " if base.region else ""
            if grid != [whole] or not self._whole:  # otherwise it is no larger than a tile
                found += [replace(base, region=tile, tag=f"{name}tile {n}") for n, tile in enumerate(grid, 1)]
        return found

    def _views_of(self, frame: Frame) -> tuple[View, ...]:
        size = frame.width, frame.height
        if size in self._known:
            return self._known[size]
        where = f"frame {frame.index} of {frame.source_id or 'the source'}"
        try:
            if self._choose is None:
                chosen: Any = self._fixed(*size)
            else:
                chosen = self._choose(frame, tuple(self._latest_of(frame.source_id)))
        except FramefuseError:
            raise
        except Exception as error:
            raise UsageError(f"views raised {type(error).__name__} for {where}: {error}") from error
        if not isinstance(chosen, Sequence) or not all(isinstance(view, View) for view in chosen):
            raise UsageError(f"views returned {brief(chosen)} for {where}", remedy="return a list of framefuse.View")
        if len(chosen) > MOST_VIEWS:
            raise UsageError(f"{len(chosen)} views of {where}", remedy=f"use at most {MOST_VIEWS}")
        views = self._sized([self._clipped(view, size, where) for view in chosen], *size)
        if self._choose is None:
            if len(self._known) >= MOST_SIZES:
                self._known.clear()
            self._known[size] = views
        return views

    def _latest_of(self, source_id: str) -> deque[Result]:
        found = self._latest.pop(source_id, None)
        if len(self._latest) >= MOST_SOURCES:
            del self._latest[next(iter(self._latest))]
        return self._latest.setdefault(source_id, deque(maxlen=REMEMBERED) if found is None else found)

    def _clipped(self, view: View, size: tuple[int, int], where: str) -> View:
        try:
            outline = tuple((float(x), float(y)) for x, y in view.outline)
            if outline and (len(outline) < 3 or not all(map(math.isfinite, chain(*outline)))):
                raise ValueError
        except (TypeError, ValueError):
            message = f"a view of {where} has the outline {brief(view.outline)}"
            raise UsageError(message, remedy="give three corners (x, y) or more") from None
        if view.region is None:
            return replace(view, outline=outline) if outline else view
        try:
            x, y, width, height = map(int, view.region)
        except (TypeError, ValueError, OverflowError):
            message = f"a view of {where} has the region {brief(view.region)}"
            raise UsageError(message, remedy="give x, y, width and height in pixels") from None
        clipped = inside((x, y, width, height), size)
        if min(clipped[2:]) <= 0:
            message = f"view {view.tag!r} of {where} is {width}x{height} at ({x}, {y}), and the frame "
            message += f"{size[0]}x{size[1]}: nothing of it is inside"
            raise UsageError(message, remedy="give x, y, width and height in pixels of the frame as displayed")
        if clipped != (x, y, width, height):
            self.notes[f"view {view.tag!r} was clipped to the frame of {size[0]}x{size[1]}"] = None
        return replace(view, region=clipped, outline=outline)

    def _sized(self, views: Sequence[View], width: int, height: int) -> tuple[View, ...]:
        """The views with one size of the model input, which fits each of them."""
        sizes = {self._preprocess.place(width, height, view.region).size for view in views}
        if len(sizes) < 2:
            return tuple(views)
        shared = max(across for across, _ in sizes), max(down for _, down in sizes)
        return tuple(replace(view, size=shared) for view in views)

    def _merged(self, frame: Frame, views: tuple[View, ...], found: Sequence[FrameResult]) -> FrameResult:
        kept: Frame | None = frame
        size = frame.width, frame.height
        facts: dict[str, Any] = {}
        if found:
            own = found[: len(views)]  # what is turned comes after
            parts = [row.result.detections for row in own]
            # The program may have merged them.
            merged = self._merge(parts, views, size) if parts[0].view is None else parts[0]
            kept, facts = found[0].frame, {"detections": merged, "views": views}
            if found[0].result.matte is not None:
                mattes = [row.result.matte for row in found if row.result.matte is not None]
                looks = views if self._turned is None else (*views, *views)  # `Rectilinear.joined` makes one of two
                facts["matte"] = in_views(mattes, looks, size)
        if self._segments and "matte" not in facts:
            masks = [row.result.masks for row in found if row.result.masks is not None]
            facts["masks"] = Masks(join(masks, views, size), self._names)
        if found:
            result = replace(own[-1].result, **facts)
        else:
            result = Result(FrameInfo.of(frame), Detections.none(self._names), arrival=frame.arrival, **facts)
        shown = result
        if found and self._least is not None:
            strong = self._merge([part[part.confidence > self._least] for part in parts], views, size)
            weak = result.detections[result.detections.confidence <= self._least]
            shown = replace(result, detections=strong)
            result = replace(result, detections=Detections.concatenate([strong, weak]))
        if self._choose is not None:
            self._latest_of(frame.source_id).append(shown)
        if kept is not None and kept.planes is frame.planes:  # the last stage releases its lease
            return FrameResult(result, frame.replace_unchecked(lease=kept.lease) if kept.lease else frame)
        if frame.lease is not None:
            frame.lease.release()
        return FrameResult(result, kept)
