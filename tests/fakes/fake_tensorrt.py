"""A TensorRT 10 without a GPU: it refuses what the API's documentation says is refused, and computes with ONNX Runtime.

What it refuses: a network with a dynamic input and no profile; plans that are not its own; shapes outside the profile;
unknown names; running before the shape or an address is set; being captured before it has run once.
"""

from __future__ import annotations

import ctypes
import json
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

TAG = b"FAKE"


class Severity(IntEnum):
    ERROR = 1
    WARNING = 2
    INFO = 3


class ILogger:
    def log(self, severity: Severity, message: str) -> None:
        raise NotImplementedError


class Network:
    def __init__(self, flags: int) -> None:
        self.strong = bool(flags & 1)
        self.model: Any = None
        self.entry = SimpleNamespace(name="", shape=(), allowed_formats=0)

    num_layers = 7

    def get_input(self, number: int) -> Any:
        return self.entry


class Parser:
    def __init__(self, network: Network, logger: ILogger) -> None:
        self.network, self.errors = network, list[Any]()

    @property
    def num_errors(self) -> int:
        return len(self.errors)

    def get_error(self, number: int) -> Any:
        return self.errors[number]

    def parse(self, content: bytes) -> bool:
        model = onnx.load_from_string(content)
        for node in model.graph.node:
            if node.domain:
                said = {"desc": "No importer registered", "node_name": node.name, "node_operator": node.op_type}
                self.errors.append(SimpleNamespace(**{key: lambda text=text: text for key, text in said.items()}))
                return False
        (entry,) = (value for value in model.graph.input)
        sizes = tuple(size.dim_value or -1 for size in entry.type.tensor_type.shape.dim)
        self.network.model, self.network.entry.name, self.network.entry.shape = content, entry.name, sizes
        return True


class TimingCache:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def serialize(self) -> bytes:
        return self.content + b"+"


class Config:
    def __init__(self) -> None:
        self.profiles: list[Any] = []
        self.limit = 0
        self.times: Any = None
        self.profiling_verbosity: Any = None

    def set_memory_pool_limit(self, pool: Any, size: int) -> None:
        self.limit = size

    def add_optimization_profile(self, profile: Any) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, content: bytes) -> TimingCache:
        return TimingCache(content)

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        self.times = cache
        return True

    def get_timing_cache(self) -> TimingCache:
        return self.times


class Builder:
    def __init__(self, logger: ILogger) -> None:
        self.logger = logger

    def create_network(self, flags: int = 0) -> Network:
        return Network(flags)

    def create_builder_config(self) -> Config:
        return Config()

    def create_optimization_profile(self) -> Any:
        profile = SimpleNamespace(shapes=None)
        profile.set_shape = lambda name, *shapes: setattr(profile, "shapes", shapes)
        return profile

    def build_serialized_network(self, network: Network, config: Config) -> bytes | None:
        def refuse(why: str) -> None:
            self.logger.log(Severity.ERROR, f"IBuilder::buildSerializedNetwork: {why}")

        if -1 in network.entry.shape and not config.profiles:
            return refuse("Network has dynamic or shape inputs, but no optimization profile has been defined")
        if network.entry.allowed_formats != 1 << 3:
            return refuse("another input format")
        if 0 < config.limit < 1 << 20:
            return refuse("Error Code 2: OutOfMemory (Requested size was 1048576 bytes.)")
        self.logger.log(Severity.WARNING, "one thing to know")
        head = json.dumps({"shapes": config.profiles[0].shapes, "input": network.entry.name}).encode()
        return TAG + len(head).to_bytes(4, "little") + head + network.model


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        self.logger = logger

    def deserialize_cuda_engine(self, content: bytes) -> Engine | None:
        if content[:4] != TAG:
            self.logger.log(Severity.ERROR, "Serialization assertion header.magicTag == kEXPECTED_MAGIC_TAG failed")
            return None
        return Engine(content, self.logger)


