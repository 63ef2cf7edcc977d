"""Every engine on the YOLOv8n and YOLOv5s graphs: what `framefuse bench engines` says, recorded.

    python -m benchmarks.engines --device cpu                          # writes results/engines_cpu.json
    python -m benchmarks.engines --device cuda --batches 1 8 32
    python -m benchmarks.engines --docs                                # nothing is measured: docs/internals/engines.md

The weights are random and seeded (models.py): speed follows from the layers. Each engine runs in its own precision and
in FP32, where it has that. The result is written after every case, so that one that is cut short keeps the others.

Engine cudnn measures its kernels once and remembers them. How long that took from nothing is measured first, by itself:

    XDG_CACHE_HOME=$(mktemp -d) python -m benchmarks.engines --device cuda --engines cudnn --runs 1 --out first.json
    python -m benchmarks.engines --device cuda --first first.json
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from textwrap import shorten
from typing import Any

from benchmarks import gpu_sources
from benchmarks.models import model
from benchmarks.protocol import RESULTS, ROOT
from framefuse.lab.bench import bench_engines

MODELS = ("yolov8n", "yolov5s")
LONGEST = 300
"""Letters of a reason that are kept."""


def cleaned(case: dict[str, Any]) -> dict[str, Any]:
    """A report without what says nothing about the measurement."""
    facts = case["machine"]
    facts["python"] = facts["python"].split(" ")[0]  # without where it lies
    if "onnxruntime-gpu" in facts:  # what is imported; the other package may lie behind it
        facts.pop("onnxruntime", None)
    for row in case["rows"]:
        row["not_run"] = shorten(row["not_run"], LONGEST, placeholder=" ...")
        row["reasons"] = [shorten(reason, LONGEST, placeholder=" ...") for reason in row["reasons"]]
    return case


def keep(cases: list[dict[str, Any]], before: dict[str, Any]) -> list[dict[str, Any]]:
    """The reports with what was recorded before of engines that are not installed now, and of cases not measured now.
    Such rows say on which sources they were measured, where those have changed."""
    told = {} if before["sources"] == sources() else {"sources": before["sources"]}
    new = {(case["model"], case["shape"][0]): case for case in cases}
    kept = []
    for old in before["cases"]:
        case = new.pop((old["model"], old["shape"][0]), None)
        measured = [{**told, **row} for row in old["rows"] if row["wall"]]
        ran = {row["engine"] for row in case["rows"] if row["wall"]} if case else set()
        rows = [row for row in measured if row["engine"] not in ran]
        absent = case["rows"] if case else [row for row in old["rows"] if not row["wall"]]
        names = {row["engine"] for row in rows}
        kept.append((case or old) | {"rows": [row for row in absent if row["engine"] not in names] + rows})
    return kept + list(new.values())


def sources() -> dict[str, str]:
    return gpu_sources.stamp("engines", "engine", "tvm")


def record(device: str, cases: list[dict[str, Any]], path: Path) -> None:
    """Write the reports of one device."""
    gpu = next((case["machine"]["gpu"] for case in cases if "gpu" in case["machine"]), None)
    found = {
        "benchmark": f"engines_{device}",
        "gpu": gpu,
        "sources": sources(),
        "cases": cases,
    }
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def add_first_builds(cases: list[dict[str, Any]], first: list[dict[str, Any]]) -> None:
    """Write into rows what the same build took when nothing was remembered."""
    took = {
        (case["model"], case["shape"][0], row["engine"]): row["build_seconds"] for case in first for row in case["rows"]
    }
    for case in cases:
        for row in case["rows"]:
            key = case["model"], case["shape"][0], row["engine"]
            if row["wall"] and key in took:
                row["first_build_seconds"] = took[key]


def markdown(cases: list[dict[str, Any]]) -> str:
    """The table of docs/internals/engines.md, and under it who was not measured and why."""
    lines = [
        "| 640x640 | engine | device ms | images/s | host to host, ms: median | min | mean | p90 | p99 | std | build s "
        "| MB | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    absent: dict[str, None] = {}
    for case in cases:
        title = f"{case['model'].removesuffix('.onnx')}, batch {case['shape'][0]}"
        if len({other["machine"].get("cpu") for other in cases}) > 1:
            title += f", {case['machine']['cpu']}"
        for row in case["rows"]:
            wall, device = row["wall"], row["device_time"]
            if wall is None:
                name = " ".join(filter(None, (row["engine"], row["precision"])))
                absent[f"- not run here: {name}: {without_places(row['not_run'])}"] = None
                continue
            if row["engine"] == "null":
                continue
            best, on_device = (device or wall)["median"], f"{device['median']:.3f}" if device else "-"
            rate = case["shape"][0] / best * 1e3
            build = f"{row.get('first_build_seconds', row['build_seconds']):.1f}"
            times = " | ".join(f"{wall[name]:.3f}" for name in ("median", "min", "mean", "p90", "p99", "std"))
            lines.append(
                f"| {title} | `{row['engine']}` {row['precision']}{' †' if 'sources' in row else ''} | {on_device} "
                f"| {rate:,.{0 if rate > 10 else 2}f} | {times} | {build} | {row['artifact_bytes'] / 1e6:.1f} "
                f"| {'-' if row['error'] is None else format(row['error'], '.1e')} |"
            )
            title = ""
    if any("†" in line for line in lines):
        lines += ["", "† measured before, on earlier sources."]
    return "\n".join([*lines, "", *absent])


def without_places(reason: str) -> str:
    """A reason without the folders of this machine, and names that differ from run to run."""
    return re.sub(r"[0-9a-f]{32}\.plan", "its plan", re.sub(r"(?<![\w.])/[\w.+-]+(?:/[\w.+-]+)*/(?=\w)", "", reason))


def into_page(page: str, name: str, text: str) -> None:
    """Put text between the marks of a result in a page of docs/.

    Raises:
        ValueError: the page has no such marks.
    """
    path = ROOT / "docs" / page
    before, begin, rest = path.read_text(encoding="utf-8").partition(f"<!-- {name}.json -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not (begin and end):
        raise ValueError(f"{path} has no <!-- {name}.json --> and <!-- end --> behind it")
    path.write_text(f"{before}{begin}{text}\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--engines", nargs="+", default=())
    parser.add_argument("--precisions", nargs="+", default=("auto", "fp32"))
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--warmups", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no case is begun after these")
    parser.add_argument("--first", type=Path, help="builds from nothing, measured before")
    parser.add_argument("--out", type=Path, help="default: results/engines_DEVICE.json")
    parser.add_argument("--keep", action="store_true", help="recorded rows of engines that are not installed here")
    parser.add_argument("--docs", action="store_true", help="write the recorded tables into docs/internals/engines.md")
    options = parser.parse_args()
    path = options.out or RESULTS / f"engines_{options.device}.json"
    if options.docs:
        for device in ("cpu", "cuda"):
            recorded = json.loads((RESULTS / f"engines_{device}.json").read_text(encoding="utf-8"))
            into_page("engines.md", f"engines_{device}", markdown(recorded["cases"]))
        return
    first = json.loads(options.first.read_text(encoding="utf-8"))["cases"] if options.first else []
    before = json.loads(path.read_text(encoding="utf-8")) if options.keep else {}
    started, cases = time.monotonic(), list[dict[str, Any]]()
    for batch in options.batches:
        for name in options.models:
            if time.monotonic() - started > options.seconds:
                print(f"{name}, batch {batch}: left out, the time is up")
                continue
            report = bench_engines(
                model(name), devices=[options.device], engines=options.engines, precision=options.precisions,
                batch=batch, runs=options.runs, warmups=options.warmups, say=lambda line: print(line, flush=True),
            )  # fmt: skip
            cases.append(cleaned(json.loads(report.to_json())))
            add_first_builds(cases, first)
            record(options.device, keep(cases, before) if options.keep else cases, path)
            print(f"{name}, batch {batch}: {time.monotonic() - started:.0f} s", flush=True)
    print(path)
    print("\n" + markdown(cases))


if __name__ == "__main__":
    main()
