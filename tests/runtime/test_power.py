"""Power: recorded counters of many machines, and the nonsense that some of them show."""

from __future__ import annotations

import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from framefuse.cuda import device
from framefuse.errors import CapabilityError
from framefuse.runtime import power, utilisation
from framefuse.runtime.power import Counter, EnergyFacts, Meter
from framefuse.runtime.profiling import Recorder
from framefuse.runtime.utilisation import Gauge, UtilisationFacts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No idle watts are known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def measured(values: list[float], *, every: float = 1.0, frames: int = 0, **more: Any) -> EnergyFacts:
    """A counter that shows these values, one each second."""
    left, clock = iter(values), Clock()
    meter = Meter([Counter("cpu", "RAPL", value=lambda: next(left), **more)], clock)
    for _ in values[:-1]:
        meter.read(now=True)
        clock.now += every
    meter.stop()
    return meter.facts(frames)[0]


# Meter


def test_joules_are_what_the_counter_gained() -> None:
    facts = measured([1000.0, 1010.0, 1040.0], frames=20)
    assert (facts.joules, facts.watts, facts.joules_per_frame, facts.seconds) == (40.0, 20.0, 2.0, 2.0)
    assert facts.line() == "cpu 2 J a frame, 20.0 W on average, by RAPL ()"


def test_power_is_integrated() -> None:
    facts = measured([10.0, 30.0, 30.0], of_power=True, every=0.5)
    assert facts.joules == pytest.approx(0.5 * 20 + 0.5 * 30) and facts.watts == pytest.approx(25.0)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([100.0, 110.0, 90.0], "RAPL shows nonsense: 90, 1.0 s after 110"),
        ([100.0, 100.0, 100.0], "RAPL stood still for 2 s"),
        ([100.0, float("nan"), 100.0], "shows nonsense: nan"),
        ([float("inf"), float("inf")], "shows nonsense: inf"),
        ([-5.0, -4.0], "shows nonsense: -5"),
        ([0.0, 1e6], "shows nonsense: 1e+06"),
    ],
)
def test_nonsense_is_a_reason_and_never_a_number(values: list[float], why: str) -> None:
    facts = measured(values, frames=10)
    assert why in facts.missing and facts.joules is None and facts.joules_per_frame is None and not facts.stages
    assert facts.line() == f"cpu not measured, because {facts.missing}"


@pytest.mark.parametrize("watts", [[0.0, 0.0, 0.0], [5.0, -1.0, 5.0], [5.0, 5000.0, 5.0], [5.0, float("nan")]])
def test_nonsense_of_a_power_reading(watts: list[float]) -> None:
    assert measured(watts, every=2.0, of_power=True).joules is None


def test_a_run_too_short_for_its_counter() -> None:
    assert measured([1.0, 2.0], every=0.2).missing == "RAPL needs more than 0.2 s"


def test_a_counter_that_breaks_ends_nothing() -> None:
    def broken() -> float:
        raise RuntimeError("driver\n gone")

    meter = Meter([Counter("cuda:0", "NVML", value=broken)])
    meter.start()
    meter.stop()
    assert meter.facts(5)[0].missing == "driver gone"


def test_energy_is_read_every_30_seconds() -> None:
    clock, readings = Clock(), list[float]()

    def value() -> float:
        readings.append(clock.now)
        return clock.now

    meter = Meter([Counter("cpu", "RAPL", value=value)], clock)
    meter.start()
    for second in range(100):
        clock.now = second
        meter.read()
    meter.stop()
    meter.read(now=True)  # the run has ended
    assert readings == [0, 30, 60, 90, 99] and meter.facts()[0].watts == pytest.approx(1.0)


def test_only_power_needs_a_thread() -> None:
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "ff-power"]

    energy = Meter([Counter("cpu", "RAPL", value=time.perf_counter)])
    energy.start()
    assert not names()
    watts = Meter([Counter("board", "INA3221", value=lambda: 7.0, of_power=True)])
    assert not names()
    watts.start()
    assert names()
    time.sleep(power.SHORTEST + 0.1)
    watts.stop()
    assert not names() and watts.facts()[0].watts == pytest.approx(7.0)


