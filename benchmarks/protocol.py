"""How every benchmark here is timed, what is recorded beside the numbers, and where they are saved.

The protocol: a fixed seed, 20 warm-up runs, then 100 measured runs, reported as mean, standard deviation, minimum,
maximum, median, P95, P99 and runs per second. Peers are compared by interleaving: one run of each in every round, in
an order that is shuffled from the seed, because a machine's clock, temperature and neighbours change over minutes;
measured one after the other, the last peer would be charged for that. Compare the ratios, not the absolute values.

A device works asynchronously, so a wall-clock time is only true if the device has finished: `sync` is called before
each start and stop of the clock (for CUDA: `stream.synchronize`). `device_ms`, where it is given, reads the device's
own clock for the run that just ended (for CUDA: the time between two recorded events).

    save("preprocess", {"peers": measure({"ours": ours, "theirs": theirs})}, "CPU kernel")

Every result is a record: benchmarks/records/NAME.json says at which commit, on which sources (source_groups.py), by
which command, when and where it was measured. `python -m benchmarks.results` makes every table of the docs from them.
"""

import importlib.metadata
import json
import os
import platform
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import source_groups
from framefuse.runtime import output_check

output_check.DELAY = 3600  # seconds: nothing works beside what is timed

RECORDS = Path(__file__).parent / "records"
ROOT = Path(__file__).parent.parent
PACKAGES = (
    "framefuse", "numpy", "av", "onnx", "onnxruntime", "openvino", "opencv-python-headless", "apache-tvm-ffi",
    "apache-tvm", "cupy-cuda12x", "cupy-cuda13x", "torch", "torchvision", "ultralytics", "supervision", "sahi",
    "nvidia-cudnn-cu13", "nvidia-cudnn-frontend", "pynvvideocodec", "onnxruntime-gpu", "cvcuda-cu13",
    "tensorrt-rtx", "nncf", "trackers", "trackeval",
)  # fmt: skip


@dataclass(frozen=True)
class Stats:
    """Order statistics of one peer's runs; all times in milliseconds."""

    runs: int
    mean: float
    std: float
    min: float
    max: float
    median: float
    p95: float
    p99: float
    fps: float
    """Runs a second at the mean time: what a loop of these runs would reach."""

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> "Stats":
        """The statistics of some run times; the standard deviation is that of the sample (n - 1)."""
        t = np.asarray(milliseconds, np.float64)
        if t.size == 0:
            raise ValueError("statistics of no runs")
        mean = float(t.mean())
        median, p95, p99 = (float(v) for v in np.percentile(t, (50, 95, 99)))
        return cls(
            runs=t.size,
            mean=mean,
            std=float(t.std(ddof=1)) if t.size > 1 else 0.0,
            min=float(t.min()),
            max=float(t.max()),
            median=median,
            p95=p95,
            p99=p99,
            fps=1e3 / mean if mean > 0 else 0.0,
        )


@dataclass(frozen=True)
class Measurement:
    """What one peer cost."""

    wall: Stats
    device: Stats | None = None
    """By the device's own clock; None where there is no device clock."""


def measure(
    peers: Mapping[str, Callable[[], object]],
    *,
    warmups: int = 20,
    runs: int = 100,
    seed: int = 0,
    sync: Callable[[], object] | None = None,
    device_ms: Callable[[], float] | None = None,
) -> dict[str, Measurement]:
    """Times the peers interleaved, run by run.

    Warm-ups are interleaved too: they bring each peer into the state that it has beside the others, not alone.
    An exception in a peer ends the measurement; a peer that fails must not look fast.
    """
    order = random.Random(seed)
    names = list(peers)
    wall: dict[str, list[float]] = {name: [] for name in names}
    device: dict[str, list[float]] = {name: [] for name in names}
    for round_index in range(warmups + runs):
        order.shuffle(names)
        for name in names:
            if sync:
                sync()
            start = time.perf_counter()
            peers[name]()
            if sync:
                sync()
            elapsed = (time.perf_counter() - start) * 1e3
            if round_index >= warmups:
                wall[name].append(elapsed)
                if device_ms:
                    device[name].append(device_ms())
    return {name: Measurement(Stats.of(wall[name]), Stats.of(device[name]) if device_ms else None) for name in peers}


