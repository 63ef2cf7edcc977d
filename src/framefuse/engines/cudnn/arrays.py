"""Runs of an `ArrayProgram` on the GPU: its fused kernels and matrix products, in memory that every run uses alike, so
that they can be captured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from framefuse.cuda import blas, device, kernel
from framefuse.engines.cudnn import fused
from framefuse.engines.cudnn.network import General
from framefuse.engines.cudnn.traced import Given, Multiplied, Smallest, Traced, Value, layout, padded, taken, traced
from framefuse.kernels.network.call import smallest

Start: TypeAlias = Callable[[int], None]
"""Launches something on the stream at an address."""
COMMON = Path(__file__).with_name("fused.cuh")


class Fused:
    """The kernels and matrix products of a plan, with its memory.

    Args:
        constants: copies by GPU and by what they hold; those that are missing are added.
    """

    def __init__(self, plan: fused.Plan, constants: MutableMapping[Hashable, Any]) -> None:
        self._plan, self._constants = plan, constants
        beside = blas.WORKSPACE if any(isinstance(step, Multiplied) for step in plan.steps) else 0
        self._memory = device.cupy().empty(plan.size + beside, np.uint8)
        texts = dict.fromkeys(step.text for step in plan.steps if isinstance(step, fused.Launch))
        common = COMMON.read_text(encoding="utf-8")
        name = f"fused_{hashlib.sha256(''.join((common, *texts)).encode()).hexdigest()[:16]}"
        kernels = (text.replace("NAME", f"{name}_{number}") for number, text in enumerate(texts))
        # They are compiled together when the first of them is bound.
        self._symbols = dict(zip(texts, kernel.add_program(name, "\n".join((common, *kernels))), strict=True))

    def starts(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Start]:
        """What to call in order, with arrays that it reads and writes."""
        return [self._start(step, inputs, outputs) for step in self._plan.steps]

    def _start(self, step: fused.Step, inputs: Sequence[Any], outputs: Sequence[Any]) -> Start:
        memory = int(self._memory.data.ptr)

        def address(value: Value) -> int:
            if isinstance(value, Given):
                at = value.source
                return int((inputs[at] if isinstance(at, int) else self._constant(at)).data.ptr)
            if isinstance(value, fused.Target):
                return int(outputs[value.number].data.ptr)
            return memory + self._plan.places[value]

        if isinstance(step, fused.Launch):
            return kernel.bind(self._symbols[step.text], **{name: address(one) for name, one in step.values.items()})
        if isinstance(step, Smallest):
            keys, places, (rows, columns) = address(step.args[0].value), address(step), step.args[0].shape
            shape = {"rows": rows, "columns": columns, "count": step.shape[1]}
            return lambda stream: smallest(keys, places, **shape, stream=stream)
        (a, b), to, workspace = step.args, address(step), memory + self._plan.size
        left, right = factor(a, address(a.value)), factor(b, address(b.value))
        sizes = (*step.shape[:2], a.shape[2], step.shape[2])
        return lambda stream: blas.multiply(left, right, to, sizes, workspace=workspace, stream=stream)

    def _constant(self, array: Any) -> Any:
        array = np.ascontiguousarray(array)
        key = device.current_gpu(), array.dtype.str, array.shape, hashlib.sha256(array).digest()
        if key not in self._constants:
            self._constants[key] = device.cupy().asarray(array)
        return self._constants[key]


class ArrayStep:
    """A `General` for images that lie on the GPU.

    Args:
        images: of the batch.
        values: what it reads, by name, (images, channels, height, width), with the channels that are no padding. They
            stay at their addresses, as what it writes does.
        target: called with the number of one of `ys`, and its shape and type for all images: the array that takes it.
            That may have another type, and more channels, which get 0.

    Attributes:
        made: those arrays.
    """

    def __init__(
        self, step: General, images: int, values: Mapping[str, tuple[Any, Sequence[int]]],
        target: Callable[[int, tuple[int, ...], Any], Any],
    ) -> None:  # fmt: skip
        count = step.images or images
        arrays = [x for x, _ in values.values()]
        given = {
            name: taken(source(number, x[:count]), np.array(channels), 1)
            for number, (name, (x, channels)) in enumerate(values.items())
        }
        found = [traced(value) for value in step.program.run(given, step.ys)]
        shapes = [(value.shape[0] * (images // count), *value.shape[1:]) for value in found]
        self.made = [target(number, shape, found[number].dtype) for number, shape in enumerate(shapes)]
        pairs = zip(found, self.made, strict=True)
        plan = fused.plan([taker(number, *pair) for number, pair in enumerate(pairs)])
        self._fused = Fused(plan, step.program.on_gpu)
        self._starts: list[Start] = []
        for part in range(images // count):
            inputs = [x[part * count :] for x in arrays]
            outputs = [y[part * value.shape[0] :] for y, value in zip(self.made, found, strict=True)]
            self._starts += self._fused.starts(inputs, outputs)
        self.run(device.cupy().cuda.get_current_stream())  # cuBLAS begins at its first use, which cannot be captured

    def run(self, stream: Any) -> None:
        """Launch on a stream of CuPy."""
        for start in self._starts:
            start(stream.ptr)


def source(number: int, x: Any) -> Traced:
    """An input as float32, in the order of its memory."""
    order = in_memory(x)
    shape, strides = ([sizes[axis] for axis in order] for sizes in (x.shape, x.strides))
    given = Traced(Given(number, x.dtype, shape), shape, tuple(stride // x.itemsize for stride in strides))
    return given.astype(np.float32).transpose([order.index(axis) for axis in range(x.ndim)])


def taker(number: int, value: Traced, y: Any) -> fused.Target:
    """An output, written in the order of its memory."""
    if value.ndim > 1 and y.shape[1] > value.shape[1]:
        value = padded(value, [(0, 0), (0, y.shape[1] - value.shape[1])])
    order = in_memory(y)
    return fused.Target(number, value.transpose(order), y.dtype, [y.strides[axis] // y.itemsize for axis in order])


def in_memory(x: Any) -> list[int]:
    """The axes of an array, those of large strides first."""
    return sorted(range(x.ndim), key=lambda axis: -x.strides[axis])


def factor(x: Traced, address: int) -> blas.Matrices:
    """Matrices of a value at an address."""
    by_columns, pitch = layout(x) or (False, 0)
    return blas.Matrices(address + 4 * x.offset, by_columns, pitch, x.strides[0] if x.shape[0] > 1 else 0)