def test_idle_watts_are_subtracted(cache: Path) -> None:
    counter = Counter("cpu", "RAPL")
    assert cache in counter.idle_file.parents
    counter.idle_file.parent.mkdir(parents=True)
    counter.idle_file.write_text("5.0")
    facts = measured([0.0, 20.0, 40.0], frames=10)
    assert (facts.idle_watts, facts.joules_per_frame, facts.above_idle_per_frame) == (5.0, 4.0, 3.0)
    assert "4 J a frame, 3 J above the 5 W at rest" in facts.line()
    for text in ("25", "0", "nan", "-3", "", "text"):  # more than the run took, or no watts at all
        counter.idle_file.write_text(text)
        facts = measured([0.0, 20.0, 40.0], frames=10)
        assert facts.joules_per_frame == 4.0 and facts.above_idle_per_frame is None and facts.idle_watts is None


def test_stages_share_the_energy_of_their_device() -> None:
    clock = Clock()
    counters = [Counter("cuda:0", "NVML", value=lambda: 100 * clock.now), Counter("cpu", "RAPL", value=clock)]
    meter = Meter(counters, clock)
    meter.start()
    clock.now = 10.0
    meter.stop()
    gpu, cpu = meter.facts(10, {"decode": 3.0, "inference": 1.0, "write": 0.0}, {"inference": 7.0, "postprocess": 3.0})
    assert gpu.stages == pytest.approx({"inference": 70.0, "postprocess": 30.0})
    assert cpu.stages == pytest.approx({"decode": 0.75, "inference": 0.25})
    assert "; J by stage: decode 0.75, inference 0.25" in cpu.line()


def test_a_recorder_measures_from_start_to_stop() -> None:
    clock = Clock()
    recorder = Recorder(clock)
    assert recorder.snapshot().energy == []
    clock.now = 50.0
    recorder.start(Meter([Counter("cpu", "RAPL", value=lambda: 3 * clock.now)], clock))
    for _ in range(10):
        clock.now += 1
        recorder.frame()
    assert recorder.snapshot().energy[0].joules_per_frame == pytest.approx(3.0)  # also during the run
    recorder.stop()
    clock.now += 100
    (facts,) = recorder.snapshot().energy
    assert facts.joules == pytest.approx(30.0) and set(facts.stages) <= {"other"}


# RAPL


def rapl(root: Path, zones: dict[str, tuple[str, int, int]]) -> Path:
    """A folder like / with these zones: folder -> name, energy and its range in microjoules."""
    for folder, values in zones.items():
        zone = root / "sys/class/powercap" / folder
        zone.mkdir(parents=True, exist_ok=True)
        for name, value in zip(("name", "energy_uj", "max_energy_range_uj"), values, strict=True):
            (zone / name).write_text(f"{value}\n")
    return root


RANGE = 262_143_328_850
"""As a Xeon shows it."""


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    zones = {
        "intel-rapl:0": ("package-0", 5_000_000, RANGE),
        "intel-rapl:0:0": ("core", 4_000_000, RANGE),
        "intel-rapl:0:1": ("dram", 3_000_000, RANGE),
        "intel-rapl:1": ("package-1", 7_000_000, RANGE),
        "intel-rapl:2": ("psys", 90_000_000, RANGE),
        "intel-rapl-mmio:0": ("package-0", 5_000_000, RANGE),
    }
    counter = power.cpu_counter(rapl(tmp_path, zones))
    before = counter.value()
    rapl(tmp_path, {folder: (name, energy + 2_000_000, end) for folder, (name, energy, end) in zones.items()})
    assert counter.value() - before == pytest.approx(4.0) and counter.device == "cpu" and not counter.missing


