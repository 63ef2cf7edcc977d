"""Scores: the accuracy of one model on one data set; several as a table, Markdown and JSON, and a plot of each."""

import io
import json
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, starmap
from pathlib import Path
from typing import Any, Self

import numpy as np

from framefuse.common.text import in_markdown
from framefuse.errors import FramefuseError
from framefuse.lab.evaluation.coco import needed
from framefuse.models import SHIPPED, find_model
from framefuse.sinks.run_folder import encode, open_output, output_path, sink_errors

CONF = 0.25
"""Confidence threshold of precision, recall and the confusion matrix: the default of `predict`."""
IOU = 0.5
"""IoU threshold of precision, recall and the confusion matrix."""
FILES = "scores.json", "val.md"
LEGEND = 12
"""Maximum number of classes in the legend of a plot, besides the mean."""
SCHEMA = 1
"""Version of scores.json; increased when a field changes its meaning or is removed."""


@dataclass(frozen=True)
class ClassScore:
    """One class."""

    objects: int
    """In the ground truth."""
    map50_95: float | None
    map50: float | None
    """None if the data have no object of this class."""


@dataclass(frozen=True)
class Split:
    """A subset of the frames."""

    frames: int
    objects: int
    detections: int
    """With confidence >= CONF."""
    map50_95: float | None
    map50: float | None


@dataclass(frozen=True)
class BoxScores:
    """Average precision as COCO defines it: mean over classes and over the IoU thresholds 0.50, 0.55, ..., 0.95."""

    map50_95: float
    map50: float
    map75: float
    objects: int
    """In the ground truth, without crowd regions."""
    precision: float
    """Share of the detections with confidence >= CONF that match an object: same class, IoU >= IOU."""
    recall: float
    """Share of the objects that those detections find."""
    by_size: Mapping[str, float | None]
    """map50_95 of small (< 32 x 32 pixels), medium and large (> 96 x 96) objects; None if there are none."""
    by_class: Mapping[str, ClassScore]
    by_complexity: Mapping[str, Split]
    """Crowded (complexity >= 2/3), busy and calm (< 1/3) frames; empty if the data have no complexity."""
    confusion: Sequence[Sequence[int]]
    """[truth][found] counts at CONF; the last row counts false detections, the last column missed objects."""
    curves: Mapping[str, Sequence[float]]
    """Precision of each class at recall 0, 0.01, ..., 1, with IoU threshold IOU."""
    shape_map50_95: float | None = None
    """Of masks and oriented boxes by the IoU of their pixels, or of keypoints by COCO's similarity, in place of boxes;
    None: not scored."""
    shape_map50: float | None = None


@dataclass(frozen=True)
class PixelScores:
    """Intersection over union by class, over the pixels of all frames together."""

    miou: float
    """Mean over the classes that occur in the ground truth."""
    accuracy: float
    """Share of the pixels whose class is right."""
    by_class: Mapping[str, float | None]
    """None if neither the ground truth nor the model has a pixel of the class."""
    confusion: Sequence[Sequence[int]]
    """[truth][found] pixels; the last column is predictions of classes that are not compared."""


@dataclass(frozen=True)
class ImageScores:
    """Classes of whole images."""

    top1: float
    """Share of the images whose best class is right."""
    top5: float
    """Share of the images whose class is one of the five best."""
    by_class: Mapping[str, tuple[int, float | None]]
    """Images in the ground truth, and the share of them whose best class is right; None without any."""


@dataclass(frozen=True)
class TrackScores:
    """Tracks as trackeval scores them; all shares are 0..1, and MOTA may be negative."""

    hota: float
    """Geometric mean of deta and assa, mean over the IoU thresholds 0.05, 0.10, ..., 0.95."""
    deta: float
    """How well the objects are found."""
    assa: float
    """How well the boxes of an object have one id."""
    mota: float
    """1 - (missed objects + false boxes + id_switches) / objects, with IoU >= IOU."""
    idf1: float
    """F1 score of the boxes whose id is that of their object, with IoU >= IOU."""
    id_switches: int
    fragments: int
    """Interruptions of objects that were followed."""
    objects: int
    """Boxes in the ground truth that count."""
    identities: int
    """Objects in the ground truth."""
    by_class: Mapping[str, tuple[int, float | None]]
    """Boxes in the ground truth, and HOTA, which is None without any."""
    curves: Mapping[str, Sequence[float]]
    """HOTA, DetA and AssA at the IoU thresholds 0.05, 0.10, ..., 0.95."""


