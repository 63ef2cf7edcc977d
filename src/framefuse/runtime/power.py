"""Power: how many joules a run took, by the best counter of each device.

A `Counter` reads one device: a GPU by NVML, the packages of the CPU by RAPL, a whole Jetson by its power monitors. It
counts everything on that device, other programs too. A `Meter` reads counters while a run works. It never ends a run:
where a counter is absent, cannot be read or shows nonsense, there is a reason in place of a number, and never a 0.
"""

import importlib
import platform
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from framefuse.common.files import user_cache
from framefuse.cuda import device as gpus
from framefuse.errors import CapabilityError
from framefuse.runtime.choices import check_driver

POLL_SECONDS, READ_SECONDS, SHORTEST, LIMIT = 0.1, 30.0, 0.5, 2000.0
"""Seconds between two readings of power, and of energy, as RAPL wraps around after minutes; seconds of the shortest run
that is measured, as NVML's counter moves ten times a second; watts that no device reaches."""
TOTALS = "VDD_IN", "POM_5V_IN", "5V_IN", "VIN", "VDD_GPU_SOC VDD_CPU_CV VIN_SYS_5V0", "GPU CPU SOC CV VDDRQ SYS5V"
"""Rails that together supply a Jetson, by board; all others are parts of these (the memory of AGX Orin is)."""


@dataclass(frozen=True)
class EnergyFacts:
    """Energy of one device over a run, its idle power included. Numbers are None where `missing` says why."""

    device: str
    source: str
    error: str
    seconds: float = 0.0
    joules: float | None = None
    watts: float | None = None
    idle_watts: float | None = None
    joules_per_frame: float | None = None
    above_idle_per_frame: float | None = None
    """Joules without those that the device would have taken at rest in the same time."""
    stages: dict[str, float] = field(default_factory=dict)
    """Joules a frame by stage, in proportion to its time on the device; on a CPU, `other` is what no stage did."""
    missing: str = ""

    def line(self) -> str:
        if self.watts is None:
            return f"{self.device} not measured, because {self.missing}"
        parts = [f"{self.joules_per_frame:.3g} J a frame"] if self.joules_per_frame else []
        if self.above_idle_per_frame:
            parts.append(f"{self.above_idle_per_frame:.3g} J above the {self.idle_watts:.3g} W at rest")
        parts += [f"{self.watts:.1f} W on average", f"by {self.source} ({self.error})"]
        split = ", ".join(f"{name} {joules:.2g}" for name, joules in self.stages.items())
        return f"{self.device} {', '.join(parts)}{f'; J by stage: {split}' if split else ''}"


@dataclass(eq=False)
class Counter:
    """What measures one device, and what it has counted so far."""

    device: str  # cpu, cuda:0, or board: all of a Jetson
    source: str
    error: str = ""  # what is known of it
    value: Callable[[], float] = float
    """Joules since any moment, or watts; may raise anything."""
    of_power: bool = False
    missing: str = ""  # why there is no number
    joules: float = 0.0
    seconds: float = 0.0
    last: tuple[float, float] | None = None  # time and value

    @property
    def idle_file(self) -> Path:
        """Holds the watts of this device at rest, once `framefuse power --save-idle` has measured them."""
        return user_cache() / "idle" / re.sub(r"\W+", "-", f"{platform.node()} {self.device} {self.source}")

    def read(self, clock: Callable[[], float] = time.perf_counter) -> None:
        try:
            value, now = float(self.value()), clock()
        except Exception as error:  # of NVML, a file or a program: none may end a run
            self.missing = reason(error)
            return
        at, before = self.last or (now, value)
        took, self.last = now - at, (now, value)
        gained = took * (value + before) / 2 if self.of_power else value - before
        # A counter moves in steps, so a short interval may seem to have a high power.
        if not (0 <= value < (LIMIT if self.of_power else inf) and 0 <= gained <= LIMIT * (took + 1)):
            self.missing = f"{self.source} shows nonsense: {value:g}, {took:.1f} s after {before:g}"
        self.joules += gained
        self.seconds += took

    def facts(self, frames: int, times: Mapping[str, float]) -> EnergyFacts:
        joules, seconds, missing, idle = self.joules, self.seconds, self.missing, 0.0
        if not missing and (seconds < SHORTEST or not joules > 0):
            missing = f"{self.source} {'stood still for' if seconds >= SHORTEST else 'needs more than'} {seconds:.2g} s"
        if missing:
            return EnergyFacts(self.device, self.source, self.error, seconds, missing=missing)
        with suppress(OSError, ValueError):
            idle = float(self.idle_file.read_text())
        watts, each = joules / seconds, joules / frames if frames else None
        rest = idle if 0 < idle < watts else None  # the idle watts of another state of the machine are of no use
        above = (joules - rest * seconds) / frames if rest and frames else None
        stages = {name: time / sum(times.values()) * each for name, time in times.items() if time and each}
        return EnergyFacts(self.device, self.source, self.error, seconds, joules, watts, rest, each, above, stages)


