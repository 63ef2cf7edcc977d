"""ONNX -> plan, with TensorRT >= 10 or TensorRT for RTX. The latter needs no GPU.

Networks are strongly typed: the plan has the types of the file. FP16 comes from FP16 weights, INT8 and FP8 from
quantisers (`framefuse build`), never from builder flags.

The input of a plan is what preprocessing writes for GPUs: (batch, height, width, 8) float16, channels last, of which
the first 3 are the image.
"""

import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

from framefuse.common.files import write_atomically
from framefuse.engines.onnx_shapes import Profile
from framefuse.engines.tensorrt.qdq import symmetric, to_fp8
from framefuse.errors import CapabilityError, EngineError, ModelError, UsageError
from framefuse.models.onnx_file import inputs_of, is_quantised, load_onnx

PlanPrecision = Literal["fp32", "fp16", "int8", "fp8"]
MODULES = ("tensorrt", "tensorrt_rtx")
OLDEST = 10
LARGEST_BATCH = 16
"""Of a dynamic batch, by default."""
WORSE = ("WARNING", "ERROR", "INTERNAL_ERROR")
KEPT = 50
"""Messages kept of each kind."""


@dataclass(frozen=True)
class Bindings:
    """The Python package that was found."""

    trt: Any
    name: str
    """ "tensorrt" or "tensorrt_rtx"."""
    version: str

    @property
    def rtx(self) -> bool:
        return self.name == "tensorrt_rtx"

    def __str__(self) -> str:
        return f"{'TensorRT for RTX' if self.rtx else 'TensorRT'} {self.version}"


def bindings() -> Bindings:
    """TensorRT, or TensorRT for RTX if only that is installed.

    Raises:
        CapabilityError: neither is installed, or it is older than 10.
    """
    for name in MODULES:
        try:
            trt = import_module(name)
        except ImportError:
            continue
        version = str(trt.__version__)
        if name == "tensorrt" and int(version.partition(".")[0]) < OLDEST:
            message = f"TensorRT {version} is installed; {OLDEST} is the oldest that is known"
            raise CapabilityError(message, remedy="pip install tensorrt")
        return Bindings(trt, name, version)
    message = "neither package tensorrt nor tensorrt-rtx is installed"
    raise CapabilityError(message, remedy="pip install 'framefuse[tensorrt-rtx]'")


class Shapes(Profile):
    """A profile as a plan states it."""

    @classmethod
    def exact(cls, batch: int, height: int, width: int) -> Self:
        return cls.of((batch, 3, height, width))

    @classmethod
    def parse(cls, text: str) -> Self:
        """From "1x3x640x640:8x3x640x640:16x3x640x640", or one shape for all three.

        Raises:
            UsageError: the text has another form.
        """
        try:
            found = [tuple(map(int, part.split("x"))) for part in text.lower().split(":")]
        except ValueError:
            found = []
        fit = all(len(shape) == 4 and shape[1] == 3 and max(shape) < 1 << 31 for shape in found)
        if len(found) not in (1, 3) or not fit:
            message = f"--shapes {text!r} is not MIN:OPT:MAX, each BATCHx3xHEIGHTxWIDTH"
            raise UsageError(message, remedy="write 1x3x640x640:8x3x640x640:16x3x640x640")
        return cls.of(dict(zip(("min", "opt", "max"), (found * 3)[:3], strict=True)))

    def allow(self, batch: int, height: int, width: int) -> bool:
        request = batch, 3, height, width
        return all(low <= asked <= high for low, asked, high in zip(self.min, request, self.max, strict=True))

    def __str__(self) -> str:
        return ":".join("x".join(map(str, shape)) for shape in (self.min, self.opt, self.max))


@dataclass(frozen=True)
class Plan:
    """A serialized engine and how it was built."""

    content: bytes
    precision: PlanPrecision
    shapes: Shapes
    parse_s: float
    build_s: float
    layers: int
    """Layers of the network before fusion."""
    messages: dict[str, list[str]] = field(default_factory=dict)
    """Messages of the builder by severity: warnings and worse, the first `KEPT` of each."""


class Messages:
    """Collects TensorRT's messages. `logger` must outlive everything created with it."""

    def __init__(self, trt: Any) -> None:
        self.said: dict[str, list[str]] = {}

        class Logger(trt.ILogger):  # type: ignore[misc]
            def log(logger, severity: Any, message: str) -> None:
                lines = self.said.setdefault(severity.name, [])
                if len(lines) < KEPT and message not in lines:
                    lines.append(message)

        self.logger = Logger()

    def errors(self) -> str:
        """Errors since `forget`, in one line."""
        lines = [line for kind in ("ERROR", "INTERNAL_ERROR") for line in self.said.get(kind, ())]
        return "; ".join(lines[:3]) or "it gave no reason"

    def forget(self) -> None:
        self.said.clear()


def precision_of(model: Any) -> PlanPrecision:
    """The precision of an ONNX model."""
    from onnx import TensorProto

    kinds = {tensor.data_type for tensor in model.graph.initializer}
    if is_quantised(model):
        return "fp8" if TensorProto.FLOAT8E4M3FN in kinds else "int8"
    heavy = [tensor for tensor in model.graph.initializer if len(tensor.dims) > 1]
    return "fp16" if any(tensor.data_type == TensorProto.FLOAT16 for tensor in heavy) else "fp32"


