"""Several runs in one table: text, Markdown and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from framefuse.common.text import in_markdown
from framefuse.errors import FramefuseError
from framefuse.lab.evaluation.scores import CONF, IOU, Scores
from framefuse.sinks._lines import encode, open_output, write_error
from framefuse.sinks.run_folder import output_path

FILES = "scores.json", "val.md"
SCHEMA = 1
"""Version of scores.json; increased when a field changes its meaning or is removed."""


@dataclass(frozen=True)
class Wanted:
    """The requested model, engine and precision."""

    model: str
    engine: str
    precision: str


@dataclass(frozen=True)
class Row:
    """The outcome of one request: scores, or the error."""

    wanted: Wanted
    scores: Scores | None = None
    error: FramefuseError | None = None

    @property
    def title(self) -> str:
        """Model, engine and precision that ran, or that were requested."""
        ran = self.scores
        return " ".join((ran.model, ran.engine, ran.precision) if ran else vars(self.wanted).values())


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Header and one line per row, in percent; the last column is the difference from the first row in points."""
    scored = [row.scores for row in rows if row.scores]
    first = scored[0] if scored else None
    boxes_first = sorted(scored, key=lambda scores: scores.boxes is None)
    names = list(dict.fromkeys(name for scores in boxes_first for name in _cells(scores)))
    columns = ["model", "engine", "precision", "input", "MB", *names, "CPU ms", *["points"] * (len(rows) > 1)]
    lines = [columns]
    for row in rows:
        if (scores := row.scores) is None or first is None:
            lines.append([*vars(row.wanted).values(), "failed", *["-"] * (len(columns) - 4)])
            continue
        cells = _cells(scores)
        line = [scores.model, scores.engine, scores.precision, scores.input, f"{scores.file_mb:.1f}"]
        line += [cells.get(name, "-") for name in names]
        line.append("-" if scores.cpu_ms is None else f"{scores.cpu_ms:.1f}")
        points = "" if scores is first else f"{round(100 * (scores.value - first.value), 2) + 0.0:+.2f}"
        lines.append([*line, points][: len(columns)])
    return lines


def _cells(scores: Scores) -> dict[str, str]:
    """The scores by the names of their columns."""
    shares: dict[str, float | None] = {}
    if boxes := scores.boxes:
        shares = {"mAP50-95": boxes.map50_95, "mAP50": boxes.map50, **boxes.by_size}
        shares |= {name: split.map50_95 for name, split in boxes.by_complexity.items()}
        shares |= {"P": boxes.precision, "R": boxes.recall}
    if pixels := scores.pixels:
        shares |= {"mIoU": pixels.miou, "pixels": pixels.accuracy}
    if tracks := scores.tracks:
        shares |= {"HOTA": tracks.hota, "DetA": tracks.deta, "AssA": tracks.assa, "MOTA": tracks.mota}
        shares |= {"IDF1": tracks.idf1}
    cells = {name: percent(share) for name, share in shares.items()}
    return cells | {"switches": f"{tracks.id_switches:,}"} if tracks else cells


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def class_table(rows: Sequence[Row]) -> list[list[str]]:
    """Header and one line per class: mAP50-95, IoU or HOTA of each run, in percent."""
    scored = [row for row in rows if row.scores]
    names = dict.fromkeys(name for row in scored if row.scores for name in row.scores.names)
    titles = [row.title for row in scored]
    inputs = [f" {row.scores.input}" if row.scores and titles.count(row.title) > 1 else "" for row in scored]
    lines = [["class", "objects", *map("".join, zip(titles, inputs, strict=True))]]
    for name in names:
        values, objects = [], "-"
        for row in scored:
            value = None
            if row.scores and row.scores.boxes and name in row.scores.boxes.by_class:
                found = row.scores.boxes.by_class[name]
                value, objects = found.map50_95, f"{found.objects:,}"
            elif row.scores and row.scores.tracks:
                boxes, value = row.scores.tracks.by_class.get(name, (0, None))
                objects = f"{boxes:,}"
            elif row.scores and row.scores.pixels:
                value = row.scores.pixels.by_class.get(name)
            values.append(percent(value))
        lines.append([name, objects, *values])
    return lines


