"""Convolutions as cuDNN runs them: `conv + bias + activation (+ residual)` as one kernel each, chosen by measurement.

cuDNN offers several engines with knobs for each shape, and what its heuristics put first is often not the fastest. So
each distinct convolution is built with the first `candidates` of them, each is timed in a CUDA graph, and what won is
written down (`plan_cache.py`): another process builds only that.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from framefuse.cuda import device
from framefuse.cuda.streams import StreamPool, new_stream
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.network import EIGHT_BITS, Conv, Type
from framefuse.errors import CapabilityError, EngineError

X, WEIGHT, BIAS, Y, RESIDUAL, FACTOR, SHARE, OUT = range(1001, 1009)
"""Unique ids of the tensors in every cuDNN graph; the last three where numbers of 8 bits are read or written:
`y = round((activation(conv(x, weight) * FACTOR + bias) + residual * SHARE) * OUT)`."""

CANDIDATES = 3
"""Plans that are measured for a layer: cuDNN mostly lists the fastest first or second, and builds three in a second."""

_FLOATS = {"fp16": "float16", "fp32": "float32"}

REPEATS = 20
"""Calls in the CUDA graph that times a plan."""


@dataclass(frozen=True)
class Layer:
    """Everything that decides which kernel is fastest. Pitches in elements; channels are adjacent."""

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
    """Of x and of the weights: the convolution multiplies this."""
    y_type: Type = "fp16"
    residual_type: Type = "fp16"

    @classmethod
    def of(cls, compiled: Compiled, conv: Conv) -> Layer:
        def shape(name: str) -> tuple[int, int, int, int]:
            return (compiled.batch, *compiled.view(name).shape)

        def strides(name: str) -> tuple[int, int, int, int]:
            view = compiled.view(name)
            return compiled.image(name), 1, view.row, view.column

        # Without an operation behind the bias cuDNN puts forward kernels that are two to four times slower.
        activation = "identity" if conv.activation == "none" else conv.activation
        return cls(shape(conv.x), strides(conv.x), tuple(conv.weight.shape), shape(conv.y), strides(conv.y),
                   None if conv.residual is None else strides(conv.residual), conv.stride, conv.pads, conv.dilation,
                   activation, compiled.type(conv.x), compiled.type(conv.y),
                   "fp16" if conv.residual is None else compiled.type(conv.residual))  # fmt: skip

    @property
    def text(self) -> str:
        """Names the layer in a cache."""
        values = {name: value for name, value in asdict(self).items() if value != "fp16"}
        return " ".join(f"{name}={value}" for name, value in values.items()).replace(", ", ",")

    @property
    def mixed(self) -> bool:
        """Whether it reads or writes numbers of 8 bits."""
        return {self.x_type, self.y_type, self.residual_type} != {"fp16"}

    @property
    def operations(self) -> int:
        """Multiply-accumulates."""
        batch, channels, height, width = self.y
        return int(batch * channels * height * width * np.prod(self.weight[1:]))


@dataclass
class Plan:
    """A built kernel for a layer: the only one of its graph."""

    graph: Any
    workspace: int
    """Bytes of scratch memory."""
    engine: int
    knobs: dict[str, int]
    microseconds: float = 0.0
    """As measured; 0: not measured."""
    image: bytes = b""
    """The built kernel, for `Builder.load`; empty where cuDNN cannot give it."""

    def run(self, handle: Any, pointers: dict[int, int], workspace: int) -> None:
        """Start the kernel on the handle's stream. `pointers`: address by unique id."""
        self.graph.execute(pointers, workspace, handle)


@lru_cache(maxsize=1)
def frontend() -> Any:
    """The cudnn module.

    Raises:
        CapabilityError: it, or cuDNN itself, is missing.
    """
    try:
        module = importlib.import_module("cudnn")
        version = module.backend_version()
    except Exception as error:  # ImportError, or whatever it raises where libcudnn.so.9 cannot be loaded
        raise CapabilityError(
            f"engine cudnn needs cuDNN and its frontend, which cannot be loaded: {error}",
            remedy="pip install 'framefuse[cuda13]'",
        ) from error
    if version < 90000:
        raise CapabilityError(f"cuDNN {version} is too old", remedy="pip install 'nvidia-cudnn-cu13>=9.19'")
    return module


_handles = StreamPool(lambda: (frontend().create_handle(), new_stream()))
"""Each with the stream that it is on. What cuDNN keeps for a handle is not given back by itself, and destroying it
waits for the whole GPU."""