class Meter:
    """Energy over a span: `start`, `read` now and then, `stop`; then `facts`. Thread-safe, never raises.

    Only where a counter shows power, which has to be integrated, a thread reads them all from `start` to `stop`.
    """

    def __init__(self, counters: Iterable[Counter] = (), clock: Callable[[], float] = time.perf_counter) -> None:
        self.counters = list(counters)
        self._now, self._due = clock, -inf
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._poll, name="ff-power", daemon=True)

    def start(self) -> None:
        self.read(now=True)
        if any(counter.of_power and not counter.missing for counter in self.counters):
            self._thread.start()

    def _poll(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            self.read(now=True)

    def read(self, *, now: bool = False) -> None:
        """Read the counters if it is time to, or now; nothing after `stop`."""
        if now or self._now() >= self._due:
            self._due = self._now() + READ_SECONDS
            with self._lock:
                for counter in self.counters:
                    if not counter.missing and not self._ended.is_set():
                        counter.read(self._now)

    def stop(self) -> None:
        self.read(now=True)
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def facts(self, frames: int = 0, cpu: Mapping[str, float] = {}, gpu: Mapping[str, float] = {}) -> list[EnergyFacts]:
        """What has been measured so far, by device; `cpu` and `gpu` are the times of the stages there, in any unit."""
        self.read(now=True)
        with self._lock:
            return [counter.facts(frames, cpu if counter.device == "cpu" else gpu or cpu) for counter in self.counters]


def reason(error: BaseException) -> str:
    """What an error says, on one line."""
    if isinstance(error, PermissionError) and error.filename:
        return f"only root may read {error.filename}; sudo chmod a+r allows it until the next boot"
    return " ".join(str(error).split()) or type(error).__name__


def find_counters(gpu: int | None = None, *, root: Path = Path("/")) -> list[Counter]:
    """The best counter of each device that a run uses, on a GPU or not; `root` is the folder in which /sys lies."""
    board = board_counter(root)
    return [board] if not board.missing else [*([] if gpu is None else [gpu_counter(gpu)]), cpu_counter(root)]


def _best(*counters: Counter) -> Counter:
    """The first counter that can be read, or else the first."""
    for counter in counters:
        counter.read()
        counter.last = None
    return next((counter for counter in counters if not counter.missing), counters[0])


def nvml_handle(gpu: int) -> tuple[Any, Any]:
    """NVML, and its handle of a GPU, numbered as by CUDA. Raises what NVML or CUDA raise."""
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    # NVML counts all GPUs, CUDA those that CUDA_VISIBLE_DEVICES shows.
    return nvml, nvml.nvmlDeviceGetHandleByPciBusId(gpus.cupy().cuda.runtime.deviceGetPCIBusId(gpu))


def gpu_counter(gpu: int) -> Counter:
    """NVML's energy counter of a GPU, numbered as by CUDA; its power reading where the GPU has no such counter."""
    try:
        nvml, handle = nvml_handle(gpu)
        name = nvml.nvmlDeviceGetName(handle)
    except ModuleNotFoundError as error:
        missing = f"the package that reads NVML is missing ({error.name}): pip install 'framefuse[cuda13]'"
        try:
            check_driver()
        except CapabilityError:
            missing = "there is no NVIDIA driver here"
        return Counter(f"cuda:{gpu}", "NVML", missing=missing)
    except Exception as error:  # of NVML or CUDA
        return Counter(f"cuda:{gpu}", "NVML", missing=f"NVML cannot be read by nvidia-ml-py: {reason(error)}")
    energy, power = nvml.nvmlDeviceGetTotalEnergyConsumption, nvml.nvmlDeviceGetPowerUsage
    return _best(
        Counter(f"cuda:{gpu}", f"NVML's energy counter of {name}", "about ±5 %", lambda: energy(handle) / 1e3),
        Counter(f"cuda:{gpu}", f"NVML's power of {name}", "about ±5 %", lambda: power(handle) / 1e3, of_power=True),
    )


def gpu_counters() -> list[Counter]:
    """Those of all GPUs, or one that says why there is none."""
    found = [gpu_counter(0)]
    while found[-1].source != "NVML":
        found.append(gpu_counter(len(found)))
    return found[:-1] or found


def cpu_counter(root: Path = Path("/")) -> Counter:
    """RAPL's energy of the CPU's packages across wrap-arounds; other zones are parts of these, or count them again."""
    before: dict[Path, int] = {}
    total = 0

    def joules() -> float:
        nonlocal total
        for zone in root.glob("sys/class/powercap/intel-rapl:*"):
            if zone.name.count(":") == 1 and (zone / "name").read_text().startswith("package"):
                now, last = int((zone / "energy_uj").read_text()), before.get(zone, 0)
                total += now - last + (int((zone / "max_energy_range_uj").read_text()) if now < last else 0)
                before[zone] = now
        if not before:
            raise CapabilityError("there is no RAPL counter, as on a virtual machine")
        return total / 1e6

    return _best(Counter("cpu", "RAPL", "error not stated", joules))


def board_counter(root: Path = Path("/")) -> Counter:
    """The power monitors of a Jetson, which measure all of it; tegrastats where their files cannot be read."""

    def ask() -> float:
        command = ["timeout", "0.5", "tegrastats", "--interval", "200"]  # it never ends by itself
        done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)  # Ctrl-C is not for it
        return supply(parse_tegrastats(done.stdout))

    files = Counter("board", "INA3221", "about ±5 %, integrated", lambda: supply(read_rails(root)), of_power=True)
    program = Counter("board", "tegrastats", "about ±5 %, integrated", ask, of_power=True)
    return _best(files, *([program] if shutil.which("tegrastats") else []))


