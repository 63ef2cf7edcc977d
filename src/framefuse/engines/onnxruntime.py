"""ONNX Runtime: on the CPU the light and portable engine, whose `submit` runs the model; on NVIDIA GPUs its CUDA
provider, and its TensorRT providers if they are installed: engines onnxruntime, onnxruntime-tensorrt and -nvrtx.

Title: how it gets into our CUDA graph
    A session launches on our stream and uses our memory. After a first run, which loads and allocates everything, its
    launches are captured. A session that cannot be captured (a TensorRT provider, or operators left on the CPU) is
    started between two graphs instead; `reasons` say so. Each execution has its own session, because the captured graph
    contains the session's scratch memory.
"""

import re
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.common.files import user_cache
from framefuse.common.machine import available_cores
from framefuse.common.ort import cpu_session, onnxruntime
from framefuse.common.text import lines_of
from framefuse.cuda import device
from framefuse.cuda.device import StreamPool, new_stream, translate_cuda_error
from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities, Engine, EngineOptions, check_int8
from framefuse.engines.onnx_shapes import at_shape
from framefuse.engines.requests import DeviceExecution, Shape, Slot, SlotPool, capture, fork_join
from framefuse.errors import CapabilityError, EngineError, FramefuseError, GpuMemoryError, ModelError
from framefuse.models.fp16 import plan_fp16, to_fp16, to_fp32
from framefuse.models.onnx_file import inputs_of, is_quantised, load_onnx, plain_words


def _cuda(library: str) -> Needs:
    return Needs((Package("onnxruntime-gpu", ("onnxruntime",), f"capi/libonnxruntime_providers_{library}.so"), CUPY),
                 "cuda13")  # fmt: skip


_ON_GPU = {"cuda": ("fp32", "fp16", "int8")}
BACKEND = Backend(
    "onnxruntime",
    Capabilities({"cpu": ("fp32",), **_ON_GPU}, capturable=True, quantised_as_written=True),
    opener=f"{__name__}:open_engine",
    needs={"cpu": Needs((Package("onnxruntime", ("onnxruntime",)),), "ort"), "cuda": _cuda("cuda")},
)
TENSORRT, NVRTX = (
    Backend(f"onnxruntime-{name}", Capabilities(_ON_GPU), f"{__name__}:open_{name}", {"cuda": _cuda(library)})
    for name, library in (("tensorrt", "tensorrt"), ("nvrtx", "nv_tensorrt_rtx"))
)
NO_MEMORY = re.compile(r"[Ff]ailed to allocate memory|out of memory|ALLOC(ATION)?_FAILED")
NO_HANDLE = re.compile(r"CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)")
"""Messages of libraries that cannot initialise, mostly for lack of memory."""
_forked = list[Any]()
"""Sessions of a parent process, never freed here: that would wait for their threads, which a fork does not have."""
LITTLE = 200_000_000
"""Free bytes below which lack of memory is the cause."""
LIBRARY = re.compile(r"(?:CUDA|CUBLAS|CUDNN|CUFFT) (?:failure|error) .*?(?= ;|$)", re.MULTILINE)
"""Message of a CUDA library inside a longer text."""


def cannot_load(path: Path, error: Exception) -> ModelError:
    """The error for a model that does not load; names an operator that is missing."""
    missing = r"No Op registered for (\w+)|implementation for (\w+)\(|(?:Fatal error: )?(\S+)\(-1\) is not a"
    if found := re.search(missing, str(error)):
        name = next(group for group in found.groups() if group)
        message = f"ONNX Runtime has no operator {name}, which {path} uses"
        return ModelError(message, remedy="export the model with an opset that has it")
    return ModelError(f"ONNX Runtime cannot load {path}: {first_line(error)}")