def machine() -> dict[str, Any]:
    """Everything about the machine and the software without which a number means nothing."""
    gpus = gpu()
    return {
        "cpu": cpu_model(),
        "cpu_flags": sorted(cpu_flags() & {"avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimd"}),
        "cores": len(os.sched_getaffinity(0)),
        "ram_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "gpu": [line.split(", ")[0] for line in gpus],
        "driver": gpus[0].split(", ")[1] if gpus else None,
        "os": platform.platform(),
        "python": platform.python_version(),
        "packages": package_versions(),
    }


def cpu_model() -> str:
    """The processor's name as the kernel reports it."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    """The instruction set extensions of the first core; empty where the kernel does not list them (not Linux)."""
    return set((_cpuinfo("flags") or _cpuinfo("Features")).split())


def _cpuinfo(key: str) -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def package_versions() -> dict[str, str]:
    """Versions of the packages that matter, of those that are installed in this environment."""
    installed = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
    return {name: installed[name] for name in PACKAGES if name in installed}


def gpu() -> list[str]:
    """Name and driver of each NVIDIA GPU; empty without one."""
    return _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()


def commit() -> tuple[str | None, bool | None]:
    """The commit that is measured, and whether sources or benchmarks differ from it; None where it is not known.

    $COMMIT (`git describe --always --dirty`) where that is set: a tree may be carried elsewhere without its repository.
    """
    if found := os.getenv("COMMIT"):
        return found.removesuffix("-dirty"), found.endswith("-dirty")
    if not (found := _output("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")):
        return None, None
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "-uno", "--", "src", "benchmarks",
                      ":(exclude)benchmarks/records")  # fmt: skip
    return found, bool(changed)


def command() -> str:
    """The command line of this process, as it would be typed in the repository's root."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = f"-m {spec.name.removesuffix('.__main__')}" if spec else sys.argv[0]
    return shlex.join(["python", *module.split(), *map(without_places, sys.argv[1:])])


def without_places(text: str) -> str:
    """A text without the folders of this machine or names that differ from run to run; addresses stay whole."""
    text = re.sub(r"[0-9a-f]{32}\.plan", "its plan", text)
    return text if "://" in text else re.sub(r"(?<![\w.])/[\w.+-]+(?:/[\w.+-]+)*/(?=\w)", "", text)


def _output(*command: str) -> str:
    """Standard output of a command, or nothing if it is missing or fails: facts that a machine may not have."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def save(name: str, payload: Mapping[str, Any], *groups: str) -> Path:
    """Writes the record benchmarks/records/NAME.json and prints the payload as one line of JSON.

    That line is the last that a benchmark prints, so that a script can read it with `tail -1`.

    Args:
        groups: those of source_groups.py that can change the result.
    """
    plain = _rounded(payload)
    write({**header(name, groups), **plain})
    print(json.dumps({"record": name, **plain}), flush=True)
    return RECORDS / f"{name}.json"


def header(name: str, groups: Sequence[str]) -> dict[str, Any]:
    """What every record begins with."""
    at, dirty = commit()
    return {
        "record": name,
        "commit": at,
        "dirty": dirty,
        "sources": source_groups.stamp(*groups),
        "command": command(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
    }


def write(record: Mapping[str, Any]) -> None:
    """Writes a record as it is."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{record['record']}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read(name: str) -> dict[str, Any]:
    """A record by name."""
    record: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return record


def _rounded(value: Any) -> Any:
    """Plain JSON types; floats with six significant digits, more than any timer has; texts without folders."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    if isinstance(value, str):
        return without_places(value)
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.6g}")
    return value.item() if isinstance(value, np.integer) else value
