"""An engine for arrays of one's own.

with load_engine("model-fp16.onnx") as engine:
    outputs = engine.infer(images)
    print(engine.benchmark(batch=8))
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast, get_args

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device as gpus
from framefuse.engines import Backend, Device, EngineOptions, Precision, check_capabilities, find_backend, open_engine
from framefuse.engines.onnx_shapes import read_profile
from framefuse.engines.requests import RequestPool, Shape
from framefuse.errors import FramefuseError, UsageError
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.runtime.choices import select


@dataclass(frozen=True)
class Timing:
    """Statistics of several runs, in milliseconds."""

    runs: int
    min: float
    median: float
    mean: float
    p95: float
    p99: float
    max: float
    std: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Self:
        values = np.asarray(milliseconds, np.float64)
        median, p95, p99 = np.percentile(values, (50, 95, 99)).tolist()
        std = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        return cls(len(values), float(values.min()), median, float(values.mean()), p95, p99, float(values.max()), std)

    @property
    def fps(self) -> float:
        """Runs a second at the mean time: what a loop of them reaches."""
        return 1e3 / self.mean


@dataclass(frozen=True)
class Benchmark:
    """How fast an engine is with arrays in host memory: from a full input to its outputs, one request at a time."""

    engine: str
    device: str
    precision: str
    shape: Shape
    """(batch, 3, height, width)"""
    timing: Timing
    bytes: int
    """Size of the file that runs."""

    @property
    def fps(self) -> float:
        """Images a second."""
        return self.shape[0] * self.timing.fps

    def __str__(self) -> str:
        """Two lines of a table, the titles and the numbers, in milliseconds."""
        timing = self.timing
        columns = {
            name: f"{getattr(timing, name):.3f}" for name in ("mean", "std", "min", "max", "median", "p95", "p99")
        }
        columns |= {"FPS": f"{self.fps:.0f}", "size MB": f"{self.bytes / 1e6:.1f}"}
        columns = {"shape": "x".join(map(str, self.shape)), **columns}
        widths = [max(len(name), len(text)) for name, text in columns.items()]
        rows = (" ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
                for row in (columns, columns.values()))  # fmt: skip
        return "\n".join((f"{self.engine} on {self.device}, {self.precision}, {timing.runs} runs", *rows))


class LoadedEngine:
    """An open engine; close it, or use it in a `with` statement. One thread at a time.

    Attributes:
        reasons: each choice, with its reason.
    """

    def __init__(self, path: Path, name: str, options: EngineOptions, shape: Shape) -> None:
        self._path, self._name, self._shape = path, name, shape
        self._device = options.device
        self._engine = open_engine(name, path, options)
        self._pools: dict[Shape, RequestPool] = {}
        self._closed = False
        self.reasons = list(self._engine.reasons)

    def infer(self, images: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """The model's outputs for images (batch, 3, height, width), float32, already normalised as it expects.

        Raises:
            UsageError: another shape, or one that the model or its profile rules out.
        """
        if getattr(images, "ndim", 0) != 4 or images.shape[1] != 3:
            shape = tuple(getattr(images, "shape", ()))
            raise UsageError(f"images have the shape {shape}", remedy="pass (batch, 3, height, width)")
        with self._request(tuple(images.shape)) as (pool, slot):
            slot.write(np.asarray(images, np.float32))
            pool.submit(slot)
            pool.wait(slot)
            return tuple(np.array(output) for output in slot.outputs)

    def benchmark(self, *, warmup: int = 20, runs: int = 100, batch: int | None = None) -> Benchmark:
        """Time it on noise, at the shape that it was built for.

        Args:
            warmup: runs before those that count.
            batch: images at a time; default: as built.

        Raises:
            UsageError: no runs, or a batch that the model or its profile rules out.
        """
        if runs < 1 or warmup < 0 or (batch is not None and batch < 1):
            message = f"runs is {runs}, warmup {warmup} and batch {batch}"
            raise UsageError(message, remedy="ask for one run of one image or more")
        shape = self._shape if batch is None else (batch, *self._shape[1:])
        noise, times = np.random.default_rng(0).random(shape, np.float32), []
        with self._request(shape) as (pool, slot):
            slot.write(noise)
            for _ in range(warmup + runs):
                begin = time.perf_counter()
                pool.submit(slot)
                pool.wait(slot)
                times.append((time.perf_counter() - begin) * 1e3)
        size = self._engine.artifact_bytes or self._path.stat().st_size
        ran = self._engine.precision
        return Benchmark(self._name, self._device, ran, shape, Timing.of(times[warmup:]), size)

    @contextlib.contextmanager
    def _request(self, shape: Shape) -> Any:
        if self._closed:
            raise UsageError("this engine was closed", remedy="load it again")
        if shape not in self._pools:
            self._close_pools()  # one shape at a time, so that memory does not grow with their number
            self._pools = {shape: self._engine.request_pool(shape[0], *shape[2:], 1)}
        pool = self._pools[shape]
        slot = pool.acquire()
        assert slot is not None
        try:
            yield pool, slot
        finally:
            pool.release(slot)

    def close(self) -> None:
        """Free the engine."""
        self._close_pools()
        self._engine.close()
        self._closed = True

    def _close_pools(self) -> None:
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def load_engine(
    model: str | Path, *, engine: str = "auto", device: Device = "auto", precision: Precision = "auto"
) -> LoadedEngine:
    """Open an engine for arrays.

    Args:
        model: an ONNX file, such as `build_engine` writes, or the name of a shipped model.
        engine: name; auto: the fastest installed one that has the precision on the device.
        device: auto: a usable GPU if there is one.
        precision: of the engine.

    Raises:
        UsageError: an unknown engine.
        ModelError: the file cannot be read, or has operators that the engine lacks.
        CapabilityError: the engine or the device is missing.
    """
    path, (backend, device, _) = find_model(model), choose_engine(engine, device, precision)
    profile = read_profile(path)
    if profile is not None:
        shape = profile.opt
    else:
        spec = read_card(path).preprocess
        shape = 1, 3, spec.height, spec.width
    return LoadedEngine(path, backend.name, EngineOptions(device, precision), shape)


def choose_engine(engine: str, device: Device, precision: Precision) -> tuple[Backend, Device, str]:
    """The engine and the device, where they are left open, and why. The device is the only one of the engine, or a
    usable GPU. UsageError: there is no such engine or device; CapabilityError: no engine has that precision there."""
    if device not in get_args(Device):
        message = f"device {device!r} is not one of {', '.join(get_args(Device))}"
        raise UsageError(message, remedy="choose one of these")
    if device == "auto":
        only = find_backend(engine).capabilities.devices if engine != "auto" else ()
        device = cast(Device, only[0]) if len(only) == 1 else usable_device()
    if engine == "auto":
        backend, why = select(device, precision)
    else:
        backend, why = find_backend(engine), f"engine {engine}: as asked"
        check_capabilities(backend, device, precision)
    return backend, device, why


def usable_device() -> Device:
    """cuda if CuPy finds a usable GPU, else cpu."""
    with contextlib.suppress(FramefuseError):
        gpus.cupy()
        return "cuda"
    return "cpu"
