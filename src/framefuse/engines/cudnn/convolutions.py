"""Fused convolutions: `conv + bias + activation (+ residual)` in one kernel each, autotuned.

cuDNN offers several engines with knobs for each shape, and its heuristics often do not list the fastest first. So each
distinct convolution is built with the first `candidates` of them, each is timed in a CUDA graph, and so is our kernel
on tensor cores with the tiles that look best; the fastest goes into the plan cache (`plans.py`). Ours begins before the
kernel before it has ended, which cuDNN's cannot.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Self

import numpy as np

from framefuse.cuda import device, kernel
from framefuse.cuda.device import StreamPool, new_stream
from framefuse.cuda.nvrtc import HOPPER
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.network import LOW_PRECISIONS, Conv, Type
from framefuse.errors import CapabilityError, EngineError
from framefuse.kernels.network import call as network
from framefuse.kernels.network.call import Tile

X, WEIGHT, BIAS, Y, RESIDUAL, SCALE, RESIDUAL_SCALE, OUTPUT_SCALE = range(1001, 1009)
"""Unique ids of the tensors in every cuDNN graph; the last three where the layer reads or writes 8-bit numbers:
`y = round((activation(conv(x, weight) * SCALE + bias) + residual * RESIDUAL_SCALE) * OUTPUT_SCALE)`."""
CANDIDATES = 8
"""Plans to measure for a layer: cuDNN mostly lists the fastest first or second, but not always, and builds three in a
second."""
REPEATS = 20
"""Kernel launches in the CUDA graph that times a plan."""
TENSOR = -2
"""The engine that a plan of our kernel on tensor cores states."""
TRIED = 6
"""Tiles of it to measure for a layer."""
FIRST = Tile(64, 64, 1), Tile(64, 64, 4)
"""Those of layers that are not measured yet: each kernel has to be compiled before the first image."""


@dataclass(frozen=True)
class Layer:
    """Everything that decides which kernel is fastest. Strides are in elements; channels are contiguous."""

    x: tuple[int, int, int, int]
    """Batch, channels, height, width."""
    x_strides: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    y: tuple[int, int, int, int]
    y_strides: tuple[int, int, int, int]
    residual_strides: tuple[int, int, int, int] | None
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilation: tuple[int, int]
    activation: str
    x_type: Type = "fp16"
    """Of x and of the weights."""
    y_type: Type = "fp16"
    residual_type: Type = "fp16"
    last: str = "none"
    """The activation after the residual."""

    @classmethod
    def of(cls, compiled: Compiled, conv: Conv) -> Self:
        def shape(name: str) -> tuple[int, int, int, int]:
            return (compiled.batch, *compiled.view(name).shape)

        def strides(name: str) -> tuple[int, int, int, int]:
            view = compiled.view(name)
            return compiled.image(name), 1, view.row, view.column

        # Without an operation after the bias, cuDNN lists kernels first that are two to four times slower.
        activation = "identity" if conv.activation == "none" else conv.activation
        return cls(shape(conv.x), strides(conv.x), tuple(conv.weight.shape), shape(conv.y), strides(conv.y),
                   None if conv.residual is None else strides(conv.residual), conv.stride, conv.pads, conv.dilation,
                   activation, compiled.type(conv.x), compiled.type(conv.y),
                   compiled.wide if conv.residual is None else compiled.type(conv.residual), conv.last)  # fmt: skip

    @classmethod
    def all_of(cls, compiled: Compiled) -> dict[int, Self]:
        """Those of all convolutions that run in cuDNN, by the number of the step."""
        steps = enumerate(compiled.placement.steps)
        return {index: cls.of(compiled, step) for index, step in steps if isinstance(step, Conv) and not step.depthwise}

    @property
    def text(self) -> str:
        """Key of the layer in the plan cache."""
        usual = {"last": "none"} | dict.fromkeys(("x_type", "y_type", "residual_type"), "fp16")
        values = {name: value for name, value in asdict(self).items() if usual.get(name) != value}
        return " ".join(f"{name}={value}" for name, value in values.items()).replace(", ", ",")

    @property
    def grouped(self) -> bool:
        return self.x[1] != self.weight[1]

    @property
    def window(self) -> network.Window:
        return network.Window(self.weight[2:], self.stride, self.pads[:2], self.dilation)

    @property
    def low_precision(self) -> bool:
        """Whether it reads or writes 8-bit numbers."""
        return not {self.x_type, self.y_type, self.residual_type}.isdisjoint(LOW_PRECISIONS)

    @property
    def stored(self) -> Type:
        """What weights and bias are stored in, if x is not 8-bit."""
        return "fp16" if self.x_type in LOW_PRECISIONS else self.x_type


@dataclass
class Plan:
    """A built kernel for a layer."""

    graph: Any
    workspace: int
    """Bytes."""
    engine: int
    knobs: dict[str, int]
    microseconds: float = 0.0
    """0: not measured."""
    binary: bytes = b""
    """The serialised kernel, for `Builder.load`; empty where cuDNN cannot serialise it."""
    provisional: bool = False
    """None of cuDNN's could be measured beside it, so the next process tries again."""

    def run(self, handle: Any, pointers: dict[int, int], workspace: int, stream: int) -> None:
        """Launch the kernel on a stream, which is the handle's, too. `pointers`: address by unique id."""
        self.graph.execute(pointers, workspace, handle)


