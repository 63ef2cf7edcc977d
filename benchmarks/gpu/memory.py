"""Memory between host and GPU: bandwidth of every kind, what a page fault costs, and how a decoded frame enters best.

    python -m benchmarks.gpu.memory [--managed-mb 1024]

Copies of pageable and page-locked memory in both directions, kernels that read and write the host's memory over the
bus, managed memory touched from both sides with and without asking for it first, and a 1080p frame that was decoded on
the host through the whole program by each way of `--memory`. Never asks for more managed memory than is free on the
GPU. Writes benchmarks/records/memory.json; docs/results/memory.md concludes.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

from benchmarks import protocol

FRAME = 1920 * 1080 * 3 // 2
SIZES = {"frame": FRAME, "64 MiB": 64 << 20}
PAGE = 64 << 10
"""Bytes that the driver moves at least when a kernel touches memory of the other side."""


def device_ms(work: Callable[[Any], object], stream: Any, runs: int = 20) -> float:
    """Median device time of `work`, milliseconds."""
    start, stop, times = cp.cuda.Event(), cp.cuda.Event(), []
    for _ in range(runs + 3):
        start.record(stream)
        work(stream)
        stop.record(stream)
        stop.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, stop))
    return float(np.median(times[3:]))


def wall_ms(work: Callable[[], object], runs: int = 10) -> float:
    """Median time by the host's clock of something that waits for itself, milliseconds."""
    times = []
    for _ in range(runs + 2):
        started = time.perf_counter()
        work()
        times.append((time.perf_counter() - started) * 1e3)
    return float(np.median(times[2:]))


def bandwidth(size: int, milliseconds: float) -> dict[str, float]:
    return {"us": milliseconds * 1e3, "gb_s": size / milliseconds / 1e6}


def copies(size: int, stream: Any) -> dict[str, Any]:
    """Copies through the driver, from memory of both kinds, each way and both at once."""
    runtime = cp.cuda.runtime
    there, back = cp.empty(size, np.uint8), cp.zeros(size, np.uint8)
    pageable = np.ones(size, np.uint8)
    pinned = [np.frombuffer(cp.cuda.alloc_pinned_memory(size), np.uint8, size) for _ in range(2)]
    second = cp.cuda.Stream(non_blocking=True)

    def both() -> None:
        runtime.memcpyAsync(there.data.ptr, pinned[0].ctypes.data, size, runtime.memcpyHostToDevice, stream.ptr)
        runtime.memcpyAsync(pinned[1].ctypes.data, back.data.ptr, size, runtime.memcpyDeviceToHost, second.ptr)
        stream.synchronize()
        second.synchronize()

    def timed(to: int, source: int, kind: int) -> dict[str, float]:
        return bandwidth(size, device_ms(lambda at: runtime.memcpyAsync(to, source, size, kind, at.ptr), stream))

    def waited(to: int, source: int, kind: int) -> dict[str, float]:
        return bandwidth(size, wall_ms(lambda: runtime.memcpy(to, source, size, kind)))

    here, device, host = pinned[0].ctypes.data, there.data.ptr, pageable.ctypes.data
    return {
        "pageable h2d": waited(device, host, runtime.memcpyHostToDevice),
        "pageable d2h": waited(host, back.data.ptr, runtime.memcpyDeviceToHost),
        "page-locked h2d": timed(device, here, runtime.memcpyHostToDevice),
        "page-locked d2h": timed(here, back.data.ptr, runtime.memcpyDeviceToHost),
        "page-locked, both ways at once": bandwidth(2 * size, wall_ms(both)),
        "host to page-locked, by the CPU": bandwidth(size, wall_ms(lambda: np.copyto(pinned[0], pageable))),
    }


