"""PyTorch as an engine: an nn.Module, an exported program (.pt2), TorchScript or ONNX.

Channels last throughout. On the CPU a slot is read in place and `submit` runs the model; on a GPU the model's launches
are captured with ours (`cuda.py`).
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.common.machine import available_cores
from framefuse.common.text import first_line
from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities, Engine, EngineOptions
from framefuse.engines.onnx_shapes import at_shape, folded
from framefuse.engines.requests import DeviceExecution, Shape, Slot, SlotPool
from framefuse.errors import CapabilityError, EngineError, FramefuseError, ModelError, UsageError
from framefuse.models.fp16 import plan_fp16, to_fp16, to_fp32
from framefuse.models.onnx_file import load_onnx

BACKEND = Backend(
    "torch",
    Capabilities(
        {"cpu": ("fp32", "bf16", "fp16"), "cuda": ("fp32", "bf16", "fp16")},
        capturable=True,
        quantised_as_written=True,
        survives_fork=False,  # a fork has none of OpenMP's workers
    ),
    opener=f"{__name__}:TorchEngine",
    needs={
        "cpu": Needs((Package("torch", ("torch",)),), "torch"),
        "cuda": Needs((Package("torch", ("torch",), "lib/libtorch_cuda.so"), CUPY), "torch,cuda13"),
    },
)
SUFFIXES = (".onnx", ".pt2", ".pt", ".ts", ".torchscript")
HALVES = ("fp16", "bf16")
Network = Callable[[Any], Sequence[Any]]
"""(batch, 3, height, width) -> the model's outputs."""


class TorchEngine(Engine):
    """A model of PyTorch.

    Args:
        model: a file, or an `nn.Module` in evaluation mode, which is moved and converted in place.
    """

    name = BACKEND.name
    capabilities = BACKEND.capabilities

    def __init__(self, model: Any, options: EngineOptions) -> None:
        self._torch = torch = _torch()
        on_gpu = options.device == "cuda"
        self.device = "cuda" if on_gpu else "cpu"
        if on_gpu and not torch.cuda.is_available():
            remedy = "install a PyTorch for this GPU's CUDA (pytorch.org), or use --device cpu"
            raise CapabilityError(f"PyTorch {torch.__version__} finds no GPU that it can use", remedy=remedy)
        options.refuse_workspace(self.name)
        if options.streams > 1:
            raise UsageError(f"engine torch runs one request at a time, not {options.streams}", remedy="leave it 0")
        self._device = torch.device(self.device)
        usual = "fp16" if on_gpu else "fp32"
        self.precision = usual if options.precision == "auto" else options.precision
        if self.precision not in self.capabilities.precisions[self.device]:
            raise CapabilityError(f"engine torch has no {self.precision}", remedy="use another engine")
        self._half = torch.bfloat16 if self.precision == "bf16" else torch.float16
        self._dtype = self._half if self.precision in HALVES else torch.float32
        self._module: Any = None
        self._onnx: Any = None
        self._what = str(model) if isinstance(model, Path) else type(model).__name__
        if isinstance(model, Path) and model.suffix == ".onnx":
            self._onnx = load_onnx(model)
        else:
            self._module = self._converted(_read(torch, model) if isinstance(model, Path) else model)
        threads = options.threads or available_cores()
        if not on_gpu:
            torch.set_num_threads(threads)
        why = f"usual on {self._device}" if options.precision == "auto" else "as asked"
        how = "channels last" if on_gpu else f"channels last, {threads} threads, one request at a time"
        self.reasons = [f"precision {self.precision}: {why}", f"PyTorch {torch.__version__}, {how}"]
        # What the first layer reads, if NumPy has that type.
        self.input_dtype = np.dtype(np.float16 if self.precision == "fp16" and on_gpu else np.float32)

    def network(self, shape: Shape) -> Network:
        """The model for one input shape, on its device.

        Raises:
            UsageError: the model, or the profile it was built for, excludes this shape.
            ModelError: it has operators that are not known.
        """
        if self._onnx is None:
            module, dtype = self._module, self._dtype
            return lambda image: flatten(module(image.to(dtype)), self._torch)
        from framefuse.engines.torch.importer import OnnxNetwork

        model = folded(to_fp32(at_shape(deepcopy(self._onnx), shape)))
        if self.precision in HALVES:
            model = folded(to_fp16(model, plan_fp16(model, {})))
        return OnnxNetwork(model, self._device, self._half)

    def _make_execution(self, batch: int, height: int, width: int) -> DeviceExecution:
        from framefuse.engines.torch.cuda import Execution

        made = Execution(self.network((batch, 3, height, width)), (batch, height, width, 3), self.input_dtype)
        self.reasons.append(f"batch {batch} of {width}x{height}: {made.how}")
        return made

    def _make_request_pool(self, batch: int, height: int, width: int, slots: int) -> SlotPool:
        shape = (batch, 3, height, width)
        network, torch = self.network(shape), self._torch

        def run(slot: Slot) -> None:
            try:
                with torch.inference_mode():
                    outputs = network(torch.from_numpy(slot.input).permute(0, 3, 1, 2))
            except FramefuseError:
                raise
            except Exception as error:  # whatever the model's own code raises
                raise EngineError(f"PyTorch failed at input {shape}: {error}") from error
            slot.outputs = tuple(output.float().numpy() for output in outputs)

        slot = Slot(np.zeros((batch, height, width, 3), self.input_dtype), memory_format="nhwc")
        return SlotPool(shape, [slot], start=run)

    def close(self) -> None:
        self._module = self._onnx = None

    def _converted(self, module: Any) -> Any:
        """The module on its device, in its precision, channels last."""
        torch, dtype = self._torch, self._dtype
        if isinstance(module, torch.export.ExportedProgram):
            found = {value.dtype for value in module.state_dict.values() if value.is_floating_point()}
            if found - {dtype}:
                message = f"{self._what} was exported in {', '.join(sorted(map(str, found)))}, not in {self.precision}"
                raise UsageError(message, remedy="export it in that precision, or pass the nn.Module")
            return module.module().to(self._device)
        return module.eval().to(device=self._device, dtype=dtype, memory_format=torch.channels_last)


def flatten(outputs: Any, torch: Any) -> list[Any]:
    """The tensors that a module returned, in order, without nested lists, which modules return for training."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    values: Iterable[Any] = outputs.values() if isinstance(outputs, dict) else outputs
    return [value for value in values if isinstance(value, torch.Tensor)]


def _read(torch: Any, path: Path) -> Any:
    """A PyTorch file, loaded; a ModelError if it cannot be read, or is not a known kind of file."""
    if path.suffix not in SUFFIXES:
        raise ModelError(f"engine torch cannot read {path}", remedy=f"pass a file that ends in {', '.join(SUFFIXES)}")
    try:
        return torch.export.load(path) if path.suffix == ".pt2" else torch.jit.load(path, map_location="cpu")
    except Exception as error:  # a zip's, pickle's, or PyTorch's own classes
        remedy = "pass an exported program (.pt2), TorchScript (.pt, .ts) or ONNX; weights alone are no model"
        raise ModelError(f"PyTorch cannot load {path}: {first_line(error)}", remedy=remedy) from error


def _torch() -> Any:
    """The module. Unless OMP_WAIT_POLICY is set, its OpenMP workers do not spin: on two busy cores, spinning at
    barriers made a YOLOv8n take 0.4 to 5 s instead of 0.13 s."""
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch
    except ImportError as error:
        raise CapabilityError("package torch is not installed", remedy="pip install 'framefuse[torch]'") from error
    return torch
