"""Evaluation: the accuracy of a model, through the real pipeline, on data with known ground truth.

    open_data("annotations.json") -> Dataset        validate("yolov8n.onnx", data) -> Scores

data.py and coco.py read data; dataset.py holds them and matches class names; counters.py counts; compare.py presents
the results.
"""

from __future__ import annotations

from framefuse.lab.evaluation.data import open_data
from framefuse.lab.evaluation.dataset import Dataset, Labels
from framefuse.lab.evaluation.scores import Scores
from framefuse.lab.evaluation.validate import validate

__all__ = ["Dataset", "Labels", "Scores", "open_data", "validate"]
