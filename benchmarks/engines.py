"""Every engine on the YOLOv8n and YOLOv5s graphs: what `framefuse bench engines` says, recorded.

    python -m benchmarks.engines --device cpu                          # the record engines_cpu
    python -m benchmarks.engines --device cuda --batches 1 8 32

The weights are random and seeded (models.py): speed follows from the layers. Each engine runs in its own precision and
in FP32, where it has that. The result is written after every case, so that one that is cut short keeps the others.

Engine cudnn measures its kernels once and caches them; with an empty `XDG_CACHE_HOME` it builds from nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from textwrap import shorten
from typing import Any

from benchmarks.models import model
from benchmarks.protocol import RECORDS, save
from benchmarks.source_groups import changed
from framefuse.lab.bench import bench_engines

MODELS = ("yolov8n", "yolov5s")
COMMON = ("engine benchmark", "engine onnxruntime", "engine torch", "engine tvm")
GROUPS = {"cpu": (*COMMON, "engine openvino"), "cuda": (*COMMON, "engine cudnn", "network kernel")}
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
    Such rows say at which commit and when they were measured, where the sources were others."""
    same = not changed(before["sources"])
    told = {} if same else {"measured": {key: before[key] for key in ("commit", "date")}}
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
    parser.add_argument("--name", help="of the record; default: engines_DEVICE")
    parser.add_argument("--keep", action="store_true", help="recorded rows of engines that are not installed here")
    options = parser.parse_args()
    name = options.name or f"engines_{options.device}"
    before = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8")) if options.keep else {}
    started, cases = time.monotonic(), list[dict[str, Any]]()
    for batch in options.batches:
        for network in options.models:
            if time.monotonic() - started > options.seconds:
                print(f"{network}, batch {batch}: left out, the time is up")
                continue
            report = bench_engines(
                model(network), devices=[options.device], engines=options.engines, precision=options.precisions,
                batch=batch, runs=options.runs, warmups=options.warmups, say=lambda line: print(line, flush=True),
            )  # fmt: skip
            cases.append(cleaned(json.loads(report.to_json())))
            save(name, {"cases": keep(cases, before) if options.keep else cases}, *GROUPS[options.device])
            print(f"{network}, batch {batch}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
