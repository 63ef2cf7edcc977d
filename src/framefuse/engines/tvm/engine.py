"""Engine tvm: ONNX -> Relax -> machine code for this CPU or GPU, with the schedules of `framefuse tune`.

Synchronous on the CPU: `submit` runs the model. On CUDA a slot is one CUDA graph over TVM's virtual machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.machine import available_cores
from framefuse.cuda import device as gpus
from framefuse.engines.cache import Cached, EngineCache, model_hash
from framefuse.engines.engine import Engine, EngineOptions
from framefuse.engines.requests import Shape, Slot, SlotPool
from framefuse.engines.tvm import BACKEND, compiling, targets
from framefuse.engines.tvm.package import tensors, tvm, versions
from framefuse.engines.tvm.targets import Target
from framefuse.engines.tvm.tuning import Records, default_folder
from framefuse.errors import EngineError, ModelError, UsageError
from framefuse.kernels.cpu import tvm_ffi
from framefuse.models.onnx_file import read_onnx

if TYPE_CHECKING:
    from framefuse.engines.tvm.cuda import TvmExecution

ALIGNMENT = 64
"""Bytes; compiled code requires it of its arrays and does not check."""


class TvmEngine(Engine):
    """A model, compiled for one input shape at a time.

    Args:
        cudnn: offload convolutions to cuDNN; CUDA and fp16 only. Default: yes on CUDA at fp16.
    """

    name = BACKEND.name
    capabilities = BACKEND.capabilities

    def __init__(self, model: Path, options: EngineOptions, *, cudnn: bool | None = None) -> None:
        if options.workspace_mb or options.streams > 1:
            raise UsageError("engine tvm has neither streams nor a workspace limit", remedy="leave both at 0")
        tvm()
        self._model = model
        inputs = read_onnx(model).inputs
        if len(inputs) != 1:
            raise ModelError(f"{model} has {len(inputs)} inputs", remedy="engine tvm takes one: the image")
        self.input_dtype = np.dtype(inputs[0].dtype)
        self._threads = options.threads or available_cores()
        on_gpu = options.device == "cuda"
        self.device = "cuda" if on_gpu else "cpu"
        self.target = targets.this_gpu() if on_gpu else targets.this_cpu(self._threads)
        self.precision = ("fp16" if on_gpu else "fp32") if options.precision == "auto" else options.precision
        offloads = on_gpu and self.precision == "fp16"
        if cudnn and not offloads:
            raise UsageError("cuDNN runs convolutions on CUDA at fp16 only", remedy="leave cudnn out")
        self.cudnn = offloads if cudnn is None else cudnn
        self._built: dict[Shape, Path] = {}
        self._records = Records(default_folder(self.target), self.target)
        self.reasons = [
            f"precision {self.precision}: {'as asked' if options.precision != 'auto' else 'the default here'}",
            f"target {self.target.text}, convolutions by {'cuDNN' if self.cudnn else 'TVM'}",
        ]
        if self._records.note:
            self.reasons.append(self._records.note)
        if not self._records.digest and not self.cudnn:
            self.reasons.append("not tuned: slow; run `framefuse tune` with this model")

    def _make_request_pool(self, batch: int, height: int, width: int, slots: int) -> SlotPool:
        shape = (batch, 3, height, width)
        main = self._compiled(shape)["main"]
        slot = Slot(_aligned(shape, self.input_dtype))
        return SlotPool(shape, [slot], start=lambda slot: _run(main, slot))

    def _make_execution(self, batch: int, height: int, width: int) -> TvmExecution:
        from framefuse.engines.tvm.cuda import TvmExecution, register_compiler, register_convolutions

        register_compiler(self.target)
        shape = (batch, 3, height, width)
        if not self.cudnn:
            return TvmExecution(self._compiled(shape), shape, self.input_dtype)
        runner = register_convolutions()
        before = runner.calls
        first = shape not in self._built
        made = TvmExecution(self._compiled(shape), shape, self.input_dtype, runner)
        runner.plans.save()
        if first and runner.calls == before:
            self.reasons.append("cuDNN runs none of its convolutions, or TVM cannot convert it to NHWC")
        return made

    def _compiled(self, shape: Shape) -> Any:
        if shape not in self._built:
            built = artifact(self._model, shape, self.target, self.precision, cudnn=self.cudnn, records=self._records)
            self.reasons.append(built.reason)
            self._built[shape] = built.path
        return self._load(self._built[shape])

    def _load(self, path: Path) -> Any:
        """Load a compiled network into TVM's virtual machine."""
        module = tvm()
        try:
            device = module.cuda(gpus.current_gpu()) if self.target.kind == "cuda" else module.cpu()
            if self.target.kind == "llvm":
                tvm_ffi().get_global_func("runtime.config_threadpool")(1, self._threads)
            return module.relax.VirtualMachine(module.runtime.load_module(str(path)), device)
        except Exception as error:  # TVM raises unrelated classes
            raise EngineError(f"TVM cannot load {path}: {error}", remedy=f"delete {path} and try again") from error


def artifact(
    model: Path, shape: Shape, target: Target, precision: str, *, cudnn: bool = False, records: Records | None = None
) -> Cached:
    """The shared library of a model, from the cache or compiled now.

    Raises:
        ModelError: the model cannot be read, or TVM lacks one of its operators.
        EngineError: TVM cannot compile it, or the cache cannot be written.
        CapabilityError: no linker is installed.
    """
    digest = records.digest if records is not None else ""
    key = {
        "model": model_hash(model),
        "engine": "tvm",
        "version": f"{versions()} lowering {compiling.LOWERING_VERSION}",
        "device": target.text,
        "precision": precision,
        "shapes": json.dumps(shape),
        "flags": f"cudnn={int(cudnn)} tuning={digest or 'none'}",
    }

    def build(path: Path) -> None:
        lowered = compiling.lower(compiling.import_model(model, shape), target, precision, cudnn=cudnn)
        database: Any = records.copy() if records is not None and digest else None
        compiling.compile_to(path, lowered, target, database=database)

    try:
        return EngineCache("tvm").get(key, build, suffix=".so")
    except OSError as error:
        raise EngineError(f"the compiled model cannot be written: {error}", remedy="set XDG_CACHE_HOME") from error


def _run(main: Any, slot: Slot) -> None:
    try:
        slot.outputs = tuple(np.from_dlpack(tensor) for tensor in tensors(main(tvm_ffi().from_dlpack(slot.input))))
    except Exception as error:
        raise EngineError(f"TVM failed at input {slot.input.shape}: {error}") from error


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
