"""Evaluation: how right a model is, through the real pipeline, on data whose truth is known.

    open_data("annotations.json") -> Dataset        validate("yolov8n.onnx", data) -> Scores

data.py, coco.py and world.py read data; classes.py matches names; boxes.py and pixels.py count; compare.py and plots.py
are for people.
"""

from __future__ import annotations

from framefuse.evaluation.data import Dataset, Labels, open_data
from framefuse.evaluation.scores import Scores
from framefuse.evaluation.validate import validate

__all__ = ["Dataset", "Labels", "Scores", "open_data", "validate"]
