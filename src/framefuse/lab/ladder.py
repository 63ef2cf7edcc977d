"""Measures the rungs of a ladder: candidates take turns on the same frames, one frame at a time."""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np

from framefuse.adaptive.interpolation import disagreement
from framefuse.adaptive.ladder import Ladder, Rung, judged
from framefuse.common.version import __version__
from framefuse.config import settings_from
from framefuse.cuda import device as gpus
from framefuse.errors import FramefuseError, UsageError
from framefuse.frame import Frame
from framefuse.kernels.tracking.call import pair
from framefuse.lab.evaluation import Dataset, Objects
from framefuse.lab.evaluation.coco import needed
from framefuse.lab.evaluation.scores import BoxScores
from framefuse.prediction import Detections
from framefuse.runtime.choices import processor
from framefuse.runtime.model import Model
from framefuse.runtime.power import Counter, find_counters
from framefuse.sources import open_source

CONF, SHOWN = 0.01, 0.25
"""Confidence of the boxes that the models give, and of those that are compared between them."""
BLOCK = 10
"""Frames that a candidate sees before the next one has its turn; the first of them counts as the switch."""
ALIKE = 0.5
"""IoU of boxes that are the same object."""


class Candidate(NamedTuple):
    """What may become a rung."""

    model: str
    size: int
    precision: str


@dataclass(eq=False)
class _Runner:
    """A candidate at work."""

    candidate: Candidate
    model: Model
    memory: float
    times: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    """Of the first frames of a block."""
    cpu: float = 0.0
    joules: float | None = 0.0
    found: list[Detections] = field(default_factory=list)

    def run(self, frames: Sequence[Frame], counters: Sequence[Counter]) -> Iterator[Any]:
        """The results of a block."""
        before = [_joules(counter) for counter in counters]
        for number, frame in enumerate(frames):
            wall, cpu = perf_counter(), process_time()
            result = self.model(frame)
            (self.times if number else self.first).append(1e3 * (perf_counter() - wall))
            self.cpu += process_time() - cpu
            found = result.detections
            self.found.append(found[found.confidence > SHOWN])
            yield result
        gained = [_joules(counter) - value for counter, value in zip(counters, before, strict=True)]
        lost = not counters or any(counter.missing for counter in counters)
        self.joules = None if lost or self.joules is None else self.joules + sum(gained)


