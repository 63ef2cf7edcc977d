"""cuDNN's part of engine cudnn on the CPU: a plan that reads and writes memory at the addresses that it is given, as
the graph of its layer says. With `cuda_on_cpu` for the other kernels, an execution runs without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import cudnn_reference as reference
from cuda_on_cpu import HostArray, on_device
from framefuse.cuda import device
from framefuse.engines.cudnn.convolutions import (
    BIAS,
    OUTPUT_SCALE,
    RESIDUAL,
    RESIDUAL_SCALE,
    SCALE,
    WEIGHT,
    Layer,
    X,
    Y,
)
from framefuse.engines.cudnn.execution import FORMATS, Execution, Weights, encode
from framefuse.engines.cudnn.network import LOW_PRECISIONS, Conv

TYPES = {"fp16": np.float16, "fp32": np.float32, "tf32": np.float32, "fp8": np.uint8, "int8": np.uint8}


def decode(codes: Any, kind: Any) -> Any:
    """Bytes -> values, the inverse of `encode`."""
    return codes.view(FORMATS[kind]).astype(np.float32)


class Chain:
    """A stream of the fake GPU, where everything happens at once."""

    ptr = 0

    def __init__(self, **options: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def synchronize(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """What executions and choices take of CuPy, added to `cuda_on_cpu.install`'s."""
    module = device.cupy()
    names = "float16 float32 uint8 abs percentile clip rint frexp ldexp maximum"
    for name in names.split():
        setattr(module, name, getattr(np, name))
    module.cuda.Stream = module.cuda.Event = Chain
    module.cuda.get_current_stream = Chain
    monkeypatch.setattr(HostArray, "get", lambda self, stream=None: np.array(self), raising=False)


def convolve_by_reference(monkeypatch: pytest.MonkeyPatch) -> Callable[[Layer], Any]:
    """Convolutions of an execution are the reference's, and need no plan; what to pass as its plans."""
    complete(monkeypatch)
    monkeypatch.setattr(
        Execution,
        "convolve",
        lambda self, plan, index, step, workspace, stream: reference.step(self.compiled, np.asarray(self.arena), index),
    )
    return lambda layer: SimpleNamespace(workspace=7)


def ran(run: Execution, x: Any) -> list[Any]:
    """The results of an execution for images."""
    stream = Chain()
    if run.memory_format == "nchw":
        run.input[...] = x
    else:
        run.pack(on_device(x), stream)
    run.start(stream)
    run.finish(stream)
    return [np.array(result) for result in run.results]


def on_pretended_gpu(monkeypatch: pytest.MonkeyPatch, compiled: Any, x: Any) -> list[Any]:
    """The results of the second run of a whole execution whose convolutions are NumPy's."""
    builder: Any = None
    plans = convolve_by_reference(monkeypatch)
    weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)])
    runs = Execution(compiled, builder, weights, plans, fold=True)
    ran(runs, x)
    return ran(runs, x)


def at(address: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: str) -> Any:
    """An array over memory; strides in elements."""
    dtype = np.dtype(TYPES[kind])
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)
    return as_strided(memory, shape, [stride * dtype.itemsize for stride in strides])


@dataclass
class NumpyPlan:
    """`y = round(last(activation(conv(x, weight) SCALE + bias) + residual RESIDUAL_SCALE) OUTPUT_SCALE)`."""

    layer: Layer
    workspace: int = 7
    microseconds: float = 1.0

    def run(self, handle: Any, pointers: dict[int, int], workspace: int, stream: int = 0) -> None:
        layer = self.layer

        def read(uid: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: str) -> Any:
            found = at(pointers[uid], shape, strides, kind)
            return decode(found, kind) if kind in ("fp8", "int8") else found.astype(np.float32)  # type: ignore[arg-type]

        out, inner, rows, columns = layer.weight
        order = (rows * columns * inner, 1, columns * inner, inner)
        x = read(X, layer.x, layer.x_strides, layer.x_type)
        weight = read(WEIGHT, layer.weight, order, layer.x_type)
        eight = layer.x_type in LOW_PRECISIONS
        step = Conv("", "x", "y", weight, weight[:, 0, 0, 0], layer.stride, layer.pads, layer.dilation)
        y = reference._conv(x, weight, step)
        each = (out, 1, 1), (1, 1, 1)
        if eight:
            y = y * read(SCALE, *each, "fp32")
        y = y + read(BIAS, *each, "fp32" if eight else layer.stored)
        if layer.activation == "silu":
            y = y / (1 + np.exp(-y))
        elif layer.activation == "relu":
            y = np.maximum(y, 0)
        if layer.residual_strides is not None:
            beside = read(RESIDUAL, layer.y, layer.residual_strides, layer.residual_type)
            y = y + beside * (
                1 if layer.residual_type not in LOW_PRECISIONS else read(RESIDUAL_SCALE, (1,), (1,), "fp32")
            )
        if layer.last == "relu":
            y = np.maximum(y, 0)
        target = at(pointers[Y], layer.y, layer.y_strides, layer.y_type)
        kind = layer.y_type
        target[...] = y if kind not in LOW_PRECISIONS else encode(y * read(OUTPUT_SCALE, (1,), (1,), "fp32"), kind)


@dataclass
class NumpyPlans:
    """Stands in for `Plans`: every layer has a kernel, whose time is what `cost` says."""

    cost: Callable[[Layer], float]
    asked: list[Layer] = field(default_factory=list)
    builder: Any = field(default_factory=lambda: SimpleNamespace(
        launch=lambda plan, pointers, memory, stream: plan.run(None, pointers, int(memory.data.ptr))))  # fmt: skip
    known: set[Layer] = field(default_factory=set)

    def __call__(self, layer: Layer) -> Any:
        self.asked.append(layer)
        return NumpyPlan(layer)

    def measure(self, layers: Iterable[Layer], candidates: int) -> None:
        self.known.update(layers)

    def microseconds(self, layer: Layer) -> float | None:
        return self.cost(layer) if layer in self.known else None

    def stop_workers(self) -> None: ...
    def save(self) -> None: ...
