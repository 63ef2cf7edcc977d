"""One ONNX model on every available engine under one protocol: outputs, speed and build cost.

All engines are open at once and their runs are interleaved: in each round every engine does a few runs, in a newly
shuffled order, so that load from other processes affects all of them alike. Wall-clock times run from a full slot in
host memory to the outputs in host memory, one request at a time. Device times come from the GPU's clock and cover the
model alone on GPU memory, captured in a graph where possible. Every engine runs the decoding that is part of the model,
and all outputs are compared with those of the first FP32 row, so that no engine is fast by computing something else.
"""

import json
import platform
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from framefuse.common.text import first_line
from framefuse.cuda import device as gpus
from framefuse.engines import Device, DeviceExecution, Engine, EngineOptions, Precision, engine_names, open_engine
from framefuse.engines.requests import RequestPool, Slot, device_request_pool, launcher
from framefuse.errors import CapabilityError, FramefuseError, ModelError, UsageError
from framefuse.kernels.boxes.reference import floats
from framefuse.lab.doctor import facts
from framefuse.lab.loading import Timing, usable_device
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.models.onnx_file import read_onnx
from framefuse.runtime.choices import check_size
from framefuse.runtime.power import EnergyFacts, Meter, find_counters

WARMUPS, RUNS, ROUNDS = 20, 100, 10
SECONDS, ENERGY_SECONDS = 60.0, 3.0
Array = NDArray[Any]


@dataclass
class Row:
    """One engine on one device."""

    engine: str
    device: str
    precision: str = ""
    """The precision that ran. If the row did not run: the requested one, or empty for auto."""
    build_seconds: float = 0.0
    """From the ONNX to an engine that is ready for this shape; `reasons` tell whether a cache was used."""
    artifact_bytes: int = 0
    """Size of the file that the engine runs: its own build, or the ONNX itself."""
    wall: Timing | None = None
    device_time: Timing | None = None
    error: float | None = None
    """Norm of the difference from the reference's outputs, divided by the norm of those outputs."""
    reasons: list[str] = field(default_factory=list)
    energy: EnergyFacts | None = None
    """Per image, in further runs without a pause; it says why where the device cannot be measured."""
    not_run: str = ""
    """Why it did not run on this machine; empty if it did."""

    @property
    def fastest(self) -> float:
        """Median device time if there is one, else median wall-clock time of a request; 0 if it did not run."""
        timing = self.device_time or self.wall
        return timing.median if timing else 0.0

    @property
    def title(self) -> str:
        return " ".join(filter(None, (self.engine, self.precision, "on", self.device)))

    @property
    def key(self) -> tuple[str, str, str]:
        """Rows with the same key are duplicates."""
        return self.engine, self.device, self.not_run or self.precision


