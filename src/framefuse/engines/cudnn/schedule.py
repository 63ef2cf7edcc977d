"""Which step runs on which stream, what it waits for, and which buffers may share memory.

A stream is a chain of steps. Whatever two streams do may happen at the same time, so a buffer may take the memory of
another only if every step that touches the one comes before every step that touches the other, by the order that
streams and waits impose; with one stream this is the order of the list.
"""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.engines.cudnn.placement import Placement

ALIGNMENT = 128
"""Elements: 256 bytes of float16."""


@dataclass(frozen=True)
class Schedule:
    """When steps run."""

    streams: tuple[int, ...]
    """Stream of each step; stream 0 is where the graph begins and ends."""
    waits: tuple[tuple[int, ...], ...]
    """Steps of other streams that each step waits for."""
    before: tuple[int, ...]
    """For each step the set, as bits, of all steps that have ended when it begins."""


@dataclass(frozen=True)
class Memory:
    """Places of the buffers in one arena, for a batch."""

    offsets: tuple[int, ...]
    """Of each buffer, in elements."""
    size: int
    """Elements in all."""


def schedule(placement: Placement, streams: int) -> Schedule:
    """Give steps to at most `streams` streams, so that steps which do not depend on each other may run side by side.

    A step goes on where one that it needs has just ended; else where everything has ended long ago; else it takes a
    stream of its own.
    """
    needs = [sorted({maker for name in step.reads for maker in placement.producers[name]}) for step in placement.steps]
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
    """Place the buffers of a batch one over the other where they are never alive together.

    Args:
        outputs: values that are read when everything has ended; their buffers are shared with none.
        first: the network's input, which is written before everything else.
    """
    count = len(placement.sizes)
    touched = [0] * count
    for index, step in enumerate(placement.steps):
        for name in (*step.reads, *step.writes):
            touched[placement.views[name].buffer] |= 1 << index
    lasting = {placement.views[name].buffer for name in outputs}
    at_start = placement.views[first].buffer

    def earlier(one: int, other: int) -> bool:
        """Whether every step that touches `one` has ended when the first that touches `other` begins."""
        if one in lasting or other == at_start:
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
