"""Lowering: turns an FP32 model into an FP16 or INT8 file that every engine reads, and checks its accuracy first.

build_model("yolov8n.onnx", precision="int8", calib="video.mp4") -> BuildReport, and yolov8n-int8.onnx
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from framefuse.common.files import os_errors_as, write_atomically
from framefuse.common.plain_yaml import read_mapping
from framefuse.common.redact import brief
from framefuse.errors import ModelError, QualityError, SinkError, UsageError
from framefuse.lab.evaluation import Dataset, open_data
from framefuse.lab.lowering import judge as judging
from framefuse.lab.lowering.judge import Accuracy, BuildReport, Footage, Judge, LayerReport, Seen
from framefuse.models import find_model
from framefuse.models.card import CALIBRATION_KEY, Card, read_card
from framefuse.models.fp16 import network_tensors, plan_fp16, to_fp16
from framefuse.models.int8 import Calibration, calibrate, largest_values, plan_int8, prepare, quantise, sensitivities
from framefuse.models.onnx_file import WEIGHTED, OnnxGraph
from framefuse.runtime.calibration import FEWEST

Precision = Literal["fp16", "int8"]
Say = Callable[[str], None]
MAX_LOSS = 1.0
"""Maximum loss of accuracy in points."""
GIVEN_BACK = (0.0, 0.1, 0.25, 0.5)
"""Fractions of the layers kept in floating point, most sensitive first, tried until the accuracy is good enough."""
SAMPLES = 2
"""Number of frames for measuring the sensitivity of layers."""


def build_model(
    model: str | Path,
    *,
    precision: Precision,
    calib: Any = None,
    data: Any = None,
    images: str | Path | None = None,
    judge: Any = None,
    out: str | Path | None = None,
    allow_loss: bool = False,
    exist_ok: bool = False,
    frames: int = 64,
    calibration: Calibration = "percentile",
    say: Callable[[str], None] = lambda line: None,
) -> BuildReport:
    """Lower a model and write it with its card, unless it loses more than `MAX_LOSS` points of accuracy.

    Args:
        model: ONNX file, or the name of a shipped model, in FP32.
        calib: any source of frames like those that the model will see; default: a part of `data`.
        data, images: as for `evaluation.open_data`: images with known ground truth to measure accuracy on. Without
            them, the results of the FP32 model serve as ground truth.
        judge: any source of frames to measure accuracy on without labels; default: frames of `calib` between those that
            calibrate.
        out: default: NAME-int8.onnx or NAME-fp16.onnx beside the model, or in the current folder for a shipped model.
        allow_loss: write the model whatever its loss, and keep no layer in FP32 for the sake of accuracy.
        exist_ok: overwrite an existing file.
        frames: number of frames to calibrate with.
        calibration: how the range of a tensor follows from its values on these frames.
        say: called with a line of progress at each step.

    Raises:
        QualityError: the loss is too large; nothing is written.
        ModelError: the model is already lowered, of an unsupported opset, or not a known detector.
        UsageError: no calibration frames, too few, or all alike; `judge` is `calib`, or given besides `data`; the
            output exists or is not a file name.
        SourceError: the frames cannot be read.
        SinkError: the output cannot be written.
        CapabilityError: the extra `build` is not installed.
    """
    for what, value, known in (("precision", precision, Precision), ("calibration", calibration, Calibration)):
        if value not in get_args(known):
            raise UsageError(f"{what} {value!r} is not one of {', '.join(get_args(known))}")
    if not isinstance(frames, int) or isinstance(frames, bool) or frames < 1:
        raise UsageError(f"frames is {frames!r}", remedy="use a whole number from 1; 64 suffice for most models")
    if precision == "int8" and frames < FEWEST:
        raise UsageError(f"--frames {frames} is too few to calibrate with", remedy=f"use --frames {FEWEST} or more")
    if out is not None and not isinstance(out, str | Path):
        raise UsageError(f"out is a {type(out).__name__}", remedy="pass the path of the file to write")
    path = find_model(model)
    target = _target(model, path, precision, out, exist_ok)
    card = read_card(path)
    if card.task == "classify":
        what = f"{path.name} has the task classify"
        raise UsageError(f"{what}, whose accuracy cannot be judged yet", remedy="pass a detector or a segmenter")
    prepared = prepare(path)
    labelled = None if data is None else open_data(data, images)
    footage, judged = _frames(card, precision, calib, labelled, judge, frames, say)
    with tempfile.TemporaryDirectory() as folder:
        work = _Work(path, card, prepared, footage, Path(folder) / target.name, say)
        scorer = None
        if judged is not None:
            say("scoring the FP32 model")
            scorer = Judge(path, judged, data is not None)
        accuracy, layers = work.fp16(scorer) if precision == "fp16" else work.int8(scorer, calibration, allow_loss)
        warnings = [work.seen.warning(accuracy)] if work.seen and work.seen.narrow and accuracy else []
        if accuracy and accuracy.loss > MAX_LOSS and not allow_loss:
            raise _too_much(accuracy, layers, f"{path.name} in {precision}", warnings)
        say("measuring speed")
        size = footage.inputs[0].shape[2:] if footage else (card.preprocess.height, card.preprocess.width)
        models = {"fp32": (path, "fp32"), "auto": (path, "auto"), "lowered": (work.path, "auto")}
        speed = judging.measure_speed(models, card, (size[0], size[1]))
        with os_errors_as(SinkError, f"{target} cannot be written", "choose another --out"):
            for place, made in ((target, work.path), (target.with_suffix(".yaml"), work.path.with_suffix(".yaml"))):
                if made.exists():
                    write_atomically(place, made.read_bytes())
    types = f"{card.input_name} {card.input_dtype}", ", ".join(f"{name} float32" for name in card.outputs)
    return BuildReport(
        path, target, precision, *types, work.calibration, layers, work.islands,
        path.stat().st_size, target.stat().st_size, accuracy, speed, work.seen, warnings,
    )  # fmt: skip


class _Work:
    """A model being lowered; `path` is the lowered file in a temporary folder."""

    def __init__(self, source: Path, card: Card, prepared: Any, footage: Footage | None, path: Path, say: Say) -> None:
        self.path, self.calibration = path, ""
        self.seen: Seen | None = None
        self.islands: dict[str, int] = {}
        self._source, self._card, self._model, self._footage, self._say = source, card, prepared, footage, say
        if (card_file := source.with_suffix(".yaml")).exists():
            path.with_suffix(".yaml").write_bytes(_card_of(card_file.read_bytes(), source))

    def _write(self, lowered: Any) -> None:
        import onnx

        if self.seen:
            lowered.metadata_props.add(key=CALIBRATION_KEY, value=self.calibration)
        onnx.save(lowered, self.path)

    def fp16(self, judge: Any) -> tuple[Accuracy | None, list[LayerReport]]:
        frames = self._footage.inputs if self._footage else list(judging.noise(self._card))
        self.calibration = "overflow checked on " + (self._footage.note if self._footage else "noise: no frames given")
        self._say(self.calibration)
        everything = dict.fromkeys([*network_tensors(self._model), *self._card.outputs])
        largest = largest_values(self._model, list(everything), self._card.input_name, frames[:16])
        if not all(np.isfinite(largest[name]) for name in self._card.outputs):
            first = next(name for name, value in largest.items() if not np.isfinite(value))
            message = f"{self._source} gives NaN or infinity on the first frames ({self.calibration}): tensor {first}"
            raise ModelError(message, remedy="check the model: it is damaged or untrained")
        kept = plan_fp16(self._model, largest)
        self._write(to_fp16(self._model, kept))
        graph = OnnxGraph(self._model)
        layers = _layers(graph, "fp16", {graph.name(number): why for number, why in kept.items()}, {})
        self.islands = dict(Counter(kept.values()))
        return judge.accuracy(self.path) if judge else None, layers

    def int8(self, judge: Any, calibration: Calibration, allow_loss: bool) -> tuple[Accuracy, list[LayerReport]]:
        assert self._footage is not None, "int8 needs frames"
        inputs, name = self._footage.inputs, self._card.input_name
        candidates, fixed = plan_int8(self._model)
        self.seen = judging.look_at(self._footage, self._card)
        skipped = self._footage.note.partition("; ")[2]
        self.calibration = f"{calibration} ranges over {self.seen}" + (f"; {skipped}" if skipped else "")
        self._say(f"calibrating: {self.calibration}")
        ranges = calibrate(self._model, name, inputs, calibration)
        self._say(f"measuring the sensitivity of each layer ({len(candidates)})")
        some = inputs[:: max(1, len(inputs) // SAMPLES)][:SAMPLES]
        errors = sensitivities(self._model, ranges, candidates, name, some)
        worst_first = sorted(candidates, key=errors.__getitem__, reverse=True)
        tried: list[tuple[Accuracy, list[str]]] = []
        for part in GIVEN_BACK:
            back = worst_first[: round(part * len(candidates))]
            chosen = [layer for layer in candidates if layer not in back]
            self._write(quantise(self._model, ranges, chosen))
            accuracy: Accuracy = judge.accuracy(self.path)
            self._say(f"int8 layers: {len(chosen)}; points lost: {accuracy.loss:+.2f} ({accuracy.measure})")
            tried.append((accuracy, back))
            if allow_loss or accuracy.loss <= MAX_LOSS:
                break
        accuracy, back = max(tried, key=lambda one: one[0].lowered)
        kept = {**fixed, **dict.fromkeys(back, "one of the most sensitive")}
        return accuracy, _layers(OnnxGraph(self._model), "int8", kept, errors)


def _card_of(text: bytes, source: Path) -> bytes:
    """The card of the lowered model: that of its source without the scores, which were measured on the source."""
    import yaml

    facts = {key: value for key, (value, _) in read_mapping(text).items()}
    if "scores" not in (about := facts.get("about") or {}):
        return text
    facts["about"] = {key: value for key, value in about.items() if key != "scores"} | {"built_from": source.name}
    return yaml.safe_dump(facts, sort_keys=False).encode()


def _layers(
    graph: OnnxGraph, precision: str, kept: Mapping[str, str], errors: Mapping[str, float]
) -> list[LayerReport]:
    """The layers with weights; `kept` are those that stay in FP32, and why."""
    return [
        LayerReport(name := graph.name(number), graph.nodes[number].op_type, "fp32" if name in kept else precision,
                    kept.get(name, ""), errors.get(name))
        for number in graph.layers(*WEIGHTED)
    ]  # fmt: skip


def _target(model: str | Path, path: Path, precision: str, out: str | Path | None, exist_ok: bool) -> Path:
    """The output path, checked before any work is done."""
    folder = path.parent if str(model) == str(path) else Path()
    target = folder / f"{path.stem}-{precision}.onnx" if out is None else Path(out)
    if target.suffix != ".onnx":
        better = target.with_suffix(".onnx") if target.name else f"{path.stem}-{precision}.onnx"
        raise UsageError(f"the output {str(out)!r} is not named .onnx", remedy=f"--out {better}")
    if target.exists() and (not exist_ok or target.samefile(path) or target.is_dir()):
        remedy = "choose another file with --out" + ("" if target.samefile(path) else ", or use --exist-ok")
        raise UsageError(f"the output {target} exists", remedy=remedy)
    with os_errors_as(SinkError, f"cannot write to {target.parent}", "choose another --out"):
        tempfile.TemporaryFile(dir=target.parent).close()
    return target


def _frames(
    card: Card, precision: str, calib: Any, labelled: Dataset | None, judge: Any, count: int, say: Say
) -> tuple[Footage | None, Any]:
    """The frames to calibrate with, and those to measure accuracy on; None for either if there are none."""
    if judge is not None and (labelled is not None or str(judge) == str(calib)):
        why = "the same source calibrates, and judges by itself" if labelled is None else "labelled data judge already"
        raise UsageError(f"judge is {brief(judge)}, but {why}", remedy="leave --judge out, or name another source")
    if calib is not None and not (labelled and str(calib) == labelled.uri):
        other = labelled if judge is None else judging.read_frames(judge, count)
        say("reading calibration frames")
        footage = judging.read_footage(calib, card, count, judges=other is None)
        return footage, footage.data if other is None else other
    if labelled is not None:
        say("reading calibration frames: a part of the data, which is left out of the scores")
        footage = judging.read_data(labelled, card, count)
        return footage, footage.data
    if precision == "int8":
        remedy = "--calib SOURCE: a video, images or a camera that shows what the model will see"
        raise UsageError("int8 needs frames to calibrate with", remedy=remedy)
    return None, None


def _too_much(accuracy: Accuracy, layers: Sequence[LayerReport], what: str, warnings: Sequence[str]) -> QualityError:
    worst = sorted((layer for layer in layers if layer.error), key=lambda layer: -(layer.error or 0.0))[:3]
    names = ", ".join(f"{layer.name} (noise {layer.error:.1%})" for layer in worst)
    return QualityError(
        f"{what} loses {accuracy.loss:.2f} points of {accuracy.measure} "
        f"({accuracy.fp32:.2f} -> {accuracy.lowered:.2f} on {accuracy.data}, truth: {accuracy.truth}); "
        f"{MAX_LOSS:g} are allowed" + (f"; most sensitive: {names}" if names else ""),
        remedy=f"{'; '.join(warnings) or 'calibrate with more or more typical frames'}; --allow-loss writes it anyway",
    )


__all__ = ["Accuracy", "BuildReport", "LayerReport", "Seen", "build_model"]