def test_wrap_around(tmp_path: Path) -> None:
    counter = power.cpu_counter(rapl(tmp_path, {"intel-rapl:0": ("package-0", RANGE - 1_000_000, RANGE)}))
    clock = Clock()
    meter = Meter([counter], clock)
    meter.start()
    for energy in (1_000_000, 11_000_000):
        rapl(tmp_path, {"intel-rapl:0": ("package-0", energy, RANGE)})
        clock.now += 1
        meter.read(now=True)
    meter.stop()
    assert meter.facts()[0].joules == pytest.approx(12.0)


def test_going_back_is_no_wrap_around(tmp_path: Path) -> None:
    counter = power.cpu_counter(rapl(tmp_path, {"intel-rapl:0": ("package-0", 50_000_000, RANGE)}))
    clock = Clock()
    meter = Meter([counter], clock)
    meter.start()
    clock.now = 5.0
    rapl(tmp_path, {"intel-rapl:0": ("package-0", 40_000_000, RANGE)})
    meter.stop()
    assert "RAPL shows nonsense" in meter.facts()[0].missing


def test_only_root_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rapl(tmp_path, {"intel-rapl:0": ("package-0", 1, RANGE)})
    real = Path.read_text

    def read_text(self: Path, *args: Any, **more: Any) -> str:
        if self.name == "energy_uj":  # the tests may run as root
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *args, **more)

    monkeypatch.setattr(Path, "read_text", read_text)
    why = power.cpu_counter(tmp_path).missing
    assert why.startswith("only root may read ") and "energy_uj; sudo chmod a+r" in why


@pytest.mark.parametrize("energy", ["", "many", "\x00"])
def test_an_unreadable_file(energy: str, tmp_path: Path) -> None:
    rapl(tmp_path, {"intel-rapl:0": ("package-0", 1, RANGE)})
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").write_text(energy)
    assert "invalid literal" in power.cpu_counter(tmp_path).missing


def test_a_machine_without_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    (counter,) = power.find_counters(root=tmp_path)
    assert counter.missing == "there is no RAPL counter, as on a virtual machine"
    assert "no power monitor (INA3221)" in power.board_counter(tmp_path).missing


# Jetson


def hwmon(root: Path, number: int, rails: dict[str, tuple[int, int]], name: str = "ina3221") -> Path:
    """A monitor with up to three rails: label -> mV and mA."""
    chip = root / f"sys/class/hwmon/hwmon{number}"
    chip.mkdir(parents=True)
    (chip / "name").write_text(f"{name}\n")
    for channel, (label, (volts, amperes)) in enumerate(rails.items(), 1):
        (chip / f"in{channel}_label").write_text(f"{label}\n")
        (chip / f"in{channel}_input").write_text(f"{volts}\n")
        (chip / f"curr{channel}_input").write_text(f"{amperes}\n")
    (chip / "in7_label").write_text("sum of shunt voltages\n")
    return root


def test_an_orin_nano_has_a_rail_for_all(tmp_path: Path) -> None:
    hwmon(tmp_path, 1, {"VDD_IN": (5072, 1000), "VDD_CPU_GPU_CV": (5072, 300), "VDD_SOC": (5072, 200)})
    assert power.read_rails(tmp_path)["VDD_SOC"] == pytest.approx(1.0144)
    (counter,) = power.find_counters(0, root=tmp_path)  # no other counter: that would count twice
    assert (counter.device, counter.source, counter.of_power) == ("board", "INA3221", True)
    assert counter.value() == pytest.approx(5.072)


def test_an_agx_orin_is_the_sum_of_three_rails(tmp_path: Path) -> None:
    hwmon(tmp_path, 3, {"VDD_GPU_SOC": (20000, 160), "VDD_CPU_CV": (20000, 60), "VIN_SYS_5V0": (4968, 953)})
    hwmon(tmp_path, 4, {"NC": (0, 0), "VDDQ_VDD2_1V8AO": (4968, 80)})
    hwmon(tmp_path, 5, {"VDD_IN": (99000, 99)}, name="pwmfan")
    assert "NC" not in power.read_rails(tmp_path)
    assert power.board_counter(tmp_path).value() == pytest.approx(3.2 + 1.2 + 4.968 * 0.953)


