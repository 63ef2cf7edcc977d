"""OpenVINO, the default engine on CPUs. Several requests run at the same time.

A YOLOv8 ends in sigmoids and softmaxes for all anchors, of which an image keeps a hundredth; for OpenVINO that is 5 %
of the whole model, with the conversion of its result to float32 planes. So the decoding is cut off, and post-processing
decodes only the boxes above the threshold. The cut is found by the shape of the graph, and made only if what is cut off
computes on random logits what `kernels.reference.boxes` says of the layout "yolov8_head".
"""

import math
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from framefuse.common.machine import available_cores, lacks_memory
from framefuse.common.text import lines_of
from framefuse.engines.backend import Backend, Needs, Package
from framefuse.engines.engine import Capabilities, Engine, EngineOptions, check_int8
from framefuse.engines.requests import Slot, SlotPool
from framefuse.errors import CapabilityError, EngineError, HostMemoryError, ModelError
from framefuse.kernels.boxes.call import HEAD
from framefuse.kernels.boxes.reference import yolov8, yolov8_head
from framefuse.kernels.cpu import cpu_flags
from framefuse.models.openvino_file import SUFFIXES, channels_first
from framefuse.models.states import state_pairs

BACKEND = Backend(
    "openvino",
    Capabilities(
        {"cpu": ("fp32", "bf16", "fp16", "int8")},
        cpu_flags={
            "bf16": ("avx512_bf16", "amx_bf16", "avx_ne_convert"),
            "fp16": ("avx512_fp16", "amx_fp16", "avx_ne_convert"),
        },
        survives_fork=False,
        formats=(".onnx", *SUFFIXES),
    ),
    opener="framefuse.engines.openvino:OpenVinoEngine",
    needs={"cpu": Needs((Package("openvino", ("openvino",)),))},
)
HINTS: Final = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
SCORE_TOLERANCE, PIXEL_TOLERANCE = 2e-6, 0.02
"""For float32 rounding, of decoding that is cut off."""