def measure(
    candidates: Sequence[Candidate],
    data: Dataset | str,
    *,
    limit: int,
    options: dict[str, Any],
    on_frame: Callable[[int], None] = lambda done: None,
) -> tuple[Ladder, list[str]]:
    """Measure the candidates on frames that are spread over the data, and judge them. Returns the ladder, and notes,
    such as candidates that cannot run here.

    Args:
        data: with known truth, which gives mAP; or any source, for which the slowest candidate is the best one.
        limit: number of frames.
        options: settings of all models, such as the device.
        on_frame: called with the number of frames done.

    Raises:
        UsageError: no candidate can run, a model gives no boxes, or fewer than two frames can be read.
    """
    notes, shuffled = list[str](), Random(0)
    with ExitStack() as opened:
        runners = []
        for candidate in candidates:
            before = _resident()
            try:
                given = {**options, "imgsz": candidate.size, "precision": candidate.precision, "conf": CONF}
                model = opened.enter_context(Model(candidate.model, **given))
                model(np.zeros((360, 640, 3), np.uint8))
            except FramefuseError as error:
                notes.append(f"{candidate.model} {candidate.size} {candidate.precision} cannot run: {error.message}")
                continue
            if model.card.task != "detect":
                what = f"{candidate.model} has the task {model.card.task}"
                raise UsageError(what, remedy="profile detectors (task: detect)")
            runners.append(_Runner(candidate, model, _resident() - before))
        if not runners:
            raise UsageError(notes[0] if notes else "there is no candidate", remedy="choose other models or precisions")
        counters = find_counters(gpus.current_gpu() if runners[0].model.engine.device == "cuda" else None)
        truth = data if isinstance(data, Dataset) else None
        scored = [Objects(one.model.card, truth, settings_from({})) for one in runners if truth is not None]
        source = truth.open(truth.spread(limit)) if truth is not None else open_source(str(data))
        done = 0
        with closing(source):
            step = max(1, (source.info.frames or limit) // limit) if truth is None else 1
            frames = islice(source, 0, step * limit, step)
            while block := list(islice(frames, BLOCK)):
                for number in shuffled.sample(range(len(runners)), len(runners)):
                    for result in runners[number].run(block, counters):
                        if truth is not None:
                            scored[number].add(result, truth.labels(truth.key_of(result.frame)))
                done += len(block)
                on_frame(done)
        if done < 2:
            raise UsageError(f"{source.info.uri} has {done} frames", remedy="give it two or more")
        # Nothing is tracked, so all scores are of boxes.
        scores = [found.map50_95 for one in scored if isinstance(found := one.scores(), BoxScores)]
        rungs, device = judged(_rungs(runners, scores, done)), runners[0].model.engine.device
        text = str(data) if truth is None else truth.uri
        facts = text, done, processor(device), __version__, device
        return Ladder(rungs, "agreement" if truth is None else "mAP50-95", *facts), notes


def _rungs(runners: Sequence[_Runner], scores: Sequence[float], frames: int) -> list[Rung]:
    best = runners[int(np.argmax(scores or [median(runner.times or runner.first) for runner in runners]))]
    made = []
    for number, runner in enumerate(runners):
        times = runner.times or runner.first
        p50 = median(times)
        agreement, f1, confidence = _against(best.found, runner.found)
        energy = None if runner.joules is None or not runner.joules > 0 else runner.joules / frames
        candidate, engine = runner.candidate, runner.model.engine
        path = Path(candidate.model)
        name = str(path.resolve()) if path.is_file() else candidate.model  # means the same from any folder
        made.append(Rung(
            name, candidate.size, engine.name, engine.precision, p50,
            float(np.quantile(times, 0.95)), 1e3 * runner.cpu / frames, energy, runner.memory,
            max(0.0, median(runner.first) - p50), scores[number] if scores else agreement, agreement, f1, confidence,
        ))  # fmt: skip
    return made


def _against(best: Sequence[Detections], found: Sequence[Detections]) -> tuple[float, float, float]:
    """Agreement, F1 and ratio of the confidences with those of the best rung, over all frames."""
    objects = sum(float(one.confidence.sum()) for one in best)
    differ = sum(disagreement(one, other) for one, other in zip(best, found, strict=True))
    boxes, pairs, ratios = sum(map(len, best)) + sum(map(len, found)), 0, list[float]()
    for one, other in zip(best, found, strict=True):
        sides = [(side.xyxy, side.class_id, np.ones(len(side))) for side in (one, other)]
        alike = pair(sides[0], sides[1], ALIKE)
        pairs += len(alike.rows)
        ratios += (other.confidence[alike.columns] / one.confidence[alike.rows]).tolist()
    agreement = min(1.0, max(0.0, 1 - differ / objects)) if objects else float(not boxes)
    return agreement, 2 * pairs / boxes if boxes else 1.0, median(ratios) if ratios else 1.0


def table(ladder: Ladder) -> list[list[str]]:
    """Header and rows."""
    has_energy = any(rung.joules for rung in ladder.rungs)
    head = ["rung", "engine", "ms", "p95", "CPU ms", *(["J"] if has_energy else []), "MB", "switch ms"]
    both = ladder.measure != "agreement"
    lines = [[*head, *([ladder.measure] if both else []), "agreement", "F1", "confidence", "verdict"]]
    for rung in ladder.rungs:
        score = [f"{100 * rung.score:.1f}"] if both else []
        energy = [f"{rung.joules:.3g}" if rung.joules else "-"] if has_energy else []
        lines.append([
            rung.name, rung.engine, f"{rung.p50_ms:.1f}", f"{rung.p95_ms:.1f}", f"{rung.cpu_ms:.1f}", *energy,
            f"{rung.memory_mb:.0f}", f"{rung.switch_ms:.1f}", *score, f"{rung.agreement:.3f}",
            f"{rung.f1:.3f}", f"{rung.confidence:.2f}", rung.verdict or "kept",
        ])  # fmt: skip
    return lines


def plot(ladder: Ladder) -> bytes:
    """PNG: score over time, the ladder as a line. CapabilityError if matplotlib is not installed."""
    with needed("matplotlib").rc_context({"text.parse_math": False}):  # names are text, also between dollars
        figure = needed("matplotlib.figure").Figure(figsize=(8, 5), dpi=110, layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(*((rung.p50_ms, 100 * rung.score) for rung in ladder.kept), strict=True), "-", color="C0")
        for rung in ladder.rungs:
            place, colour = (rung.p50_ms, 100 * rung.score), "0.6" if rung.verdict else "C0"
            axes.plot(*place, "o", color=colour)
            axes.annotate(rung.name, place, (6, -3), textcoords="offset points", fontsize=8, color=colour)
        axes.set(xscale="log", xlabel="ms a frame", ylabel=f"{ladder.measure}, points")
        axes.set_title(f"{ladder.frames} frames of {ladder.data}, {ladder.machine}", fontsize=9)
        axes.xaxis.set_major_locator(needed("matplotlib.ticker").LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter("")
        axes.margins(x=0.2, y=0.1)
        axes.grid(alpha=0.3)
        figure.savefig(png := io.BytesIO())
    return png.getvalue()


def _joules(counter: Counter) -> float:
    counter.read()
    return counter.joules


def _resident() -> float:
    """Megabytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
