"""The whole product in seconds: a video file in; boxes, JSONL and an annotated, playable video out."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np

import framefuse
from training.squares_clip import squares_clip


def test_tiny(tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    truth = squares_clip(clip, frames=20, size=(320, 240), fps=30, seed=1)

    pipeline = framefuse.Pipeline(clip, "squares", save=True, save_jsonl=True, project=tmp_path / "runs")
    results = list(pipeline)

    assert [result.frame.index for result in results] == list(range(20))
    for result, expected in zip(results, truth, strict=True):
        found = result.detections
        assert sorted(found.class_id) == sorted(class_id for class_id, *_ in expected)
        for class_id, *box in expected:
            nearest = np.abs(found.xyxy[found.class_id == class_id] - box).max(axis=1).min()
            assert nearest < 3, f"frame {result.frame.index}: no {class_id} within 3 px of {box}"

    assert pipeline.folder == tmp_path / "runs" / "predict"
    lines = [json.loads(line) for line in (pipeline.folder / "clip.jsonl").read_text().splitlines()]
    assert [line["frame"] for line in lines] == list(range(20))
    assert lines[3]["seconds"] == results[3].frame.seconds
    assert lines[3]["detections"][0]["class"] in ("red", "green", "blue")
    with av.open(pipeline.folder / "clip.mp4") as video:
        assert sum(1 for _ in video.decode(video=0)) == 20

    report = pipeline.report
    assert report.frames == 20
    assert report.detections == sum(len(result.detections) for result in results)
    stages = [stage.name for stage in report.stages]
    assert sorted(stages) == ["caller", "decode", "inference", "postprocess", "preprocess", "write"]
    assert (pipeline.folder / "report.html").exists()
