"""The frames that a model is lowered and judged on; the accuracy and speed of the result, and its report.

Frames come from any source, through the model's own preprocessing. No model is scored on frames that it was calibrated
on: every second frame of a source calibrates and the others measure accuracy, unless those of another source do.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.engines import EngineOptions, RequestPool, open_engine
from framefuse.errors import UsageError
from framefuse.lab.evaluation import Dataset, Labels, validate
from framefuse.lab.evaluation.dataset import Key
from framefuse.lab.parity.chain import Chain, Selection, reference_stage
from framefuse.lab.parity.compare import SURE
from framefuse.models.card import Card
from framefuse.pipeline import Pipeline
from framefuse.prediction import Detections
from framefuse.runtime.calibration import ATTEMPTS, collect
from framefuse.sources import Source, SourceOptions, open_spread
from framefuse.sources.source import PullSource

OPTIONS = SourceOptions(reconnect=ATTEMPTS)
MOST_FRAMES = 300
"""Of labelled data."""
CONFIDENCE = 0.25
"""Detections of the FP32 model from this confidence on count as ground truth if there are no labels."""
ROUNDS = 25
TARGET_SPEEDUP = 1.5
"""Expected speed-up of INT8 over FP32 on the CPU; the summary says if it is missed."""
TARGET_SIZE = 3.1
ONE_SCENE, FEW_BOXES, FEW_CLASSES = 0.5, 50, 2
"""A calibration is narrow if its frames have less variety, fewer boxes, or fewer classes of a model that knows more."""


class Footage(NamedTuple):
    """Frames of a source: model inputs to calibrate with, and the keys of other frames to measure accuracy on."""

    uri: str
    inputs: Sequence[NDArray[Any]]
    """(batch, 3, h, w) each."""
    data: Dataset | None
    """The frames to measure accuracy on; it has labels only if it comes from `read_data`."""
    note: str
    """How many frames were taken and how many were skipped."""


def read_footage(source: Any, card: Card, count: int, *, judges: bool = True) -> Footage:
    """About `count` distinct, evenly spread frames to calibrate with; if they judge too, as many between them to
    measure accuracy on, which are read again later, as no camera can.

    Raises:
        UsageError: too few frames, or all are blank or alike; a live source with `judges`.
        SourceError: the source cannot be read.
    """
    data = read_frames(source, count, first=1, step=2) if judges else None
    reader = read_frames(source, count, step=2).open(()) if judges else open_spread(source, count, OPTIONS)
    inputs, note = collect(reader, card, count)
    return Footage(reader.info.uri, inputs, data, note)


def read_data(data: Dataset, card: Card, count: int) -> Footage:
    """The same from data with known ground truth; calibration images are excluded from those that measure accuracy."""
    chosen = list(data.spread(min(count, max(1, len(data) // 2))))
    inputs, note = collect(data.open(chosen), card, len(chosen))
    used = set(chosen)
    rest = replace(data, keys=[key for key in data.keys if key not in used])
    return Footage(data.uri, inputs, rest, note)


def read_frames(source: Any, count: int, *, first: int = 0, step: int = 1) -> Dataset:
    """`count` evenly spread frames of a source: of `step * count` every `step`-th, from `first` on.

    They have no labels, and no keys until they are read: whatever keys are asked for, all frames come. UsageError if
    the source is live, so that it cannot be read twice.
    """

    def opened(keys: Sequence[Key]) -> Source:
        inner = open_spread(source, step * count, OPTIONS)
        frames = (frame for frame in islice(inner, first, None, step))
        return PullSource(inner.info, lambda closed: frames, inner.close, inner.close)

    info = (probe := opened(())).info
    probe.close()
    if info.live:
        message = f"{info.uri} is live, so it cannot show both models the same frames"
        raise UsageError(message, remedy="record a clip and use that, or pass labelled images (--data)")
    return Dataset(info.uri, {}, (), opened, lambda frame: (frame.source_id, frame.index, frame.pts), {}.__getitem__)


def variety(inputs: Sequence[NDArray[Any]]) -> float:
    """How much frames differ from one another, relative to how much the parts of a frame do.

    `median(|g - median of g over frames|) / median(|g - median of g over places|)`, with g the mean grey levels on a
    16 x 16 grid without the padding. It is near 0 for a still camera, whatever passes by, and above 1 for unrelated
    images. The inputs are (batch, 3, h, w) each; the first of each batch counts.
    """
    looks = []
    for values in inputs:
        grey = values[0].mean(0, dtype=np.float32)
        rows, columns = (np.linspace(0, side, 16, endpoint=False).astype(int) for side in grey.shape)
        looks.append(np.add.reduceat(np.add.reduceat(grey, rows), columns, axis=1).ravel() * (256 / grey.size))
    grid = np.stack(looks)
    grid = grid[:, np.ptp(grid, axis=0) > 0]
    within = np.median(np.abs(grid - np.median(grid, axis=1, keepdims=True))) if grid.size else 0
    return float(np.median(np.abs(grid - np.median(grid, axis=0))) / within) if within else 0.0


def noise(card: Card) -> Iterator[NDArray[Any]]:
    """Two inputs of uniform noise, for checks that only depend on the magnitude of values."""
    spec, random = card.preprocess, np.random.default_rng(0)
    shape = (card.batch, 3, spec.height, spec.width)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (spec.mean, spec.std))
    for _ in range(2):
        yield ((random.uniform(0, 255, shape) - mean) / std).astype(card.input_dtype)


@dataclass(frozen=True)
class LayerReport:
    """One layer with weights."""

    name: str
    kind: str
    precision: str
    """int8, fp16 or fp32."""
    why: str
    error: float | None = None
    """RMS noise / signal in the head's outputs if only this layer is INT8; None: not measured."""


