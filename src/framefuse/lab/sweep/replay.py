"""Replay: what every choice of a grid makes of the recorded boxes. Choices with the same tracks share one tracking."""

from __future__ import annotations

import multiprocessing
import signal
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np

from framefuse.common.machine import available_cores
from framefuse.lab.sweep.boxes import ShownTracks, kept, load, shown_tracks, track
from framefuse.lab.sweep.grid import Choice
from framefuse.lab.sweep.record import Recording

SMALL = 3000
"""Frames to track, of all trackings together, below which other processes would take longer to start."""
Numbers = dict[str, float | None]


@dataclass(frozen=True)
class Tracking:
    """One run of a tracker over all sources, and who shares it."""

    seconds: float
    choices: int


@dataclass(frozen=True)
class Replayed:
    numbers: Sequence[Numbers]
    """Of each choice."""
    trackings: Sequence[Tracking]
    """Empty without a tracker."""


def replay(
    recordings: Sequence[Recording],
    choices: Sequence[Choice],
    *,
    short: float = 0.5,
    on_choice: Callable[[int], None] = lambda done: None,
) -> Replayed:
    """
    Args:
        short: seconds; a track that lasts less is a false start.
        on_choice: called with the number of choices done.
    """
    groups = defaultdict(list)
    for choice in choices:
        groups[choice.key].append(choice)
    work = partial(_group, recordings, short=short)
    numbers: dict[int, Numbers] = {}
    trackings = []
    count = min(available_cores(), len(groups))
    frames = sum(recording.frames for recording in recordings) * len(groups)

    def take(members: Sequence[Choice], done: tuple[list[Numbers], float | None]) -> None:
        numbers.update(zip((choice.number for choice in members), done[0], strict=True))
        if done[1] is not None:
            trackings.append(Tracking(done[1], len(members)))
        on_choice(len(numbers))

    if count < 2 or frames < SMALL:
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
    return Replayed([numbers[choice.number] for choice in choices], trackings)


def _group(
    recordings: Sequence[Recording], members: Sequence[Choice], *, short: float
) -> tuple[list[Numbers], float | None]:
    """The numbers of choices that share their tracks, and the seconds that tracking took; None: there is no tracker."""
    settings = members[0].settings
    tables = [load(path, recording.rate) for recording in recordings if (path := recording.boxes(settings.iou))]
    rows = [kept(table, settings) for table in tables]
    started = perf_counter()
    ids = [track(table, chosen, settings) for table, chosen in zip(tables, rows, strict=True)]
    seconds = perf_counter() - started
    known: dict[float, Numbers] = {}
    for conf in {choice.settings.conf for choice in members}:
        boxes = [table.found.confidence[chosen] > np.float32(conf) for table, chosen in zip(tables, rows, strict=True)]
        known[conf] = {"boxes": sum(int(one.sum()) for one in boxes)}
        if settings.track:
            found = [shown_tracks(*one, conf) for one in zip(tables, rows, ids, strict=True)]
            known[conf] |= {
                "tracks": sum(len(one.starts) for one in found),
                "false_starts": sum(int(one.false_starts(short).sum()) for one in found),
                "fragments": sum(one.fragmentations() for one in found),
            }
    return [known[choice.settings.conf] for choice in members], seconds if settings.track else None


def tracks_of(recordings: Sequence[Recording], choice: Choice) -> list[ShownTracks]:
    """The tracks of one choice in every source that has frames."""
    found = []
    for recording in recordings:
        if path := recording.boxes(choice.settings.iou):
            table = load(path, recording.rate)
            rows = kept(table, choice.settings)
            found.append(shown_tracks(table, rows, track(table, rows, choice.settings), choice.settings.conf))
    return found
