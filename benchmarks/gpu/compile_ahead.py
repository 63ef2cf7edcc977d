"""Fills the caches of torch.compile for benchmarks.gpu.networks, several networks side by side.

    python -m benchmarks.gpu.compile_ahead --models FOLDER [--only NAME...] [--batches 1 8] [--lanes 6] [--seconds 450]

A network alone takes minutes, in which it compiles most kernels one after another. Here each has a process of its own,
and one process measures kernels at a time, so that none disturbs another. A kernel is measured ITERATIONS times, not
100. What is not built after --seconds is given up. TORCHINDUCTOR_CACHE_DIR says where the caches lie, and has to be set
for benchmarks.gpu.networks, too, which then says how long it took here.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.gpu import networks

ITERATIONS, WARM_UP = 25, 10
THREADS = 4
"""Compilers of a network at a time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--only", choices=networks.NAMES, nargs="*", default=networks.NAMES)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--precision", choices=("fp16", "fp32"), default="fp16")
    parser.add_argument("--lanes", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        build(args.models / f"{args.only[0]}.onnx", args.batches[0], args.precision)
        return
    deadline = time.monotonic() + args.seconds
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": str(THREADS), **os.environ}

    def apart(name: str, batch: int) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu.compile_ahead", "--models", str(args.models), "--here"]
        command += ["--only", name, "--batches", str(batch), "--precision", args.precision]
        try:
            subprocess.run(command, env=environment, check=False, timeout=max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            print(f"{name}, batch {batch}: given up", flush=True)

    with ThreadPoolExecutor(args.lanes) as lanes:
        for pair in product(args.only, args.batches):
            lanes.submit(apart, *pair)


def build(path: Path, batch: int, precision: str) -> None:
    """Compile a network for a batch, and say how long that took."""
    import torch
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    begun, measured = time.monotonic(), [0.0, 0.0]
    with open(networks.AHEAD / "lock", "w") as lock:
        InductorBenchmarker.benchmark_gpu = alone(InductorBenchmarker.benchmark_gpu, lock, measured)
        networks.prepare_torch()
        torch.cuda.set_stream(torch.cuda.Stream())
        size = networks.SIZES.get(path.stem, 640)
        side = networks.compiled(path, (batch, 3, size, size), precision, None)
        for _ in range(3):
            side.call()
        torch.cuda.synchronize()
    seconds = round(time.monotonic() - begun, 1)
    networks.ahead(path.stem, precision, batch).write_text(json.dumps(seconds))
    print(f"{path.stem}, batch {batch}: {seconds} s, of them {measured[0]:.0f} s measuring and {measured[1]:.0f} s "
          "waiting for others that measured", flush=True)  # fmt: skip


def alone(measure: Callable[..., Any], lock: Any, seconds: list[float]) -> Callable[..., Any]:
    """A function that measures while no other process does; adds the seconds that it took, and that it waited."""

    @wraps(measure)
    def locked(*args: Any, **options: Any) -> Any:
        begun = time.monotonic()
        fcntl.flock(lock, fcntl.LOCK_EX)
        free = time.monotonic()
        try:
            return measure(*args, **{"benchmark_iters": ITERATIONS, "memory_warmup_iters": WARM_UP, **options})
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
            seconds[0] += time.monotonic() - free
            seconds[1] += free - begun

    return locked


if __name__ == "__main__":
    main()
