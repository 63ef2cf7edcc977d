"""A list of 1080p files to detections, by one process on one GPU, by several, and on two GPUs: `Fleet`.

    python -m benchmarks.fleet CLIP MODEL [--plans 0 0,0 0,1] [--files 48] [--rounds 2]

A plan names the GPU of each process. The list is the clip under as many names. The plans run in turn, `--rounds` times;
the time is from the first frame of any process to the last of any: processes need seconds to start, and so do engines
that are not in the cache. Results go to benchmarks/results/fleet.json.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.protocol import save
from framefuse import Fleet
from framefuse.errors import FramefuseError
from framefuse.fleet import FleetReport, parse_devices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clip", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--plans", nargs="+", default=["0", "0,0", "0,1"], metavar="GPUS")
    parser.add_argument("--files", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--readers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {plan: [] for plan in args.plans}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number:03}{args.clip.suffix}") for number in range(args.files)]
        for file in files:
            file.symlink_to(args.clip.resolve())
        for _ in range(args.rounds):
            for plan, rows in runs.items():
                devices = ["cpu"] * len(plan.split(",")) if plan.startswith("cpu") else parse_devices(plan)
                fleet = Fleet(files, args.model, devices=devices, readers=args.readers, batch=args.batch)
                try:
                    report = fleet.run()
                except FramefuseError as error:
                    print(f"{plan}: {error}", flush=True)
                    continue
                print(report.table(), flush=True)
                rows.append(facts(report))
    fps = {plan: median(row["fps"] for row in rows) for plan, rows in runs.items() if rows}
    for plan, value in fps.items():
        print(f"{plan:<10} {value:>9,.0f} frames/s  {value / next(iter(fps.values())):.2f}x")
    save("fleet", {"files": args.files, "batch": args.batch, "readers": args.readers or None, "fps": fps, "runs": runs})


def facts(report: FleetReport) -> dict[str, Any]:
    workers = [
        {
            "device": worker.device,
            "inputs": len(worker.inputs),
            "fps": worker.report.fps if worker.report else 0.0,
            "limiter": worker.report.limiter if worker.report else None,
        }
        for worker in report.workers
    ]
    return {
        "frames": report.frames,
        "seconds": report.seconds,
        "fps": report.fps,
        "start_seconds": report.start_seconds,
        "workers": workers,
        "errors": [error.message for error in report.errors],
    }


if __name__ == "__main__":
    main()
