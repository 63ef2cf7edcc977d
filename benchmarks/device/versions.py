"""Prints what the GPU machine has, and whether the packages that were carried there import."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import time

PACKAGES = ("numpy", "cupy", "torch", "torchvision", "cv2", "tvm_ffi", "cvcuda", "framefuse", "framefuse.kernels")


def main() -> None:
    for name in PACKAGES:
        start = time.perf_counter()
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            print(f"{name}: MISSING, {error}")
            continue
        where = getattr(module, "__file__", "")
        print(f"{name} {getattr(module, '__version__', '')} {where}, {time.perf_counter() - start:.2f} s")
    if not shutil.which("nvidia-smi"):
        print("no nvidia-smi")
        return
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.total", "--format=csv,noheader"]
    subprocess.run(query, check=False)


if __name__ == "__main__":
    main()