@dataclass(frozen=True)
class Scores:
    """One model, engine and precision on one data set."""

    model: str
    data: str
    task: str
    engine: str
    precision: str
    """The precision that ran."""
    input: str
    """Width x height of the model input."""
    frames: int
    names: Sequence[str]
    """The classes that were compared, in the order of the confusion matrix."""
    boxes: BoxScores | None = None
    pixels: PixelScores | None = None
    images: ImageScores | None = None
    tracks: TrackScores | None = None
    """With `track`, in place of boxes."""
    tracker: str | None = None
    file_mb: float = 0.0
    """Size of the model file in 10^6 bytes."""
    cpu_ms: float | None = None
    """Processor time of the engine per frame in milliseconds, a hint only; None if unknown."""
    notes: Sequence[str] = field(default_factory=list)
    """What was left out, and why."""

    @property
    def shape(self) -> str:
        """What the model finds of objects besides boxes."""
        return {"segment": "masks", "pose": "keypoints", "obb": "oriented boxes"}.get(self.task, "")

    @property
    def map50_95(self) -> float | None:
        return self.boxes.map50_95 if self.boxes else None

    @property
    def map50(self) -> float | None:
        return self.boxes.map50 if self.boxes else None

    @property
    def miou(self) -> float | None:
        return self.pixels.miou if self.pixels else None

    @property
    def value(self) -> float:
        """The main score of the task, 0..1: map50_95 of a detector, mean IoU of a segmenter, top1 of a classifier, HOTA
        of tracks."""
        if self.tracks:
            return self.tracks.hota
        if self.images:
            return self.images.top1
        return self.pixels.miou if self.pixels else self.boxes.map50_95 if self.boxes else 0.0

    def of_class(self, name: str) -> tuple[int | None, float | None]:
        """Objects or images of a class in the ground truth, and its map50_95, IoU, HOTA or share of right ones; None:
        not counted, or no object."""
        if self.boxes and name in self.boxes.by_class:
            found = self.boxes.by_class[name]
            return found.objects, found.map50_95
        if found_by := self.tracks or self.images:
            return found_by.by_class.get(name, (0, None))
        return None, self.pixels.by_class.get(name) if self.pixels else None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Wanted:
    """The requested model, engine and precision."""

    model: str
    engine: str
    precision: str

    def built(self) -> Self:
        """The same; for int8 with the `NAME-int8` that was built from the model, if there is one."""
        stem = Path(self.model).stem
        if self.precision != "int8" or stem.endswith("-int8"):
            return self
        if f"{self.model}-int8" in SHIPPED:
            return replace(self, model=f"{self.model}-int8")
        built = find_model(self.model).with_name(f"{stem}-int8.onnx")
        return replace(self, model=str(built)) if built.exists() else self


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
        what = [scores.model, scores.engine, scores.precision, scores.input, f"{scores.file_mb:.1f}"]
        cpu = "-" if scores.cpu_ms is None else f"{scores.cpu_ms:.1f}"
        points = "" if scores is first else f"{round(100 * (scores.value - first.value), 2) + 0.0:+.2f}"
        lines.append([*what, *(cells.get(name, "-") for name in names), cpu, points][: len(columns)])
    return lines


def _cells(scores: Scores) -> dict[str, str]:
    """The scores by the names of their columns."""
    shares: dict[str, float | None] = {}
    if boxes := scores.boxes:
        shares = {"mAP50-95": boxes.map50_95, "mAP50": boxes.map50}
        if boxes.shape_map50_95 is not None:
            shares |= {f"{scores.shape} 50-95": boxes.shape_map50_95, f"{scores.shape} 50": boxes.shape_map50}
        shares |= boxes.by_size
        shares |= {name: split.map50_95 for name, split in boxes.by_complexity.items()}
        shares |= {"P": boxes.precision, "R": boxes.recall}
    if pixels := scores.pixels:
        shares |= {"mIoU": pixels.miou, "pixels": pixels.accuracy}
    if images := scores.images:
        shares = {"top-1": images.top1, "top-5": images.top5}
    if tracks := scores.tracks:
        shares |= {name: getattr(tracks, name.lower()) for name in ("HOTA", "DetA", "AssA", "MOTA", "IDF1")}
    cells = {name: percent(share) for name, share in shares.items()}
    return cells | {"switches": f"{tracks.id_switches:,}"} if tracks else cells


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def class_table(rows: Sequence[Row]) -> list[list[str]]:
    """Header and one line per class: mAP50-95, IoU or HOTA of each run, in percent."""
    scored = [(row.title, row.scores) for row in rows if row.scores]
    titles = [title for title, _ in scored]
    inputs = [f" {scores.input}" if titles.count(title) > 1 else "" for title, scores in scored]
    lines = [["class", "objects", *map("".join, zip(titles, inputs, strict=True))]]
    for name in dict.fromkeys(name for _, scores in scored for name in scores.names):
        found = [scores.of_class(name) for _, scores in scored]
        objects = [f"{count:,}" for count, _ in found if count is not None]
        lines.append([name, objects[-1] if objects else "-", *(percent(value) for _, value in found)])
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
        notes = [*row.scores.notes] if row.scores else []
        notes += [f"{row.error.message} ({row.error.remedy})"] if row.error else []
        page += [f"- {in_markdown(f'{row.title}: {note}')}" for note in notes]
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
    if shapes := {scores.shape for scores in scored if scores.boxes and scores.boxes.shape_map50_95 is not None}:
        named = " and ".join(sorted(shapes)).capitalize()
        sentences.append(f"{named}: mAP with their own overlap in place of that of boxes.")
    if any(scores.boxes and scores.boxes.by_complexity for scores in scored):
        sentences.append("Crowded, busy and calm frames: thirds of the range of the scene's complexity.")
    if any(scores.pixels for scores in scored):
        sentences.append("Percent. mIoU is the mean over the classes, pixels the share of all pixels that are right.")
    if any(scores.images for scores in scored):
        sentences.append("Percent of the images whose class is the best one of the model, or one of its five best.")
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
    """Write FILES and a plot for each run into a folder, but over none of `inputs`; returns their paths.
    CapabilityError if the extra `val` is not installed, SinkError if they cannot be written.
    """
    texts, plots = [output_path(folder, name, inputs) for name in FILES], dict[Path, tuple[Scores, str]]()
    for number, row in enumerate(rows, 1):
        if row.scores:
            name = "".join(c if c.isalnum() else "-" for c in row.title)
            plots[output_path(folder, f"{number}-{name}.png", inputs)] = row.scores, row.title
    contents = map(encode, (to_json(rows), markdown(rows, list(plots))))
    # A plot is drawn when its turn comes, so that the texts are there even if it cannot be.
    for path, content in zip([*texts, *plots], chain(contents, starmap(plot, plots.values())), strict=True):
        with sink_errors(path), os.fdopen(open_output(path), "wb") as file:
            file.write(content)
    return [*texts, *plots]


