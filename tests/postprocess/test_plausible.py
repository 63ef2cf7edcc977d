"""Models that return what no object can be: it is dropped and counted, and the rest is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fake_gpu import Gpu
from framefuse import Model, Pipeline
from framefuse.engines.null import CudaNullEngine, NullEngine
from framefuse.errors import NonFiniteError
from framefuse.frame import Frame
from framefuse.lab.parity import certify
from framefuse.models.card import read_card
from framefuse.postprocess import BoxCheck
from framefuse.prediction import Detections
from framefuse.runtime.program import HostProgram, Selection

SOURCE = "synthetic://street?frames=3&size=160x96"
NAMES = {"names": "{0: 'one', 1: 'two'}"}
HINT = "; check layout, activation and names in the card lying.yaml"
GOOD = (10, 20, 50, 60)
INT_MIN = -(2**31)


def write(path: Path, outputs: Sequence[Any], metadata: dict[str, str], card: str = "") -> Path:
    """A model for 160x96 that returns these outputs (without the batch), whatever it sees."""
    weights, nodes, values = [numpy_helper.from_array(np.zeros(1, np.float32), "zero")], [], []
    nodes.append(helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0))
    nodes.append(helper.make_node("Mul", ["mean", "zero"], ["nothing"]))
    for number, rows in enumerate(outputs):
        constant = np.array(rows, np.float32)[None]
        weights.append(numpy_helper.from_array(constant, f"constant{number}"))
        nodes.append(helper.make_node("Add", [f"constant{number}", "nothing"], [f"output{number}"]))
        values.append(helper.make_tensor_value_info(f"output{number}", TensorProto.FLOAT, constant.shape))
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 96, 160])
    graph = helper.make_graph(nodes, "lying", [images], values, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    if card:
        path.with_suffix(".yaml").write_text(card)
    return path


def yolov8(*anchors: tuple[float, ...]) -> list[Any]:
    """(4 + nc, N) with so many empty anchors that the layout is plain."""
    return [np.array([*anchors, *[(0,) * len(anchors[0])] * (1260 - len(anchors))]).T]


def rows(found: Detections) -> list[tuple[int, float]]:
    """Class and confidence of each."""
    return [(int(label), round(float(score), 3)) for label, score in zip(found.class_id, found.confidence, strict=True)]


END2END = {"end2end": "True"}
DETR = "layout: detr\nbox_units: pixels\nfit: letterbox\n"
CASES: dict[str, tuple[list[Any], dict[str, str], str, list[tuple[int, float]], str]] = {
    "end2end classes": (
        [[(*GOOD, 0.9, 1), *((*GOOD, 0.8, n) for n in (-1, 2, 1e9, 1e19, INT_MIN, -1e30)), (*GOOD, 0.5, 0)]],
        NAMES | END2END, "", [(1, 0.9), (0, 0.5)], f"boxes dropped: 18 with a class number outside 0..1{HINT}",
    ),
    "end2end without names": (
        [[(*GOOD, 0.9, 0), (*GOOD, 0.8, 79), (*GOOD, 0.7, -1)]],
        END2END, "", [(0, 0.9), (79, 0.8)], f"boxes dropped: 3 with a class number below 0{HINT}",
    ),
    "end2end confidences": (
        [[(*GOOD, 1e9, 0), (*GOOD, 1.01, 0), (*GOOD, 1.0009, 1), (*GOOD, 0.5, 0)]],
        NAMES | END2END, "", [(1, 1.0), (0, 0.5)], f"boxes dropped: 6 with a confidence outside 0..1{HINT}",
    ),
    "end2end corners": (
        [[(50, 20, 10, 60, 0.9, 0), (10, 60, 50, 20, 0.9, 0), (*GOOD, 0.8, 1), (3e38, -3e38, -3e38, 3e38, 0.7, 0)]],
        NAMES | END2END, "", [(1, 0.8)], f"boxes dropped: 9 with crossed corners{HINT}",
    ),
    "end2end outside": (
        [[(-50, 20, -10, 60, 0.9, 0), (10, 97, 50, 1e30, 0.9, 0), (*GOOD, 0.8, 1), (5, 5, 5, 9, 0.7, 0)]],
        NAMES | END2END, "", [(1, 0.8)], "boxes dropped: 9 with no area inside the frame",
    ),
    "yolov8": (
        yolov8((30, 40, 40, 40, 0, 0.9), (130, 40, 20, 20, 7, 0), (30, 80, -9, 9, 0.8, 0), (-90, 40, 9, 9, 0.7, 0)),
        NAMES, "", [(1, 0.9)],
        "boxes dropped: 3 with a confidence outside 0..1, 3 with crossed corners, "
        f"3 with no area inside the frame{HINT}",
    ),
    "yolov5": (
        [yolov8((30, 40, 40, 40, 1, 0, 0.9), (130, 40, 20, 20, 1e5, 1e4, 0), (30, 80, -9, 9, 1, 0.8, 0))[0].T],
        NAMES, "layout: yolov5", [(1, 0.9)],
        f"boxes dropped: 3 with a confidence outside 0..1, 3 with crossed corners{HINT}",
    ),
    "detr with labels": (
        [[1, 2, -1, 1e19, 0], [GOOD, GOOD, GOOD, GOOD, (50, 20, 10, 60)], [0.9, 0.8, 0.7, 0.6, 0.5]],
        NAMES, f"{DETR}outputs: [output0, output1, output2]", [(1, 0.9)],
        f"boxes dropped: 9 with a class number outside 0..1, 3 with crossed corners{HINT}",
    ),
    "detr without activation": (
        [[(30, 40, 40, 40, 0, 0.9), (130, 40, 20, 20, 5.5, 0)]],
        NAMES, DETR, [(1, 0.9)], f"boxes dropped: 3 with a confidence outside 0..1{HINT}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("case", CASES)
def test_what_no_object_can_be_is_dropped_and_counted(tmp_path: Path, case: str, engine: str) -> None:
    pytest.importorskip(engine)
    outputs, metadata, card, kept, warning = CASES[case]
    model = write(tmp_path / "lying.onnx", outputs, metadata, card)
    pipeline = Pipeline(
        SOURCE, model, engine=engine, precision="fp32", project=tmp_path / "runs", save_jsonl=True, save_txt=True
    )
    for result in pipeline:
        found = result.detections
        assert rows(found) == kept
        assert np.allclose(found.xyxy, GOOD, atol=0.01)
    report = pipeline.report
    assert report.warnings == [warning] and warning in report.table() and warning in report.to_html()
    assert report.frames == 3 and report.detections == 3 * len(kept)
    assert pipeline.folder is not None
    lines = next(pipeline.folder.glob("*.jsonl")).read_text().splitlines()
    assert [len(json.loads(line)["detections"]) for line in lines] == [len(kept)] * 3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_box_that_is_not_finite_ends_the_run(tmp_path: Path, value: float) -> None:
    model = write(tmp_path / "lying.onnx", [[(*GOOD, value, 1)]], NAMES | END2END)
    with pytest.raises(NonFiniteError):
        Pipeline(SOURCE, model, engine="openvino", precision="fp32").run()
    image = np.zeros((96, 160, 3), np.uint8)
    with Model(model, engine="openvino", precision="fp32") as opened:
        for images in (image, [image] * 5, image):  # it fails each time, and does not wait for what failed before
            with pytest.raises(NonFiniteError):
                opened(images)


def test_boxes_without_area_are_no_difference_between_engines(tmp_path: Path) -> None:
    outputs, metadata, _, kept, _ = CASES["end2end outside"]
    model = write(tmp_path / "lying.onnx", outputs, metadata)
    found = certify(model, SOURCE, engines=["openvino"], frames=3)
    assert found.ok and found.boxes == 3 * len(kept)


def test_an_honest_model_has_no_warning() -> None:
    assert Pipeline(SOURCE, "scout-n").run().warnings == []


def batch_of(counts: list[int], most: int = 5) -> tuple[Any, Any, Any, Any]:
    """Boxes, scores and classes of frames; behind them is what the engine left there, which is no box."""
    shape = len(counts), most
    boxes, scores, classes = np.full((*shape, 4), -1, np.float32), np.full(shape, 7, np.float32), np.full(shape, -5)
    for frame, count in enumerate(counts):
        for row in range(count):
            boxes[frame, row], scores[frame, row], classes[frame, row] = (
                (row, frame, row + 9, frame + 9),
                1 - row / 9,
                0,
            )
    return boxes, scores, classes.astype(np.int32), np.array(counts, np.int32)


@pytest.mark.parametrize("counts", [[0], [2], [0, 0], [3, 0, 5], [1, 2, 3, 4, 5, 0, 0]])
@pytest.mark.parametrize("wrong", [0, 1])
def test_what_is_kept_shares_no_memory_with_what_the_engine_overwrites(counts: list[int], wrong: int) -> None:
    checked = BoxCheck({0: "one"}, "model.yaml")
    boxes, scores, classes, kept = batch_of(counts)
    if wrong and counts[0]:
        classes[0, 0] = 1
    found = checked(boxes, scores, classes, kept)
    boxes[:], scores[:], classes[:] = 0, 0, 1
    for frame, (detections, count) in enumerate(zip(found, counts, strict=True)):
        first = wrong if frame == 0 else 0
        assert detections.xyxy.tolist() == [[row, frame, row + 9, frame + 9] for row in range(first, count)]
        assert detections.confidence.tolist() == pytest.approx([1 - row / 9 for row in range(first, count)])
        assert detections.class_id.tolist() == [0] * max(count - first, 0)
        assert detections.class_id.dtype == np.int64
    assert len(checked.warnings) == (1 if wrong and counts[0] else 0)


@pytest.mark.parametrize("case", ["end2end classes", "end2end outside", "yolov8", "detr with labels"])
def test_on_cuda_the_same_are_dropped(gpu: Gpu, tmp_path: Path, case: str) -> None:
    from framefuse.runtime.cuda.program import CudaProgram

    outputs, metadata, text, kept, _ = CASES[case]
    card = read_card(write(tmp_path / "lying.onnx", outputs, metadata, text))
    arrays = [np.array(rows, np.float32)[None] for rows in outputs]
    host = HostProgram(NullEngine(lambda pixels: arrays), card, card.preprocess, Selection())
    cuda = CudaProgram(CudaNullEngine(lambda *size: arrays), card, card.preprocess, Selection())
    frame = Frame.from_array(np.zeros((96, 160, 3), np.uint8))
    for program in (host, cuda):
        (found,) = [*program.submit([frame]), *program.drain()]
        assert rows(found.result.detections) == kept
    assert host.checked.warnings == cuda.checked.warnings != []
