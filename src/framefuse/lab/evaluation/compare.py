"""Several runs in one table, as text, Markdown and JSON, and a plot of each."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.common.text import in_markdown
from framefuse.errors import FramefuseError
from framefuse.lab.evaluation.coco import needed
from framefuse.lab.evaluation.scores import CONF, IOU, Scores, TrackScores
from framefuse.sinks._lines import encode, open_output, write_error
from framefuse.sinks.run_folder import output_path

FILES = "scores.json", "val.md"
LEGEND = 12
"""Maximum number of classes in the legend of a plot, besides the mean."""
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
    texts, plots = [output_path(folder, name, inputs) for name in FILES], dict[Path, Row]()
    for number, row in enumerate(rows, 1):
        if row.scores:
            name = "".join(c if c.isalnum() else "-" for c in row.title)
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


def plot(scores: Scores, title: str) -> bytes:
    """PNG: the confusion matrix, and precision over recall (boxes) or the IoU of each class (pixels); HOTA over the
    overlap and of each class (tracks).

    Raises:
        CapabilityError: matplotlib is not installed.
    """
    with needed("matplotlib").rc_context({"text.parse_math": False}):  # names are text, also between dollars
        figure = needed("matplotlib.figure").Figure(figsize=(13, 5.6), dpi=110, layout="constrained")
        figure.suptitle(f"{title}: {scores.frames:,} frames of {scores.data}", fontsize=10)
        left, right = figure.subplots(1, 2)
        if scores.tracks:
            _thresholds(left, scores.tracks)
        else:
            _confusion(left, scores)
        if scores.boxes:
            _curves(right, scores)
        elif scores.tracks:
            _shares(right, {name: hota for name, (_, hota) in scores.tracks.by_class.items()}, "HOTA")
            right.set_title(f"HOTA {100 * scores.tracks.hota:.1f}", fontsize=9)
        elif scores.pixels:
            _shares(right, scores.pixels.by_class, "intersection over union")
            right.set_title(f"mean IoU {100 * scores.pixels.miou:.1f}", fontsize=9)
        figure.savefig(png := io.BytesIO())
    return png.getvalue()


def _confusion(axes: Any, scores: Scores) -> None:
    rows, columns = [*scores.names], [*scores.names]
    if scores.boxes:
        table = np.array(scores.boxes.confusion, np.float64)
        rows.append("nothing")
        columns.append("missed")
        axes.set_title(f"confusion matrix (confidence {CONF}, IoU {IOU})", fontsize=9)
    else:
        table = np.array(scores.pixels.confusion if scores.pixels else [], np.float64)
        columns.append("other")
        axes.set_title("confusion matrix, pixels", fontsize=9)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    if scores.boxes:
        shares[-1] = table[-1] / max(table[-1].sum(), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if len(rows) <= 16:
        for (row, column), share in np.ndenumerate(shares):
            if table[row, column]:
                text = f"{table[row, column]:.0f}" if scores.boxes else f"{100 * share:.1f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=7, color="w" if share > 0.5 else "k")


def _curves(axes: Any, scores: Scores) -> None:
    assert scores.boxes is not None
    recall = np.linspace(0, 1, 101)
    curves = scores.boxes.curves
    for number, (name, precision) in enumerate(curves.items()):
        axes.plot(recall, precision, linewidth=1, alpha=0.7, label=name if number < LEGEND else None)
    if curves:
        axes.plot(recall, np.mean(list(curves.values()), axis=0), "k", linewidth=2, label="mean")
    axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="recall", ylabel="precision")
    axes.set_title(
        f"IoU {IOU}: mAP50 {100 * scores.boxes.map50:.1f}, mAP50-95 {100 * scores.boxes.map50_95:.1f}", fontsize=9
    )
    axes.grid(alpha=0.3)
    if curves:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))


def _thresholds(axes: Any, tracks: TrackScores) -> None:
    for name, values in tracks.curves.items():
        axes.plot(np.arange(1, len(values) + 1) / 20, values, label=f"{name} {100 * np.mean(values):.1f}")
    axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="IoU")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _shares(axes: Any, by_class: Mapping[str, float | None], label: str) -> None:
    values = [value or 0.0 for value in by_class.values()]
    axes.barh(range(len(values)), values)
    axes.set_yticks(range(len(values)), list(by_class), fontsize=8)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel=label)
    for number, value in enumerate(values):
        axes.text(value, number, f" {100 * value:.1f}", va="center", fontsize=8)
