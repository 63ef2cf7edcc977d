"""Runs of an `ArrayProgram` on the GPU: its fused kernels and matrix products, in memory that every run uses alike, so
that they can be captured."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from framefuse.cuda import blas, device, kernel
from framefuse.engines.cudnn import fused
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.kernel_text import Launch, Target
from framefuse.engines.cudnn.network import General
from framefuse.engines.cudnn.products import in_half
from framefuse.engines.cudnn.traced import Given, Multiplied, Smallest, Traced, Value, layout, padded, taken, traced
from framefuse.kernels.network.call import smallest

Start: TypeAlias = Callable[[int], None]
"""Launches something on the stream at an address."""
COMMON = Path(__file__).with_name("fused.cuh")


class Fused:
    """The kernels and matrix products of a plan, with its memory.

    Args:
        constants: copies by GPU and by what they hold; those that are missing are added.
        exact: whether products of float32 are exact, not those of TF32.
    """

    def __init__(self, plan: fused.Plan, constants: MutableMapping[Hashable, Any], *, exact: bool = False) -> None:
        self._plan, self._constants, self._exact = plan, constants, exact
        self._memory = device.cupy().empty(workspace_of(plan), np.uint8)
        texts = dict.fromkeys(step.text for step in plan.steps if isinstance(step, Launch))
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
            if isinstance(value, Target):
                return int(outputs[value.number].data.ptr)
            return memory + self._plan.places[value]

        if isinstance(step, Launch):
            return kernel.bind(self._symbols[step.text], **{name: address(one) for name, one in step.values.items()})
        if isinstance(step, Smallest):
            keys, places, (rows, columns) = address(step.args[0].value), address(step), step.args[0].shape
            shape = {"rows": rows, "columns": columns, "count": step.shape[1]}
            return lambda stream: smallest(keys, places, **shape, stream=stream)
        a, b, *row = step.args
        return blas.product(
            factor(a, address(a.value)), factor(b, address(b.value)),
            blas.Matrices(address(step), False, step.strides[1], step.strides[0], half=step.stored == np.float16),
            (*step.shape[:2], a.shape[2], step.shape[2]), scale=step.scale, relu=step.relu,
            row=address(row[0].value) if row else 0, workspace=memory + self._plan.size, exact=self._exact,
        )  # fmt: skip

    def _constant(self, array: Any) -> Any:
        array = np.ascontiguousarray(array)
        key = device.current_gpu(), *identity(array)
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
        precision: of matrix products: "fp16", "tf32" or "fp32".

    Attributes:
        made: those arrays.
    """

    def __init__(
        self, step: General, images: int, values: Mapping[str, tuple[Any, Sequence[int]]],
        target: Callable[[int, tuple[int, ...], Any], Any], *, precision: str,
    ) -> None:  # fmt: skip
        plan, found, self.made = planned(step, images, values, target, half=precision == "fp16")
        count, arrays = step.images or images, [x for x, _ in values.values()]
        self._fused = Fused(plan, step.program.on_gpu, exact=precision == "fp32")
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


