"""MemoryPlan: how much memory of a GPU a run takes, by part, before anything is loaded; and what is left out to fit.

The parts are computed as the modules that allocate them do; the few that no module of framefuse allocates, such as
those of CUDA and of the decoders, are constants, measured on an H100 (`benchmarks.gpu.planner`).
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from framefuse.common.machine import trim_heap
from framefuse.common.text import counted
from framefuse.config import Settings
from framefuse.cuda import device as gpus
from framefuse.engines import find_backend
from framefuse.errors import CapabilityError
from framefuse.kernels.preprocess.filters import LONG
from framefuse.models import find_model
from framefuse.models.card import Card
from framefuse.models.onnx_file import load_onnx
from framefuse.preprocess import Preprocess
from framefuse.runtime.batching import captured_rows
from framefuse.runtime.readers import before_later, frames_held, frames_of, queued, until_written
from framefuse.runtime.rectilinear import SIDE

MB = 1e6
CONTEXT = 571 * MB
"""CUDA's context, its libraries, and the kernels of a model."""
RESULTS = 4.15 * MB / (640 * 384)
"""Of each row of a captured batch, for each pixel of the model input: candidates, and what suppresses them."""
ANCHORS = 1 / 8**2 + 1 / 16**2 + 1 / 32**2
"""Of a head without anchor shapes, for each pixel of the model input."""
RESIZED = 12
"""Bytes for each pixel of the model input, where frames are resized by long filters."""
PACKED = 65_536
"""Runs of the masks of a frame that leave a GPU with its boxes."""
MASK_RUNS, FRAME_RUNS = 6, 128
"""Runs of a mask, and of all masks of a frame beside PACKED, that a GPU keeps for each column of the frame. What people
and vehicles look like has two to three for each column of its box."""
LEAST_RUNS = 2048
"""Of a mask, in frames however small."""
PROTOTYPES = 1 / 4
"""Sides of the prototypes of YOLO, as a share of those of the model input."""
DECODER, FIRST_DECODER = 13.6 * MB, 15 * MB
QUERY = 527 * MB
"""What a run takes at its start, beside CUDA, while NVDEC is asked what it can decode. It is given back at once."""
SURFACES = 12.4
"""Surfaces that a decoder has, beside its own memory."""
NV12 = 12
"""Bits of a pixel, as of most videos."""
PITCH = 512
"""Rows of a surface begin at multiples of so many bytes."""
COMPOSED = {"gray": 1.0, "alpha": 2.5, "blur": 2.5, "packed": 0.0, "png": 0.0}
"""Bytes per pixel of a frame that a sink composes on the GPU, by its mode; 1.5 in the others."""


class Part(NamedTuple):
    """What some objects of one kind take."""

    name: str
    number: int
    each: float
    """Bytes."""

    @property
    def size(self) -> float:
        """Bytes of all of them."""
        return self.number * self.each


@dataclass(frozen=True)
class MemoryPlan:
    """Predicted memory of a run on a GPU."""

    parts: Sequence[Part]

    @property
    def size(self) -> float:
        """Bytes in all."""
        return sum(part.size for part in self.parts)

    def table(self) -> list[list[str]]:
        """Header and rows."""
        head = ["part", "count", "MB each", "MB"]
        rows = [[part.name, str(part.number), f"{part.each / MB:.1f}", f"{part.size / MB:.1f}"] for part in self.parts]
        return [head, *rows, ["in all", "", "", f"{self.size / MB:.1f}"]]


BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "int8": 1, "fp8": 1}
"""Of a weight, by precision."""


def model_size(model: str | Path) -> dict[str, int]:
    """Bytes of the weights of a model, a file or the name of a shipped one, by the precision that it runs at.

    Raises:
        ModelError: there is no such model, or it is not an ONNX file.
    """
    graph = load_onnx(find_model(model), weights=False).graph
    count = sum(math.prod(tensor.dims) for tensor in graph.initializer)
    return {precision: size * count for precision, size in BYTES.items()}


def clear_cache() -> None:
    """Return the memory that framefuse keeps for the next run, of the GPU and of the host, to the system. What runs
    use stays."""
    if "cupy" in sys.modules:
        gpus.free_cached_memory()
    trim_heap()