def no_room(doing: str, error: Exception) -> EngineError | None:
    """A GpuMemoryError, if the GPU is out of memory; otherwise None. `doing` is an infinitive."""
    short = bool(NO_MEMORY.search(str(error)))
    if not short and NO_HANDLE.search(str(error)):
        with suppress(Exception):  # a failing query must not hide the error
            short = device.cupy().cuda.runtime.memGetInfo()[0] < LITTLE
    return translate_cuda_error(MemoryError(first_line(error)), doing) if short else None


def first_line(error: BaseException) -> str:
    said = LIBRARY.search(str(error))
    return (said or lines_of(error))[0][:300]


class OnnxRuntimeEngine(Engine):
    name = BACKEND.name
    capabilities = BACKEND.capabilities

    def __init__(self, model: Path, options: EngineOptions) -> None:
        ort = onnxruntime("ort")
        options.refuse_workspace(self.name)
        threads = options.threads or available_cores()
        session_options = ort.SessionOptions()
        session_options.intra_op_num_threads = threads
        # Spinning workers burn the cores that decoding needs, and collapse beside a busy neighbour.
        session_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._run_options = ort.RunOptions()
        try:
            self._session = cpu_session(ort, model, session_options)
        except Exception as error:  # the bindings raise a dozen unrelated classes
            raise cannot_load(model, error) from error
        entry = self._session.get_inputs()[0]
        self._input_name = entry.name
        self.input_dtype = _dtype(entry.type)
        self.precision = "fp16" if self.input_dtype == np.float16 else "fp32"
        why = "ONNX Runtime runs the model as it is written"
        if b"DequantizeLinear" in model.read_bytes():
            why = "the model is quantised, but where no quantiser follows a convolution ONNX Runtime multiplies in fp32"
        how = f"{threads} threads without spinning, one request at a time"
        self.reasons = [f"precision {self.precision}: {why}", how]

    def _make_request_pool(self, batch: int, height: int, width: int, slots: int) -> SlotPool:
        shape = (batch, 3, height, width)
        return SlotPool(shape, [Slot(np.zeros(shape, self.input_dtype))], start=self._run)

    def _run(self, slot: Slot) -> None:
        try:
            slot.outputs = tuple(self._session.run(None, {self._input_name: slot.input}, self._run_options))
        except Exception as error:
            message = f"ONNX Runtime failed at input {slot.input.shape}: {plain_words(error)}"
            raise EngineError(message, remedy="ask for another --imgsz, or use another engine") from error

    def close(self) -> None:
        self._run_options.terminate = True  # a request that still runs
        if not self.is_own:
            _forked.append(self._session)
        self._session = None


PROVIDERS = {
    BACKEND.name: "CUDAExecutionProvider",
    TENSORRT.name: "TensorrtExecutionProvider",
    NVRTX.name: "NvTensorRTRTXExecutionProvider",
}
"""Engine -> its provider in ONNX Runtime."""
_streams = StreamPool(new_stream)


