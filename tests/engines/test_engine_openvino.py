"""The OpenVINO engine: what it may leave to post-processing, and how its input looks."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framefuse.engines import EngineOptions, Slot, open_engine
from framefuse.engines.openvino import _openvino, find_head
from framefuse.errors import CapabilityError, ModelError
from framefuse.kernels.boxes.call import detections
from framefuse.models import find_model

openvino = pytest.importorskip("openvino")

SIZE = (96, 64)
GRIDS = ((8, 12), (4, 6))


def test_threads_that_share_an_engine_get_requests_of_their_own() -> None:
    engine = open_engine("openvino", find_model("squares"), EngineOptions("cpu", precision="fp32"))
    sizes = [(96, 160), (64, 64)] * 3
    together = threading.Barrier(len(sizes))

    def outputs(size: tuple[int, int]) -> list[Any]:
        together.wait()
        pool = engine.request_pool(1, *size, 1)
        slot = pool.acquire()
        assert slot is not None
        slot.write(np.full((1, 3, *size), 0.5, np.float32))
        pool.submit(slot)
        assert pool.wait(slot)
        return [output.copy() for output in slot.outputs]

    with ThreadPoolExecutor(len(sizes)) as threads:
        found = list(threads.map(outputs, sizes))
    for one, other in zip(found, found[2:], strict=False):
        assert all(map(np.array_equal, one, other))
    engine.close()


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(CapabilityError, match="needs the package openvino") as error:
        _openvino()
    assert error.value.remedy == "pip install openvino, or use another --engine"


def yolov8(path: Path, *, bins: int = 4, classes: int = 3, score: str = "Sigmoid", shift: float = 0.5) -> Path:
    """A small YOLOv8: two levels, each a convolution for distances and one for classes, and its decoding."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, values: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **options: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **options))
        return output

    levels, centres, strides = [], [], []
    for k, (rows, columns) in enumerate(GRIDS):
        stride = SIZE[1] // rows
        parts = []
        for part, channels in (("box", 4 * bins), ("class", classes)):
            weights = rng.normal(0, 0.3, (channels, 3, stride, stride)).astype(np.float32)
            bias = rng.normal(-1, 1, channels).astype(np.float32)
            inputs = ["images", constant(f"{part}{k}.w", weights), constant(f"{part}{k}.b", bias)]
            parts.append(node("Conv", inputs, f"{part}{k}", strides=[stride, stride]))
        joined = node("Concat", parts, f"level{k}", axis=1)
        shape = constant(f"shape{k}", np.array([0, 4 * bins + classes, -1], np.int64))
        levels.append(node("Reshape", [joined, shape], f"flat{k}"))
        y, x = np.divmod(np.arange(rows * columns), columns)
        centres.append(np.stack((x, y)) + shift)
        strides.append(np.full((1, rows * columns), stride))
    node("Concat", levels, "all", axis=2)
    sizes = constant("sizes", np.array([4 * bins, classes], np.int64))
    nodes.append(helper.make_node("Split", ["all", sizes], ["distances", "logits"], axis=1))
    node("Reshape", ["distances", constant("split", np.array([0, 4, bins, -1], np.int64))], "sides")
    node("Softmax", ["sides"], "shares", axis=2)
    node("Mul", ["shares", constant("bins", np.arange(bins, dtype=np.float32).reshape(1, 1, bins, 1))], "terms")
    node("ReduceSum", ["terms", constant("axis", np.array([2], np.int64))], "means", keepdims=0)
    nodes.append(
        helper.make_node("Split", ["means", constant("two", np.array([2, 2], np.int64))], ["start", "end"], axis=1)
    )
    node("Sub", [constant("centres", np.concatenate(centres, 1)[None].astype(np.float32)), "start"], "low")
    node("Add", ["centres", "end"], "high")
    node("Add", ["low", "high"], "sum")
    node("Mul", ["sum", constant("half", np.float32(0.5))], "middle")
    node("Sub", ["high", "low"], "size")
    node("Concat", ["middle", "size"], "cells", axis=1)
    node("Mul", ["cells", constant("strides", np.concatenate(strides, 1)[None].astype(np.float32))], "boxes")
    node(score, ["logits"], "scores", **({"axis": 1} if score == "Softmax" else {}))
    node("Concat", ["boxes", "scores"], "output0", axis=1)
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", 1, ["batch", 3, SIZE[1], SIZE[0]])],
        [helper.make_tensor_value_info("output0", 1, ["batch", 4 + classes, 120])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def run(model: Path, images: Any, **options: Any) -> tuple[Slot, list[Any], list[str]]:
    """The slot, copies of its outputs, and the engine's reasons."""
    engine = open_engine("openvino", model, EngineOptions(streams=1, threads=1, **options))
    pool = engine.request_pool(len(images), SIZE[1], SIZE[0], 1)
    slot = pool.acquire()
    assert slot is not None
    if slot.memory_format == "nhwc":
        images = images.transpose(0, 2, 3, 1)
    if slot.input.dtype == np.uint16:
        images = (np.ascontiguousarray(images).view(np.uint32) >> 16).astype(np.uint16)
    slot.input[:] = images
    pool.submit(slot)
    assert pool.wait(slot)
    return slot, [output.copy() for output in slot.outputs], list(engine.reasons)


def able(precision: str) -> bool:
    return precision == "fp32" or "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("bins", "classes"), [(4, 3), (16, 1), (2, 8)])
def test_the_head_of_a_yolov8_is_left_to_post_processing(
    tmp_path: Path, precision: str, bins: int, classes: int
) -> None:
    if not able(precision):
        pytest.skip(f"no {precision} here")
    model = yolov8(tmp_path / "tiny.onnx", bins=bins, classes=classes)
    images = np.random.default_rng(1).random((2, 3, SIZE[1], SIZE[0]), np.float32)
    slot, whole, _ = run(model, images, precision="fp32")
    assert slot.layout is None and slot.memory_format == "nchw" and whole[0].shape == (2, 4 + classes, 120)
    slot, logits, reasons = run(model, images, precision=precision, layout="yolov8")
    assert slot.layout == "yolov8_head" and reasons[-1].startswith("boxes are decoded by post-processing")
    assert slot.memory_format == ("nhwc" if precision == "bf16" else "nchw")
    assert [output.shape[1:3] for output in logits] == [GRIDS[0]] * 2 + [GRIDS[1]] * 2
    maps = np.array([[*SIZE, 0, 0, 1, 1, *SIZE]] * 2, np.float32)
    plain = maps.copy()
    plain[:, :2] = 1
    settings: dict[str, Any] = {"conf": 0.4, "iou": 1.0, "max_det": 120}
    if precision == "bf16":  # compared anchor by anchor: a score near the threshold may fall on either side
        settings["conf"] = 0.0
    found = detections(logits, "yolov8_head", maps, **settings)
    expected = detections(whole, "yolov8", plain, **settings)
    for image in range(2):
        count = int(expected.counts[image])
        assert count == found.counts[image] > 10
        ours, theirs = found.scores[image, :count], expected.scores[image, :count]
        np.testing.assert_allclose(ours, theirs, atol=0.03 if precision == "bf16" else 1e-5)
        if precision == "fp32":
            np.testing.assert_allclose(found.boxes[image, :count], expected.boxes[image, :count], atol=1e-3)


@pytest.mark.parametrize("change", [{"score": "Softmax"}, {"shift": 0.25}])
def test_another_decoding_stays_in_the_model(tmp_path: Path, change: dict[str, Any]) -> None:
    model = yolov8(tmp_path / "other.onnx", **change)
    slot, outputs, reasons = run(model, np.zeros((1, 3, SIZE[1], SIZE[0]), np.float32), layout="yolov8")
    assert slot.layout is None and outputs[0].shape == (1, 7, 120)
    assert reasons[-1] == "boxes are decoded by the model itself"


def test_a_model_without_such_a_head_is_left_alone() -> None:
    network = openvino.Core().read_model(find_model("squares"))
    assert find_head(openvino, openvino.Core(), network) is None


MEMORY = """
import resource, sys
from pathlib import Path
from framefuse.engines import EngineOptions, open_engine
from framefuse.errors import HostMemoryError
options = EngineOptions("cpu", "fp32", streams=1, threads=1, layout=sys.argv[4])
engine = open_engine("openvino", Path(sys.argv[1]), options)
if not sys.argv[4]:
    engine.request_pool(1, 64, 64, 1)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]) * 2**20,) * 2)
try:
    pool = engine.request_pool(*map(int, sys.argv[3].split(",")), 2)
    slot = pool.acquire()
    pool.submit(slot)
    pool.wait(slot)
except HostMemoryError as error:
    print(error.message, error.remedy, sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "layout", "free_mb"),
    [("1,2048,2048", "", (50, 110)), ("8,1024,1024", "", (260,)), ("1,8192,8192", "yolov8", (600, 1200))],
    ids=str,
)
def test_too_little_memory_is_said_with_the_shape(shape: str, layout: str, free_mb: tuple[int, ...]) -> None:
    """How much is too little, and whether OpenVINO lives to say so, depends on the CPU."""
    ends = []
    for free in free_mb:
        words = [sys.executable, "-c", MEMORY, str(find_model("scout-n")), str(free), shape, layout]
        done = subprocess.run(words, capture_output=True, text=True)
        ends.append(done.returncode)
        assert done.returncode <= 0, done.stderr
        if done.stdout:
            assert "not enough memory for OpenVINO at input" in done.stdout
            # Of any size: before it comes to the shape.
            assert shape.split(",")[1] in done.stdout or "of any size" in done.stdout
            assert "smaller --batch or --imgsz" in done.stdout
            return
    assert min(ends) < 0, "there was enough memory"


def test_an_operator_that_openvino_lacks_is_named(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "odd.onnx"
    network = onnx.load(find_model("scout-n"))
    network.graph.node[3].op_type = "Frobnicate"
    onnx.save(network, path)
    with pytest.raises(ModelError, match="no operator Frobnicate") as caught:
        open_engine("openvino", path, EngineOptions("cpu"))
    assert caught.value.remedy