@dataclass
class BenchReport:
    """All rows, and the machine that they were measured on."""

    model: str
    shape: tuple[int, int, int, int]
    rows: list[Row]
    warmups: int
    runs: int
    reference: str
    machine: dict[str, str]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Header and rows of text; a row that did not run is a single sentence."""
        header = ("engine", "device", "precision", "median ms", "min", "mean", "p95", "p99", "max", "std", "FPS",
                  "device ms", "img/s", "vs fastest", "J/img", "build s", "size MB", "error")  # fmt: skip
        ran = [row for row in self.rows if row.wall is not None and row.engine != "null"]
        best = min((row.fastest for row in ran), default=0.0)
        lines: list[tuple[str, ...]] = []
        for row in self.rows:
            if (wall := row.wall) is None:
                continue
            device = row.device_time
            times = (wall.median, wall.min, wall.mean, wall.p95, wall.p99, wall.max, wall.std)
            lines.append((
                row.engine, row.device, row.precision, *(f"{time:.3f}" for time in times),
                f"{self.shape[0] / wall.median * 1e3:.0f}", f"{device.median:.3f}" if device else "-",
                f"{self.shape[0] / row.fastest * 1e3:.0f}" if row.engine != "null" else "-",
                f"{row.fastest / best:.2f}" if row.engine != "null" else "-",
                f"{row.energy.joules_per_frame:.3g}" if row.energy and row.energy.joules_per_frame else "-",
                f"{row.build_seconds:.1f}", f"{row.artifact_bytes / 1e6:.1f}",
                "-" if row.error is None else f"{row.error:.1e}",
            ))  # fmt: skip
        lines += [(f"{row.title}: not run here, because {row.not_run}",) for row in self.rows if row.not_run]
        why = dict.fromkeys(f"J/img: {row.energy.line()}" for row in self.rows if row.energy and row.energy.missing)
        return header, [*lines, *((line,) for line in why)]

    def check(self, engines: Sequence[str] = ()) -> None:
        """Raise CapabilityError, with the reason, if one of `engines` was not measured, or none at all."""
        ran = {row.engine for row in self.rows if row.wall is not None}
        for name in engines:
            if name not in ran:
                why = "; ".join(dict.fromkeys(row.not_run for row in self.rows if row.engine == name))
                raise CapabilityError(f"engine {name} was not measured: {why}", remedy="framefuse doctor")
        if not ran - {"null"} and "null" not in engines:
            raise CapabilityError(f"no engine could run {self.model}; the table says why", remedy="framefuse doctor")


@dataclass
class _Peer:
    """A row and what runs it."""

    row: Row
    engine: Engine
    pool: RequestPool
    slot: Slot
    execution: DeviceExecution | None
    """What `device_run` runs; kept because a captured graph does not keep its memory alive."""
    device_run: Callable[[], float] | None
    wall: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)

    def run(self) -> None:
        started = time.perf_counter()
        self.pool.submit(self.slot)
        self.pool.wait(self.slot)
        self.wall.append((time.perf_counter() - started) * 1e3)
        if self.device_run is not None:
            self.device.append(self.device_run())

    def measure_energy(self, seconds: float, gpu: int | None) -> None:
        """Run without a pause; no run where nothing can be measured."""
        meter, runs, started = Meter(find_counters(gpu)[:1]), 0, time.perf_counter()
        meter.start()
        while not meter.counters[0].missing and time.perf_counter() - started < seconds:
            self.pool.submit(self.slot)
            self.pool.wait(self.slot)
            runs += 1
        meter.stop()
        self.row.energy = meter.facts(runs * len(self.slot.input))[0]


def bench_engines(
    model: str | Path,
    *,
    engines: Sequence[str] = (),
    devices: Sequence[Literal["auto", "cpu", "cuda"]] = ("auto",),
    precision: Precision | Sequence[Precision] = "auto",
    batch: int = 1,
    imgsz: tuple[int, int] | None = None,
    warmups: int = WARMUPS,
    runs: int = RUNS,
    seconds: float = SECONDS,
    say: Callable[[str], None] = lambda line: None,
) -> BenchReport:
    """Measure a model on engines.

    Args:
        model: ONNX file, or the name of a shipped model.
        engines: names; default: every known engine. An engine that cannot run gets a row with the reason.
        devices: auto: cuda if there is a usable GPU, else cpu.
        precision: one for all engines, or several to try on each; auto: each engine's own choice. Precisions that
            resolve to the same one share a row.
        imgsz: height and width; default: the model's own, or 640x640.
        seconds: time limit for the runs of one engine; a slow engine makes fewer runs, see `Timing.runs`.
        say: called with a line of progress at each step.

    Raises:
        UsageError: an unknown engine or an invalid number.
        ModelError: the model cannot be read.
    """
    path = find_model(model)
    known = engine_names()
    for name in engines:
        if name not in known:
            raise UsageError(f"no engine is called {name!r}", remedy=f"choose among {', '.join(sorted(known))}")
    if batch < 1 or runs < 1 or warmups < 0 or not seconds > 0:
        message = f"batch {batch}, runs {runs}, warm-ups {warmups}, seconds {seconds:g}"
        raise UsageError(message, remedy="use 1 or more; warm-ups 0 or more")
    shape = _shape(path, batch, imgsz)
    image = np.random.default_rng(0).random(shape, np.float32)
    asked = dict.fromkeys([precision] if isinstance(precision, str) else precision)
    peers: list[_Peer] = []
    rows: list[Row] = []
    for device in dict.fromkeys(usable_device() if device == "auto" else device for device in devices):
        for name, number_format in product(engines or known, asked):
            row = Row(name, device, number_format if number_format != "auto" else "")
            say(f"opening {row.title}")
            try:
                peers += _open(row, path, shape, image, number_format, rows)
            except FramefuseError as error:
                row.not_run = error.message
            except Exception as error:  # an engine that fails gets a row too
                row.not_run = f"it failed: {type(error).__name__}: {first_line(error)}"
            if row.key not in {other.key for other in rows}:
                rows.append(row)
    reference = _compare(peers)
    say(f"measuring {', '.join(f'{peer.row.engine} {peer.row.precision}' for peer in peers)}")
    _measure(peers, warmups, runs, seconds)
    for peer in peers:
        peer.row.wall = Timing.of(peer.wall)
        peer.row.device_time = Timing.of(peer.device) if peer.device else None
        peer.measure_energy(min(seconds, ENERGY_SECONDS), gpus.current_gpu() if peer.engine.device == "cuda" else None)
        peer.pool.close()
        peer.engine.close()
    return BenchReport(path.name, shape, rows, warmups, runs, reference, machine())


def machine() -> dict[str, str]:
    """Hardware and package versions; numbers mean nothing without them."""
    found = facts() | {"platform": platform.platform()}
    with suppress(FramefuseError):
        runtime = gpus.cupy().cuda.runtime
        found["gpu"] = runtime.getDeviceProperties(runtime.getDevice())["name"].decode()
        found["cuda driver"] = str(runtime.driverGetVersion())
    return found


def _shape(path: Path, batch: int, imgsz: tuple[int, int] | None) -> tuple[int, int, int, int]:
    inputs = read_onnx(path).inputs
    stated = inputs[0].shape
    if len(stated) != 4 or len(inputs) != 1:
        raise UsageError(f"{path} takes {', '.join(map(str, inputs))}", remedy="pass an image model (b, 3, h, w)")
    height, width = imgsz or (stated[2] or 640, stated[3] or 640)
    asked = {"batch": (batch, stated[0]), "height": (height, stated[2]), "width": (width, stated[3])}
    for name, (wanted, fixed) in asked.items():
        if fixed and wanted != fixed and not (name == "batch" and wanted == 1):
            message = f"{name} {wanted} was asked for, but {path.name} has a fixed {name} of {fixed}"
            raise UsageError(message, remedy="export the model with a dynamic shape, or leave it out")
    if imgsz:
        with suppress(ModelError):  # models without a card can be measured too
            check_size(read_card(path), height, width)
    return stated[0] or batch, stated[1] or 3, height, width


def _open(
    row: Row, path: Path, shape: tuple[int, int, int, int], image: Array, precision: Precision, rows: Sequence[Row]
) -> list[_Peer]:
    """The peer of a row; empty if one of `rows` is the same engine in the same precision."""
    started = time.perf_counter()
    engine = open_engine(row.engine, path, EngineOptions(cast(Device, row.device), precision, streams=1))
    row.precision = engine.precision
    if row.key in {other.key for other in rows}:
        engine.close()
        return []
    execution = None
    if engine.device == "cuda":
        execution = engine.execution(shape[0], *shape[2:])
        row.build_seconds = time.perf_counter() - started
        pool: RequestPool = device_request_pool(shape, [execution])
    else:
        pool = engine.request_pool(shape[0], *shape[2:], 1)
        row.build_seconds = time.perf_counter() - started
    row.reasons = list(engine.reasons)
    row.artifact_bytes = engine.artifact_bytes or path.stat().st_size
    slot = pool.acquire()
    assert slot is not None
    slot.write(image)
    working = None if row.engine == "null" else execution  # that one launches nothing that could be captured
    return [_Peer(row, engine, pool, slot, execution, None if working is None else on_device(working))]


def on_device(execution: DeviceExecution) -> Callable[[], float]:
    """Runs the model on GPU memory, on noise, as zeros can be faster: milliseconds by the GPU's clock.

    The execution must outlive the function that is returned.
    """
    cp = gpus.cupy()
    noise = np.random.default_rng(1).random(execution.input.shape)
    if execution.memory_format == "nhwc":
        noise[..., 3:] = 0  # padding channels
    execution.input.set(np.ascontiguousarray(noise.astype(execution.input.dtype)))
    stream = cp.cuda.Stream(non_blocking=True)
    begun, ended = cp.cuda.Event(), cp.cuda.Event()

    launch = launcher(execution, stream)

    def run() -> float:
        begun.record(stream)
        launch()
        ended.record(stream)
        ended.synchronize()
        return float(cp.cuda.get_elapsed_time(begun, ended))

    return run


def _compare(peers: Sequence[_Peer]) -> str:
    """Run each peer once and record its error against the reference; returns the name of the reference row."""
    compared: list[tuple[Row, list[Array]]] = []
    for peer in peers:
        peer.pool.submit(peer.slot)
        peer.pool.wait(peer.slot)
        if peer.row.engine != "null" and peer.slot.layout is None:
            compared.append((peer.row, [floats(output).astype(np.float64) for output in peer.slot.outputs]))
    if not compared:
        return ""
    first, expected = next((one for one in compared if one[0].precision == "fp32"), compared[0])
    for row, outputs in compared:
        if [output.shape for output in outputs] != [output.shape for output in expected]:
            row.reasons.append("its outputs differ in shape from the reference's")
            continue
        away = sum(float(((a - b) ** 2).sum()) for a, b in zip(outputs, expected, strict=True))
        row.error = float(np.sqrt(away / max(sum(float((b**2).sum()) for b in expected), 1e-30)))
    return f"{first.engine} {first.device} {first.precision}"


def _measure(peers: Sequence[_Peer], warmups: int, runs: int, seconds: float) -> None:
    """Warm up, then measure in rounds: each peer does a few runs per round, in a new order, within its `seconds`."""
    shuffle = random.Random(0).shuffle
    order = list(peers)
    for total, rounds in ((warmups, 2), (runs, ROUNDS)):
        patience = seconds * 1e3 * total / (warmups + runs)
        for peer in peers:
            peer.wall.clear()
            peer.device.clear()
        for done, upto in pairwise(total * number // rounds for number in range(rounds + 1)):
            shuffle(order)
            for peer in order:
                for _ in range(upto - done):
                    if sum(peer.wall) < patience:
                        peer.run()