def plot(scores: Scores, title: str) -> bytes:
    """PNG: the confusion matrix, and precision over recall (boxes) or the IoU of each class (pixels); HOTA over the
    overlap and of each class (tracks). CapabilityError if matplotlib is not installed."""
    small = dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), 8)
    style = {"text.parse_math": False, "axes.titlesize": 9, "axes.labelsize": 9, **small}
    with needed("matplotlib").rc_context(style):  # names are text, also between dollars
        figure = needed("matplotlib.figure").Figure(figsize=(13, 5.6), dpi=110, layout="constrained")
        figure.suptitle(f"{title}: {scores.frames:,} frames of {scores.data}", fontsize=10)
        left, right = figure.subplots(1, 2)
        if scores.tracks:
            _thresholds(left, scores.tracks)
        else:
            _confusion(left, scores)
        if scores.boxes:
            _curves(right, scores.boxes)
        else:
            shares = {name: scores.of_class(name)[1] or 0.0 for name in scores.names}
            bars = right.barh([*shares], [*shares.values()])
            right.bar_label(bars, [f" {100 * share:.1f}" for share in shares.values()], fontsize=8)
            right.invert_yaxis()
            what = "HOTA" if scores.tracks else "mean IoU"
            right.set(xlim=(0, 1), xlabel=what.removeprefix("mean "), title=f"{what} {100 * scores.value:.1f}")
        figure.savefig(png := io.BytesIO())
    return png.getvalue()


def _confusion(axes: Any, scores: Scores) -> None:
    found = scores.boxes or scores.pixels
    table = np.array(found.confusion if found else [], np.float64)
    rows, columns = [*scores.names], [*scores.names, "missed" if scores.boxes else "other"]
    rows += ["nothing"] if scores.boxes else []
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    what = f" (confidence {CONF}, IoU {IOU})" if scores.boxes else ", pixels"
    axes.set(xlabel="predicted", ylabel="true", title=f"confusion matrix{what}")
    if len(rows) <= 16:
        for (row, column), share in np.ndenumerate(shares):
            if table[row, column]:
                text = f"{table[row, column]:.0f}" if scores.boxes else f"{100 * share:.1f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=7, color="w" if share > 0.5 else "k")


def _curves(axes: Any, boxes: BoxScores) -> None:
    recall = np.linspace(0, 1, 101)
    for number, (name, precision) in enumerate(boxes.curves.items()):
        axes.plot(recall, precision, linewidth=1, alpha=0.7, label=name if number < LEGEND else None)
    if boxes.curves:
        axes.plot(recall, np.mean(list(boxes.curves.values()), axis=0), "k", linewidth=2, label="mean")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    title = f"IoU {IOU}: mAP50 {100 * boxes.map50:.1f}, mAP50-95 {100 * boxes.map50_95:.1f}"
    axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="recall", ylabel="precision", title=title)
    axes.grid(alpha=0.3)


def _thresholds(axes: Any, tracks: TrackScores) -> None:
    for name, values in tracks.curves.items():
        axes.plot(np.arange(1, len(values) + 1) / 20, values, label=f"{name} {100 * np.mean(values):.1f}")
    axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="IoU")
    axes.grid(alpha=0.3)
    axes.legend()