class TensorPlan(Plan):
    """Our kernel on tensor cores for a layer."""

    def __init__(self, layer: Layer, tile: Tile, multiprocessors: int = 1) -> None:
        super().__init__(None, 0, TENSOR, tile._asdict())
        self.layer, self.tile, self.multiprocessors = layer, tile, multiprocessors

    def run(self, handle: Any, pointers: dict[int, int], workspace: int, stream: int) -> None:
        layer = self.layer

        def block(uid: int, shape: Sequence[int], strides: Sequence[int]) -> network.Block:
            batch, channels, height, width = shape
            image, _, row, column = strides
            return network.Block(pointers[uid], batch, channels, height, width, image, row, column)

        residual = None if layer.residual_strides is None else block(RESIDUAL, layer.y, layer.residual_strides)
        network.convolve(
            block(X, layer.x, layer.x_strides), pointers[WEIGHT], pointers[BIAS], block(Y, layer.y, layer.y_strides),
            layer.window, activation=_OURS[layer.activation], residual=residual, last=_OURS[layer.last], tile=self.tile,
            multiprocessors=self.multiprocessors, stream=stream,
        )  # fmt: skip


def faster(ours: Plan | None, best: Plan | None, offered: bool) -> Plan | None:
    """The faster of our plan and the best of cuDNN's. Ours is provisional if `offered`, and none was measured."""
    if ours is None or (best is not None and best.microseconds <= ours.microseconds):
        return best
    ours.provisional = offered and best is None
    return ours


_OURS: dict[str, network.Activation] = {"identity": "none", "none": "none", "silu": "silu", "relu": "relu"}