class Builder:
    """Builds and measures plans on the current device.

    Args:
        candidates: plans that are measured for a layer, at most; None: CANDIDATES.
        scratch: bytes that a kernel may take beside its tensors.
    """

    def __init__(self, *, candidates: int | None = None, scratch: int = 64 << 20) -> None:
        self.cudnn = frontend()
        (self.handle, self.stream), self._give_back = _handles.acquire()
        self.candidates, self.scratch = candidates or CANDIDATES, scratch
        self.failed: list[str] = []
        """Plans that could not be built or run, with the reason."""
        self.rest()

    def rest(self) -> None:
        """Put the handle on a stream of its own: one that is destroyed while the handle is on it crashes cuDNN."""
        self.cudnn.set_stream(handle=self.handle, stream=self.stream.ptr)

    def __del__(self) -> None:
        if hasattr(self, "_give_back"):
            self._give_back()

    def graph(self, layer: Layer) -> Any:
        """The cuDNN graph of a layer, validated and lowered, without plans."""
        types = self.cudnn.data_type
        kinds = {"fp16": types.HALF, "fp8": types.FP8_E4M3, "int8": types.INT8, "fp32": types.FLOAT}
        graph = self.cudnn.pygraph(io_data_type=types.HALF, intermediate_data_type=types.FLOAT,
                                   compute_data_type=types.FLOAT, handle=self.handle)  # fmt: skip

        def tensor(uid: int, shape: Sequence[int], strides: Sequence[int], kind: str = "fp16") -> Any:
            return graph.tensor(name=f"t{uid}", dim=list(shape), stride=list(strides), data_type=kinds[kind], uid=uid)

        out, inner, rows, columns = layer.weight
        each, one = ((1, out, 1, 1), (out, 1, out, out)), ((1, 1, 1, 1), (1, 1, 1, 1))
        x = tensor(X, layer.x, layer.x_strides, layer.x_type)
        weight = tensor(WEIGHT, layer.weight, (rows * columns * inner, 1, columns * inner, inner), layer.x_type)
        top, left, bottom, right = layer.pads
        sums = types.INT32 if layer.x_type == "int8" else types.FLOAT
        value = graph.conv_fprop(image=x, weight=weight, pre_padding=[top, left], post_padding=[bottom, right],
                                 stride=list(layer.stride), dilation=list(layer.dilation),
                                 compute_data_type=sums)  # fmt: skip
        if layer.x_type == "fp16":
            value = graph.bias(input=value, bias=tensor(BIAS, *each))
        else:
            value.set_data_type(sums)
            value = graph.mul(a=value, b=tensor(FACTOR, *each, "fp32"))
            value = graph.add(a=value, b=tensor(BIAS, *each, "fp32"))
        if layer.activation == "silu":
            value = graph.swish(input=value)
        elif layer.activation == "relu":
            value = graph.relu(input=value)
        elif layer.activation == "identity":
            value = graph.identity(input=value)
        if layer.residual_strides is not None:
            value.set_data_type(types.FLOAT)
            beside = tensor(RESIDUAL, layer.y, layer.residual_strides, layer.residual_type)
            if layer.residual_type != "fp16":
                beside = graph.mul(a=beside, b=tensor(SHARE, *one, "fp32"))
            value = graph.add(a=value, b=beside)
        if layer.y_type != "fp16":
            value.set_data_type(types.FLOAT)
            value = graph.mul(a=value, b=tensor(OUT, *one, "fp32"))
        value.set_output(True).set_data_type(kinds[layer.y_type])
        value.set_dim(list(layer.y)).set_stride(list(layer.y_strides)).set_uid(Y)
        graph.validate()
        graph.build_operation_graph()
        return graph

    def replay(self, layer: Layer, engine: int, knobs: dict[str, int]) -> Plan:
        """Build a plan by its engine and knobs.

        Raises:
            EngineError: this cuDNN does not have it.
        """
        try:
            kinds = self.cudnn.knob_type
            graph = self.graph(layer)
            graph.create_execution_plan(engine, {getattr(kinds, name): value for name, value in knobs.items()})
            graph.build_plan_at_index(graph.get_execution_plan_count() - 1)
            return Plan(graph, int(graph.get_workspace_size()), engine, knobs)
        except Exception as error:  # the bindings raise their own classes and RuntimeError
            raise EngineError(f"cuDNN cannot build engine {engine} with {knobs} for {layer.text}: {error}") from error

    def load(self, image: bytes, engine: int, knobs: dict[str, int]) -> Plan:
        """A plan from the bytes of one that was built on this GPU with these versions.

        Raises:
            EngineError: cuDNN refuses them.
        """
        try:
            graph = self.cudnn.pygraph(handle=self.handle)
            graph.deserialize(self.handle, image)
            return Plan(graph, int(graph.get_workspace_size()), engine, knobs, image=image)
        except Exception as error:
            raise EngineError(f"cuDNN cannot read a kernel that it wrote: {error}") from error

    def choose(self, layer: Layer) -> Plan:
        """Measure and take the fastest.

        Raises:
            EngineError: cuDNN has no kernel for the layer.
        """
        offered = self.offered(layer)
        measure = self.measurer(layer)
        best: Plan | None = None
        for number, (engine, knobs) in enumerate(offered):
            if number >= self.candidates and best is not None:
                break
            try:
                plan = self.replay(layer, engine, knobs)
                if plan.workspace > self.scratch:
                    continue
                plan.microseconds = measure(plan)
            except Exception as error:  # a plan that this GPU cannot run: the next may
                self.failed.append(str(error)[:300])
                continue
            if best is None or plan.microseconds < best.microseconds:
                best = plan
        if best is None:
            raise EngineError(f"cuDNN has no kernel for {layer.text}", remedy="use engine onnxruntime")
        try:
            image = bytes(best.graph.serialize(as_bytes=True))
            measure(self.load(image, best.engine, best.knobs))  # what cannot be run after reading is not kept
            best.image = image
        except Exception as error:  # the plan itself is fine
            self.failed.append(str(error)[:300])
        return best

    def offered(self, layer: Layer) -> list[tuple[int, dict[str, int]]]:
        """Engines with knobs, in the order of cuDNN's heuristics."""
        modes = self.cudnn.heur_mode
        graph = self.graph(layer)
        graph.create_execution_plans([modes.A, modes.B, modes.FALLBACK])
        graph.check_support()
        found: list[tuple[int, dict[str, int]]] = []
        for index in range(graph.get_execution_plan_count()):
            engine, knobs = graph.get_engine_and_knobs_at_index(index)
            named = {kind.name: value for kind, value in knobs.items()}
            # Old engines have knobs without a name, which cannot be asked for again.
            if "NOT_SET" not in named and (engine, named) not in found:
                found.append((engine, named))
        return found

    def measurer(self, layer: Layer) -> Callable[[Plan], float]:
        """A function that gives microseconds of a plan, over buffers with random values."""
        cp = device.cupy()

        def room(shape: Sequence[int], strides: Sequence[int], kind: str = "fp16", scale: float = 1.0) -> Any:
            size = 1 + sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))
            if kind in EIGHT_BITS:  # small numbers, and no NaN of FP8 among them
                return cp.random.randint(0, 0x30, size, dtype=cp.uint8)
            return (cp.random.standard_normal(size, cp.float32) * scale).astype(_FLOATS[kind])

        inputs, each = int(np.prod(layer.weight[1:])), ((layer.weight[0],), (1,))
        wide = "fp16" if layer.x_type == "fp16" else "fp32"
        with self.stream:
            arrays = {
                X: room(layer.x, layer.x_strides, layer.x_type),
                WEIGHT: room((int(np.prod(layer.weight)),), (1,), layer.x_type, inputs**-0.5),
                BIAS: room(*each, wide),
                Y: room(layer.y, layer.y_strides, layer.y_type),
            }
            if layer.residual_strides is not None:
                arrays[RESIDUAL] = room(layer.y, layer.residual_strides, layer.residual_type)
            if layer.mixed:
                arrays |= {FACTOR: room(*each, "fp32", 0.01), SHARE: room((1,), (1,), "fp32"),
                           OUT: room((1,), (1,), "fp32")}  # fmt: skip
        pointers = {uid: int(array.data.ptr) for uid, array in arrays.items()}
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        self.rest()

        def measure(plan: Plan) -> float:
            workspace = cp.empty(max(1, plan.workspace), cp.uint8)
            plan.run(self.handle, pointers, workspace.data.ptr)
            self.stream.synchronize()
            self.stream.begin_capture()
            try:
                for _ in range(REPEATS):
                    plan.run(self.handle, pointers, workspace.data.ptr)
            finally:
                graph = self.stream.end_capture()
            times = []
            for _ in range(4):
                start.record(self.stream)
                graph.launch(self.stream)
                stop.record(self.stream)
                stop.synchronize()
                times.append(cp.cuda.get_elapsed_time(start, stop))
            return float(min(times)) * 1e3 / REPEATS + 0.0 * len(arrays)  # `arrays` must live as long as this

        return measure