def read_rails(root: Path = Path("/")) -> dict[str, float]:
    """Watts of each rail that an INA3221 monitors; empty where there is none."""
    found: dict[str, float] = {}
    for label in sorted(root.glob("sys/class/hwmon/hwmon*/in[1-3]_label")):
        if (label.parent / "name").read_text().strip() == "ina3221" and (rail := label.read_text().strip()) != "NC":
            volts, amperes = (label.parent / f"{kind}{label.name[2]}_input" for kind in ("in", "curr"))
            found[rail] = int(volts.read_text()) * int(amperes.read_text()) / 1e6  # mV and mA
    return found


def parse_tegrastats(text: str) -> dict[str, float]:
    """Watts of each rail as tegrastats showed them last: "VDD_IN 5080mW/4990mW", or "VDD_IN 5080/4990" in JetPack 4."""
    return {name: int(mw) / 1e3 for name, mw in re.findall(r"(\w+) (\d+)(?:mW)?/\d+(?:mW)?(?=\s|$)", text)}


def supply(rails: Mapping[str, float]) -> float:
    """Watts of a whole board, of its rails; CapabilityError if no known rails supply it."""
    for whole in TOTALS:
        if rails.keys() >= set(whole.split()):
            return sum(rails[rail] for rail in whole.split())
    none = "there is no power monitor (INA3221), as a Jetson has"
    raise CapabilityError(f"none of the rails {', '.join(rails)} supplies the whole board" if rails else none)