def rewrite(path: Path, precision: str) -> tuple[Any, PlanPrecision]:
    """The model as TensorRT reads it: quantised around zero, input in float16.

    Args:
        precision: "auto" for what the file is written in, or that; "fp8" of an INT8 file.

    Raises:
        ModelError: the file cannot be read, or has several inputs.
        UsageError: the file is written in another precision.
    """
    from onnx import TensorProto, helper

    model = load_onnx(path)
    written = precision_of(model)
    if precision == "fp8" and written == "int8":
        model, written = to_fp8(model), "fp8"
    elif written == "int8":
        model = symmetric(model)
    if precision not in ("auto", written):
        other = "int8" if precision == "fp8" else precision
        asked = f"precision {precision} was asked for, but {path.name} is written in {written}"
        build = f"framefuse build {path.name} --engine tensorrt --precision {precision}"
        remedy = f"{build}, or build the file with --precision {other} first"
        raise UsageError(f"{asked}, and TensorRT follows the file", remedy=remedy)
    inputs = inputs_of(model)
    if len(inputs) != 1:
        raise ModelError(f"{path.name} has {len(inputs)} inputs; a detector has one")
    (entry,) = inputs
    if entry.type.tensor_type.elem_type == TensorProto.FLOAT:
        inside = f"{entry.name}/float32"
        for node in model.graph.node:
            node.input[:] = [inside if name == entry.name else name for name in node.input]
        model.graph.node.insert(0, helper.make_node("Cast", [entry.name], [inside], inside, to=TensorProto.FLOAT))
        entry.type.tensor_type.elem_type = TensorProto.FLOAT16
    elif entry.type.tensor_type.elem_type != TensorProto.FLOAT16:
        raise ModelError(f"input {entry.name} of {path.name} is neither float32 nor float16")
    return model, written


def build_plan(
    path: Path,
    shapes: Shapes,
    *,
    precision: str = "auto",
    workspace_mb: int = 0,
    timing_cache: Path | None = None,
    found: Bindings | None = None,
) -> Plan:
    """Build the plan of one optimisation profile.

    Args:
        workspace_mb: scratch memory that a kernel may take, MiB; 0: TensorRT's own default.
        timing_cache: a file for times that later builds use. Of two concurrent builders, the last one wins. TensorRT
            for RTX has none: it compiles when it runs.

    Raises:
        ModelError: the file cannot be read, or has an operator that TensorRT lacks; it is named.
        EngineError: TensorRT cannot build it, with its own words.
        UsageError: shapes outside the model's, or a precision that the file does not have.
        CapabilityError: TensorRT is not installed.
    """
    found = found or bindings()
    trt = found.trt
    model, written = rewrite(path, precision)
    started = time.perf_counter()
    said = Messages(trt)
    builder = trt.Builder(said.logger)
    strong = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if strong is None else 1 << int(strong))
    parser = trt.OnnxParser(network, said.logger)
    if not parser.parse(model.SerializeToString()):
        raise ModelError(f"{found} cannot read {path.name}: {_parser_errors(parser)}", remedy="use another engine")
    entry = network.get_input(0)
    _check_shapes(path, tuple(entry.shape), shapes)
    entry.allowed_formats = 1 << int(trt.TensorFormat.HWC8)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if workspace_mb:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace_mb << 20)
    profile = builder.create_optimization_profile()
    profile.set_shape(entry.name, shapes.min, shapes.opt, shapes.max)
    config.add_optimization_profile(profile)
    timed = timing_cache if timing_cache and not found.rtx else None
    if timed:
        config.set_timing_cache(config.create_timing_cache(timed.read_bytes() if timed.exists() else b""), False)
    parsed = time.perf_counter()
    content = builder.build_serialized_network(network, config)
    if content is None:
        remedy = "use another engine, or a file in another precision"
        if workspace_mb:
            remedy = f"give it more scratch memory than {workspace_mb} MiB (--workspace), or a smaller largest shape"
        raise EngineError(f"{found} cannot build {path.name} for {shapes}: {said.errors()}", remedy=remedy)
    ended = time.perf_counter()
    if timed:
        timed.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(timed, bytes(config.get_timing_cache().serialize()))
    worse = {kind: list(lines) for kind, lines in said.said.items() if kind in WORSE}
    times = parsed - started, ended - parsed
    return Plan(bytes(content), written, shapes, *times, int(network.num_layers), worse)


def _parser_errors(parser: Any) -> str:
    lines = []
    for number in range(min(parser.num_errors, 3)):
        error = parser.get_error(number)
        where = f"operator {error.node_operator()} of node {error.node_name()!r}: " if error.node_operator() else ""
        lines.append(f"{where}{error.desc().strip()}")
    return "; ".join(lines) or "it gave no reason"


def _check_shapes(path: Path, declared: tuple[int, ...], shapes: Shapes) -> None:
    for wanted in (shapes.min, shapes.max):
        if len(declared) != 4 or any(own not in (-1, asked) for own, asked in zip(declared, wanted, strict=True)):
            text = "x".join("any" if size == -1 else str(size) for size in declared)
            message = f"shapes {shapes} were asked for, but {path.name} takes {text}"
            raise UsageError(message, remedy="export it with a dynamic batch and size, or ask for what it takes")