def mapped(size: int, stream: Any) -> dict[str, Any]:
    """Kernels that read and write page-locked memory of the host."""
    from framefuse.runtime.cuda.uploads import _mapped

    pointer = _mapped(size)
    host, device = cp.ndarray((size // 4,), np.int32, pointer), cp.empty(size // 4, np.int32)
    with stream:
        return {
            "kernel reads the host": bandwidth(size, device_ms(lambda _: cp.invert(host, out=device), stream)),
            "kernel writes the host": bandwidth(size, device_ms(lambda _: cp.invert(device, out=host), stream)),
            "kernel on the GPU's own": bandwidth(2 * size, device_ms(lambda _: cp.invert(device, out=device), stream)),
        }


def managed(size: int, stream: Any) -> dict[str, Any]:
    """Managed memory, touched on one side after the other; every number is one pass over all of it."""
    runtime, device = cp.cuda.runtime, cp.cuda.runtime.getDevice()
    pointer = cp.cuda.malloc_managed(size)
    there, result = cp.ndarray((size // 4,), np.int32, pointer), cp.empty(size // 4, np.int32)
    here = np.frombuffer((ctypes.c_uint8 * size).from_address(int(pointer.ptr)), np.uint8)
    pages = size // PAGE
    found: dict[str, Any] = {"bytes": size}

    def once(name: str, work: Callable[[], object]) -> float:
        stream.synchronize()
        started = time.perf_counter()
        work()
        stream.synchronize()
        milliseconds = (time.perf_counter() - started) * 1e3
        found.setdefault(name, []).append(bandwidth(size, milliseconds))
        return milliseconds

    def touched() -> None:
        with stream:
            cp.invert(there, out=result)

    with stream:
        cp.invert(result, out=result)
    for _ in range(3):
        once("host writes (its pages, or those it takes back)", lambda: here.fill(1))
        faulted = once("kernel reads, pages come by faults", touched)
        resident = once("kernel reads, pages are there", touched)
        once("host reads, pages come back by faults", lambda: int(here[::4096].sum()))
        here.fill(2)
        once("asked for by the GPU (prefetch)", lambda: runtime.memPrefetchAsync(pointer.ptr, size, device, stream.ptr))
        once("kernel reads after that", touched)
        found.setdefault("fault_us_per_64_kib", []).append((faulted - resident) * 1e3 / pages)
    return found


def ways_in(model: Path | None) -> dict[str, Any]:
    """A 1080p frame in host memory to boxes by each way of `--memory`: with engine null, and with a model in cuDNN."""
    from benchmarks.gpu.program import frames, images, one_by_one, throughput
    from framefuse.engines import EngineOptions, open_engine
    from framefuse.engines.null import CudaNullEngine
    from framefuse.models import find_model
    from framefuse.models.card import read_card
    from framefuse.preprocess import Preprocess
    from framefuse.runtime.cuda.program import CudaProgram
    from framefuse.runtime.cuda.uploads import choose_upload_mode
    from framefuse.runtime.program import Selection

    host = frames(images(8, noise=True))
    found: dict[str, Any] = {"chosen": choose_upload_mode("auto")[1]}
    nothing = CudaNullEngine(lambda count, height, width: [np.zeros((count, 7, 5040), np.float32)])
    jobs: list[tuple[str, Path, int]] = [("null", find_model("squares"), 1), ("null", find_model("squares"), 8)]
    jobs += [("cudnn", model, 1)] if model else []
    for name, path, batch in jobs:
        for way in ("copy", "mapped", "managed"):
            engine = nothing if name == "null" else open_engine(name, path, EngineOptions("cuda", layout="yolov8"))
            spec = Preprocess(640, 640, rectangular=True)
            program = CudaProgram(engine, read_card(path), spec, Selection(), batch=batch, mode=way)  # type: ignore[arg-type]
            measured = one_by_one(program, host, batch, 100)
            fps = [throughput(program, host, batch, 1.0) for _ in range(3)]
            found[f"{way}, batch {batch}, engine {name}"] = {**measured, "fps": float(np.median(fps))}
            program.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--managed-mb", type=int, default=1024)
    parser.add_argument("--model", type=Path, help="an ONNX for the rows with cuDNN")
    options = parser.parse_args()
    stream = cp.cuda.Stream(non_blocking=True)
    device = cp.cuda.Device()
    free, _ = cp.cuda.runtime.memGetInfo()
    size = min(options.managed_mb << 20, free // 4)
    names = ("Integrated", "ConcurrentManagedAccess", "PageableMemoryAccess", "AsyncEngineCount", "CanMapHostMemory")
    result: dict[str, Any] = {
        "attributes": {name: device.attributes.get(name) for name in names},
        "copies": {name: copies(size, stream) for name, size in SIZES.items()},
        "mapped": {name: mapped(size, stream) for name, size in SIZES.items()},
    }
    for name, job in {"managed": lambda: managed(size, stream), "ways_in": lambda: ways_in(options.model)}.items():
        try:
            result[name] = job()  # type: ignore[no-untyped-call]
        except Exception as error:  # the other rows are worth having
            result[name] = {"failed": f"{type(error).__name__}: {error}"[:500]}
    protocol.save("memory", result, "CUDA kernel", "program", "CUDA program")


if __name__ == "__main__":
    main()