def test_rails_of_an_unknown_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    hwmon(tmp_path, 0, {"VDD_NEW": (5000, 100)})
    assert power.board_counter(tmp_path).missing == "none of the rails VDD_NEW supplies the whole board"


NANO = (  # JetPack 4
    "RAM 2448/3964MB (lfb 2x1MB) SWAP 0/1982MB (cached 0MB) IRAM 0/252kB(lfb 252kB) CPU [12%@1479,9%@1479,off,off] "
    "EMC_FREQ 0% GR3D_FREQ 0% PLL@33C CPU@36.5C PMIC@100C GPU@34C AO@40.5C thermal@35C POM_5V_IN 2532/2532 "
    "POM_5V_GPU 40/40 POM_5V_CPU 483/483"
)
XAVIER = (  # JetPack 4, without a rail for all
    "RAM 3043/31919MB (lfb 5987x4MB) SWAP 0/15959MB (cached 0MB) CPU [2%@1190,1%@1190] EMC_FREQ 0% GR3D_FREQ 0% "
    "AO@32C GPU@33C Tboard@33C GPU 0/0 CPU 311/311 SOC 933/933 CV 0/0 VDDRQ 155/155 SYS5V 1400/1399"
)
ORIN_NX = (  # JetPack 6
    "11-21-2025 08:49:48 RAM 3983/15656MB (lfb 424x4MB) SWAP 126/7828MB (cached 0MB) CPU [90%@1984,100%@1984] "
    "GR3D_FREQ 14%@[407,407] CPU@77.281C VDD_IN 7150mW/7103mW VDD_CPU_GPU_CV 1931mW/1931mW VDD_SOC 1810mW/1810mW"
)
AGX_ORIN = (  # JetPack 5
    "RAM 13983/62780MB (lfb 424x4MB) SWAP 126/31390MB (cached 0MB) CPU [90%@2201] GR3D_FREQ 14%@[407,407] "
    "VIC_FREQ 115 NVDLA0_FREQ @1600 APE 174 GPU@69.125C VDD_GPU_SOC 3150mW/2971mW VDD_CPU_CV 14312mW/12415mW "
    "VIN_SYS_5V0 4968mW/5048mW VDDQ_VDD2_1V8AO 1091mW/1091mW"
)
THOR = (
    "RAM 1/2MB GR3D_FREQ 0% VDD_GPU 0mW/0mW VDD_CPU_SOC_MSS 6510mW/6510mW VIN_SYS_5V0 6520mW/6520mW VIN 23200mW/23000mW"
)


@pytest.mark.parametrize(
    ("line", "watts"), [(NANO, 2.532), (XAVIER, 2.799), (ORIN_NX, 7.15), (AGX_ORIN, 22.43), (THOR, 23.2)]
)
def test_tegrastats(line: str, watts: float) -> None:
    rails = power.parse_tegrastats(line)
    assert not {"RAM", "SWAP", "IRAM"} & set(rails) and power.supply(rails) == pytest.approx(watts)


def test_tegrastats_shows_the_last_line_that_is_whole() -> None:
    text = "VDD_IN 5000mW/5000mW\nVDD_IN 6000mW/5500mW\nVDD_"
    assert power.parse_tegrastats(text) == {"VDD_IN": 6.0}
    with pytest.raises(CapabilityError, match="no power monitor"):
        power.supply(power.parse_tegrastats(""))


def test_the_program_tegrastats_where_there_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/tegrastats"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nwhile :; do echo '{ORIN_NX}'; sleep 0.1; done\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    counter = power.board_counter(tmp_path)
    assert (counter.source, counter.missing, counter.value()) == ("tegrastats", "", 7.15)
    program.write_text("#!/bin/sh\nexit 1\n")
    assert "no power monitor" in power.board_counter(tmp_path).missing


# NVML


class NVMLError(Exception):
    pass