@dataclass(frozen=True)
class Accuracy:
    """Scores of the FP32 and the lowered model on the same frames, in points (100 is perfect)."""

    measure: str
    data: str
    truth: str
    """Origin of the ground truth: labels, or the detections of the FP32 model."""
    frames: int
    fp32: float
    lowered: float

    @property
    def loss(self) -> float:
        return self.fp32 - self.lowered


@dataclass(frozen=True)
class Seen:
    """What the frames of an INT8 calibration show, as the FP32 model sees them."""

    source: str
    frames: int
    variety: float
    """How much the frames differ from one another, relative to how much the parts of a frame do."""
    boxes: int | None
    """None: the model is a segmenter."""
    classes: Sequence[str]
    """Names of those found."""
    known: int
    """Number of classes of the model."""

    @property
    def narrow(self) -> bool:
        few = self.boxes is not None and self.boxes < FEW_BOXES
        return few or self.variety < ONE_SCENE or len(self.classes) < min(FEW_CLASSES, self.known)

    def __str__(self) -> str:
        name = self.source if "://" in self.source else Path(self.source).name
        names = ", ".join([*self.classes[:5], *["..."][: len(self.classes) - 5]])
        return self._in(f" in {name}" if self.variety < ONE_SCENE else name) + (f" ({names})" if names else "")

    def warning(self, accuracy: Accuracy) -> str:
        same = ", and the accuracy above does not show it: other frames of the same source are judged"
        return (
            f"the calibration is narrow, {self._in('' if self.variety < ONE_SCENE else 'several scenes')}. INT8 may "
            f"lose more on anything else{same if accuracy.data == self.source else ''}. Calibrate on all the scenes, "
            "light and objects that the model will see (--calib takes a folder of videos, too), and judge it on other "
            "footage (--judge SOURCE, or --data with labels)"
        )

    def _in(self, where: str) -> str:
        scene = f"one scene{where}" if self.variety < ONE_SCENE else where
        boxes = "" if self.boxes is None else f"{self.boxes} box{'' if self.boxes == 1 else 'es'} of "
        return f"{self.frames} frames of {scene} with {boxes}{len(self.classes)} of {self.known} classes"


@dataclass(frozen=True)
class BuildReport:
    source: Path
    output: Path
    precision: str
    inputs: str
    outputs: str
    """Names and types, the same as before."""
    calibration: str
    layers: Sequence[LayerReport]
    islands: Mapping[str, int]
    """FP16 only: reason why nodes stay in FP32 -> number of nodes."""
    bytes_before: int
    bytes_after: int
    accuracy: Accuracy | None
    speed_ms: Mapping[str, float]
    """Milliseconds per frame on one CPU core in OpenVINO: fp32, auto (the FP32 file's default precision), lowered."""
    seen: Seen | None
    """INT8 only: what it was calibrated on."""
    warnings: Sequence[str]

    @property
    def smaller(self) -> float:
        return self.bytes_before / self.bytes_after

    @property
    def speedup(self) -> float | None:
        """Relative to the same model in FP32."""
        return self.speed_ms["fp32"] / self.speed_ms["lowered"] if self.speed_ms else None

    def to_json(self) -> str:
        content = asdict(self) | {"smaller": self.smaller, "speedup": self.speedup}
        if self.accuracy:
            content["accuracy"]["loss"] = self.accuracy.loss
        return json.dumps(content, indent=2, default=str)

    def summary(self) -> str:
        """The report as a few lines of text."""
        counts = Counter(layer.precision for layer in self.layers)
        lines = [
            str(self.output),
            f"layers    {', '.join(f'{count} {name}' for name, count in counts.items())}",
            f"frames    {self.calibration}",
            f"types     {self.inputs} -> {self.outputs}",
            f"size      {self.bytes_before / 1e6:.2f} -> {self.bytes_after / 1e6:.2f} MB, {self.smaller:.2f}x smaller"
            + _short_of(self.smaller, TARGET_SIZE, self.precision),
        ]
        if found := self.accuracy:
            other = "other " if self.seen and self.seen.source == found.data else ""
            change = f"{abs(found.loss):.2f} points {'lost' if found.loss >= 0 else 'gained'}"
            lines.append(
                f"accuracy  {found.measure} {found.fp32:.2f} -> {found.lowered:.2f}, {change}, "
                f"on {found.frames} {other}frames of {found.data}; truth: {found.truth}"
            )
        else:
            lines.append("accuracy  not measured: no frames (--calib SOURCE or --data DATA)")
        if self.speedup:
            fp32, auto, lowered = (self.speed_ms[name] for name in ("fp32", "auto", "lowered"))
            lines.append(
                f"speed     {fp32:.1f} ms per frame in fp32, {auto:.1f} by default, {lowered:.1f} now: "
                f"{self.speedup:.2f}x fp32, {auto / lowered:.2f}x default"
                + _short_of(self.speedup, TARGET_SPEEDUP, self.precision)
            )
        return "\n".join([*lines, *(f"warning   {warning}" for warning in self.warnings)])


