"""Every engine on the YOLOv8n and YOLOv5s graphs: what `framefuse bench engines` says, recorded.

    python -m benchmarks.engines --device cpu --batches 1 8              # writes results/engines_cpu.json
    python -m benchmarks.engines --device cuda --collect y8.json y5.json # reports that --out wrote, on another machine

The weights are random and seeded (models.py): speed follows from the layers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import gpu_sources
from benchmarks.models import model
from benchmarks.protocol import RESULTS
from framefuse.bench import bench_engines

MODELS = ("yolov8n", "yolov5s")


def record(device: str, cases: list[dict[str, Any]]) -> Path:
    """Write the reports of one device; runs of others are not kept, statistics are."""
    for case in cases:
        facts = case["machine"]
        facts["python"] = facts["python"].split(" ")[0]  # without where it lies
        if "onnxruntime-gpu" in facts:  # what is imported; the other package may lie behind it
            facts.pop("onnxruntime", None)
        for row in case["rows"]:
            row["not_run"] = row["not_run"][:300]
            row["reasons"] = [reason[:300] for reason in row["reasons"]]
    gpu = next((case["machine"]["gpu"] for case in cases if "gpu" in case["machine"]), None)
    found = {
        "benchmark": f"engines_{device}",
        "gpu": gpu,
        "sources": gpu_sources.stamp("engines", "engine"),
        "cases": cases,
    }
    path = RESULTS / f"engines_{device}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path


def markdown(case: dict[str, Any]) -> str:
    """A report as the table that docs/engines.md shows."""
    batch, _, height, width = case["shape"]
    lines = [
        f"{case['model']}, batch {batch} of {width}x{height}",
        "",
        "| engine | precision | host to host, ms: median | min | p90 | p99 | std | device ms | build s | MB | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in case["rows"]:
        wall, device = row["wall"], row["device_time"]
        if wall is None:
            continue
        error = "-" if row["error"] is None else f"{row['error']:.1e}"
        lines.append(
            f"| {row['engine']} | {row['precision']} | {wall['median']:.3f} | {wall['min']:.3f} | {wall['p90']:.3f} | "
            f"{wall['p99']:.3f} | {wall['std']:.3f} | {format(device['median'], '.3f') if device else '-'} | "
            f"{row['build_seconds']:.1f} | {row['artifact_bytes'] / 1e6:.1f} | {error} |"
        )
    lines += [""] + [
        f"- {row['engine']}: not run here, because {row['not_run']}" for row in case["rows"] if row["not_run"]
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--collect", type=Path, nargs="+", help="reports to record; nothing is measured")
    options = parser.parse_args()
    if options.collect:
        cases = [json.loads(path.read_text(encoding="utf-8")) for path in options.collect]
    else:
        cases = [
            json.loads(bench_engines(model(name), devices=[options.device], batch=batch, runs=options.runs).to_json())
            for name in MODELS
            for batch in options.batches
        ]
    print(record(options.device, cases))
    for case in cases:
        print("\n" + markdown(case))


if __name__ == "__main__":
    main()