class OpenVinoEngine(Engine):
    """A model of ONNX, OpenVINO or TensorFlow Lite for the CPU.

    The first input shape is compiled with fixed sizes, which makes element-wise layers up to 7 times faster than free
    axes do (6 % of a YOLOv8n). All other shapes share one compilation with free axes, so that a folder of images of
    many sizes is not compiled for each. In bf16 the input has the format that the first layer reads.
    """

    name = BACKEND.name
    capabilities = BACKEND.capabilities

    def __init__(self, model: Path, options: EngineOptions) -> None:
        options.refuse_workspace(self.name)
        self.reasons = []
        self._core = _core()
        self._able = set(self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
        self._model = model
        network = self._read()
        quantised = any(node.get_type_name() == "FakeQuantize" for node in network.get_ops())
        self.precision = self._choose_precision(options.precision, quantised)
        self._hint = HINTS.get(self.precision) or ("bf16" if "BF16" in self._able else "f32")
        cores = available_cores()
        threads = options.threads or cores
        self.streams = options.streams or (threads if threads <= 4 else threads // 2)
        self.reasons.append(f"{self.streams} streams on {threads} threads: {cores} cores are available")
        self._config: dict[str, Any] = {
            "NUM_STREAMS": self.streams,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": self._hint,
            # Pinned workers would fight with the decoder's and the encoder's threads over the same few cores.
            "ENABLE_CPU_PINNING": False,
        }
        self._unused: Any = network
        self._fixed: tuple[tuple[int, ...], Any] | None = None
        self._free: Any = None
        self.input_dtype = np.dtype(network.inputs[0].get_element_type().to_dtype())
        first = {port.get_node().get_type_name() for port in network.inputs[0].get_target_inputs()}
        floating = self.input_dtype == np.float32 and "FakeQuantize" not in first
        self._channels_last = self._hint == "bf16" and floating
        if self._channels_last:
            self.input_dtype = np.dtype(np.uint16)
            self.reasons.append("input bfloat16, channels last: what the first layer reads")
        names = ([port.get_any_name() for port in side] for side in (network.inputs, network.outputs))
        self._states = state_pairs(*names)
        self._cuts_head = options.layout == "yolov8"
        self._head: list[str] | None = None

    def _read(self) -> Any:
        try:
            return channels_first(self._core.read_model(self._model))
        except RuntimeError as error:
            if found := re.search(r"No conversion rule found for operations: (.+)", str(error)):
                message = f"OpenVINO has no operator {found[1].strip()}, which {self._model} uses"
                raise ModelError(message, remedy="export the model without it, or use another engine") from error
            raise ModelError(f"OpenVINO cannot read {self._model}: {lines_of(error)[-1]}") from error

    def _compiled_for(self, shape: tuple[int, ...]) -> Any:
        remedy = "ask for another size (sides are multiples of the stride, mostly 32), or use another engine"
        with _reported(shape, f"cannot compile {self._model} for input {shape}", remedy=remedy):
            if self._fixed is None:
                network, self._unused = self._unused, None
                if self._states:
                    network = self._stateful(network, shape)
                elif network.inputs[0].get_partial_shape().is_dynamic:
                    network.reshape(shape)
                if self._cuts_head:
                    self._head = find_head(_openvino(), self._core, network)
                    who = "the model itself" if self._head is None else "post-processing, of those above conf only"
                    self.reasons.append(f"boxes are decoded by {who}")
                self._fixed = shape, self._compile(network)
        if self._fixed[0] == shape:
            return self._fixed[1]
        if self._states:  # what it remembers has a size of its own for each
            with _reported(shape, f"cannot compile {self._model} for input {shape}", remedy=remedy):
                self._fixed = shape, self._compile(self._stateful(self._read(), shape))
            return self._fixed[1]
        with _reported("of any size", f"cannot compile {self._model}", remedy=remedy):
            self._free = self._free or self._compile(self._read())
        return self._free

    def _stateful(self, network: Any, shape: tuple[int, ...]) -> Any:
        """The network of a recurrent model for an input shape; each request keeps its states, which are 0 at first."""
        ov = _openvino()
        from openvino.passes import MakeStateful, Manager

        sizes = [network.input(name).get_partial_shape() for name in self._states]
        if any(size.is_dynamic for size in sizes):
            # One run tells their shapes: states that are not known yet are a single 0, as in Robust Video Matting.
            lengths = [[axis.get_length() if axis.is_static else 1 for axis in size] for size in sizes]
            kinds = [network.input(name).get_element_type().to_dtype() for name in self._states]
            given: dict[Any, Any] = dict(zip(self._states, map(np.zeros, lengths, kinds), strict=True))
            given[0] = np.zeros(shape, network.inputs[0].get_element_type().to_dtype())
            request = self._core.compile_model(network, "CPU", self._config).create_infer_request()
            request.infer(given)
            made = [ov.PartialShape(list(request.get_tensor(name).shape)) for name in self._states.values()]
            for (name, output), taken, found in zip(self._states.items(), sizes, made, strict=True):
                if not taken.compatible(found):
                    message = f"{self._model} gives its state {output} the shape {found}, and takes {name} as {taken}"
                    raise ModelError(message, remedy="export the model with states of one shape")
            sizes = made
        shapes: dict[Any, Any] = dict(zip(self._states, sizes, strict=True))
        network.reshape(shapes | {0: ov.PartialShape(shape)})
        manager = Manager()
        manager.register_pass(MakeStateful(self._states))
        manager.run_passes(network)
        return network

    def _compile(self, network: Any) -> Any:
        """The network with the inputs and outputs of a slot, compiled."""
        ov = _openvino()
        if self._head is not None:
            nodes = {node.get_friendly_name(): node for node in network.get_ordered_ops()}
            logits = [ov.opset13.result(nodes[name].output(0)) for name in self._head]
            network = ov.Model(logits, network.get_parameters(), HEAD)
        changes = ov.preprocess.PrePostProcessor(network)
        if self._channels_last:
            changes.input(0).model().set_layout(ov.Layout("NCHW"))
            changes.input(0).tensor().set_layout(ov.Layout("NHWC")).set_element_type(ov.Type.bf16)
        for number in range(len(self._head or ())):
            changes.output(number).model().set_layout(ov.Layout("NCHW"))
            changes.output(number).tensor().set_layout(ov.Layout("NHWC"))
            # Always stated: an FP16 network has float16 outputs, which post-processing does not read.
            changes.output(number).tensor().set_element_type(ov.Type.bf16 if self._hint == "bf16" else ov.Type.f32)
        return self._core.compile_model(changes.build(), "CPU", self._config)

    def _choose_precision(self, asked: str, quantised: bool) -> str:
        check_int8(asked, quantised)
        chosen, why = asked, "as asked"
        if quantised:
            rest = "bf16" if "BF16" in self._able else "fp32"
            chosen, why = "int8", f"the model is quantised; layers that are not run in {rest}"
        elif asked == "auto":
            against = self._against_bf16()
            chosen, why = ("fp32", against) if against else ("bf16", "the fastest of this CPU")
        elif asked in ("bf16", "fp16") and asked.upper() not in self._able:
            message = f"this CPU has no native {asked} (OpenVINO lists {', '.join(sorted(self._able))})"
            raise CapabilityError(message, remedy="use --precision auto")
        self.reasons.append(f"precision {chosen}: {why}")
        return chosen

    def _against_bf16(self) -> str | None:
        """Why a network is not faster in bf16 than in fp32 on this CPU; None: it is faster."""
        if "BF16" not in self._able:
            return "this CPU has no native bf16"
        # 1.5 (scout-n) and 1.7 times (scout-s) slower on a Xeon whose AMX is hidden; an EPYC is up to twice as fast.
        if "Intel" in self._core.get_property("CPU", "FULL_DEVICE_NAME") and "amx_bf16" not in cpu_flags():
            return "without AMX an Intel CPU is slower in bf16"
        return None

    def _make_request_pool(self, batch: int, height: int, width: int, slots: int) -> SlotPool:
        ov = _openvino()
        shape = (batch, 3, height, width)
        compiled = self._compiled_for(shape)
        images = (batch, height, width, 3) if self._channels_last else shape
        layout = None if self._head is None else HEAD

        def make_slot() -> Slot:
            slot = Slot(np.zeros(images, self.input_dtype), handle=compiled.create_infer_request(), layout=layout)
            if self._channels_last:
                slot.memory_format = "nhwc"
                tensor = ov.Tensor(slot.input, ov.Shape(images), ov.Type.bf16)
            else:
                tensor = ov.Tensor(slot.input, shared_memory=True)
            slot.handle.set_input_tensor(0, tensor)
            return slot

        count = slots or self.streams + 1
        with _reported(shape, f"cannot make requests of input {shape}", slots=count):
            made = [make_slot() for _ in range(count)]
        return SlotPool(shape, made, start=_start, wait=_wait)

    def close(self) -> None:
        self._fixed = self._free = self._unused = None


def _openvino() -> Any:
    """The module, without its package openvino_telemetry, which reports the import to a server."""
    if "openvino" not in sys.modules:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
        import openvino.opset13
        import openvino.preprocess
    except ImportError as error:
        message = f"engine openvino needs the package openvino: {error}"
        raise CapabilityError(message, remedy="pip install openvino, or use another --engine") from error
    return openvino


_starting = threading.Lock()


def _core() -> Any:
    """The only core, made by the first thread that needs it while the others wait: OpenVINO initialises itself on its
    first calls, and holds the GIL while it waits for another thread that does so."""
    with _starting:
        return _started()


@cache
def _started() -> Any:
    """Never freed: its CPU plugin gives the thread that creates it an alternate signal stack and frees that stack with
    itself. If another thread frees it, the next signal in the first thread crashes the process."""
    ov = _openvino()
    core = ov.Core()
    core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")  # loads the plugin
    ov.Type.f32.to_dtype()  # builds a table
    return core


def _array(tensor: Any) -> NDArray[Any]:
    """The tensor's memory. OpenVINO returns empty tensors without their shape."""
    array: NDArray[Any] = tensor.data
    if tensor.element_type == _openvino().Type.bf16:
        array = array.view(np.uint16)
    return array if array.size else np.zeros(tuple(tensor.shape), array.dtype)


def _start(slot: Slot) -> None:
    with _reported(slot.input.shape, f"failed at input {slot.input.shape}"):
        slot.handle.start_async()


def _wait(slot: Slot, timeout: float | None) -> bool:
    with _reported(slot.input.shape, f"failed at input {slot.input.shape}"):
        if timeout is None:
            slot.handle.wait()
        elif not slot.handle.wait_for(max(1, round(timeout * 1000))):
            return False
    slot.outputs = tuple(_array(tensor) for tensor in slot.handle.output_tensors)
    return True


@contextmanager
def _reported(shape: object, failure: str, *, slots: int = 0, remedy: str | None = None) -> Iterator[None]:
    """Raise an error of OpenVINO as an EngineError that says what failed, or as a HostMemoryError with the shape."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if lacking := lacks_memory(error):
            requests = f" in each of {slots} requests" if slots else ""
            message = f"not enough memory for OpenVINO at input {shape}{requests}: {lacking}"
            remedy = "use a smaller --batch or --imgsz" + (", or fewer --slots" if slots else "")
            raise HostMemoryError(message, remedy=remedy) from error
        raise EngineError(f"OpenVINO {failure}: {lines_of(error)[-1]}", remedy=remedy) from error


def find_head(ov: Any, core: Any, network: Any) -> list[str] | None:
    """Names of the nodes of an `openvino.Model` of fixed input shape that become outputs: for each level the logits of
    distances, then of classes. None where the network is not a YOLOv8, or what stands between the logits and its output
    is not their decoding."""
    names = _logits(network)
    return names if names and _decodes(ov, core, network, names) else None


def _logits(network: Any) -> list[str] | None:
    """The nodes of the logits: distances and classes of each level, finest level first."""
    if len(network.outputs) != 1 or network.outputs[0].get_partial_shape().is_dynamic:
        return None
    shape = tuple(network.outputs[0].get_shape())
    if len(shape) != 3 or shape[1] < 5:
        return None
    classes, anchors = shape[1] - 4, shape[2]
    levels: dict[tuple[int, ...], list[Any]] = {}
    for node in _sources(network.get_results()[0], anchors):
        levels.setdefault(tuple(node.output(0).get_shape())[2:], []).append(node)
    if sum(rows * columns for rows, columns in levels) != anchors:
        return None
    logits: list[Any] = []  # nodes
    for grid in sorted(levels, key=lambda grid: -grid[0] * grid[1]):
        logits += sorted(levels[grid], key=lambda node: node.output(0).get_shape()[1] == classes)
    channels = [node.output(0).get_shape()[1] for node in logits]
    if channels != [channels[0], classes] * len(levels) or channels[0] % 4:
        return None
    return [node.get_friendly_name() for node in logits]


def _sources(node: Any, anchors: int) -> list[Any]:
    """The convolutions, with their bias, whose results lead to a node without another one in between. The mean by
    softmax is a convolution too, over (4, anchors); what feeds it is looked for instead."""

    def convolves(node: Any) -> bool:
        return node.get_type_name() == "Convolution" and bool(math.prod(node.output(0).get_shape()[2:]) <= anchors)

    found, seen, waiting = [], set(), [node]
    while waiting:
        node = waiting.pop()
        name = node.get_friendly_name()
        if name in seen or node.get_type_name() == "ShapeOf":  # only its shape is read
            continue
        seen.add(name)
        if convolves(node) or (node.get_type_name() == "Add" and convolves(node.input_value(0).get_node())):
            found.append(node)
        else:
            waiting += [node.input_value(k).get_node() for k in reversed(range(node.get_input_size()))]
    return found


def _decodes(ov: Any, core: Any, network: Any, names: list[str]) -> bool:
    """Whether what follows the logits computes the layout."""
    copy = network.clone()
    nodes = {node.get_friendly_name(): node for node in copy.get_ordered_ops()}
    parameters, rng = [], np.random.default_rng(0)
    for name in names:
        output = nodes[name].output(0)
        parameters.append(ov.opset13.parameter(output.get_shape(), np.float32))
        for reader in output.get_target_inputs():
            reader.replace_source_output(parameters[-1].output(0))
    for node in copy.get_ordered_ops():
        if node.get_type_name() == "ShapeOf":  # reads a shape before the logits: a network for all sizes
            kind = node.output(0).get_element_type().to_dtype()
            shape = ov.opset13.constant(np.array(node.input_value(0).get_shape(), kind))
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(shape.output(0))
    height, width = copy.inputs[0].get_shape()[2:]
    try:
        head = ov.Model(copy.get_results(), parameters, "decoding")
        config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        compiled = core.compile_model(head, "CPU", config)
    except RuntimeError:  # it reads other parts of the network too
        return False
    values = [rng.normal(0, 2, parameter.get_output_shape(0)).astype(np.float32) for parameter in parameters]
    decoded = compiled(values)[0]
    rows = [value.transpose(0, 2, 3, 1)[0] for value in values]
    expected = yolov8_head(rows, -1.0)
    found = yolov8([decoded[0]], -1.0)
    return bool(
        len(found.scores) == len(expected.scores)
        and np.array_equal(found.classes, expected.classes)
        and np.allclose(found.scores, expected.scores, atol=SCORE_TOLERANCE, rtol=0)
        and np.allclose(found.boxes, expected.boxes * np.array([width, height] * 2), atol=PIXEL_TOLERANCE, rtol=0)
    )
