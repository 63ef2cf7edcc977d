"""Accuracy of the shipped models in every engine and precision of this machine, on the same frames.

    python -m benchmarks.accuracy [--models FOLDER]

The frames are of the synthetic world's test split, which shares no texture, shape or schedule with training; their
truth is exact. The first row of each table is ONNX Runtime in FP32, the reference; every other row says how many points
it differs. A combination that this machine cannot run is in the table too, with the reason. `--models` names a folder
that holds what does not ship by its name as well: scout-s in FP32, and the FP16 files. It is what `framefuse val`
prints; recorded are benchmarks/results/accuracy.json and docs/results/accuracy.md. The last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.protocol import ROOT, save
from framefuse.errors import FramefuseError
from framefuse.lab.evaluation import Dataset, Scores, open_data, validate
from framefuse.lab.evaluation.compare import Row, Wanted, class_table, legend, markdown_table, table
from framefuse.lab.evaluation.dataset import Key
from framefuse.models import list_models
from framefuse.sources import Source, SourceInfo
from framefuse.sources.pull import Frames, PullSource
from framefuse.world import World

PAGE = ROOT / "docs" / "results" / "accuracy.md"
BY_CLASS = "openvino", "auto"
"""Beside the reference, what is shown class by class."""
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
    frames: int
    cases: tuple[Case, ...]


def world(scene: str, frames: int = 300) -> tuple[str, ...]:
    return tuple(f"synthetic://{scene}?seed={seed}&frames={frames}&size=1280x720&split=test" for seed in SEEDS)


def everywhere(model: str, *lowered: str) -> tuple[Case, ...]:
    """A model in all engines and precisions, the reference first, then the files that `framefuse build` made of it."""
    cases = [Case(model, "onnxruntime", "fp32")]
    cases += [Case(model, "openvino", precision) for precision in ("fp32", "bf16", "fp16")]
    cases += [Case(file, engine, "auto") for file in lowered for engine in ("onnxruntime", "openvino")]
    return tuple(cases)


SETS = {
    "street": Set(
        "Detection: the street",
        world("street"),
        240,
        (
            *everywhere("scout-n", "scout-n-fp16", "scout-n-int8"),
            Case("scout-n", "openvino", "fp32", imgsz=320),
            Case("scout-s", "onnxruntime", "fp32"),
            Case("scout-s-fp16", "openvino", "auto"),
        ),
    ),
    "bodies": Set("Segmentation: body parts", world("bodies"), 120, everywhere("body-n", "body-n-fp16")),
    "people": Set(
        "Segmentation: people",
        world("bodies"),
        120,
        (Case("body-n-2", "onnxruntime", "fp32"), Case("body-n-2", "openvino", "bf16")),
    ),
}


def drawn_once(data: Dataset, limit: int) -> Dataset:
    """The data with its frames in memory, so that all rows see the very same ones, and none waits for them."""
    keys = data.spread(limit)
    frames = dict(zip(keys, data.open(keys), strict=True))
    labels = {key: data.labels(key) for key in keys}

    def replay(keys: Sequence[Key]) -> Source:
        def shown(closed: threading.Event) -> Frames:
            yield from (frames[key] for key in keys)

        return PullSource(SourceInfo(data.uri, "synthetic", frames=len(keys)), shown)

    return replace(data, keys=keys, open=replay, labels=labels.__getitem__)


def run(chosen: Set, models: Path | None) -> list[Row]:
    data = drawn_once(open_data(list(chosen.data)), chosen.frames)
    rows = []
    for case in chosen.cases:
        if models is None and case.model not in list_models():
            continue
        row = Row(Wanted(case.model, case.engine, case.precision))
        size = {} if case.imgsz is None else {"imgsz": [case.imgsz]}
        try:
            model = models / f"{case.model}.onnx" if models else case.model
            scores = validate(model, data, engine=case.engine, precision=case.precision, **size)
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
            lines += [f"{scored[0].frames:,} frames of world version {World.version}, evenly spread over", ""]
            lines += [f"    {uri}" for uri in SETS[name].data]
            lines += ["", *markdown_table(table(rows)), "", *legend(scored), ""]
            lines += [f"- {row.title}: {row.error.message}" for row in rows if row.error]
            chosen = [rows[0], *(row for row in rows if (row.wanted.engine, row.wanted.precision) == BY_CLASS)]
            lines += ["", "By class:", "", *markdown_table(class_table(chosen))]
    return "\n".join(lines) + "\n"


def plain(scores: Scores) -> dict[str, Any]:
    """Scores without curves and confusion matrix."""
    content = scores.to_dict()
    for part in ("boxes", "pixels"):
        for key in ("curves", "confusion"):
            (content[part] or {}).pop(key, None)
    return content


def record(tables: dict[str, list[Row]]) -> None:
    """Write the page and the JSON."""
    PAGE.write_text(page(tables))
    content = {
        name: [
            vars(row.wanted) | ({"scores": plain(row.scores)} if row.scores else {"error": str(row.error)})
            for row in rows
        ]
        for name, rows in tables.items()
    }
    save("accuracy", content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="folder of NAME.onnx; default: what ships, by name")
    options = parser.parse_args()
    record({name: run(chosen, options.models) for name, chosen in SETS.items()})


if __name__ == "__main__":
    main()
