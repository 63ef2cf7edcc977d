"""Rungs: the programs of a ladder, of which one runs at a time; a switch is no more than another number.

All of them are opened and warmed up before the first frame. A batch that was submitted to one rung ends there, so
results of different rungs may overtake each other.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from framefuse.frame import Frame, View
from framefuse.runtime.program import FrameOutput, FrameResult, Program


class Rungs(Program):
    """Programs of which one runs at a time, as one `Program`.

    Args:
        programs: the best one first; all of one batch size.
        costs: seconds for a row of each.

    Attributes:
        level: the number of the program that frames go to, unless they are `pinned`.
        pinned: frames, by identity, that go to the best one.
    """

    def __init__(self, programs: Sequence[Program], costs: Sequence[float]) -> None:
        top, self.programs, self.costs = programs[0], programs, costs
        self.level, self.pinned = 0, set[int]()
        self._chosen: dict[int, Program] = {}
        """Frames, by identity, that are on their way into a batch."""
        super().__init__(top.engine, top.card, top.preprocess, top.selection, batch=top.batch, recorder=top.recorder)
        self.ledger, self.reasons, self.checked = top.ledger, top.reasons, top.checked
        for program in programs:
            program.ledger, program.reasons, program.checked = self.ledger, self.reasons, self.checked
            program.rung += f" {max(program.preprocess.width, program.preprocess.height)}"

    def batch_key(self, frame: Frame) -> Hashable:
        number = 0 if id(frame) in self.pinned else self.level
        self.pinned.discard(id(frame))
        self._chosen[id(frame)] = program = self.programs[number]
        return number, program.batch_key(frame)

    def row_seconds(self) -> float:
        return self.costs[0]

    def prepare(self, width: int, height: int, view: View | None = None) -> None:
        for program in self.programs:
            program.prepare(width, height, view)

    def warm_up(self, frame: Frame) -> None:
        for program in self.programs:
            program.warm_up(frame)

    def submit(self, frames: Sequence[Frame]) -> Iterator[FrameResult]:
        chosen = [self._chosen.pop(id(frame)) for frame in frames]
        return chosen[0].submit(frames)

    def finish(self, timeout: float | None = None) -> Iterator[FrameResult]:
        oldest = self._oldest
        return oldest.finish(timeout) if oldest else iter(())

    def passed(self, frame: Frame) -> Frame | None:
        return self.programs[0].passed(frame)

    @property
    def _oldest(self) -> Program | None:
        """The program whose oldest batch was submitted first."""
        busy = [program for program in self.programs if program.in_flight]
        return min(busy, key=_submitted, default=None)

    @property
    def in_flight(self) -> int:
        return sum(program.in_flight for program in self.programs)

    @property
    def request(self) -> object | None:
        return next(filter(None, (program.request for program in self.programs)), None)

    @property
    def largest_input(self) -> tuple[int, int]:
        return max(program.largest_input for program in self.programs)

    def close(self) -> None:
        for program in reversed(self.programs):  # the first one may own an engine of the others
            program.close()

    def _wait(self, flight: Any, timeout: float | None) -> bool:
        raise NotImplementedError  # the programs wait and read themselves

    def _read(self, flight: Any) -> tuple[Sequence[FrameOutput], Sequence[float]]:
        raise NotImplementedError


def _submitted(program: Program) -> float:
    """When the oldest batch in flight of a program was submitted; 0: that has failed."""
    batch = program._in_flight[0].batch
    return batch.submitted if batch else 0.0
