"""Engine tensorrt: TensorRT >= 10, or TensorRT for RTX, where one of them is installed.

    open_engine("tensorrt", Path("yolov8n.onnx"), EngineOptions())    a plan from the cache, or built now
    open_engine("tensorrt", Path("yolov8n.plan"), EngineOptions())    a plan that `framefuse build` wrote

Not yet run on a GPU that TensorRT for RTX supports: the tests use a fake that refuses what the API's documentation says
is refused.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.cuda import device
from framefuse.engines import selftest
from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities, Device, Engine, EngineOptions
from framefuse.engines.requests import DeviceExecution
from framefuse.engines.tensorrt.build import Bindings, Messages, Shapes, bindings, build_plan, precision_of
from framefuse.engines.tensorrt.plans import cached, read, this_gpu
from framefuse.errors import CapabilityError, EngineError, ModelError, UsageError
from framefuse.models.onnx_file import load_onnx

BACKEND = Backend(
    "tensorrt",
    Capabilities({"cuda": ("fp32", "fp16", "int8", "fp8")}, capturable=True),
    opener=f"{__name__}:TensorrtEngine",
    needs={"cuda": Needs((Package("tensorrt", ("tensorrt", "tensorrt_rtx")), CUPY), "tensorrt,cuda13")},
    tester=f"{__name__}:run_selftest",
    checker=f"{__name__}:why_not",
)
PLANS = (".plan", ".engine")
CHANNELS = 8
"""Of an input image: three, and zeros up to those of the format HWC8."""
RTX_CAPABILITIES = "7.5, 8.0, 8.6, 8.9 and 12.x"
"""Compute capabilities of the GPUs that TensorRT for RTX 1.7 supports."""
RTX_GPUS = re.compile("75|80|86|89|12[0-9]")
"""The same, as CuPy writes it."""


class TensorrtEngine(Engine):
    """An ONNX model, or a plan that `framefuse build` wrote, on the current GPU.

    Raises:
        CapabilityError: TensorRT or a GPU is missing.
        ModelError: a plan that is truncated, or of another version, GPU or driver.
        EngineError: TensorRT refuses it.
    """

    name = BACKEND.name
    capabilities = BACKEND.capabilities
    device = "cuda"
    input_dtype = np.dtype(np.float16)

    def __init__(self, model: Path, options: EngineOptions) -> None:
        options.refuse_threads(self.name)
        self._found = bindings()
        device.cupy()
        self._said = Messages(self._found.trt)
        self._runtime = self._found.trt.Runtime(self._said.logger)
        self._model, self._workspace = model, options.workspace_mb
        self._loaded: list[tuple[Shapes, Any]] = []
        self.reasons = [f"{self._found}"]
        if model.suffix in PLANS:
            content, shapes, self.precision = read(model, self._found)
            self._load(content, shapes, model)
        else:
            self.precision = precision_of(load_onnx(model)) if options.precision == "auto" else options.precision
        self.reasons.append(f"precision {self.precision}: TensorRT follows the file")

    def _make_execution(self, batch: int, height: int, width: int) -> "Execution":
        return Execution(self._found, self._engine(batch, height, width), self._said, batch, height, width)

    def close(self) -> None:
        self._loaded.clear()

    def _engine(self, batch: int, height: int, width: int) -> Any:
        for shapes, engine in self._loaded:
            if shapes.allow(batch, height, width):
                return engine
        if self._model.suffix in PLANS:
            ((shapes, _),) = self._loaded
            message = f"{self._model.name} takes {shapes} (min:opt:max), and {batch}x3x{height}x{width} is outside"
            raise UsageError(message, remedy="build it with --shapes that include it")
        wanted = batch, height, width
        kept, shapes = cached(self._model, self.precision, wanted, workspace_mb=self._workspace, found=self._found)
        self.reasons.append(f"shapes {shapes}: {kept.reason}")
        return self._load(kept.path.read_bytes(), shapes, kept.path)

    def _load(self, content: bytes, shapes: Shapes, path: Path) -> Any:
        """A plan, deserialized. TensorRT refuses it if it is foreign, damaged, or for another GPU than this one."""
        self._said.forget()
        engine = self._runtime.deserialize_cuda_engine(content)
        if engine is None:
            said, diagnosis = self._said.errors(), self._validity(content)
            kind = CapabilityError if "UNSUPPORTED_CC" in diagnosis else EngineError
            remedy = "build it again on this machine, or use --engine cudnn"
            if self._found.rtx:
                remedy = f"TensorRT for RTX runs on compute capability {RTX_CAPABILITIES}; use --engine cudnn"
            message = f"{self._found} refuses {path.name} on this GPU, {_this_gpu()}: {said}{diagnosis}"
            raise kind(message, remedy=remedy)
        self.artifact_bytes = len(content)
        self._loaded.append((shapes, engine))
        return engine

    def _validity(self, content: bytes) -> str:
        """TensorRT for RTX's diagnosis of a plan it refuses; "" if there is none."""
        if not hasattr(self._runtime, "get_engine_validity"):  # not in every TensorRT
            return ""
        _, bits = self._runtime.get_engine_validity(content)
        kinds = self._found.trt.EngineInvalidityDiagnostics.__members__.items()
        named = [name for name, kind in kinds if int(bits) & int(kind)]
        return f" ({', '.join(named)})" if named else ""


