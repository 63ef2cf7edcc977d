"""Tally: what the events of a run add up to, for its report."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from framefuse.common.text import counted
from framefuse.prediction import Event
from framefuse.tracking.zones import Places

COLUMNS = 48
"""Cells of a heat map along the width of the frame."""
TRACKS, SOURCES = 60, 4
"""Tracks in the timeline, the last ones, and sources with a heat map, the first ones."""
CHANGES = 50
"""Changes of one track in the timeline, the first ones."""


def listed(counts: Mapping[str, int]) -> str:
    """The most frequent first: 3 car, 1 bus."""
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda row: -row[1]))


@dataclass(frozen=True)
class TrackFacts:
    """A track that has ended. Times are seconds."""

    source: str
    track_id: int
    name: str
    first: float
    last: float
    changes: list[tuple[float, str]] = field(default_factory=list)
    thumbnail: str | None = None
    """File in the folder of the run."""


@dataclass(frozen=True)
class HeatFacts:
    """Where the tracks of a source went."""

    rows: list[str] = field(default_factory=list)
    """A character for each cell of the frame: "." where no track was, otherwise 1 to 9, the most."""
    places: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """The corners of each zone and the ends of each line, as shares of the frame."""


@dataclass(frozen=True)
class EventFacts:
    """The tracks that have ended, and what they did."""

    tracks_per_class: dict[str, int] = field(default_factory=dict)
    stationary: int = 0
    """Tracks that were stationary at some time."""
    zones: dict[str, dict[str, int]] = field(default_factory=dict)
    """Zone -> class -> how often it was entered."""
    dwell_seconds: dict[str, float] = field(default_factory=dict)
    """Zone -> mean time of a visit."""
    lines: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """Line -> in or out -> class -> how often it was crossed."""
    timeline: list[TrackFacts] = field(default_factory=list)
    heat: dict[str, HeatFacts] = field(default_factory=dict)
    """Source -> its map."""

    def text_lines(self) -> list[str]:
        """The counts, for the summary of a run."""
        still = f"; {self.stationary:,} stationary at some time" if self.stationary else ""
        texts = [f"tracks   {listed(self.tracks_per_class) or 'none has ended'}{still}"]
        for name, classes in self.zones.items():
            mean = f", {self.dwell_seconds[name]:.1f} s on average" if name in self.dwell_seconds else ""
            visits = counted(sum(classes.values()), "visit")
            texts.append(f"zone     {name}: {visits}{mean}: {listed(classes)}".rstrip(": "))
        for name, ways in self.lines.items():
            both = (f"{sum(ways[way].values()):,} {way} ({listed(ways[way])})".replace(" ()", "") for way in ways)
            texts.append(f"line     {name}: {', '.join(both)}")
        return texts


class Tally:
    """Adds up events."""

    def __init__(self, places: Places) -> None:
        self._classes: Counter[str] = Counter()
        self._stationary = 0
        self._visits: dict[str, Counter[str]] = {zone.name: Counter() for zone in places.zones}
        self._dwell = dict.fromkeys(self._visits, 0.0)
        self._crossed = {line.name: {"in": Counter[str](), "out": Counter[str]()} for line in places.lines}
        self._open: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
        self._timeline: deque[TrackFacts] = deque(maxlen=TRACKS)
        self._heat: dict[str, tuple[Counter[tuple[int, int]], int, Places, tuple[int, int]]] = {}

    def add(self, event: Event, size: tuple[int, int], places: Places) -> None:
        """Count an event of a frame of that size, with the zones and lines in pixels of it."""
        changes = self._open[event.track_id]
        changes += [(round(event.seconds, 3), str(change)) for change in event.changes][: CHANGES - len(changes)]
        if event.kind != "end":
            return
        self._classes[event.name] += 1
        self._stationary += event.stationary_seconds > 0
        for zone, entered, left in event.visits:
            self._visits[zone][event.name] += 1
            self._dwell[zone] += (event.last_seconds if left is None else left) - entered
        for line, direction, _ in event.crossings:
            self._crossed[line][direction][event.name] += 1
        times = round(event.first_seconds, 3), round(event.last_seconds, 3)
        row = TrackFacts(event.source_id, event.track_id, event.name, *times, self._open.pop(event.track_id))
        self._timeline.append(row)
        if event.source_id in self._heat or len(self._heat) < SOURCES:
            rows = max(1, round(COLUMNS * size[1] / size[0]))
            cells, *_ = self._heat.setdefault(event.source_id, (Counter(), rows, places, size))
            cells.update(_cells(event, COLUMNS / size[0], rows))

    def saved(self, track_id: int, thumbnail: str) -> None:
        """A thumbnail of a track has been written."""
        for number, row in enumerate(self._timeline):
            if row.track_id == track_id:
                self._timeline[number] = replace(row, thumbnail=thumbnail)

    def facts(self) -> EventFacts:
        visits = {zone: dict(counts) for zone, counts in self._visits.items()}
        stay = {zone: round(self._dwell[zone] / sum(counts.values()), 3) for zone, counts in visits.items() if counts}
        crossed = {line: {way: dict(counts) for way, counts in ways.items()} for line, ways in self._crossed.items()}
        heat = {source: _map(*facts) for source, facts in list(self._heat.items())}
        return EventFacts(dict(self._classes), self._stationary, visits, stay, crossed, list(self._timeline), heat)


def _cells(event: Event, scale: float, rows: int) -> set[tuple[int, int]]:
    """The cells through which a path goes, as (row, column)."""
    found = set()
    for (_, x, y), (_, to_x, to_y) in pairwise(event.path):
        count = int(max(abs(to_x - x), abs(to_y - y)) * scale * 2) + 1
        for step in range(count + 1):
            across, down = (x + (to_x - x) * step / count) * scale, (y + (to_y - y) * step / count) * scale
            found.add((min(rows - 1, int(down)), min(COLUMNS - 1, int(across))))
    return found


def _map(cells: Counter[tuple[int, int]], rows: int, places: Places, size: tuple[int, int]) -> HeatFacts:
    counts, most = dict(cells), max(cells.values(), default=1)
    marks = {cell: str(-(-9 * count // most)) for cell, count in counts.items()}
    lines = ["".join(marks.get((row, column), ".") for column in range(COLUMNS)) for row in range(rows)]
    outlines = {
        place.name: [(round(x / size[0], 4), round(y / size[1], 4)) for x, y in place.points]
        for place in (*places.zones, *places.lines)
    }
    return HeatFacts(lines, outlines)
