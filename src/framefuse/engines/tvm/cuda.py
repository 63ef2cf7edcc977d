"""Engine tvm on GPUs: TVM's program with its own memory, which can be captured in a CUDA graph.

TVM's libraries contain CUDA source, which TVM would compile in every process and for every request; here the engine
cache keeps the cubin. Compiled programs call cuDNN's fused kernels for convolutions, autotuned as in engine cudnn.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.cuda import device
from framefuse.engines.cache import EngineCache
from framefuse.engines.cudnn.convolutions import BIAS, RESIDUAL, WEIGHT, Builder, Layer, Plan, X, Y
from framefuse.engines.cudnn.plans import Plans
from framefuse.engines.requests import DeviceExecution, Shape
from framefuse.engines.tvm import offload
from framefuse.engines.tvm.compiling import MEMORY
from framefuse.engines.tvm.package import address, tensors, versions
from framefuse.engines.tvm.targets import Target
from framefuse.errors import CapabilityError, EngineError
from framefuse.kernels.cpu import tvm_ffi

COMPILE = "tvm_callback_cuda_compile"
"""The global function that TVM's runtime calls to compile CUDA source."""
FP16_BYTES = 2


def register_compiler(target: Target, cache: EngineCache | None = None) -> Callable[[Any], bytes]:
    """Register the cached compiler with TVM's runtime; the compiler, which takes CUDA source.

    Raises:
        CapabilityError: no CUDA toolkit is installed.
    """
    from tvm.support import nvcc

    try:
        importlib.import_module("cuda.bindings.nvrtc")
        compiler = "nvrtc"  # where TVM can call it, in a third of nvcc's time
    except ImportError:
        compiler = "nvcc"
    try:
        toolkit = nvcc.find_cuda_path()
        version = ".".join(map(str, nvcc.get_cuda_version(toolkit)))
    except Exception as error:  # RuntimeError, or an error of its subprocess
        message = f"engine tvm needs the headers of a CUDA toolkit: {error}"
        remedy = "install CUDA toolkit 13 with nvcc, or use --engine cudnn, which needs no toolkit"
        raise CapabilityError(message, remedy=remedy) from error

    def compile_cached(code: Any) -> bytes:
        text = str(code)

        def build(path: Path) -> None:
            with target.tvm():
                cubin = nvcc.compile_cuda(text, target_format="cubin", arch=target.arch, compiler=compiler)
            path.write_bytes(bytes(cubin))

        key = {
            "model": hashlib.sha256(text.encode()).hexdigest(),
            "engine": "tvm cuda",
            "version": versions(),
            "device": target.text,
            **dict.fromkeys(("precision", "shapes"), ""),
            "flags": f"{compiler} {version}",
        }
        return (cache or EngineCache("tvm")).get(key, build, suffix=".cubin").path.read_bytes()

    tvm_ffi().register_global_func(COMPILE, compile_cached, override=True)
    return compile_cached


def register_convolutions() -> ConvolutionRunner:
    """Register `offload.FUNCTION` with TVM's runtime; returns the runner of this thread's current GPU."""
    tvm_ffi().register_global_func(
        offload.FUNCTION, lambda *call: _runner_of(device.current_gpu())(*call), override=True
    )
    return _runner_of(device.current_gpu())


@cache
def _runner_of(gpu: int) -> ConvolutionRunner:
    """One runner per GPU, because cuDNN handles and plans belong to one GPU."""
    return ConvolutionRunner()


