"""One plot per run: the confusion matrix, and precision over recall (boxes) or the IoU of each class (pixels); HOTA
over the overlap and of each class (tracks)."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from framefuse.lab.evaluation.coco import needed
from framefuse.lab.evaluation.scores import CONF, IOU, Scores, TrackScores

LEGEND = 12
"""Maximum number of classes in the legend, besides the mean."""


def plot(scores: Scores, title: str) -> bytes:
    """The plot as PNG.

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
