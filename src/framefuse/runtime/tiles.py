"""Tiles: how a frame or a region of it is divided, as asked for or chosen by measured time. Pure policy."""

import math
import re
from itertools import product
from typing import NamedTuple

from framefuse.common.redact import brief
from framefuse.errors import UsageError
from framefuse.frame import Region

AUTO = "auto"
OVERLAP = 0.2
"""Of neighbouring tiles, as a share of a tile's side: as much as the largest object that only tiles show."""
MOST_VIEWS = 256
MOST_UNTIMED = 16
"""Views of a frame that `auto` chooses where there is no limit on the time."""
CLEARLY = 1.3
"""A frame that is larger than the model's input by this factor, on an axis, is worth dividing."""
SIZES_SHOWN = 8
"""Frame sizes whose choice a report gives."""


class Tiles(NamedTuple):
    """A grid of `rows` x `columns` tiles, or of as many with sides of `side` pixels as are needed."""

    rows: int
    columns: int
    side: int
    overlap: float
    """Share of a tile's side that neighbours have in common, at least."""

    def of(self, region: Region, parts: int = 1) -> list[Region]:
        """The tiles of a region, one of so many of a frame, row by row."""
        x, y, width, height = region
        across = self._spans(width, self.columns)
        return [(x + left, y + top, w, h) for top, h in self._spans(height, self.rows) for left, w in across]

    def _spans(self, length: int, count: int) -> list[tuple[int, int]]:
        """Start and length of the tiles along one axis."""
        side = min(length, math.ceil(length / (count - (count - 1) * self.overlap)) if count else self.side)
        count = count or needed(length, side, self.overlap)
        return [(round(step * (length - side) / max(1, count - 1)), side) for step in range(count)]


def inside(region: Region, size: tuple[int, int]) -> Region:
    """The part of a region that lies in a frame of that width and height; without any, its sides are not positive."""
    x, y, width, height = region
    left, top = max(0, x), max(0, y)
    return left, top, min(size[0], x + width) - left, min(size[1], y + height) - top


def needed(length: int, side: int, overlap: float) -> int:
    """Number of tiles of that side that cover a length."""
    return max(1, math.ceil((length - side * overlap) / (side * (1 - overlap)) - 1e-9))


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
        remedy = f"write auto, rows x columns (1 to {MOST_VIEWS} tiles) or the side of a tile (16 pixels or more), "
        remedy += "and the overlap if you like: 2x3, 640, 640:0.25"
        raise UsageError(f"tiles is {brief(text)}", remedy=remedy)
    return Tiles(rows, columns, side, overlap)


def choose_tiles(
    size: tuple[int, int],
    model_input: tuple[int, int],
    *,
    seconds: float = 0.0,
    rate: float | None = None,
    parts: int = 1,
    whole: bool = True,
) -> tuple[Tiles | None, str]:
    """The tiles that show most detail in the time that there is, None if there are none, and why.

    Tiles of the size of the model's input show every pixel; more would show no more. Where these are too many, it is
    the grid whose tiles are scaled down least.

    Args:
        size: width and height of the frame or of the region that is divided.
        model_input: width and height.
        seconds: that a view takes, if there is a rate.
        rate: frames per second to keep up with; None: no limit but MOST_UNTIMED views.
        parts: regions of the frame that share the time.
        whole: what is divided is looked at as a whole, too.
    """
    (width, height), (across, down) = size, model_input
    if width <= CLEARLY * across and height <= CLEARLY * down:
        return None, f"tiles: none at {width}x{height}: it is hardly larger than the model's input of {across}x{down}"
    limit = MOST_UNTIMED if rate is None else min(MOST_VIEWS, int(1 / (rate * max(seconds, 1e-9)) + 1e-9))
    time = " without target_fps" if rate is None else f" of {seconds * 1e3:.3g} ms within 1/{rate:.4g} s"
    rows, columns = (needed(length, side, OVERLAP) for length, side in ((height, down), (width, across)))
    grids = [Tiles(0, 0, across, OVERLAP)] if across == down else []
    counts = product(range(1, rows + 1), range(1, columns + 1))
    grids += [Tiles(r, c, 0, OVERLAP) for r, c in counts if 1 < r * c <= limit]
    divided = [(grid, grid.of((0, 0, width, height))) for grid in grids]
    fitting = [(grid, tiles) for grid, tiles in divided if (len(tiles) + whole) * parts <= limit]
    if not fitting:
        return None, f"tiles: none at {width}x{height}: {(2 + whole) * parts} views{time} do not fit"

    def shrunk(tiles: list[Region]) -> float:
        return max(1.0, tiles[0][2] / across, tiles[0][3] / down)

    best, tiles = min(fitting, key=lambda row: (shrunk(row[1]), len(row[1])))
    views, high = (len(tiles) + whole) * parts, len({y for _, y, _, _ in tiles})
    took = "" if rate is None else f"{views * seconds * 1e3:.3g} ms for "
    why = "they show every pixel" if shrunk(tiles) == 1 else "the finest that fit"
    what = f"{high}x{len(tiles) // high} of {tiles[0][2]}x{tiles[0][3]} at {width}x{height}"
    return best, f"tiles: {what}: {why}, {took}{views} views{time}"


class AutoTiles:
    """`choose_tiles` for every size of frame or region that comes, with one measured time."""

    def __init__(self, model_input: tuple[int, int], *, whole: bool) -> None:
        self._input, self._whole = model_input, whole
        self.limit()

    def limit(self, rate: float | None = None, seconds: float = 0.0) -> None:
        """Choose from now on for so many frames per second and seconds a view; None: no limit on the time."""
        self._rate, self.seconds = rate, seconds
        self._chosen: dict[tuple[tuple[int, ...], int], tuple[Tiles | None, str]] = {}

    def of(self, region: Region, parts: int) -> list[Region]:
        """The tiles of a region, one of so many of a frame; itself if it has none."""
        key = region[2:], parts
        if key not in self._chosen:
            self._chosen[key] = choose_tiles(
                region[2:], self._input, seconds=self.seconds, rate=self._rate, parts=parts, whole=self._whole
            )
        tiles, _ = self._chosen[key]
        return [region] if tiles is None else tiles.of(region)

    @property
    def reasons(self) -> list[str]:
        """Why each size has its tiles, in the order of their first frames."""
        texts = list(dict.fromkeys(reason for _, reason in self._chosen.values()))
        more = [f"tiles: chosen likewise for {len(texts) - SIZES_SHOWN} more sizes"]
        return texts[:SIZES_SHOWN] + more * (len(texts) > SIZES_SHOWN)
