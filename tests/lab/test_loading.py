"""load_engine: arrays in, the model's outputs out, and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import framefuse
import small_models
from framefuse.errors import CapabilityError, UsageError

HEIGHT, WIDTH, SHAPES = small_models.HEIGHT, small_models.WIDTH, small_models.SHAPES


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
def test_outputs_are_those_of_the_model(model: Path, engine: str) -> None:
    session = onnxruntime.InferenceSession(str(model))
    with framefuse.load_engine(model, engine=engine, device="cpu", precision="fp32") as loaded:
        kept: Any = None
        for batch, height in ((1, HEIGHT), (2, HEIGHT), (1, 64), (1, HEIGHT)):
            images = np.random.default_rng(batch).random((batch, 3, height, WIDTH), np.float32)
            found = loaded.infer(images)
            for mine, theirs in zip(found, session.run(None, {session.get_inputs()[0].name: images}), strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)
            kept = kept or (found, [one.copy() for one in found])
        assert all((one == copy).all() for one, copy in zip(*kept, strict=True)), "outputs are the caller's own"


def test_what_was_built_can_be_timed(model: Path, tmp_path: Path) -> None:
    built = framefuse.build_engine(model, shapes=SHAPES, device="cpu", output=tmp_path / "b.onnx")
    measured = built.benchmark(warmup=2, runs=10, batch=2)
    timing = measured.timing
    assert (measured.shape, timing.runs, measured.bytes) == ((2, 3, HEIGHT, WIDTH), 10, built.bytes)
    assert 0 < timing.min <= timing.median <= timing.p95 <= timing.p99 <= timing.max
    assert measured.fps == pytest.approx(2000 / timing.mean)
    title, names, numbers = str(measured).splitlines()
    assert title == f"openvino on cpu, {built.precision}, 10 runs"
    assert names.split() == ["shape", "mean", "std", "min", "max", "median", "p95", "p99", "FPS", "size", "MB"]
    assert len(numbers.split()) == len(names.split()) - 1
    with built.load() as loaded, pytest.raises(UsageError, match="batch 3 of input"):
        loaded.benchmark(runs=1, warmup=0, batch=3)


@pytest.mark.parametrize("images", [np.zeros((3, 64, 64), np.float32), np.zeros((1, 4, 64, 64), np.float32), None])
def test_arrays_that_are_no_images_are_refused(model: Path, images: Any) -> None:
    with framefuse.load_engine(model, device="cpu") as loaded, pytest.raises(UsageError, match="images have the shape"):
        loaded.infer(images)


def test_what_cannot_be_opened_or_timed_is_said(model: Path) -> None:
    with pytest.raises(UsageError, match="steam"):
        framefuse.load_engine(model, engine="steam")
    with pytest.raises(CapabilityError, match="cudnn"):
        framefuse.load_engine(model, engine="cudnn", device="cpu")
    with framefuse.load_engine(model, device="cpu") as loaded:
        for wrong in ({"runs": 0}, {"warmup": -1}, {"batch": 0}):
            with pytest.raises(UsageError, match="runs is"):
                loaded.benchmark(**wrong)
    with pytest.raises(UsageError, match="was closed"):
        loaded.benchmark(runs=1)
    wrong_device: Any = "gpu"
    with pytest.raises(UsageError, match="device 'gpu' is not one of"):
        framefuse.load_engine(model, device=wrong_device)


def test_a_shipped_model_has_its_own_size() -> None:
    with framefuse.load_engine("squares", device="cpu") as loaded:
        measured = loaded.benchmark(warmup=0, runs=2)
        assert measured.shape[:2] == (1, 3) and loaded.infer(np.zeros(measured.shape, np.float32))