def _short_of(reached: float, target: float, precision: str) -> str:
    return f" (less than the {target:g}x that INT8 should give)" if precision == "int8" and reached < target else ""


class Judge:
    """Scores lowered models against the FP32 model.

    With labels the score is mAP50-95 of a detector (of its masks, keypoints or oriented boxes where it has some), or
    mean IoU of a segmenter. Without labels, the results of the FP32 model (of a detector, at confidence 0.25) are the
    ground truth, and a detector is scored by mAP50: the FP32 model then has 100, and higher IoU thresholds would count
    fractions of a pixel. This is stricter than labels, because an object that both models get wrong in different ways
    counts as a loss.
    """

    def __init__(self, model: Path, data: Dataset, labelled: bool) -> None:
        self._measure = ""
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
        boxes, strict = scores.boxes, self._limit is not None
        if boxes is None:
            self._measure = "mean IoU"
            return 100 * scores.value
        self._measure, value = ("mAP50-95", boxes.map50_95) if strict else ("mAP50", boxes.map50)
        shaped = boxes.shape_map50_95 if strict else boxes.shape_map50
        if shaped is not None:
            self._measure, value = f"{self._measure} of {scores.shape}", shaped
        return 100 * value


def pseudo_truth(model: Path, data: Dataset) -> Dataset:
    """The data with what the FP32 model finds (UsageError: nothing) as truth, boxes or the class of each pixel."""
    found: dict[Key, Labels] = {}
    with Pipeline(data.open(data.keys), model, precision="fp32", conf=CONFIDENCE) as pipeline:
        for result in pipeline:
            boxes = result.detections.xyxy.astype(np.float64)
            masks = result.masks
            crowd, area = np.zeros(len(boxes), np.bool_), (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
            size = result.frame.width, result.frame.height
            mask = None if masks is None else partial(np.asarray, masks.class_id.copy())
            labels = Labels(boxes, result.detections.class_id, crowd, area, size, mask)
            shapes = partial(_shapes, result.detections) if pipeline.card.extra else None
            found[data.key_of(result.frame)] = replace(labels, shapes=shapes)
        names, task = pipeline.card.names, pipeline.card.task
    if task != "semantic" and not any(len(labels.class_id) for labels in found.values()):
        why = f"the FP32 model finds nothing on {len(found)} frames of {data.uri}, so its accuracy cannot be measured"
        raise UsageError(why, remedy="pass frames that show what it detects, or labelled images (--data)")
    mask_names = names if task == "semantic" else {}
    return replace(data, names=names, mask_names=mask_names, keys=list(found), labels=found.__getitem__)


def _shapes(found: Detections) -> list[dict[str, Any]]:
    """What COCO says of these objects besides boxes, keypoints as seen where the model is sure of them."""
    shapes: list[dict[str, Any]] = [{"segmentation": outline} for outline in found.segmentations()]
    if found.keypoints is not None:
        seen = found.keypoints[..., 2] >= SURE
        points = np.dstack((found.keypoints[..., :2], 2 * seen)).astype(float)
        rows = zip(points, seen.sum(axis=1).tolist(), strict=True)
        shapes = [{"keypoints": own.ravel().tolist(), "num_keypoints": count} for own, count in rows]
    return shapes


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
    count = None if card.task == "semantic" else boxes
    return Seen(footage.uri, len(footage.inputs), variety(footage.inputs), count, names, len(card.names))


def measure_speed(models: Mapping[str, tuple[Path, str]], card: Card, size: tuple[int, int]) -> dict[str, float]:
    """Processor time per frame in milliseconds on one core in OpenVINO: the minimum of interleaved runs, as both are
    robust against load from other processes. `models` are name -> file and precision, `size` is height and width."""
    best = dict.fromkeys(models, float("inf"))
    pools: dict[str, RequestPool] = {}
    with ExitStack() as opened:
        for name, (path, precision) in models.items():
            options = EngineOptions("cpu", precision, streams=1, threads=1)  # type: ignore[arg-type]
            engine = opened.enter_context(closing(open_engine("openvino", path, options)))
            pools[name] = engine.request_pool(card.batch, *size, slots=1)
        for _ in range(ROUNDS):
            for name, pool in pools.items():
                slot = pool.acquire()
                assert slot is not None, "the only slot was released"
                started = process_time()
                pool.submit(slot)
                pool.wait(slot)
                best[name] = min(best[name], (process_time() - started) * 1e3 / card.batch)
                pool.release(slot)
    return best