class OnnxRuntimeCudaEngine(Engine):
    """An ONNX model on the current GPU. Precision auto: float16, or int8 if the model is quantised."""

    device = "cuda"

    def __init__(self, model: Path, options: EngineOptions, backend: Backend = BACKEND) -> None:
        from onnx import helper

        name = self.name = backend.name
        self.capabilities = backend.capabilities
        self._provider = PROVIDERS[name]
        self._ort = ort = _onnxruntime()
        available = ort.get_available_providers()
        if self._provider not in available:
            message = f"this ONNX Runtime ({ort.__version__}) has no {self._provider}; it has {', '.join(available)}"
            remedy = f"install an ONNX Runtime that was built with {self._provider}, or use another engine"
            if name == "onnxruntime":
                remedy = "pip uninstall onnxruntime, then pip install 'framefuse[cuda13]'"
            raise CapabilityError(message, remedy=remedy)
        options.refuse_threads(name)
        device.cupy()
        self._path, self._workspace = model, options.workspace_mb << 20
        self._model = load_onnx(model)
        quantised = is_quantised(self._model)
        check_int8(options.precision, quantised)
        usual = "int8" if quantised else "fp16"
        self.precision = usual if options.precision == "auto" else options.precision
        why = "as asked" if options.precision != "auto" else "the model is quantised" if quantised else "the GPU's own"
        how = f"ONNX Runtime {ort.__version__}, {self._provider}, on our stream and memory"
        self.reasons = [f"precision {self.precision}: {why}", how]
        kind = inputs_of(self._model)[0].type.tensor_type.elem_type
        self.input_dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))

    def _make_execution(self, batch: int, height: int, width: int) -> "Execution":
        model = at_shape(deepcopy(self._model), (batch, 3, height, width))
        if self.precision == "fp32":
            model = to_fp32(model)
        elif self.precision == "fp16" and self.input_dtype == np.float32:
            model = to_fp16(model, plan_fp16(model, {}))
        made = Execution(self._session, model.SerializeToString(), (batch, 3, height, width), self.input_dtype)
        self.reasons.append(f"batch {batch} of {width}x{height}: {made.how}")
        return made

    def close(self) -> None:
        self._model = None

    def _session(self, model: bytes, stream: Any, *, own_graph: bool) -> Any:
        """A session on `stream`, which may capture and replay a graph of its own."""
        ort = self._ort
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1  # threads would only spin
        shared = {"device_id": str(device.current_gpu()), "user_compute_stream": str(stream.ptr)}
        graph = "1" if own_graph else "0"
        providers = {"CUDAExecutionProvider": shared | self._cuda_options(graph)}
        if self._provider not in providers:
            providers = {self._provider: shared | self._tensorrt_options(graph), **providers}
        try:
            # With fallback it would silently continue with another provider, even in the middle of a run.
            session = ort.InferenceSession(model, options, providers=[*providers.items()], enable_fallback=0)
        except Exception as error:  # the bindings raise a dozen unrelated classes
            if "lease install" in str(error):
                raise self._does_not_load(first_line(error)) from error
            raise no_room(f"load {self._path.name}", error) or cannot_load(self._path, error) from error
        if session.get_providers()[0] != self._provider:
            raise self._does_not_load("its libraries are missing or of another version")
        return session

    def _does_not_load(self, why: str) -> CapabilityError:
        message = f"{self._provider} of ONNX Runtime {self._ort.__version__} does not load: {why}"
        remedy = "install its libraries (CUDA and cuDNN: pip install 'framefuse[cuda13]', with a driver for CUDA 13)"
        return CapabilityError(message, remedy=remedy)

    def _cuda_options(self, graph: str) -> dict[str, str]:
        options = {
            "cudnn_conv_algo_search": "EXHAUSTIVE",
            "cudnn_conv_use_max_workspace": "1",
            "enable_cuda_graph": graph,
            # If TF32 is off, float16 convolutions do not use tensor cores either: 2.8 ms instead of 0.8.
            **dict.fromkeys(("prefer_nhwc", "fuse_conv_bias", "use_tf32"), "0" if self.precision == "fp32" else "1"),
        }
        return options | ({"gpu_mem_limit": str(self._workspace)} if self._workspace else {})

    def _tensorrt_options(self, graph: str) -> dict[str, str]:
        folder = user_cache() / self.name
        folder.mkdir(parents=True, exist_ok=True)
        if self.name == "onnxruntime-nvrtx":
            return {"nv_runtime_cache_path": str(folder), "enable_cuda_graph": graph}
        options = {
            **dict.fromkeys(("trt_engine_cache_enable", "trt_timing_cache_enable"), "1"),
            "trt_fp16_enable": "1" if self.precision == "fp16" else "0",
            "trt_engine_cache_path": str(folder),
            "trt_cuda_graph_enable": graph,
        }
        return options | ({"trt_max_workspace_size": str(self._workspace)} if self._workspace else {})


