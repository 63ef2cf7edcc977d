"""What adaptive compute saves and loses on some footage, over time, beside every frame and fixed strides."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.adaptive import Bridge, disagreement
from framefuse.common.machine import cpu_model
from framefuse.common.text import in_html
from framefuse.config import settings_from
from framefuse.errors import SourceError
from framefuse.lab.evaluation import Dataset, Objects
from framefuse.lab.evaluation.coco import needed
from framefuse.pipeline import Pipeline
from framefuse.prediction import Detections, Result
from framefuse.report.html import _list, _section, _table, page, picture
from framefuse.report.report import Report
from framefuse.runtime.tracking import rate_of
from framefuse.tracking import TrackerOptions, open_tracker

SCHEDULES = {
    "cycle": "frames=600",
    "fast": "frames=600&pace=2.5",
    "far": "frames=600&far=2&density=1.5",
    "day": "frames=1800&schedule=day",
}
"""Synthetic streets: calm, crowded and calm again past a camera that moves; objects 2.5 times as fast; twice as far
away, with more of them; a camera that mostly sees nothing, with short bursts."""
CONF, MOST = 0.02, 100
"""Confidence of the boxes that are scored, and the most of them in a frame."""
STRIDES = {2: "2nd", 3: "3rd", 5: "5th"}
"""One in so many frames is inferred; the others show what a tracker predicts, as most programs do, or what adaptive
compute would show, so that only the choice of the frames differs."""
SHOWN = 0.25
"""Least confidence of the objects that are counted over time."""
Found = Sequence[Detections]


@dataclass(frozen=True)
class Policy:
    """How often the model looks, and what comes of it."""

    name: str
    share: float
    """Share of the frames that are inferred."""
    score: float
    """0..1: mAP50-95 where the truth is known, else the agreement with every frame; over all frames."""
    cpu_ms: float | None
    """CPU milliseconds a frame from decoded frame to objects; None: not measured, as of strides, or unknown here."""
    joules: float | None
    """Energy a frame, decoding included; None: not measured."""
    inferred: Sequence[float] = field(repr=False)
    """Share of the frames that are inferred, by second."""
    lost: Sequence[float] = field(repr=False)
    """Objects of a frame, weighted by confidence, that are not found as in every frame; mean by second."""


@dataclass(frozen=True)
class Footage:
    """Some footage, and the policies on it."""

    name: str
    frames: int
    measure: str
    """What `Policy.score` is."""
    objects: Sequence[float] = field(repr=False)
    """Mean number of objects in a frame, by second."""
    policies: Sequence[Policy]
    choices: Sequence[str]
    """What the run with adaptive compute says about itself."""


def interpolated(found: Found, inferred: Sequence[int]) -> list[Detections]:
    """Results if these frames, in order, with the first and last, are inferred."""
    results = [found[inferred[0]]]
    for begin, end in pairwise(inferred):
        bridge = Bridge(found[begin], found[end], end - begin)
        results += [*(bridge.at(step, CONF) for step in range(1, bridge.gap)), found[end]]
    return results


def tracked(found: Found, stride: int, fps: float) -> list[Detections]:
    """Results of every n-th frame, and of the predictions of a tracker between."""
    tracker = open_tracker("bytetrack", TrackerOptions(high=SHOWN, low=CONF, new=0.05, confirm=1))
    results = []
    for number, one in enumerate(found):
        if number % stride == 0:
            tracker.update(one, number / fps)
        results.append(one if number % stride == 0 else tracker.predict(number / fps))
    return results


def compare(
    name: str,
    data: Dataset | str,
    model: str,
    options: Mapping[str, Any],
    on_frame: Callable[[int], None] = lambda done: None,
) -> Footage:
    """Run a model on all frames of some footage, with and without adaptive compute.

    Args:
        data: with truth, or a source without.
        options: fields of `Settings`.
        on_frame: called after each frame of both runs with the number of frames done.

    Raises:
        CapabilityError: the extra `val` is not installed, and the data have truth.
        SourceError: there are no frames.
    """
    settings = settings_from({**options, "conf": CONF, "max_det": MOST})
    runs: list[tuple[list[Result], Report]] = []
    for adaptive in (False, True):
        source = data.open(data.keys) if isinstance(data, Dataset) else data
        with Pipeline(source, model, settings=settings, adaptive=adaptive) as pipeline:
            results = []
            for result in pipeline:
                results.append(result)
                on_frame(len(results) + sum(len(before) for before, _ in runs))
            runs.append((results, pipeline.report))
            card, info = pipeline.card, pipeline.sources[0].info
    whole = runs[0][0]
    base = [result.detections for result in whole]
    if not base:
        raise SourceError(f"{name} has no frames", remedy="give it footage")
    fps = rate_of(info)
    second = np.array([int(number / fps) for number in range(len(whole))])

    def policy(label: str, found: Found, inferred: Sequence[bool], report: Report | None = None) -> Policy:
        shown = [one[one.confidence >= SHOWN] for one in base]
        lost = [disagreement(one, two[two.confidence >= SHOWN]) for one, two in zip(shown, found, strict=True)]
        objects = [float(one.confidence.sum()) for one in shown]
        if isinstance(data, Dataset):
            counter = Objects(card, data, settings)
            for result, one in zip(whole, found, strict=True):
                counter.add(replace(result, detections=one), data.labels(data.key_of(result.frame)))
            scores: Any = counter.scores()
            score = float(scores.map50_95)
        else:
            score = 1 - sum(lost) / max(1e-9, sum(objects))
        cost, joules = None, None
        if report:
            stages = [stage for stage in report.stages if stage.name in ("preprocess", "inference", "postprocess")]
            if all(stage.cpu_ms is not None for stage in stages):
                cost = sum(stage.cpu_ms or 0.0 for stage in stages)
            joules = next((facts.joules_per_frame for facts in report.energy if not facts.missing), None)
        over_time = (_by_second(values, second).round(4).tolist() for values in (inferred, lost))
        return Policy(label, float(np.mean(inferred)), score, cost, joules, *over_time)

    skipping = [result.inferred for result in runs[1][0]]
    policies = [
        policy("every frame", base, [True] * len(base), runs[0][1]),
        policy("adaptive", [result.detections for result in runs[1][0]], skipping, runs[1][1]),
    ]
    for stride, ordinal in STRIDES.items():
        kept = sorted({*range(0, len(base), stride), len(base) - 1})
        looks = np.isin(np.arange(len(base)), kept).tolist()
        policies.append(policy(f"every {ordinal} frame, tracked", tracked(base, stride, fps), looks))
        policies.append(policy(f"every {ordinal} frame, interpolated", interpolated(base, kept), looks))
    count = _by_second([float((one.confidence >= SHOWN).sum()) for one in base], second).round(2).tolist()
    measure = "mAP50-95" if isinstance(data, Dataset) else "agreement"
    said = [line for line in runs[1][1].choices if line.startswith(("adaptive", "rungs"))]
    return Footage(name, len(base), measure, count, policies, said)


def _by_second(values: Sequence[float], second: NDArray[Any]) -> NDArray[Any]:
    """Mean of the values of each second."""
    return np.bincount(second, values) / np.bincount(second)


def table(footage: Sequence[Footage]) -> list[list[str]]:
    """Header and rows."""
    energy = any(policy.joules for one in footage for policy in one.policies)
    rows = [["footage", "policy", "inferred", "score", "difference", "CPU ms", *(["J"] if energy else [])]]
    for one in footage:
        best = one.policies[0].score
        for policy in one.policies:
            scores = f"{100 * policy.score:.1f}", f"{100 * (policy.score - best):+.1f} points"
            cost = "-" if policy.cpu_ms is None else f"{policy.cpu_ms:.1f}"
            joules = [f"{policy.joules:.3g}" if policy.joules else "-"] if energy else []
            rows.append([one.name, policy.name, f"{policy.share:.0%}", *scores, cost, *joules])
    return rows


def plot(footage: Footage) -> bytes:
    """PNG: objects, inferred frames, losses and compute over time. CapabilityError without matplotlib."""
    with needed("matplotlib").rc_context({"text.parse_math": False}):  # names are text, also between dollars
        figure = needed("matplotlib.figure").Figure(figsize=(9, 6.4), dpi=100, layout="constrained")
        crowd, looks, wrong, spent = figure.subplots(4, sharex=True)
        whole, adaptive = footage.policies[:2]
        seconds = range(len(footage.objects) + 1)
        crowd.fill_between(seconds, _to_the_end(footage.objects), step="post", color="0.8")
        crowd.set_ylabel("objects")
        for policy, colour in ((whole, "0.5"), (adaptive, "C0")):
            looks.step(seconds, _to_the_end([100 * share for share in policy.inferred]), where="post", color=colour)
            cost = np.cumsum([0, *policy.inferred]) / max(1e-9, sum(whole.inferred))
            spent.plot(seconds, 100 * cost, color=colour, label=policy.name)
        looks.set_ylabel("inferred, %")
        for policy, colour in ((adaptive, "C0"), (footage.policies[4], "C1")):
            wrong.step(seconds, _to_the_end(policy.lost), where="post", color=colour, label=policy.name)
        wrong.set_ylabel("objects lost")
        spent.set(ylabel="compute so far, %", xlabel="seconds")
        for axes in (crowd, looks, wrong, spent):
            axes.grid(alpha=0.3)
        for axes in (wrong, spent):
            axes.legend(fontsize=8)
        figure.savefig(png := io.BytesIO())
    return png.getvalue()


def _to_the_end(values: Sequence[float]) -> list[float]:
    """The values of intervals, the last one once more, where it ends."""
    return [*values, *values[-1:]]


def to_json(footage: Sequence[Footage], model: str) -> str:
    facts = {"model": model, "machine": cpu_model(), "footage": [asdict(one) for one in footage]}
    return json.dumps(facts, indent=1) + "\n"


def render(footage: Sequence[Footage], model: str, pictures: Sequence[bytes]) -> str:
    """The page, without scripts or requests; without plots where there are none."""
    head, *rows = [[in_html(cell) for cell in row] for row in table(footage)]
    title = f"Adaptive compute: {model}"
    note = "Score: mAP50-95 against the truth, in percent, or else the agreement with every frame. "
    note += "Strides are computed from the results of every frame."
    sections = [
        f"<header><h1>{in_html(title)}</h1><p class='note'>{in_html(cpu_model())}</p></header>",
        _section("Policies", _table(head, rows, texts=2), note),
    ]
    for one, png in zip_longest(footage, pictures):
        image = picture(png or b"", style="max-width:100%", kind="png")
        sections.append(_section(in_html(one.name), image + _list(one.choices)))
    return page(title, sections)
