"""One GPU against two of the same host: a list of 1080p files to detections, through `Fleet`.

    python -m benchmarks.two_gpus CLIP MODEL [--files 48] [--rounds 2]

The list is the clip under as many names. Both settings run in turn, `--rounds` times; the time is from the first frame
of any worker to the last of any, since engines start from their cache but processes need seconds. Results go to
benchmarks/results/two_gpus.json.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.protocol import save
from framefuse import Fleet
from framefuse.fleet import FleetReport


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clip", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--files", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--readers", type=int, default=None)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--devices", nargs=2, default=["cuda:0", "cuda:1"])
    args = parser.parse_args()
    runs: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number:03}{args.clip.suffix}") for number in range(args.files)]
        for file in files:
            file.symlink_to(args.clip.resolve())
        for _ in range(args.rounds):
            for count in runs:
                fleet = Fleet(files, args.model, devices=args.devices[:count], readers=args.readers, batch=args.batch)
                report = fleet.run()
                print(report.table(), flush=True)
                runs[count].append(facts(report))
    ratio = median(row["fps"] for row in runs[2]) / median(row["fps"] for row in runs[1])
    print(f"two against one: {ratio:.2f}x (goal 1.9)")
    save("two_gpus", {"files": args.files, "one": runs[1], "two": runs[2], "ratio": ratio, "goal": 1.9})


def facts(report: FleetReport) -> dict[str, Any]:
    workers = [
        {"device": worker.device, "inputs": len(worker.inputs), "fps": worker.report.fps if worker.report else 0.0}
        for worker in report.workers
    ]
    values = {
        "frames": report.frames,
        "seconds": report.seconds,
        "fps": report.fps,
        "start_seconds": report.start_seconds,
    }
    return values | {"workers": workers, "errors": [error.message for error in report.errors]}


if __name__ == "__main__":
    main()
