"""Accuracy of the shipped models in every engine and precision of this machine, on the same frames.

    python -m benchmarks.accuracy [--frames 400]

The frames are of the synthetic world's test split, which shares no texture, shape or schedule with training; their
truth is exact. The first row of each table is ONNX Runtime in FP32, the reference; every other row says how many points
it differs. A combination that this machine cannot run is in the table too, with the reason. It is what `framefuse val`
prints; recorded are benchmarks/results/accuracy.json and docs/results/accuracy.md. The last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.protocol import ROOT, save
from framefuse.errors import FramefuseError
from framefuse.evaluation import Scores, open_data, validate
from framefuse.evaluation.compare import Row, Wanted, class_table, legend, markdown_table, table

PAGE = ROOT / "docs" / "results" / "accuracy.md"
SEEDS = (9001, 9002, 9003, 9004)


@dataclass(frozen=True)
class Case:
    """A row of a table: a model in an engine and a precision, at an input size other than its card's if stated."""

    model: str
    engine: str
    precision: str
    imgsz: int | None = None


@dataclass(frozen=True)
class Set:
    """A table: cases on one set of frames."""

    title: str
    data: tuple[str, ...]
    cases: tuple[Case, ...]


def world(scene: str, frames: int = 300) -> tuple[str, ...]:
    return tuple(f"synthetic://{scene}?seed={seed}&frames={frames}&size=1280x720&split=test" for seed in SEEDS)


def everywhere(model: str, int8: str | None = None) -> tuple[Case, ...]:
    """A model in all engines and precisions, the reference first."""
    cases = [Case(model, "onnxruntime", "fp32")]
    cases += [Case(model, "openvino", precision) for precision in ("fp32", "bf16", "fp16")]
    if int8:
        cases += [Case(int8, engine, "auto") for engine in ("onnxruntime", "openvino")]
    return tuple(cases)


SETS = {
    "street": Set(
        "Detection: the street",
        world("street"),
        (
            *everywhere("scout-n", "scout-n-int8"),
            Case("scout-n", "openvino", "fp32", imgsz=320),
            Case("scout-s", "onnxruntime", "fp32"),
            Case("scout-s", "openvino", "bf16"),
        ),
    ),
    "bodies": Set("Segmentation: bodies", world("bodies"), everywhere("body-n")),
}


def run(chosen: Set, frames: int) -> list[Row]:
    data = open_data(list(chosen.data))
    rows = []
    for case in chosen.cases:
        row = Row(Wanted(case.model, case.engine, case.precision))
        size = {} if case.imgsz is None else {"imgsz": [case.imgsz]}
        try:
            scores = validate(case.model, data, limit=frames, engine=case.engine, precision=case.precision, **size)
            row = replace(row, scores=scores)
        except FramefuseError as error:
            row = replace(row, error=error)
        rows.append(row)
        print(f"{row.title}: {row.scores.value if row.scores else row.error}", file=sys.stderr)
    return rows


def page(tables: dict[str, list[Row]]) -> str:
    lines = [
        "# Accuracy: measured",
        "",
        "Made by `python -m benchmarks.accuracy`; do not edit. The same frames go through the same pipeline in every",
        "row; [evaluation.md](../evaluation.md) says what the columns mean.",
    ]
    for name, rows in tables.items():
        scored = [row.scores for row in rows if row.scores]
        lines += ["", f"## {SETS[name].title}", ""]
        if scored:
            lines += [f"{scored[0].frames:,} frames, evenly spread over", ""]
            lines += [f"    {uri}" for uri in SETS[name].data]
            lines += ["", *markdown_table(table(rows)), "", *legend(scored), ""]
            lines += [f"- {row.title}: {row.error.message}" for row in rows if row.error]
            lines += ["", "By class:", "", *markdown_table(class_table(rows))]
    return "\n".join(lines) + "\n"


def record(scores: Scores) -> dict[str, Any]:
    """Scores without curves and confusion matrix."""
    content = scores.to_dict()
    for part in ("boxes", "pixels"):
        for key in ("curves", "confusion"):
            (content[part] or {}).pop(key, None)
    return content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=400)
    options = parser.parse_args()
    tables = {name: run(chosen, options.frames) for name, chosen in SETS.items()}
    PAGE.write_text(page(tables))
    content = {
        name: [
            vars(row.wanted) | ({"scores": record(row.scores)} if row.scores else {"error": str(row.error)})
            for row in rows
        ]
        for name, rows in tables.items()
    }
    save("accuracy", content)


if __name__ == "__main__":
    main()