class Execution(DeviceExecution):
    """One context of a plan with its memory, whose addresses TensorRT is given once. The input is (batch, height,
    width, 8) float16; the channels behind the third stay 0."""

    def __init__(self, found: Bindings, engine: Any, said: Messages, batch: int, height: int, width: int) -> None:
        cp, trt = device.cupy(), found.trt
        self._engine, self._said = engine, said
        self._called = f"{found} at {batch}x3x{height}x{width}"
        names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
        inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        if len(inputs) != 1:
            raise ModelError(f"the plan has {len(inputs)} inputs; a detector has one")
        said.forget()
        self._context = self._new_context(engine, found)
        self._check(self._context is not None, "gives no execution context")
        shape = (batch, 3, height, width)
        self._check(self._context.set_input_shape(inputs[0], shape), "refuses the shape")
        self.input = cp.zeros((batch, height, width, CHANNELS), cp.float16)
        self.results: list[Any] = []
        memory = {inputs[0]: self.input}
        for name in names:
            if name not in memory:
                shape = tuple(self._context.get_tensor_shape(name))
                if any(size < 0 for size in shape):
                    raise ModelError(f"output {name} has shape {shape}, which varies", remedy="use another engine")
                memory[name] = cp.zeros(shape, np.dtype(trt.nptype(engine.get_tensor_dtype(name))))
                self.results.append(memory[name])
        for name, at in memory.items():
            self._check(self._context.set_tensor_address(name, device.address(at)), f"refuses the memory of {name}")
        cp.cuda.get_current_stream().synchronize()

    def start(self, stream: Any) -> None:
        """Start the model on a stream of CuPy. It can be captured after one run that was not."""
        self._check(self._context.execute_async_v3(stream.ptr), "does not run")

    def _new_context(self, engine: Any, found: Bindings) -> Any:
        """A context whose kernels are compiled now, since they cannot be compiled during a capture."""
        if not found.rtx:
            return engine.create_execution_context()
        trt, config = found.trt, engine.create_runtime_config()
        config.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.EAGER
        config.cuda_graph_strategy = trt.CudaGraphStrategy.DISABLED  # the caller captures
        return engine.create_execution_context(runtime_config=config)

    def _check(self, done: bool, what: str) -> None:
        if not done:
            raise EngineError(f"{self._called} {what}: {self._said.errors()}")


def _this_gpu() -> str:
    return "{} of compute capability {}.{}".format(*this_gpu())


def why_not(model: Path, precision: str, height: int, width: int) -> str | None:
    """Why TensorRT cannot run a model here: the GPU, or the precision of the file, which it follows."""
    found = bindings()
    capability = str(device.cupy().cuda.Device().compute_capability)
    if found.rtx and not RTX_GPUS.fullmatch(capability):
        return f"{found} does not run on {_this_gpu()}"
    written = precision_of(load_onnx(model))
    if precision in ("auto", written) or (precision, written) == ("fp8", "int8"):
        return None
    return f"TensorRT follows the file, which is written in {written}"


def run_selftest(backend: Backend, where: Device) -> str:
    """As `framefuse.engines.selftest.run`; CapabilityError also where a plan is built but does not run."""
    found = bindings()
    built = str(found)
    if found.rtx:
        with tempfile.TemporaryDirectory() as folder:
            path, shapes = selftest.write(Path(folder, "two.onnx")), Shapes.exact(1, selftest.SIZE, selftest.SIZE)
            built += f" builds ({build_plan(path, shapes, found=found).build_s:.1f} s)"
    try:
        return f"{built}, {selftest.run(backend, where)}"
    except (CapabilityError, EngineError) as error:
        raise CapabilityError(f"{built}, but does not run here: {error.message}", remedy=error.remedy) from error
