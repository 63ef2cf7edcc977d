"""Scheduling of steps on streams, and memory planning.

Streams run concurrently. So two buffers may share memory only if the order that streams and waits impose puts every
step that touches the one before every step that touches the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.engines.cudnn.placement import Placement

ALIGNMENT = 128
"""Elements; 256 bytes of float16."""


@dataclass(frozen=True)
class Schedule:
    """Order of the steps."""

    streams: tuple[int, ...]
    """Stream of each step; the graph begins and ends on stream 0."""
    waits: tuple[tuple[int, ...], ...]
    """Steps of other streams that each step waits for."""
    before: tuple[int, ...]
    """For each step the bit set of all steps that have finished when it starts."""


@dataclass(frozen=True)
class Memory:
    """Offsets of the buffers in one arena, for a batch."""

    offsets: tuple[int, ...]
    """Of each buffer, in elements."""
    size: int
    """Of the arena, in elements."""


def schedule(placement: Placement, streams: int) -> Schedule:
    """Assign steps to at most `streams` streams, so that independent steps run concurrently.

    A step takes the stream of a dependency if that is the stream's last step, else a stream whose last step has
    finished by then, else a new stream, else the stream that was used least recently.
    """
    needs = [
        sorted({producer for name in step.reads for producer in placement.producers[name]}) for step in placement.steps
    ]
    before: list[int] = []
    chosen: list[int] = []
    waits: list[tuple[int, ...]] = []
    last: list[int] = []
    """The last step of each stream so far."""
    for index, needed in enumerate(needs):
        ended = 0
        for other in needed:
            ended |= before[other] | 1 << other
        here = [stream for stream, end in enumerate(last) if end in needed]
        free = [stream for stream, end in enumerate(last) if ended >> end & 1]
        if here:
            stream = max(here, key=lambda candidate: last[candidate])
        elif free:
            stream = free[0]
        elif len(last) < streams:
            stream = len(last)
            last.append(-1)
        else:
            stream = min(range(len(last)), key=lambda candidate: last[candidate])
        if last[stream] >= 0:
            ended |= before[last[stream]] | 1 << last[stream]
        covered = before[last[stream]] | 1 << last[stream] if last[stream] >= 0 else 0
        waited: list[int] = []
        for other in reversed(needed):
            if not covered >> other & 1:
                waited.append(other)
                covered |= before[other] | 1 << other
        last[stream] = index
        chosen.append(stream)
        waits.append(tuple(waited))
        before.append(ended)
    return Schedule(tuple(chosen), tuple(waits), tuple(before))


def plan_memory(placement: Placement, order: Schedule, batch: int, outputs: tuple[str, ...], first: str) -> Memory:
    """Plan the arena of a batch: buffers overlap only if their lifetimes do not. Largest first, at the lowest offset.

    Args:
        outputs: values that are read after the last step; their memory is not reused.
        first: the network's input, which is written before the first step.
    """
    count = len(placement.sizes)
    touched = [0] * count
    for index, step in enumerate(placement.steps):
        for name in (*step.reads, *step.writes):
            touched[placement.views[name].buffer] |= 1 << index
    live_at_end = {placement.views[name].buffer for name in outputs}
    live_at_start = placement.views[first].buffer

    def earlier(one: int, other: int) -> bool:
        """Whether every step that touches `one` has finished when the first that touches `other` starts."""
        if one in live_at_end or other == live_at_start:
            return False
        common = -1
        for index in range(len(placement.steps)):
            if touched[other] >> index & 1:
                common &= order.before[index]
        return touched[one] & ~common == 0

    offsets = [-1] * count
    sizes = [-(-size * batch // ALIGNMENT) * ALIGNMENT for size in placement.sizes]
    total = 0
    for buffer in sorted(range(count), key=lambda candidate: (-sizes[candidate], candidate)):
        taken = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in range(count)
            if offsets[other] >= 0 and not earlier(buffer, other) and not earlier(other, buffer)
        )
        start = 0
        for begin, end in taken:
            if start + sizes[buffer] <= begin:
                break
            start = max(start, end)
        offsets[buffer] = start
        total = max(total, start + sizes[buffer])
    return Memory(tuple(offsets), total)
