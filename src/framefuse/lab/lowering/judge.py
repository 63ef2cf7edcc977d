"""The accuracy and speed of a lowered model, measured through the real pipeline and engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np

from framefuse.engines import EngineOptions, RequestPool, open_engine
from framefuse.errors import UsageError
from framefuse.lab.evaluation import Dataset, Labels, validate
from framefuse.lab.evaluation.dataset import Key
from framefuse.lab.lowering.frames import Footage, variety
from framefuse.lab.lowering.report import Accuracy, Seen
from framefuse.lab.parity.chain import Chain, Selection, reference_stage
from framefuse.models.card import Card
from framefuse.pipeline import Pipeline

MOST_FRAMES = 300
"""Of labelled data."""
CONFIDENCE = 0.25
"""Detections of the FP32 model from this confidence on count as ground truth if there are no labels."""
ROUNDS = 25


class Judge:
    """Scores lowered models against the FP32 model.

    With labels the score is mAP50-95 of a detector or mean IoU of a segmenter. Without labels, the results of the FP32
    model (of a detector, at confidence 0.25) are the ground truth, and a detector is scored by mAP50: the FP32 model
    then has 100, and higher IoU thresholds would count fractions of a pixel. This is stricter than labels, because an
    object that both models get wrong in different ways counts as a loss.
    """

    def __init__(self, model: Path, data: Dataset, labelled: bool) -> None:
        self._measure = "mAP50-95" if labelled else "mAP50"
        self._truth = "labels" if labelled else "what the FP32 model finds"
        self._data = data if labelled else pseudo_truth(model, data)
        self._limit = MOST_FRAMES if labelled else None
        self._fp32 = self._score(model, "fp32")

    def accuracy(self, lowered: Path) -> Accuracy:
        score = self._score(lowered, "auto")
        frames = len(self._data.spread(self._limit))
        return Accuracy(self._measure, self._data.uri, self._truth, frames, self._fp32, score)

    def _score(self, model: Path, precision: str) -> float:
        scores = validate(model, self._data, limit=self._limit, precision=precision)
        if scores.task == "semantic":
            self._measure = "mean IoU"
        return 100 * (scores.value if self._measure != "mAP50" else scores.map50 or 0.0)


def pseudo_truth(model: Path, data: Dataset) -> Dataset:
    """The data with the results of the FP32 model as ground truth: boxes, or the class of each pixel.

    Raises:
        UsageError: the model finds nothing.
    """
    found: dict[Key, Labels] = {}
    with Pipeline(data.open(data.keys), model, precision="fp32", conf=CONFIDENCE) as pipeline:
        for result in pipeline:
            boxes = result.detections.xyxy.astype(np.float64)
            masks = result.masks
            found[data.key_of(result.frame)] = Labels(
                xyxy=boxes,
                class_id=result.detections.class_id,
                crowd=np.zeros(len(boxes), np.bool_),
                area=(boxes[:, 2:] - boxes[:, :2]).prod(axis=1),
                size=(result.frame.width, result.frame.height),
                class_mask=None if masks is None else partial(np.asarray, masks.class_id.copy()),
            )
        names, task = pipeline.card.names, pipeline.card.task
    if task == "detect" and not any(len(labels.class_id) for labels in found.values()):
        raise UsageError(
            f"the FP32 model finds nothing on {len(found)} frames of {data.uri}, so its accuracy cannot be measured",
            remedy="pass frames that show what it detects, or labelled images (--data)",
        )
    mask_names = names if task == "semantic" else {}
    return replace(data, names=names, mask_names=mask_names, keys=list(found), labels=found.__getitem__)


def look_at(footage: Footage, card: Card) -> Seen:
    """What the frames that calibrate show, as the FP32 model sees them."""
    chain, stage = Chain(card, card.preprocess, Selection(CONFIDENCE, 0.7, 300)), reference_stage(card)
    boxes, classes = 0, set[int]()
    for values in footage.inputs:
        raw = stage.run(values[0].astype(np.float32))
        if card.task == "semantic":
            found = raw.outputs[0].argmax(1)
        else:
            found = chain.boxes(raw, card.preprocess.place(*values.shape[:1:-1]), ours=True).class_id
            boxes += len(found)
        classes.update(np.unique(found).tolist())
    stage.close()
    stage.engine.close()
    names = [card.names.get(number, str(number)) for number in sorted(classes)]
    counted = None if card.task == "semantic" else boxes
    return Seen(footage.uri, len(footage.inputs), variety(footage.inputs), counted, names, len(card.names))


def measure_speed(models: Mapping[str, tuple[Path, str]], card: Card, size: tuple[int, int]) -> dict[str, float]:
    """Processor time per frame in milliseconds on one core in OpenVINO: the minimum of interleaved runs.

    Processor time and minimum are both robust against load from other processes.

    Args:
        models: name -> file and precision.
        size: height and width of the model input.
    """
    times: dict[str, list[float]] = {name: [] for name in models}
    pools: dict[str, RequestPool] = {}
    engines = []
    for name, (path, precision) in models.items():
        options = EngineOptions("cpu", precision, streams=1, threads=1)  # type: ignore[arg-type]
        engine = open_engine("openvino", path, options)
        engines.append(engine)
        pools[name] = engine.request_pool(card.batch, *size, slots=1)
    for _ in range(ROUNDS):
        for name, pool in pools.items():
            slot = pool.acquire()
            assert slot is not None, "the only slot was released"
            started = process_time()
            pool.submit(slot)
            pool.wait(slot)
            times[name].append((process_time() - started) * 1e3 / card.batch)
            pool.release(slot)
    for engine in engines:
        engine.close()
    return {name: min(values) for name, values in times.items()}