class Engine:
    def __init__(self, content: bytes, logger: ILogger) -> None:
        size = int.from_bytes(content[4:8], "little")
        head = json.loads(content[8 : 8 + size])
        self.logger, self.shapes = logger, head["shapes"]
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self.session = ort.InferenceSession(content[8 + size :], options, providers=["CPUExecutionProvider"])
        self.names = [head["input"], *(value.name for value in self.session.get_outputs())]
        self.num_io_tensors = len(self.names)
        self.profiling_verbosity = "DETAILED"

    def get_tensor_name(self, number: int) -> str:
        return self.names[number]

    def get_tensor_mode(self, name: str) -> str:
        return "INPUT" if name == self.names[0] else "OUTPUT"

    def get_tensor_dtype(self, name: str) -> Any:
        return np.float16 if name == self.names[0] else np.float32

    def create_execution_context(self) -> Context:
        return Context(self)

    def create_engine_inspector(self) -> Any:
        layers = [{"Name": "conv", "Precision": "FP32"}, "reformat"]
        return SimpleNamespace(get_engine_information=lambda kind: json.dumps({"Layers": layers}))


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.shape, self.addresses, self.ran = engine, None, dict[str, int](), False

    def _refuse(self, why: str) -> bool:
        self.engine.logger.log(Severity.ERROR, f"IExecutionContext: {why}")
        return False

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = self.engine.shapes
        if name != self.engine.names[0]:
            return self._refuse(f"no input is called {name}")
        if not all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
            return self._refuse(f"{shape} is outside the profile {low}..{high}")
        self.shape = shape
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if self.shape is None:
            return (-1, -1, -1)
        return next(
            a.shape
            for out, a in zip(self.engine.names[1:], self._run(np.zeros(self.shape, "f2")), strict=True)
            if out == name
        )

    def set_tensor_address(self, name: str, address: int) -> bool:
        if name not in self.engine.names:
            return self._refuse(f"no tensor is called {name}")
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        if self.shape is None:
            return self._refuse("Not all shapes are specified")
        if missing := [name for name in self.engine.names if not self.addresses.get(name)]:
            return self._refuse(f"Address is not set for tensor {missing[0]}")
        if stream == 0:
            return self._refuse("the default stream was given")
        if CAPTURING and not self.ran:
            return self._refuse("cudaErrorStreamCaptureUnsupported: it has to run once before it is captured")
        self.ran = True
        batch, _, height, width = self.shape
        pixels = np.zeros((batch, height, width, 8), np.float16)
        ctypes.memmove(pixels.ctypes.data, self.addresses[self.engine.names[0]], pixels.nbytes)
        outputs = self._run(pixels[..., :3].transpose(0, 3, 1, 2))
        for name, output in zip(self.engine.names[1:], outputs, strict=True):
            output = np.ascontiguousarray(output)
            ctypes.memmove(self.addresses[name], output.ctypes.data, output.nbytes)
        return True

    def _run(self, images: np.ndarray[Any, Any]) -> list[Any]:
        return list(self.engine.session.run(None, {self.engine.names[0]: np.ascontiguousarray(images)}))


CAPTURING: list[int] = []
"""Not empty while a stream is being captured."""


def module(version: str = "10.13.0") -> ModuleType:
    """What `import tensorrt` gives."""
    found = ModuleType("tensorrt")
    found.__dict__.update(
        __version__=version,
        ILogger=ILogger,
        Builder=Builder,
        OnnxParser=Parser,
        Runtime=Runtime,
        NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=0),
        TensorFormat=SimpleNamespace(HWC8=3),
        MemoryPoolType=SimpleNamespace(WORKSPACE=0),
        ProfilingVerbosity=SimpleNamespace(DETAILED=2),
        LayerInformationFormat=SimpleNamespace(JSON=1),
        TensorIOMode=SimpleNamespace(INPUT="INPUT", OUTPUT="OUTPUT"),
        nptype=lambda dtype: dtype,
    )
    return found