class Nvml(ModuleType):
    """pynvml with two GPUs, of which CUDA shows the second."""

    NVMLError = NVMLError

    def __init__(self, *, energy: float | None, watts: float | None = None) -> None:
        super().__init__("pynvml")
        self.energy, self.watts = energy, watts

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByPciBusId(self, address: str) -> int:
        assert address == "0000:1B:00.0"
        return 1

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H100"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> float:
        return self._shown(self.energy)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> float:
        return self._shown(self.watts)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=90, memory=30)

    def nvmlDeviceGetDecoderUtilization(self, handle: int) -> list[int]:
        return [80, 166000]

    def nvmlDeviceGetEncoderUtilization(self, handle: int) -> list[int]:
        return [0, 166000]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=3.2e9)

    def _shown(self, value: float | None) -> float:
        if value is None:
            raise NVMLError("Not Supported")
        return 1e3 * value


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def install(**values: Any) -> Nvml:
        module = Nvml(**values)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module

    def address(gpu: int) -> str:
        if gpu:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        return "0000:1B:00.0"

    cuda = SimpleNamespace(runtime=SimpleNamespace(deviceGetPCIBusId=address))
    monkeypatch.setattr(device, "cupy", lambda: SimpleNamespace(cuda=cuda))
    yield install


def test_the_energy_counter_of_a_gpu(nvml: Any) -> None:
    gpu = nvml(energy=1000.0)
    (counter,) = power.gpu_counters()
    assert (counter.device, counter.of_power) == ("cuda:0", False)
    clock = Clock()
    meter = Meter([counter], clock)
    meter.start()
    clock.now, gpu.energy = 2.0, 1500.0
    meter.stop()
    (facts,) = meter.facts(100)
    assert facts.source == "NVML's energy counter of NVIDIA H100"
    assert (facts.watts, facts.joules_per_frame) == (250.0, 5.0)


def test_a_gpu_that_shows_power_only(nvml: Any) -> None:
    nvml(energy=None, watts=82.0)
    counter = power.gpu_counter(0)
    assert counter.of_power and counter.value() == 82.0 and counter.error == "about ±5 %"


def test_a_gpu_that_shows_nothing(nvml: Any) -> None:
    nvml(energy=None)
    assert power.gpu_counter(0).missing == "Not Supported"


def test_a_gpu_that_shows_nonsense(nvml: Any) -> None:
    nvml(energy=float("nan"), watts=90.0)
    assert power.gpu_counter(0).of_power
    gpu = nvml(energy=5.0)
    counter, clock = power.gpu_counter(0), Clock()
    meter = Meter([counter], clock)
    meter.start()
    clock.now, gpu.energy = 1.0, 2.0**60
    meter.stop()
    assert "shows nonsense: 1.15292e+18" in meter.facts()[0].missing


def test_no_nvml_and_no_gpu(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(energy=1.0)
    assert "invalid device ordinal" in power.gpu_counter(1).missing
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (counter,) = power.gpu_counters()
    assert counter.missing == "there is no NVIDIA driver here"
    monkeypatch.setattr(power, "check_driver", lambda: None)
    assert "pip install 'framefuse[cuda13]'" in power.gpu_counter(0).missing


def test_how_busy_a_gpu_is(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(energy=1.0)
    monkeypatch.setattr(utilisation, "INTERVAL", 0.001)
    gauge = Gauge(0)
    gauge.start()
    while gauge.facts() is None:
        time.sleep(0.001)
    gauge.stop()
    found = gauge.facts()
    assert found == UtilisationFacts("cuda:0", 90, 30, 80, 0, 3200)
    assert found.line().startswith(
        "cuda:0 runs kernels 90% of the time, memory 30%, decoders 80%, encoders 0%; up to 3,200"
    )


@pytest.mark.parametrize("gpu", [None, 1])
def test_a_gpu_that_is_not_there_is_not_busy(nvml: Any, gpu: int | None) -> None:
    nvml(energy=1.0)
    gauge = Gauge(gpu)
    gauge.start()
    gauge.stop()
    assert gauge.facts() is None
