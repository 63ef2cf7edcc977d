"""Temperature: is a device too hot? By what the device itself says, since each has limits of its own."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from framefuse.runtime.power import nvml_handle

THERMAL_SLOWDOWN = 0x20 | 0x40
"""NVML's reasons for lower clocks: a thermal slowdown by the driver or by the hardware."""


def thermometer(gpu: int | None = None, *, root: Path = Path("/")) -> Callable[[], bool]:
    """A function: whether the GPU slows down because it is hot, or a thermal zone of the machine has reached the
    temperature from which the kernel slows it down. False where nothing says so.

    Args:
        root: the folder in which /sys lies.
    """
    zones = [found for zone in sorted(root.glob("sys/class/thermal/thermal_zone*")) if (found := _zone(zone))]
    slowed = _gpu(gpu) if gpu is not None else lambda: False

    def hot() -> bool:
        with suppress(Exception):  # of NVML, or a zone that is gone
            return slowed() or any(int(file.read_text()) >= limit for file, limit in zones)
        return False

    return hot


def _zone(zone: Path) -> tuple[Path, int] | None:
    """File of the temperature of a zone, in thousandths of a degree, and its lowest limit."""
    limits = []
    with suppress(OSError, ValueError):
        for kind in zone.glob("trip_point_*_type"):
            if kind.read_text().strip() in ("passive", "hot"):
                limits.append(int(kind.with_name(kind.name.replace("_type", "_temp")).read_text()))
        int((zone / "temp").read_text())
    limits = [limit for limit in limits if limit > 0]  # 0 and below: not set
    return (zone / "temp", min(limits)) if limits else None


def _gpu(gpu: int) -> Callable[[], bool]:
    try:
        nvml, handle = nvml_handle(gpu)
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    except Exception:  # of NVML or CUDA: such a GPU never says that it is hot
        return lambda: False
    return lambda: bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & THERMAL_SLOWDOWN)
