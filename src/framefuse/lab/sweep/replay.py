"""Replay: what every choice of a grid makes of the recorded boxes. Choices with the same tracks share one tracking."""

from __future__ import annotations

import multiprocessing
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from framefuse.common.machine import available_cores
from framefuse.config import Settings
from framefuse.errors import UsageError
from framefuse.lab.evaluation.counters import TrackCounter
from framefuse.lab.evaluation.dataset import BoxClasses, Labels
from framefuse.lab.sweep.boxes import Tracks, kept, load, track
from framefuse.lab.sweep.grid import Choice
from framefuse.lab.sweep.record import TRUTH, Recording, data_of
from framefuse.lab.sweep.visits import visits
from framefuse.models.card import Card
from framefuse.runtime.choices import class_number
from framefuse.tracking.zones import Places, load_places

SMALL = 3000
"""Frames to track, of all trackings together, below which other processes would take longer to start."""
Numbers = Mapping[str, float]


def replay(
    recordings: Sequence[Recording],
    choices: Sequence[Choice],
    card: Card,
    *,
    short: float = 0.5,
    on_choice: Callable[[int], None] = lambda done: None,
) -> tuple[list[Numbers], list[float]]:
    """The numbers of each choice, and the seconds that each tracking took.

    Args:
        short: seconds; a track that lasts less is a false start.
        on_choice: called with the number of choices done.

    Raises:
        ConfigError, UsageError: see `places_of`.
    """
    places = places_of(choices, card)
    groups = defaultdict(list)
    for choice in choices:
        groups[choice.key].append(choice)
    work = partial(_group, [one for one in recordings if one.frames], card=card, places=places, short=short)
    found: dict[int, Numbers] = {}
    trackings = []

    def take(members: Sequence[Choice], done: tuple[list[Numbers], float]) -> None:
        found.update(zip((choice.number for choice in members), done[0], strict=True))
        if members[0].settings.track:
            trackings.append(done[1])
        on_choice(len(found))

    tracked = sum(members[0].settings.track is not None for members in groups.values())
    count = min(available_cores(), tracked)
    if count < 2 or sum(one.frames for one in recordings) * tracked < SMALL:
        for members in groups.values():
            take(members, work(members))
    else:
        spawn = multiprocessing.get_context("spawn")  # threads of an engine do not survive a fork
        with ProcessPoolExecutor(count, spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
            try:
                waiting = {pool.submit(work, members): members for members in groups.values()}
                for future in as_completed(waiting):
                    take(waiting[future], future.result())
            finally:
                pool.shutdown(cancel_futures=True)
    return [found[choice.number] for choice in choices], trackings


def places_of(choices: Sequence[Choice], card: Card) -> dict[Any, Places]:
    """The zones and lines of each file that a choice names.

    Raises:
        ConfigError, UsageError: a file cannot be used, or is given without a tracker.
    """
    for choice in choices:
        if choice.settings.zones and not choice.settings.track:
            raise UsageError(
                f"zones is {choice.settings.zones}, but nothing is tracked", remedy="add --track bytetrack"
            )
    files = {choice.settings.zones for choice in choices} - {None}
    return {zones: load_places(zones, partial(class_number, card)) for zones in files if zones}


def _group(
    recordings: Sequence[Recording],
    members: Sequence[Choice],
    *,
    card: Card,
    places: Mapping[Any, Places],
    short: float,
) -> tuple[list[Numbers], float]:
    """The numbers of choices that share their tracks, and the seconds that tracking took."""
    settings = members[0].settings
    tables = [load(one.boxes(settings.iou), one.rate) for one in recordings]
    rows = [kept(table, settings) for table in tables]
    started = perf_counter()
    ids = [track(table, chosen, settings) for table, chosen in zip(tables, rows, strict=True)]
    seconds = perf_counter() - started
    every = [Tracks.of(*one, 0) for one in zip(tables, rows, ids, strict=True)]
    visited = {
        zones: [visits(one, places[zones], settings.track_buffer) for one in every]
        for zones in {choice.settings.zones for choice in members} - {None}
    }
    known: dict[float, dict[str, float]] = {}
    numbers: list[Numbers] = []
    for choice in members:
        conf, zones = choice.settings.conf, choice.settings.zones
        if conf not in known:
            shown = (np.sum(t.found.confidence[r] > np.float32(conf)) for t, r in zip(tables, rows, strict=True))
            known[conf] = {"boxes": sum(map(int, shown))}
            if settings.track:
                found = [Tracks.of(*one, conf) for one in zip(tables, rows, ids, strict=True)]
                known[conf] |= {
                    "tracks": sum(len(one.starts) for one in found),
                    "false_starts": sum(one.false_starts(short) for one in found),
                    "fragments": sum(one.fragments() for one in found),
                    **_scores(recordings, found, settings, card),
                }
        did = [[int(done[best >= conf].sum()) for done in two] for best, *two in visited.get(zones, ())]
        names = ("entered", "crossed") if zones else ()
        numbers.append(known[conf] | {name: sum(one[k] for one in did) for k, name in enumerate(names)})
    return numbers, seconds


def _scores(recordings: Sequence[Recording], found: Sequence[Tracks], settings: Settings, card: Card) -> Numbers:
    """HOTA and IDF1 in percent, if the truth of all sources is known; of the classes that the setting asks for."""
    data = [data_of(one.source, settings) for one in recordings if (one.folder / TRUTH).exists()]
    names = [one.names for one in data if one]
    if not names or len(names) < len(recordings) or any(one != names[0] for one in names):
        return {}
    assert data[0] is not None
    classes = BoxClasses(data[0], card, settings.classes)
    counter = TrackCounter(classes.names)
    for recording, one in zip(recordings, found, strict=True):
        truth, frames = np.load(recording.folder / TRUTH)["truth"], np.arange(len(one.table.frames) + 1)
        order = np.argsort(one.table.frame[one.rows], kind="stable")
        boxes = one.table.found[one.rows[order]]
        boxes.tracker_id = one.ids[order]
        ends = np.searchsorted(one.table.frame[one.rows[order]], frames)
        for (start, end), (first, last), frame in zip(
            pairwise(ends), pairwise(np.searchsorted(truth[:, 0], frames)), one.table.frames, strict=True
        ):
            part = truth[first:last]
            class_id, crowd, number = part[:, 1].astype(np.int64), part[:, 2] > 0, part[:, 3].astype(np.int64)
            size = frame.width, frame.height
            labels = Labels(part[:, 4:], class_id, crowd, np.zeros(len(part)), size, track_id=number)
            counter.add(recording.source, classes.labels(labels), classes.shared(boxes[start:end]))
    scores = counter.scores()
    return {"hota": 100 * scores.hota, "idf1": 100 * scores.idf1}


def tracks_of(recordings: Sequence[Recording], choice: Choice) -> list[Tracks]:
    """The tracks of one choice in every source that has frames."""
    found = []
    for one in recordings:
        if one.frames:
            table = load(one.boxes(choice.settings.iou), one.rate)
            rows = kept(table, choice.settings)
            found.append(Tracks.of(table, rows, track(table, rows, choice.settings), choice.settings.conf))
    return found