def tiles(layer: Layer, capability: int, multiprocessors: int) -> list[Tile]:
    """Tiles that our kernel may make a layer in on tensor cores, those that should be fastest first.

    The estimate, in clocks of a multiprocessor, is fitted to the times of 167 layers on an H200. A block takes 4,500,
    and for each 64 x 64 sums 2,000 to begin and to end, 170 for 64 numbers of each, to which come 30 for all, and 350
    for each part to add up. Two or three blocks of a multiprocessor run side by side, but share what it gets from L2,
    28 bytes a clock. Small tiles wait for every copy, but more of them run side by side.
    """
    types = {layer.x_type, layer.y_type, layer.residual_type}
    pitches = {*layer.x_strides, *layer.y_strides, *(layer.residual_strides or ())} - {1}
    in_eights = not any(count % 8 for count in (*layer.weight[:2], *pitches))
    if capability < network.TENSOR_CORES or layer.grouped or types != {"fp16"} or not in_eights:
        return []
    (batch, channels, height, width), (_, inner, rows, columns) = layer.y, layer.weight

    def clocks(tile: Tile) -> float:
        if tile.kind == network.PATCH:
            return 0.0  # always measured
        size, steps = tile.rows * tile.columns / 64**2, rows * columns * inner / 64 / tile.parts
        blocks = -(-batch * height * width // tile.rows) * -(-channels // tile.columns) * tile.parts
        together = -(-blocks // multiprocessors)
        adding = 350 * size * tile.parts if tile.parts > 1 else 0
        step = {network.WIDE: 30 + 110 * size, network.SMALL: 600 + 170 * size}.get(tile.kind, 30 + 170 * size)
        beside = {network.WIDE: 8 // size, network.SMALL: 5 if size == 1 else 7}.get(tile.kind, 3 if size < 4 else 2)
        alone = 4500 + 2000 * size + step * steps + adding
        reading = 128 * (tile.rows + tile.columns) * steps / 28
        return -(-together // beside) * alone + together * reading

    def possible(tile: Tile) -> bool:
        if tile.kind == network.PATCH:
            narrow = tile.columns == 64 or 2 * tile.columns > channels
            return layer.residual_strides is None and narrow and network.fits_patch(tile, inner, layer.window)
        return (tile.parts == 1 or capability >= network.CLUSTERS) and (
            tile.kind != network.WIDE or capability == HOPPER
        )

    return sorted(filter(possible, network.TILES), key=clocks)


@cache
def frontend() -> Any:
    """The cudnn module.

    Raises:
        CapabilityError: the module or cuDNN itself is missing or too old.
    """
    try:
        module = importlib.import_module("cudnn")
        version = module.backend_version()
    except Exception as error:  # ImportError, or another if libcudnn.so.9 cannot be loaded
        message = f"engine cudnn needs cuDNN and its frontend, which cannot be loaded: {error}"
        raise CapabilityError(message, remedy="pip install 'framefuse[cuda13]'") from error
    if version < 90000:
        raise CapabilityError(f"cuDNN {version} is too old", remedy="pip install 'nvidia-cudnn-cu13>=9.19'")
    return module


OWN = Plan(None, 0, -1, {})
"""Our kernel without tensor cores. It runs any layer without groups and without 8-bit numbers at once, in float32."""


@cache
def multiprocessors(gpu: int) -> tuple[int, int]:
    """Compute capability of a GPU, such as 90, and the number of its multiprocessors."""
    facts = device.cupy().cuda.runtime.getDeviceProperties(gpu)
    return facts["major"] * 10 + facts["minor"], facts["multiProcessorCount"]


_handles = StreamPool(lambda: (frontend().create_handle(), new_stream()))
"""Handles, each with its own stream. They are reused because cuDNN does not free a handle's memory by itself, and
destroying a handle synchronises the whole GPU."""


class Builder:
    """Builds and measures plans on the current device.

    Args:
        candidates: plans to measure for a layer; None: CANDIDATES.
        max_workspace: maximum workspace of a kernel, in bytes.
    """

    def __init__(self, *, candidates: int | None = None, max_workspace: int = 64 << 20) -> None:
        self.cudnn = frontend()
        (self.handle, self.stream), self._return_handle = _handles.acquire()
        self.candidates, self.max_workspace = candidates or CANDIDATES, max_workspace
        self.release_handle()

    def release_handle(self) -> None:
        """Move the handle back to its own stream: cuDNN crashes if the stream of a handle is destroyed."""
        self.cudnn.set_stream(handle=self.handle, stream=self.stream.ptr)

    def launch(self, plan: Plan, pointers: dict[int, int], workspace: Any, stream: Any) -> None:
        """Launch a plan on a stream of CuPy, with an array on the GPU as its scratch memory."""
        self.cudnn.set_stream(handle=self.handle, stream=stream.ptr)
        try:
            plan.run(self.handle, pointers, int(workspace.data.ptr), stream.ptr)
        finally:
            self.release_handle()

    def __del__(self) -> None:
        if hasattr(self, "_return_handle"):
            self._return_handle()

    def graph(self, layer: Layer) -> Any:
        """The validated and lowered cuDNN graph of a layer, without plans."""
        types = self.cudnn.data_type
        kinds = {
            "fp16": types.HALF,
            "fp8": types.FP8_E4M3,
            "int8": types.INT8,
            "fp32": types.FLOAT,
            "tf32": types.FLOAT,
        }
        graph = self.cudnn.pygraph(io_data_type=kinds[layer.stored], intermediate_data_type=types.FLOAT,
                                   compute_data_type=types.FLOAT, handle=self.handle)  # fmt: skip

        def tensor(uid: int, shape: Sequence[int], strides: Sequence[int], kind: str = "fp16") -> Any:
            return graph.tensor(name=f"t{uid}", dim=list(shape), stride=list(strides), data_type=kinds[kind], uid=uid)

        out, inner, rows, columns = layer.weight
        per_channel, scalar = ((1, out, 1, 1), (out, 1, out, out)), ((1, 1, 1, 1), (1, 1, 1, 1))
        x = tensor(X, layer.x, layer.x_strides, layer.x_type)
        weight = tensor(WEIGHT, layer.weight, (rows * columns * inner, 1, columns * inner, inner), layer.x_type)
        top, left, bottom, right = layer.pads
        accumulator = types.INT32 if layer.x_type == "int8" else types.FLOAT
        value = graph.conv_fprop(image=x, weight=weight, pre_padding=[top, left], post_padding=[bottom, right],
                                 stride=list(layer.stride), dilation=list(layer.dilation),
                                 compute_data_type=accumulator)  # fmt: skip
        if layer.x_type == layer.stored:
            value = graph.bias(input=value, bias=tensor(BIAS, *per_channel, layer.stored))
        else:
            value.set_data_type(accumulator)
            value = graph.mul(a=value, b=tensor(SCALE, *per_channel, "fp32"))
            value = graph.add(a=value, b=tensor(BIAS, *per_channel, "fp32"))
        activations = {"silu": graph.swish, "relu": graph.relu, "identity": graph.identity}
        if layer.last == "none" or layer.activation != "identity":
            value = activations[layer.activation](input=value)
        if layer.residual_strides is not None:
            value.set_data_type(types.FLOAT)
            residual = tensor(RESIDUAL, layer.y, layer.residual_strides, layer.residual_type)
            if layer.residual_type in LOW_PRECISIONS:
                residual = graph.mul(a=residual, b=tensor(RESIDUAL_SCALE, *scalar, "fp32"))
            value = graph.add(a=value, b=residual)
        if layer.last != "none":
            value.set_data_type(types.FLOAT)
            value = activations[layer.last](input=value)
        if layer.y_type in LOW_PRECISIONS:
            value.set_data_type(types.FLOAT)
            value = graph.mul(a=value, b=tensor(OUTPUT_SCALE, *scalar, "fp32"))
        value.set_output(True).set_data_type(kinds[layer.y_type])
        value.set_dim(list(layer.y)).set_stride(list(layer.y_strides)).set_uid(Y)
        graph.validate()
        graph.build_operation_graph()
        return graph

    def build(self, layer: Layer, engine: int, knobs: dict[str, int]) -> Plan:
        """Build the plan of a layer with this engine and these knobs.

        Raises:
            EngineError: this cuDNN cannot build it.
        """
        if engine == TENSOR:
            if plan := next((plan for plan in self.on_tensor_cores(layer, None) if plan.knobs == knobs), None):
                kernel.prepare([plan.tile.symbol])
                return plan
            raise EngineError(f"our kernel has no tiles of {knobs} for {layer.text} here")
        try:
            kinds = self.cudnn.knob_type
            graph = self.graph(layer)
            graph.create_execution_plan(engine, {getattr(kinds, name): value for name, value in knobs.items()})
            graph.build_plan_at_index(graph.get_execution_plan_count() - 1)
            return Plan(graph, int(graph.get_workspace_size()), engine, knobs)
        except Exception as error:  # the bindings raise their own classes and RuntimeError
            raise EngineError(f"cuDNN cannot build engine {engine} with {knobs} for {layer.text}: {error}") from error

    def load(self, binary: bytes, engine: int, knobs: dict[str, int]) -> Plan:
        """Deserialise a plan that was built on this GPU with these versions.

        Raises:
            EngineError: cuDNN rejects the bytes.
        """
        try:
            graph = self.cudnn.pygraph(handle=self.handle)
            graph.deserialize(self.handle, binary)
            return Plan(graph, int(graph.get_workspace_size()), engine, knobs, binary=binary)
        except Exception as error:
            raise EngineError(f"cuDNN cannot load a cached kernel: {error}") from error

    def on_tensor_cores(self, layer: Layer, count: int | None = TRIED) -> list[TensorPlan]:
        """Plans of our kernel, those that should be fastest first, as many as `count`; None: all that can run here."""
        gpu = multiprocessors(device.current_gpu())
        return [TensorPlan(layer, tile, gpu[1]) for tile in tiles(layer, *gpu)[:count]]

    def first(self, layer: Layer) -> Plan:
        """What runs a layer without groups and without 8-bit numbers at once, without a measurement."""
        return next((plan for plan in self.on_tensor_cores(layer, None) if plan.tile in FIRST), OWN)

    def fastest_tile(self, layer: Layer, measure: Callable[[Plan], float]) -> TensorPlan | None:
        """The plan of our kernel that `measure` finds fastest; None: it cannot run the layer here."""
        found, measured = self.on_tensor_cores(layer), list[TensorPlan]()
        kernel.compile_kernels([plan.tile.symbol for plan in found])
        for plan in found:
            with suppress(Exception):  # the next one may run
                plan.microseconds = measure(plan)
                measured.append(plan)
        return min(measured, key=lambda plan: plan.microseconds, default=None)

    def autotune(self, layer: Layer) -> Plan:
        """Measure the first candidates and return the fastest.

        Raises:
            EngineError: there is no kernel for the layer.
        """
        measure = self.timer(layer)
        ours = self.fastest_tile(layer, measure)
        try:
            candidate_engines = self.candidate_engines(layer)
        except Exception:  # the bindings raise their own classes and RuntimeError
            if ours is None:
                raise
            return ours
        best: Plan | None = None
        for number, (engine, knobs) in enumerate(candidate_engines):
            if number >= self.candidates and best is not None:
                break
            try:
                plan = self.build(layer, engine, knobs)
                if plan.workspace > self.max_workspace:
                    continue
                plan.microseconds = measure(plan)
            except Exception:  # the next candidate may run on this GPU
                continue
            if best is None or plan.microseconds < best.microseconds:
                best = plan
        best = faster(ours, best, bool(candidate_engines))
        if best is not None and best is ours:
            return ours
        if best is None:
            raise EngineError(f"cuDNN has no kernel for {layer.text}", remedy="use engine onnxruntime")
        with suppress(Exception):  # the plan itself works
            binary = bytes(best.graph.serialize(as_bytes=True))
            measure(self.load(binary, best.engine, best.knobs))  # keep it only if it still runs once loaded
            best.binary = binary
        return best

    def candidate_engines(self, layer: Layer) -> list[tuple[int, dict[str, int]]]:
        """Engines with their knobs, in the order of cuDNN's heuristics."""
        modes = self.cudnn.heur_mode
        graph = self.graph(layer)
        graph.create_execution_plans([modes.A, modes.B, modes.FALLBACK])
        graph.check_support()
        found: list[tuple[int, dict[str, int]]] = []
        for index in range(graph.get_execution_plan_count()):
            engine, knobs = graph.get_engine_and_knobs_at_index(index)
            named = {kind.name: value for kind, value in knobs.items()}
            # Old engines have unnamed knobs, so their plans cannot be built again.
            if "NOT_SET" not in named and (engine, named) not in found:
                found.append((engine, named))
        return found

    def timer(self, layer: Layer) -> Callable[[Plan], float]:
        """A function that times a plan over random values and returns microseconds."""
        cp = device.cupy()

        def random(shape: Sequence[int], strides: Sequence[int], kind: str = "fp16", scale: float = 1.0) -> Any:
            size = 1 + sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))
            if kind in LOW_PRECISIONS:  # small numbers; none is NaN in FP8
                return cp.random.randint(0, 0x30, size, dtype=cp.uint8)
            values = cp.random.standard_normal(size, cp.float32) * scale
            return values.astype("float16" if kind == "fp16" else "float32")

        fan_in, per_channel = int(np.prod(layer.weight[1:])), ((layer.weight[0],), (1,))
        wide = "fp32" if layer.x_type in LOW_PRECISIONS else layer.stored
        with self.stream:
            arrays = {
                X: random(layer.x, layer.x_strides, layer.x_type),
                WEIGHT: random((int(np.prod(layer.weight)),), (1,), layer.x_type, fan_in**-0.5),
                BIAS: random(*per_channel, wide),
                Y: random(layer.y, layer.y_strides, layer.y_type),
            }
            if layer.residual_strides is not None:
                arrays[RESIDUAL] = random(layer.y, layer.residual_strides, layer.residual_type)
            if layer.low_precision:
                arrays |= {SCALE: random(*per_channel, "fp32", 0.01), RESIDUAL_SCALE: random((1,), (1,), "fp32"),
                           OUTPUT_SCALE: random((1,), (1,), "fp32")}  # fmt: skip
        pointers = {uid: int(array.data.ptr) for uid, array in arrays.items()}
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        self.release_handle()

        def measure(plan: Plan) -> float:
            workspace = cp.empty(max(1, plan.workspace), cp.uint8)
            plan.run(self.handle, pointers, workspace.data.ptr, self.stream.ptr)
            self.stream.synchronize()
            self.stream.begin_capture()
            try:
                for _ in range(REPEATS):
                    plan.run(self.handle, pointers, workspace.data.ptr, self.stream.ptr)
            finally:
                graph = self.stream.end_capture()
            times = []
            for _ in range(4):
                start.record(self.stream)
                graph.launch(self.stream)
                stop.record(self.stream)
                stop.synchronize()
                times.append(cp.cuda.get_elapsed_time(start, stop))
            return float(min(times)) * 1e3 / REPEATS + 0.0 * len(arrays)  # keeps `arrays` alive with this function

        return measure
