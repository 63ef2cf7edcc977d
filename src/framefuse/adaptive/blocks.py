"""Blocks: the frames of one source, from their arrival to their results, as a `Governor` decides. Pure.

    blocks = Blocks(governor, conf)
    for number in blocks.arrived():  # a frame has come; these are to be inferred
        blocks.found(number, infer(number))
    for ready in blocks.ready():  # in the order of the frames
        ...

Frames are numbers, from 0.
"""

from collections import deque
from typing import NamedTuple

from framefuse.adaptive.governor import Governor
from framefuse.adaptive.interpolation import Bridge
from framefuse.prediction import Detections


class Ready(NamedTuple):
    """A frame whose objects are known."""

    number: int
    detections: Detections
    inferred: bool
    why: str
    """Reason of the decision about its block."""


class Blocks:
    """See above.

    Args:
        conf: objects of frames that were not inferred are left out at this confidence and below.

    Attributes:
        count: frames that have come.
    """

    def __init__(self, governor: Governor, conf: float) -> None:
        self.governor, self._conf = governor, conf
        self.count = self._last = 0
        self._blocks: deque[tuple[int, int]] = deque()
        """First and last number of each block; what is left of the oldest one first, in parts."""
        self._known: dict[int, Detections] = {}
        """Of inferred frames, from the last one that was passed on."""
        self._checks: dict[int, tuple[Bridge, int, bool]] = {}
        """Number of a frame that is being inferred -> its block, its step in it, and whether it is audited."""
        self._looks: list[int] = []
        self._ready: list[Ready] = []

    def arrived(self) -> list[int]:
        """Count a frame; the frames to infer."""
        number, self.count = self.count, self.count + 1
        if number == 0 or number >= self._last + self.governor.ahead:
            self._bound(number)
        return self._taken()

    def end(self) -> list[int]:
        """No frame follows; the frames to infer."""
        if self._last < self.count - 1:
            self._bound(self.count - 1)
        return self._taken()

    def found(self, number: int, detections: Detections) -> list[int]:
        """What an inferred frame shows; the frames to infer."""
        self._known[number] = detections
        if check := self._checks.pop(number, None):
            bridge, step, audit = check
            self.governor.compare(bridge, step, detections, audit=audit)
        if number == 0:
            self._ready.append(Ready(0, detections, True, "first frame"))
        while self._blocks and all(end in self._known for end in self._blocks[0]) and not self._divided():
            pass
        return self._taken()

    def ready(self) -> list[Ready]:
        """The frames whose objects are known since the last call."""
        ready, self._ready = self._ready, []
        return ready

    def _bound(self, number: int) -> None:
        """End a block with a frame."""
        if number:
            self._blocks.append((self._last, number))
        self._last = number
        self._look(number)

    def _look(self, number: int) -> None:
        self.governor.looked()
        self._looks.append(number)

    def _taken(self) -> list[int]:
        looks, self._looks = self._looks, []
        return looks

    def _divided(self) -> bool:
        """Decide about the first block: whether a frame of it is to be inferred; otherwise it is complete."""
        (begin, end), governor = self._blocks[0], self.governor
        bridge = Bridge(self._known[begin], self._known[end], end - begin)
        step = governor.split(bridge)
        if audit := step is None:
            step = governor.audit(bridge)
        if step is not None:
            self._checks[begin + step] = bridge, step, audit
            self._blocks[0] = begin + step, end
            self._blocks.appendleft((begin, begin + step))
            self._look(begin + step)
            return True
        self._blocks.popleft()
        steps = range(1, bridge.gap)
        self._ready += [Ready(begin + step, bridge.at(step, self._conf), False, governor.why) for step in steps]
        self._ready.append(Ready(end, self._known[end], True, governor.why))
        del self._known[begin]
        return False