def planned(
    step: General, images: int, values: Mapping[str, tuple[Any, Sequence[int]]],
    target: Callable[[int, tuple[int, ...], Any], Any], *, half: bool,
) -> tuple[fused.Plan, list[Traced], list[Any]]:  # fmt: skip
    """What to run for a step, what it makes of as many images as the file takes at once, and where that goes for all
    images. The arguments are those of `ArrayStep`; of arrays, only shapes, strides and types are looked at.

    Args:
        half: whether matrix products take float16.
    """
    count = step.images or images
    given = {
        name: taken(source(number, x[:count]), np.array(channels), 1)
        for number, (name, (x, channels)) in enumerate(values.items())
    }
    found = [traced(value) for value in step.program.run(given, step.ys)]
    shapes = [(value.shape[0] * (images // count), *value.shape[1:]) for value in found]
    made = [target(number, shape, found[number].dtype) for number, shape in enumerate(shapes)]
    targets = [taker(number, *pair) for number, pair in enumerate(zip(found, made, strict=True))]
    if half:
        in_half(targets)
    return fused.plan(targets), found, made


def memory_of(compiled: Compiled) -> tuple[int, int]:
    """Bytes of GPU memory of what runs as generated kernels and matrix products: of its constants, which executions
    share, and of what each execution has beside the arena, workspaces and results.

    Raises:
        ModelError: a node asks for what its operator cannot do.
    """
    constants, each = dict[Hashable, int](), 0
    for step in compiled.network.general:

        def target(number: int, shape: tuple[int, ...], dtype: Any, step: General = step) -> Any:
            if step is compiled.network.tail:
                return _stand_in(shape, [math.prod(shape[axis + 1 :]) for axis in range(len(shape))], dtype)
            return _value(compiled, step.ys[number])

        values = {name: (_value(compiled, name), compiled.network.kept(name)) for name in step.xs}
        plan, _, made = planned(step, compiled.batch, values, target, half=compiled.wide == "fp16")
        each += workspace_of(plan) + sum(y.nbytes for y in made if step is compiled.network.tail)
        for value in given_to(plan):
            if not isinstance(value.source, int):
                array = np.ascontiguousarray(value.source)
                constants[identity(array)] = array.nbytes
    return sum(constants.values()), each


def workspace_of(plan: fused.Plan) -> int:
    """Bytes of the values between the steps of a plan, and of what its matrix products use beside them."""
    return plan.size + (blas.WORKSPACE if any(isinstance(step, Multiplied) for step in plan.steps) else 0)


def given_to(plan: fused.Plan) -> list[Given]:
    """What a plan reads and does not compute."""
    read = (
        step.values.values() if isinstance(step, Launch) else [arg.value for arg in step.args] for step in plan.steps
    )
    return [value for values in read for value in values if isinstance(value, Given)]


def identity(array: Any) -> tuple[Hashable, ...]:
    """Of a contiguous array, by what it holds."""
    return array.dtype.str, array.shape, hashlib.sha256(array).digest()


def _value(compiled: Compiled, name: str) -> Any:
    """Has the shape, strides and type of `Execution.values`."""
    view, dtype = compiled.view(name), np.float16 if compiled.wide == "fp16" else np.float32
    return _stand_in((compiled.batch, *view.shape), (compiled.image(name), 1, view.row, view.column), dtype)


def _stand_in(shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
    """An array of that shape, with strides in elements and no memory of its own."""
    one = np.empty(1, dtype)
    return as_strided(one, shape, [int(stride) * one.itemsize for stride in strides])


def source(number: int, x: Any) -> Traced:
    """An input as float32, in the order of its memory."""
    order = in_memory(x)
    shape, strides = ([sizes[axis] for axis in order] for sizes in (x.shape, x.strides))
    given = Traced(Given(number, x.dtype, shape), shape, tuple(stride // x.itemsize for stride in strides))
    given.value.alignment = alignment_of(x)
    return given.astype(np.float32).transpose([order.index(axis) for axis in range(x.ndim)])


def taker(number: int, value: Traced, y: Any) -> Target:
    """An output, written in the order of its memory."""
    if value.ndim > 1 and y.shape[1] > value.shape[1]:
        value = padded(value, [(0, 0), (0, y.shape[1] - value.shape[1])])
    order = in_memory(y)
    strides = [y.strides[axis] // y.itemsize for axis in order]
    return Target(number, value.transpose(order), y.dtype, strides, alignment_of(y))


def alignment_of(x: Any) -> int:
    """Bytes of which the addresses of all images are multiples; stand-ins lie at 0."""
    return math.gcd(getattr(x.data, "ptr", 0), x.strides[0] if x.ndim else 0, 2**8)


def in_memory(x: Any) -> list[int]:
    """The axes of an array, those of large strides first."""
    return sorted(range(x.ndim), key=lambda axis: -x.strides[axis])


def factor(x: Traced, address: int) -> blas.Matrices:
    """Matrices of a value at an address."""
    by_columns, pitch = layout(x) or (False, 0)
    start, size = address + x.value.stored.itemsize * x.offset, x.strides[0] if x.shape[0] > 1 else 0
    return blas.Matrices(start, by_columns, pitch, size, half=x.value.stored == np.float16)
