"""The kernels against what a user would have picked instead: every row of docs/results/kernels.md.

    python -m benchmarks.kernels cpu [ROW ...] [--runs 100]     # one thread, beside OpenCV, swscale, numpy, pycocotools
    python -m benchmarks.kernels gpu [ROW ...]                  # beside CV-CUDA, PyTorch, torchvision

ROW: part of the name of a row function, as in `preprocess`. Without one, all rows run. Results are checked before they
are timed; peers run interleaved, into buffers that exist before; the bandwidth of a plain copy is measured in the same
run. The record is kernels_cpu or kernels_gpu; `python -m benchmarks.results` makes the page.
The strongest peer is OpenCV 4: warpAffine of 5.0 takes six times as long as that of 4.14, the rest is alike. So

    pip install --target benchmarks/.cache/opencv4 --no-deps 'opencv-python-headless<5'
    PYTHONPATH=benchmarks/.cache/opencv4 python -m benchmarks.kernels cpu

The last line is JSON.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from math import inf

from benchmarks.protocol import save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", choices=("cpu", "gpu"))
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--warmups", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=inf, help="begin no row function after this long")
    parser.add_argument("--dry", action="store_true", help="do not write the results file")
    args = parser.parse_intermixed_args()
    device = import_module(f"benchmarks.kernels.{args.device}")  # the other one's peers need not be installed
    results = device.run(args.rows, runs=args.runs, warmups=args.warmups, seconds=args.seconds)
    if not args.dry:
        kernels = "CPU kernel" if args.device == "cpu" else "CUDA kernel"
        save(f"kernels_{args.device}", results, kernels, "kernel benchmark")


if __name__ == "__main__":
    main()