class Execution(DeviceExecution):
    """A model of one input shape, (batch, 3, height, width), with its own memory on the GPU. `how` says whether it can
    be captured, and why not, for the report."""

    memory_format = "nchw"
    _binding: Any

    def __init__(self, open_session: Any, model: bytes, shape: Shape, dtype: np.dtype[Any]) -> None:
        cp = device.cupy()
        self._stream, self._release_stream = _streams.acquire()
        self.input = cp.zeros(shape, dtype)
        cp.cuda.get_current_stream().synchronize()
        self._session = open_session(model, self._stream, own_graph=False)
        self._options = _onnxruntime().RunOptions()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self.results: list[Any] = []
        self._bind_and_run()  # determines the shapes of the outputs
        self.results = [cp.zeros(value.shape(), _dtype(value.data_type())) for value in self._binding.get_outputs()]
        self._bind_and_run()
        self.capturable, self.how = True, "captured"
        try:
            capture(self._stream, self._run)
        except Exception as error:  # ONNX Runtime's, or CUDA's
            self.capturable = False
            why = lines_of(error)[0][:200]
            self._session = self._binding = None
            self.how = f"{self._with_own_graph(open_session, model)} ({why})"

    def __del__(self) -> None:
        self._binding = self._session = None  # they free memory on the stream, which must outlive them
        if hasattr(self, "_release_stream"):
            self._release_stream()

    def start(self, stream: Any) -> None:
        fork_join(stream, self._stream, self._run)

    def _with_own_graph(self, open_session: Any, model: bytes) -> str:
        """Open a session that replays its own graph, or one that launches each kernel; how it runs, for the report."""
        for own_graph, how in ((True, "a graph of its own between two of ours"), (False, "started kernel by kernel")):
            try:
                self._session = open_session(model, self._stream, own_graph=own_graph)
                self._bind_and_run(3)  # run, capture, replay
                return how
            except FramefuseError as error:
                if not own_graph or isinstance(error, GpuMemoryError):
                    raise
        raise AssertionError

    def _bind_and_run(self, runs: int = 1) -> None:
        """Bind the input and `results` (or outputs that ONNX Runtime allocates, before there are any), and run."""
        gpu, name = device.current_gpu(), self._session.get_inputs()[0].name
        self._binding = self._session.io_binding()
        self._binding.bind_input(name, "cuda", gpu, self.input.dtype.type, self.input.shape, self.input.data.ptr)
        for output, result in zip_longest(self._session.get_outputs(), self.results):
            memory = () if result is None else (result.dtype.type, result.shape, result.data.ptr)
            self._binding.bind_output(output.name, "cuda", gpu, *memory)
        for _ in range(runs):
            self._run()
        self._stream.synchronize()

    def _run(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding, self._options)
        except Exception as error:
            failed = EngineError(f"ONNX Runtime failed at input {self.input.shape}: {first_line(error)}")
            raise no_room(f"run the model at input {self.input.shape}", error) or failed from error


def _onnxruntime() -> Any:
    ort = onnxruntime("cuda13")
    if "CUDAExecutionProvider" in ort.get_available_providers():
        ort.preload_dlls()  # CUDA's libraries from their pip packages
    return ort


def _dtype(text: str) -> Any:
    """Number format by ONNX Runtime's name."""
    names = {"float": "float32", "double": "float64"}
    inner = text.removeprefix("tensor(").removesuffix(")")
    return np.dtype(names.get(inner, inner))


def open_engine(model: Path, options: EngineOptions) -> Engine:
    """Load an ONNX model."""
    return OnnxRuntimeCudaEngine(model, options) if options.device == "cuda" else OnnxRuntimeEngine(model, options)


open_tensorrt = partial(OnnxRuntimeCudaEngine, backend=TENSORRT)
open_nvrtx = partial(OnnxRuntimeCudaEngine, backend=NVRTX)