def markdown(rows: Sequence[Row], images: Sequence[Path] = ()) -> str:
    """The comparison as a Markdown page."""
    scored = [row.scores for row in rows if row.scores]
    page = ["# Accuracy", ""]
    if scored:
        page += [f"{in_markdown(scored[0].data)}, {scored[0].frames:,} frames.", ""]
    page += [*markdown_table(table(rows)), "", *legend(scored), ""]
    if scored:
        page += ["## By class", "", *markdown_table(class_table(rows)), ""]
    for row in rows:
        for note in row.scores.notes if row.scores else ():
            page.append(f"- {in_markdown(f'{row.title}: {note}')}")
        if row.error:
            page.append(f"- {in_markdown(f'{row.title}: {row.error.message} ({row.error.remedy})')}")
    page += [f"\n![{path.stem}]({path.name})" for path in images]
    return "\n".join(page).rstrip() + "\n"


def legend(scored: Sequence[Scores]) -> list[str]:
    """The meaning of the columns of `table`, a sentence each."""
    sentences = []
    if any(scores.boxes for scores in scored):
        sentences.append(
            "Percent. mAP is COCO's, by size of the objects in source pixels (small < 32 x 32, large > 96 x 96); "
            f"P and R are precision and recall at confidence {CONF} and overlap {IOU}."
        )
    if any(scores.boxes and scores.boxes.by_complexity for scores in scored):
        sentences.append("Crowded, busy and calm frames: thirds of the range of the scene's complexity.")
    if any(scores.pixels for scores in scored):
        sentences.append("Percent. mIoU is the mean over the classes, pixels the share of all pixels that are right.")
    if any(scores.tracks for scores in scored):
        sentences.append(
            "Percent. HOTA is the geometric mean of DetA (are objects found) and AssA (do they keep their ids), over "
            f"all overlaps; MOTA and IDF1 at overlap {IOU}; switches: changes of the id of an object."
        )
    sentences.append("CPU ms: the engine's processor time per frame, a hint. Points: difference from the first row.")
    return sentences


def markdown_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Header and rows as lines of Markdown."""
    head, *body = [[in_markdown(cell) for cell in line] for line in lines]
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body)]


def to_json(rows: Sequence[Row]) -> str:
    content = [
        {"wanted": vars(row.wanted)}
        | ({"scores": row.scores.to_dict()} if row.scores else {})
        | ({"error": row.error.message, "remedy": row.error.remedy} if row.error else {})
        for row in rows
    ]
    return json.dumps({"schema": SCHEMA, "runs": content}, indent=2, allow_nan=False) + "\n"


def save(rows: Sequence[Row], folder: Path, inputs: Container[Path] = ()) -> list[Path]:
    """Write FILES and a plot for each run into a folder; returns their paths.

    Args:
        inputs: files that are not overwritten.

    Raises:
        CapabilityError: the extra `val` is not installed.
        SinkError: they cannot be written.
    """
    from framefuse.lab.evaluation.plots import plot

    texts, plots = [output_path(folder, name, inputs) for name in FILES], dict[Path, Row]()
    for number, row in enumerate(rows, 1):
        if row.scores:
            name = "-".join("".join(c if c.isalnum() else "-" for c in row.title).split("-"))
            plots[output_path(folder, f"{number}-{name}.png", inputs)] = row
    for path, text in zip(texts, (to_json(rows), markdown(rows, list(plots))), strict=True):
        _write(path, encode(text))
    for path, row in plots.items():
        if row.scores:
            _write(path, plot(row.scores, row.title))
    return [*texts, *plots]


def _write(path: Path, content: bytes) -> None:
    try:
        with os.fdopen(open_output(path), "wb") as file:
            file.write(content)
    except OSError as error:
        raise write_error(path, error) from error
