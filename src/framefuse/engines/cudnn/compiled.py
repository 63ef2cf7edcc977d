"""The front half of the engine: ONNX file -> steps over planned memory. Plain Python; no GPU is needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from framefuse.engines.cudnn import importer as reading
from framefuse.engines.cudnn import rewrites as rewriting
from framefuse.engines.cudnn.network import Network, Type
from framefuse.engines.cudnn.placement import Placement, View, place
from framefuse.engines.cudnn.schedule import Memory, Schedule, plan_memory, schedule
from framefuse.errors import FramefuseError


@dataclass(frozen=True)
class Compiled:
    """What is to be run for one batch at one input size."""

    network: Network
    placement: Placement
    schedule: Schedule
    memory: Memory
    batch: int
    height: int
    width: int
    types: tuple[Type, ...] = ()
    """Of each buffer; none: float16 everywhere. A buffer of 8 bits lies in the first half of its memory."""
    scales: tuple[float, ...] = ()
    """Of each buffer: its values are the numbers of 8 bits times this."""

    def type(self, name: str) -> Type:
        return self.types[self.view(name).buffer] if self.types else "fp16"

    def scale(self, name: str) -> float:
        return self.scales[self.view(name).buffer]

    def byte(self, name: str) -> int:
        """Where a value begins in the arena, in bytes."""
        view = self.view(name)
        return self.memory.offsets[view.buffer] * 2 + view.offset * (2 if self.type(name) == "fp16" else 1)

    def view(self, name: str) -> View:
        return self.placement.views[name]

    def address(self, name: str) -> int:
        """Where a value begins in the arena, in elements."""
        view = self.view(name)
        return self.memory.offsets[view.buffer] + view.offset

    def image(self, name: str) -> int:
        """Elements from one image of a value to the next."""
        return self.placement.sizes[self.view(name).buffer]


def compile_network(
    path: Path, batch: int, height: int, width: int, *, streams: int = 4, merge: bool = True
) -> Compiled:
    """Read, rewrite and plan.

    Args:
        streams: steps that may run at the same time.
        merge: whether convolutions of one input become one.

    Raises:
        ModelError: as `reading.read`.
    """
    return plan(rewriting.prepare(reading.read(path, height, width), merge=merge), batch, height, width, streams)


def why_not(path: Path, precision: str, height: int, width: int) -> str | None:
    """Why the engine cannot run a model, without what it could run."""
    try:
        compile_network(path, 1, height, width)
    except FramefuseError as error:
        return error.message.partition(". ")[0]
    return None


def plan(network: Network, batch: int, height: int, width: int, streams: int) -> Compiled:
    """Places, order and memory of a network that was rewritten."""
    placement = place(network)
    order = schedule(placement, streams)
    memory = plan_memory(placement, order, batch, network.outputs, network.input)
    return Compiled(network, placement, order, memory, batch, height, width)
