"""Requests and sources that come and go, on a real GPU."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from framefuse import Batcher, FrameFeed, Model, Pipeline, open_source

pytestmark = pytest.mark.gpu
STREET = "synthetic://street?frames={}&size=640x384&complexity=1&seed={}"


@pytest.fixture(scope="module")
def images() -> list[Any]:
    return [np.ascontiguousarray(frame.to_rgb()[..., ::-1]) for frame in open_source(STREET.format(24, 3))]


def test_many_threads_get_what_a_model_finds(images: list[Any]) -> None:
    with Model("scout-n", device="cuda") as model:
        expected = [model(image).detections for image in images]
        with Batcher(model, max_batch_size=8) as batcher, ThreadPoolExecutor(24) as pool:
            responses = list(pool.map(lambda image: batcher.submit(image).result(), images))
            sizes = batcher.stats().batch_ms
    assert sum(map(len, expected)) > 50
    for response, wanted in zip(responses, expected, strict=True):
        found = response.result.detections
        assert abs(len(found) - len(wanted)) <= 1  # batches of another size may round otherwise
        if len(found) == len(wanted):
            # Of two with nearly the same score, either may come first.
            apart = np.abs(found.xyxy[:, None] - wanted.xyxy[None]).max(-1)
            assert (apart.min(0) <= 1.5).all() and (apart.min(1) <= 1.5).all()
    assert max(response.batch_size for response in responses) > 1
    assert set(sizes) >= {1, 2, 4}


def test_a_queue_of_requests_with_deadlines(images: list[Any]) -> None:
    with Batcher("scout-n", device="cuda", max_batch_size=8) as batcher:
        batcher.submit(images[0]).result()
        futures = [batcher.submit(images[number % 24], deadline=5.0) for number in range(200)]
        assert len([future.result() for future in futures]) == 200
        assert batcher.stats().late == 0


def test_sources_are_added_while_graphs_run(images: list[Any], tmp_path: Any) -> None:
    feed = FrameFeed("first")
    options: dict[str, Any] = {"device": "cuda", "save_jsonl": True, "project": tmp_path, "name": "run"}
    pipeline = Pipeline(feed, "scout-n", **options).start()
    with pipeline:
        feed.submit(images[0])
        assert pipeline.get_result(120) is not None
        names = [pipeline.add_source(STREET.format(20, seed)) for seed in (1, 2)]
        threading.Thread(target=lambda: [feed.submit(image) for image in images]).start()
        found = [pipeline.get_result(60) for _ in range(40 + 24)]
        assert {one.frame.source_id for one in found if one} == {"first", *names}
        feed.finish()
        assert pipeline.get_result(60) is None
    lines = [json.loads(line) for file in (tmp_path / "run").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == 65
