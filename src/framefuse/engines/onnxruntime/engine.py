"""ONNX Runtime on the CPU, the light and portable engine; `submit` runs the model. On GPUs: `cuda.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from framefuse.common.machine import available_cores
from framefuse.common.ort import SILENT, cpu_session, onnxruntime
from framefuse.engines.engine import Engine, EngineOptions
from framefuse.engines.onnxruntime import BACKEND
from framefuse.engines.onnxruntime.errors import cannot_load
from framefuse.engines.requests import Slot, SlotPool
from framefuse.errors import EngineError, UsageError

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}


class OnnxRuntimeEngine(Engine):
    name = BACKEND.name
    capabilities = BACKEND.capabilities

    def __init__(self, model: Path, options: EngineOptions) -> None:
        ort = onnxruntime("ort")
        if options.workspace_mb:
            raise UsageError("engine onnxruntime has no workspace limit", remedy="leave workspace_mb at 0")
        threads = options.threads or available_cores()
        session_options = ort.SessionOptions()
        session_options.intra_op_num_threads = threads
        # Spinning workers burn the cores that decoding needs, and collapse beside a busy neighbour.
        session_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session_options.log_severity_level = SILENT
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = SILENT
        try:
            self._session = cpu_session(ort, model, session_options)
        except Exception as error:  # the bindings raise a dozen unrelated classes
            raise cannot_load(model, error) from error
        entry = self._session.get_inputs()[0]
        self._input_name = entry.name
        self.input_dtype = np.dtype(DTYPES[entry.type])
        nodes = {node.type for node in self._session.get_inputs()}
        self.precision = "fp16" if "tensor(float16)" in nodes else "fp32"
        why = "ONNX Runtime runs the model as it is written"
        if b"DequantizeLinear" in model.read_bytes():
            why = "the model is quantised, but where no quantiser follows a convolution ONNX Runtime multiplies in fp32"
        self.reasons = [
            f"precision {self.precision}: {why}",
            f"{threads} threads without spinning, one request at a time",
        ]

    def _make_request_pool(self, batch: int, height: int, width: int, slots: int) -> SlotPool:
        shape = (batch, 3, height, width)
        slot = Slot(np.zeros(shape, self.input_dtype))
        return SlotPool(shape, [slot], start=self._run, wait=lambda slot, timeout: True)

    def _run(self, slot: Slot) -> None:
        try:
            slot.outputs = tuple(self._session.run(None, {self._input_name: slot.input}, self._run_options))
        except Exception as error:
            raise EngineError(f"ONNX Runtime failed at input {slot.input.shape}: {error}") from error

    def close(self) -> None:
        self._run_options.terminate = True  # a request that still runs
        self._session = None


def open_engine(model: Path, options: EngineOptions) -> Engine:
    """Load an ONNX model."""
    if options.device == "cuda":
        from framefuse.engines.onnxruntime.cuda import OnnxRuntimeCudaEngine

        return OnnxRuntimeCudaEngine(model, options)
    return OnnxRuntimeEngine(model, options)
