"""The compiler: ONNX file -> scheduled steps over planned memory. Plain Python, needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from framefuse.engines.cudnn.importer import import_network
from framefuse.engines.cudnn.network import Network, Type
from framefuse.engines.cudnn.placement import Placement, View, place
from framefuse.engines.cudnn.rewrites import rewrite
from framefuse.engines.cudnn.schedule import Memory, Schedule, plan_memory, schedule
from framefuse.errors import FramefuseError


@dataclass(frozen=True)
class Compiled:
    """A network compiled for one batch and input size."""

    network: Network
    placement: Placement
    schedule: Schedule
    memory: Memory
    batch: int
    height: int
    width: int
    types: tuple[Type, ...] = ()
    """Of each buffer; empty: float16 everywhere. An 8-bit buffer uses the first half of its memory."""
    scales: tuple[float, ...] = ()
    """Of each buffer: value = 8-bit number * scale."""

    def type(self, name: str) -> Type:
        return self.types[self.view(name).buffer] if self.types else "fp16"

    def scale(self, name: str) -> float:
        return self.scales[self.view(name).buffer]

    def byte(self, name: str) -> int:
        """Offset of a value in the arena, in bytes."""
        view = self.view(name)
        return self.memory.offsets[view.buffer] * 2 + view.offset * (2 if self.type(name) == "fp16" else 1)

    def view(self, name: str) -> View:
        return self.placement.views[name]

    def address(self, name: str) -> int:
        """Offset of a value in the arena, in elements."""
        view = self.view(name)
        return self.memory.offsets[view.buffer] + view.offset

    def image(self, name: str) -> int:
        """Elements from one image of a batch to the next."""
        return self.placement.sizes[self.view(name).buffer]


def compile_network(path: Path, batch: int, height: int, width: int, *, streams: int = 4) -> Compiled:
    """Import, rewrite and plan a model.

    Args:
        streams: steps that may run concurrently.

    Raises:
        ModelError: as `import_network`, or the channels cannot be padded.
    """
    return plan(rewrite(import_network(path, height, width)), batch, height, width, streams)


def why_not(path: Path, precision: str, height: int, width: int) -> str | None:
    """Why the engine cannot run a model, without what it could run."""
    try:
        compile_network(path, 1, height, width)
    except FramefuseError as error:
        return error.message.partition(". ")[0]
    return None


def plan(network: Network, batch: int, height: int, width: int, streams: int) -> Compiled:
    """Placement, schedule and memory plan of a rewritten network."""
    placement = place(network)
    order = schedule(placement, streams)
    memory = plan_memory(placement, order, batch, network.outputs, network.input)
    return Compiled(network, placement, order, memory, batch, height, width)