class ConvolutionRunner:
    """Runs the convolutions of all executions on one GPU.

    Attributes:
        calls: number of convolutions so far.
        workspaces: by size, of the execution that is launching.
        lock: held by the execution that is launching.
    """

    def __init__(self) -> None:
        self.builder = Builder()
        self.plans = Plans(self.builder)
        self.calls = 0
        self.workspaces: dict[int, Any] = {}
        self.lock = threading.Lock()
        self._plans: dict[Any, tuple[dict[str, Any], Plan]] = {}

    @contextmanager
    def using(self, workspaces: dict[int, Any]) -> Iterator[None]:
        """Launch with the workspaces of one execution; all executions on a GPU share this runner."""
        with self.lock:
            self.workspaces = workspaces
            try:
                yield
            finally:
                self.workspaces = {}

    def __call__(self, x: Any, weight: Any, bias: Any, *rest: Any) -> None:
        """`rest`: an optional residual, the attributes as JSON, and the output. Tensors are NHWC float16.

        x and the residual may have more channels than the convolution reads; the attributes give the first one.
        """
        self.calls += 1
        *residual, text, y = rest
        shape = tuple(residual[0].shape) if residual else None
        key = (tuple(x.shape), tuple(weight.shape), tuple(y.shape), shape, str(text))
        if key not in self._plans:
            attributes = json.loads(key[-1])
            self._plans[key] = attributes, self.plans(_layer(*key[:-1], attributes))
        attributes, plan = self._plans[key]
        if plan.workspace not in self.workspaces:
            self.workspaces[plan.workspace] = device.cupy().empty(max(1, plan.workspace), device.cupy().uint8)
        pointers = {WEIGHT: address(weight), BIAS: address(bias), Y: address(y)}
        pointers[X] = address(x) + FP16_BYTES * attributes["first"]
        if residual:
            pointers[RESIDUAL] = address(residual[0]) + FP16_BYTES * attributes["residual_first"]
        stream = device.cupy().cuda.get_current_stream()
        self.builder.launch(plan, pointers, self.workspaces[plan.workspace], stream)


def _layer(x: Any, weight: Any, y: Any, residual: Any, attributes: dict[str, Any]) -> Layer:
    batch, height, width, _ = map(int, x)
    outputs, rows, columns, inputs = map(int, weight)
    shapes = (batch, inputs, height, width), (outputs, inputs, rows, columns), (batch, outputs, int(y[1]), int(y[2]))
    added = None if residual is None else _strides(residual)
    stride, pads, dilation = (tuple(attributes[name]) for name in ("stride", "pads", "dilation"))
    activation = attributes["activation"] or "identity"  # as in `Layer.of`, else cuDNN lists slower kernels first
    return Layer(shapes[0], _strides(x), *shapes[1:], _strides(y), added, stride, pads, dilation, activation)


def _strides(shape: Any) -> tuple[int, int, int, int]:
    """Of an NHWC tensor in NCHW order, in elements."""
    _, height, width, channels = map(int, shape)
    return height * width * channels, 1, width * channels, channels


class TvmExecution(DeviceExecution):
    """A compiled network of one shape on the GPU.

    It owns its memory, and a warm-up run compiles and loads all kernels. So a captured run allocates nothing, and
    executions can run concurrently.
    """

    memory_format = "nchw"

    def __init__(
        self, machine: Any, shape: Shape, dtype: np.dtype[Any], runner: ConvolutionRunner | None = None
    ) -> None:
        cp = device.cupy()
        self._main, self._device = machine["main"], tvm_ffi().device(f"cuda:{device.current_gpu()}")
        self._runner = runner
        self._workspaces: dict[int, Any] = {}
        self._memory = list(machine[MEMORY]())
        self.input = cp.zeros(shape, dtype)
        self._tensor = tvm_ffi().from_dlpack(self.input)  # once: DLPack exchange synchronises, which a capture forbids
        self._out: list[Any] = []
        stream = cp.cuda.Stream(non_blocking=True)
        cp.cuda.get_current_stream().synchronize()
        try:
            self.start(stream)
            stream.synchronize()
        except Exception as error:  # TVM raises unrelated classes
            raise EngineError(f"TVM's program fails on the GPU: {error}") from error
        self.results = [cp.empty(tuple(map(int, out.shape)), str(out.dtype)) for out in self._out]

    def start(self, stream: Any) -> None:
        """Launch every kernel on `stream`."""
        workspaces = self._runner.using(self._workspaces) if self._runner else nullcontext()
        with workspaces, tvm_ffi().use_raw_stream(self._device, stream.ptr), stream:
            self._out = tensors(self._main(self._tensor, *self._memory))

    def finish(self, stream: Any) -> None:
        """Write `results`."""
        runtime = device.cupy().cuda.runtime
        for out, result in zip(self._out, self.results, strict=True):
            runtime.memcpyAsync(result.data.ptr, address(out), result.nbytes,
                                runtime.memcpyDeviceToDevice, stream.ptr)  # fmt: skip