def surface(width: int, height: int, bits: int = NV12) -> float:
    """Bytes of a decoded frame on a GPU; `bits` of a pixel."""
    return bits / 8 * -(-width // PITCH) * PITCH * height


def run_room(width: int) -> tuple[int, int]:
    """Runs that a GPU keeps of each mask of a frame, and of all of them beside PACKED."""
    return max(LEAST_RUNS, MASK_RUNS * width), FRAME_RUNS * width


def masks(rows: int, max_det: int, width: int, samples: float) -> float:
    """Bytes of a captured batch for instance masks: logits and runs of `max_det` masks, which all rows share, and what
    each row packs.

    Args:
        width: of the frames.
        samples: of a mask, before it is enlarged.
    """
    kept, more = run_room(width)
    return 4 * (max_det * (samples + kept) + rows * (PACKED + more))


class Planned(Protocol):
    """What a `RunPlan` knows."""

    @property
    def card(self) -> Card: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def engine(self) -> str: ...
    @property
    def preprocess(self) -> Preprocess: ...
    @property
    def partial_batches(self) -> bool: ...
    @property
    def live(self) -> bool: ...
    @property
    def ahead(self) -> int: ...
    @property
    def bits(self) -> int: ...


def predict(
    plan: Planned, batch: int, slots: int, size: tuple[int, int], *, decoders: int, context: bool = True
) -> MemoryPlan:
    """Memory of a run before it begins.

    Args:
        slots: batches in flight.
        size: width and height of the frames.
        decoders: videos that the GPU decodes at the same time; 0: frames come from the host.
        context: nothing has used the GPU yet.
    """
    width, height = plan.preprocess.place_view(*size, None).size
    rows = captured_rows(batch, slots, partial=plan.partial_batches)
    backend = find_backend(plan.engine)
    parts = [Part("CUDA", 1, CONTEXT)] if context else []
    for count in dict.fromkeys(rows):
        known = backend.memory(plan.card.path, count, height, width, plan.settings.precision)
        batches, named = rows.count(count), f"batch {count}"
        if known and count == batch:
            parts.append(Part("weights", 1, known.weights))
        elif count == batch:
            parts.append(Part(f"weights and activations: {plan.engine} tells when it loads", 1, 0.0))
        if known:
            parts.append(Part(f"activations, {named}", batches, known.activations))
        results = RESULTS * width * height * count
        if plan.card.layout == "yolox":
            results += 4 * ANCHORS * width * height * (5 + plan.card.class_count) * count
        parts.append(Part(f"results, {named}", batches, results))
        if plan.preprocess.interpolation in LONG:
            parts.append(Part(f"resized images, {named}", batches, RESIZED * width * height * count))
        if plan.card.task == "segment":
            samples = width * height * PROTOTYPES**2
            parts.append(Part(f"masks, {named}", batches, masks(count, plan.settings.max_det, size[0], samples)))
        if not decoders:
            parts.append(Part(f"frames from the host, {named}", batches, count * surface(*size)))
    if plan.settings.save_matte:
        frames, between = frames_of(plan.settings, batch, live=plan.live), queued(plan.settings, live=plan.live)
        # In flight, after that, and for later frames.
        waiting = slots * frames + between + before_later(plan.settings, live=plan.live)
        lent = plan.card.task == "semantic" and until_written(plan.settings, live=plan.live)
        if not (decoders and lent):  # otherwise decoders keep them
            parts.append(Part("frames and their mattes", 1, waiting * surface(*size)))
        composed = COMPOSED.get(plan.settings.save_matte, 1.5) * size[0] * size[1]
        parts.append(Part("composed frames", between, composed))
        if plan.settings.matte_view == "rectilinear":
            made = surface(*size) + 2 * surface(SIDE, SIDE)
            parts.append(Part("rectilinear views", 1, waiting * made))
    if decoders:
        decoded = surface(*size, plan.bits)
        parts.append(Part("decoder of the first video", 1, FIRST_DECODER))
        parts.append(Part("decoders", decoders, DECODER + SURFACES * decoded))
        if (held := frames_held(plan.settings, batch, plan.ahead, live=plan.live)) > 1:  # and the one that is written
            parts.append(Part("rings of decoded frames", decoders, (held + 1) * decoded))
        if plan.ahead:
            parts.append(Part("CUDA of the process that decodes", 1, CONTEXT))
        if context and (more := CONTEXT + QUERY - MemoryPlan(parts).size) > 0:
            parts.append(Part("more at the start, to ask NVDEC what it decodes", 1, more))
    return MemoryPlan(parts)


def room_within(limit: float) -> float:
    """Bytes that a run may take beside CUDA if it may take `limit` MiB in all."""
    return limit * 2**20 - CONTEXT


def fitted(
    plan: Planned, batch: int, slots: int, size: tuple[int, int], room: float, *, decoders: int
) -> tuple[int, int, str]:
    """Batch and batches in flight that fit, and why: one in flight instead of several, then smaller batches.

    Args:
        room: bytes that the run may take beside CUDA.

    Raises:
        CapabilityError: not even single frames fit.
    """
    needed = wanted = predict(plan, batch, slots, size, decoders=decoders, context=False)
    while needed.size > room:
        if slots > 1:
            slots = 1
        elif batch > 1 and plan.card.dynamic_batch:
            batch //= 2
        else:
            biggest = max(needed.parts, key=lambda part: part.size)
            message = f"the run needs {needed.size / MB:.0f} MB of GPU memory, {biggest.size / MB:.0f} of them for "
            message += f"{biggest.name}, and may take {max(0.0, room) / MB:.0f} MB of what is free"
            raise CapabilityError(message, remedy="free memory on the GPU, lower imgsz or readers, or use --device cpu")
        needed = predict(plan, batch, slots, size, decoders=decoders, context=False)
    if needed is wanted:
        return batch, slots, ""
    why = f"batch {batch}, {counted(slots, 'batch', 'batches')} in flight: "
    return batch, slots, why + f"{wanted.size / MB:.0f} MB do not fit into {room / MB:.0f} MB"
