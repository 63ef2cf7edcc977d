"""framefuse build: real models through real engines; the report says what happened, and bad input is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from framefuse import Pipeline
from framefuse.cli.app import main
from framefuse.common.plain_yaml import read_mapping
from framefuse.engines import EngineOptions, open_engine
from framefuse.errors import (
    CapabilityError,
    CardError,
    ModelError,
    NonFiniteError,
    QualityError,
    SinkError,
    SourceError,
    UsageError,
)
from framefuse.lab.lowering import BuildReport, Seen, _card_of, build_model
from framefuse.lab.lowering.judge import Accuracy, read_footage, variety
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.models.fp16 import plan_fp16, to_fp16
from framefuse.models.int8 import plan_int8, prepare
from framefuse.models.onnx_file import OnnxGraph
from small_models import HEIGHT, WIDTH, drawn_images, write, write_segmenter

FRAMES = list(drawn_images(40, seed=1))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write(folder / f"{name}.onnx", name) for name in ("yolov8n", "tiny_v5")}


class Built:
    """(name, precision) -> the report of that model, which is built when a test first asks for it."""

    def __init__(self, models: dict[str, Path], folder: Path) -> None:
        self._models, self._folder = models, folder
        self._reports: dict[tuple[str, str], BuildReport] = {}

    def __getitem__(self, key: tuple[str, str]) -> BuildReport:
        if key not in self._reports:
            name, precision = key
            self._reports[key] = build_model(
                self._models[name],
                precision=precision,  # type: ignore[arg-type]
                calib=FRAMES,
                frames=16,
                out=self._folder / f"{name}-{precision}.onnx",
                allow_loss=True,  # their weights are random
            )
        return self._reports[key]


@pytest.fixture(scope="module")
def built(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(models, tmp_path_factory.mktemp("built"))


EACH = pytest.mark.parametrize("name", [pytest.param("yolov8n", marks=pytest.mark.slow), "tiny_v5"])
BOTH = pytest.mark.parametrize("precision", ["fp16", "int8"])


def infer(path: Path, engine: str, precision: str = "auto") -> tuple[str, np.ndarray[Any, Any]]:
    """What an engine says it runs in, and what the model puts out for an image."""
    opened = open_engine(engine, path, EngineOptions(precision=precision))  # type: ignore[arg-type]
    pool = opened.request_pool(1, HEIGHT, WIDTH, 1)
    slot = pool.acquire()
    assert slot is not None
    image = FRAMES[0].astype(np.float32) / 255
    if slot.input.dtype == np.uint16:  # bfloat16, which numpy does not have
        image = (image.view(np.uint32) >> 16).astype(np.uint16)
    slot.input[0] = image.transpose(2, 0, 1) if slot.memory_format == "nchw" else image
    pool.submit(slot)
    pool.wait(slot)
    return opened.precision, slot.outputs[0].copy()


@pytest.mark.slow
@EACH
@BOTH
@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
def test_every_engine_runs_what_was_built(
    models: dict[str, Path], built: Built, name: str, precision: str, engine: str
) -> None:
    _, truth = infer(models[name], engine, "fp32")
    runs_in, found = infer(built[name, precision].output, engine)
    assert found.shape == truth.shape and np.isfinite(found).all()
    assert engine == "onnxruntime" or runs_in == ("int8" if precision == "int8" else infer(models[name], engine)[0])
    noise = np.sqrt(np.square(found - truth).mean() / np.var(truth))
    assert noise < (0.02 if (precision, engine) == ("fp16", "onnxruntime") else 0.3)


@EACH
def test_int8_quantises_between_stem_and_head_and_never_inside_silu(built: Built, name: str) -> None:
    report = built[name, "int8"]
    graph = OnnxGraph(onnx.load(report.output))
    for number, node in enumerate(graph.nodes):
        if node.op_type == "QuantizeLinear":
            assert all(graph.nodes[source].op_type != "Conv" for source in graph.before(number))
        if node.op_type in ("Sigmoid", "Mul"):
            assert all(graph.nodes[source].op_type != "DequantizeLinear" for source in graph.before(number))
    layers = {layer.name: layer for layer in report.layers}
    for number in graph.layers("Conv") + [n for n, node in enumerate(graph.nodes) if node.op_type == "Conv"]:
        layer = layers[graph.name(number)]
        reads = [graph.nodes[source].op_type for source in graph.before(number)]
        assert (reads == ["DequantizeLinear"] * 2) == (layer.precision == "int8"), layer
        assert (layer.why == "") == (layer.precision == "int8") and (layer.error is None) == bool(layer.why)
    kept = " ".join(layer.why for layer in report.layers)
    assert "stem" in kept and "head" in kept and ("decoding" in kept) == (name == "yolov8n")


@pytest.mark.slow
def test_weights_have_a_scale_for_each_channel(built: Built) -> None:
    model = onnx.load(built["yolov8n", "int8"].output)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    dequantised = [n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in weights]
    assert len(dequantised) == 56
    for node in dequantised:
        values, scale, zero = (weights[name] for name in node.input)
        assert values.dtype == np.int8 and scale.shape == (len(values),) and not zero.any()


@pytest.mark.slow
def test_size_speed_and_accuracy_are_reported(built: Built) -> None:
    report = built["yolov8n", "int8"]
    assert report.smaller >= 3.1 and report.bytes_after == report.output.stat().st_size
    assert set(report.speed_ms) == {"fp32", "auto", "lowered"} and min(report.speed_ms.values()) > 0
    assert report.accuracy is not None and report.accuracy.fp32 == pytest.approx(100)
    assert report.accuracy.truth == "what the FP32 model finds" and report.accuracy.frames >= 8
    content = json.loads(report.to_json())
    assert content["smaller"] == report.smaller and len(content["layers"]) == 64
    assert "x smaller" in report.summary() and "points lost" in report.summary()


@EACH
def test_fp16_keeps_inputs_outputs_and_decoding_in_fp32(built: Built, name: str) -> None:
    report = built[name, "fp16"]
    model = onnx.load(report.output)
    onnx.checker.check_model(model, full_check=True)
    assert {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)} == {1}
    assert 1.8 < report.smaller <= 2.05
    assert any("decoding" in why for why in report.islands)
    assert {layer.precision for layer in report.layers if layer.kind == "Conv" and "dfl" not in layer.name} == {"fp16"}


@EACH
def test_what_is_in_fp16_already_stays_as_it_is(built: Built, name: str, tmp_path: Path) -> None:
    path = Path(built[name, "fp16"].output)
    once = onnx.load(path)
    onnx.save(to_fp16(once, plan_fp16(once, {})), tmp_path / "twice.onnx")
    np.testing.assert_array_equal(infer(tmp_path / "twice.onnx", "onnxruntime")[1], infer(path, "onnxruntime")[1])


def test_what_overflows_stays_fp32(models: dict[str, Path], tmp_path: Path) -> None:
    model = onnx.load(models["tiny_v5"])
    for tensor in model.graph.initializer:
        if tensor.name.startswith("/model.2/cv1/conv.weight"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 3e4, tensor.name))
    onnx.save(model, tmp_path / "loud.onnx")
    report = build_model(tmp_path / "loud.onnx", precision="fp16", calib=FRAMES, frames=8, allow_loss=True)
    kept = {layer.name: layer.why for layer in report.layers if layer.precision == "fp32"}
    assert any("/model.2/" in name and "largest FP16 number" in why for name, why in kept.items())
    assert np.isfinite(infer(report.output, "onnxruntime")[1]).all()


def test_fp16_without_frames_says_that_accuracy_is_not_measured(models: dict[str, Path], tmp_path: Path) -> None:
    report = build_model(models["tiny_v5"], precision="fp16", out=tmp_path / "half.onnx")
    assert report.accuracy is None and "not measured" in report.summary() and "noise" in report.calibration


def test_older_opsets_are_brought_up_to_date(models: dict[str, Path], tmp_path: Path) -> None:
    """YOLOv5 exports opset 12, which has no scales for channels."""
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32), "w")
    first = numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32), "w0")
    last = numpy_helper.from_array(np.ones((6, 8, 1, 1), np.float32), "w2")
    nodes = [
        helper.make_node("Conv", ["images", "w0"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["b", "w2"], ["c"]),
        helper.make_node("Squeeze", ["c"], ["output0"], axes=[3]),  # axes became an input in opset 13
    ]
    graph = helper.make_graph(
        nodes,
        "old",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 8, 1])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, None)],
        [first, weights, last],
    )
    old = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)
    onnx.save(old, tmp_path / "old.onnx")
    prepared = prepare(tmp_path / "old.onnx")
    assert prepared.opset_import[0].version == 13
    chosen, kept = plan_int8(prepared)
    assert len(chosen) == 1 and sorted(why.split(":")[0] for why in kept.values()) == ["head", "stem"]


@EACH
@pytest.mark.parametrize(
    ("precision", "engine", "asked"),
    [
        ("fp16", "openvino", "auto"),
        ("fp16", "openvino", "fp32"),
        ("fp16", "onnxruntime", "auto"),
        ("int8", "openvino", "auto"),
        ("int8", "onnxruntime", "auto"),
    ],
)
def test_pipeline_finds_the_same_boxes(
    models: dict[str, Path], built: Built, name: str, precision: str, engine: str, asked: Any
) -> None:
    truth = list(Pipeline(FRAMES[:8], models[name], precision="fp32"))
    found = list(Pipeline(FRAMES[:8], built[name, precision].output, engine=engine, precision=asked))
    counts = [sum(len(result.detections) for result in results) for results in (truth, found)]
    assert counts[0] > 20 and counts[1] == pytest.approx(
        counts[0], rel=0.05 if (precision, engine) == ("fp16", "onnxruntime") else 0.5
    )


@pytest.mark.slow
def test_card_goes_along_and_pipeline_says_int8(models: dict[str, Path], tmp_path: Path) -> None:
    shutil.copyfile(models["tiny_v5"], tmp_path / "mine.onnx")
    (tmp_path / "mine.yaml").write_text("fit: stretch\n")
    report = build_model(tmp_path / "mine.onnx", precision="int8", calib=FRAMES, frames=8, allow_loss=True)
    assert report.output == tmp_path / "mine-int8.onnx"
    assert (tmp_path / "mine-int8.yaml").read_text() == "fit: stretch\n"
    pipeline = Pipeline(FRAMES[:2], report.output)
    assert len(list(pipeline)) == 2 and pipeline.report.model is not None
    assert pipeline.report.model.precision == "int8"
    assert any("the model is quantised" in choice for choice in pipeline.report.choices)


def test_a_segmenter_is_judged_by_its_masks(tmp_path: Path) -> None:
    report = build_model(write_segmenter(tmp_path / "seg.onnx"), precision="int8", calib=FRAMES, frames=16)
    assert report.accuracy is not None and report.accuracy.measure == "mean IoU"
    assert report.accuracy.fp32 > 99 and 0 <= report.accuracy.loss <= 1
    assert [layer.precision for layer in report.layers] == ["fp32", "int8", "fp32"]


def test_scores_of_the_source_are_not_those_of_what_is_built() -> None:
    card = b"task: detect\nabout:\n  licence: Apache-2.0\n  scores: {map50_95: 0.7}\n"
    made = read_mapping(_card_of(card, Path("scout.onnx")))
    assert made["about"][0] == {"licence": "Apache-2.0", "built_from": "scout.onnx"} and made["task"][0] == "detect"
    assert _card_of(b"fit: stretch  # as trained\n", Path("a.onnx")) == b"fit: stretch  # as trained\n"


@pytest.mark.slow
def test_loss_is_refused_with_the_reason_and_nothing_is_written(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(QualityError, match=r"loses .* points of mAP50 .*most sensitive: /model") as caught:
        build_model(models["tiny_v5"], precision="int8", calib=FRAMES, frames=8, out=tmp_path / "bad.onnx")
    assert "--allow-loss" in str(caught.value) and caught.value.exit_code == 4
    assert not list(tmp_path.iterdir())


def still(seed: int, frames: int = 24) -> list[Any]:
    """A camera that does not move, with sensor noise and an object that passes."""
    random = np.random.default_rng(seed)
    shown = []
    for number in range(frames):
        image = FRAMES[seed].astype(np.int16) + random.integers(-3, 4, FRAMES[seed].shape)
        image[20:60, 8 * number : 8 * number + 30] = 200
        shown.append(np.clip(image, 0, 255).astype(np.uint8))
    return shown


SLOW = "synthetic://street?seed={}&frames=100&fps=240&complexity=0.5&size=640x360"


@pytest.mark.slow
def test_variety_tells_one_scene_from_several() -> None:
    card = read_card(find_model("scout-n"))
    one = read_footage(SLOW.format(1), card, 8).inputs
    several = read_footage([SLOW.format(seed) for seed in range(4)], card, 8).inputs
    assert variety(one) < 0.3 < 0.8 < variety(several)
    padded = [np.pad(values, ((0, 0), (0, 0), (140, 140), (0, 0)), constant_values=114 / 255) for values in several]
    assert variety(padded) > 0.8  # which says nothing about the scene
    assert variety([several[0]] * 4) == 0


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (Seen("/clips/a.mp4", 64, 0.1, 3, ["car"], 10), "64 frames of one scene in a.mp4 with 3 boxes of 1 of 10"),
        (Seen("a.mp4", 64, 2.0, 1, ["car"], 10), "64 frames of a.mp4 with 1 box of 1 of 10 classes (car)"),
        (Seen("a.mp4", 64, 2.0, 49, ["car", "bus"], 10), "49 boxes of 2 of 10 classes"),
        (Seen("a.mp4", 64, 2.0, 500, ["car"], 10), "500 boxes of 1 of 10"),
        (Seen("a.mp4", 64, 0.4, None, ["car", "road"], 2), "one scene in a.mp4 with 2 of 2 classes (car, road)"),
        (Seen("3 sources", 64, 2.0, 50, ["car", "bus"], 80), ""),
        (Seen("a.mp4", 64, 0.5, 50, ["person"], 1), ""),
        (Seen("a.mp4", 64, 0.5, None, list("abcdefg"), 9), ""),
    ],
)  # fmt: skip
def test_a_narrow_calibration_is_one_that_shows_little(seen: Seen, said: str) -> None:
    assert said in str(seen) and seen.narrow == bool(said)
    assert ", ..." in str(seen) or len(seen.classes) <= 5
    warned = [seen.warning(Accuracy("mAP50", data, "", 9, 100, 99)) for data in (seen.source, "b.mp4")]
    assert "same source" in warned[0] and "same source" not in warned[1] and "--judge SOURCE" in warned[1]


@pytest.mark.slow
def test_a_narrow_calibration_is_warned_of(models: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "mine.onnx"
    shutil.copyfile(models["tiny_v5"], path)
    report = build_model(path, precision="int8", calib=still(0), frames=8, allow_loss=True)
    assert report.seen is not None and report.seen.narrow and report.seen.frames == 8
    (warning,) = report.warnings
    assert "8 frames of one scene with" in warning and "same source" in warning
    assert f"warning   {warning}" in report.summary() and "other frames of array" in report.summary()
    content = json.loads(report.to_json())
    assert content["warnings"] == [warning] and content["seen"]["variety"] < 0.5 and content["seen"]["boxes"] > 0
    assert read_card(report.output).calibration == report.calibration
    with pytest.raises(QualityError, match="loses") as caught:
        build_model(path, precision="int8", calib=still(0), frames=8, exist_ok=True)
    assert "the calibration is narrow" in str(caught.value.remedy) and "--allow-loss" in str(caught.value.remedy)


@pytest.mark.slow
def test_varied_footage_is_not_warned_of(models: dict[str, Path], tmp_path: Path) -> None:
    report = build_model(
        models["tiny_v5"], precision="int8", calib=[SLOW.format(seed) for seed in range(4)], frames=8, allow_loss=True,
        out=tmp_path / "out.onnx",
    )  # fmt: skip
    assert report.seen is not None and not report.seen.narrow and report.warnings == []
    assert "ranges over 8 frames of 4 sources with" in report.calibration and "warning" not in report.summary()


@pytest.mark.slow
def test_another_source_judges(models: dict[str, Path], tmp_path: Path) -> None:
    from training.squares_clip import squares_clip

    squares_clip(tmp_path / "other.mp4", frames=20, size=(320, 192))
    report = build_model(
        models["tiny_v5"], precision="int8", calib=FRAMES, judge=tmp_path / "other.mp4", frames=16, allow_loss=True,
        out=tmp_path / "out.onnx",
    )  # fmt: skip
    assert report.seen is not None and report.seen.source == "array" and report.accuracy is not None
    assert report.accuracy.data == str(tmp_path / "other.mp4") and report.accuracy.frames == 16
    assert "on 16 frames of" in report.summary() and report.accuracy.fp32 == pytest.approx(100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"judge": "a.mp4", "data": "synthetic://street"}, "judge is 'a.mp4', but labelled data judge already"),
        ({"judge": "a.mp4", "calib": "a.mp4"}, "judge is 'a.mp4', but the same source calibrates"),
        ({"judge": "rtsp://127.0.0.1:1/x", "calib": FRAMES}, "is live"),
    ],
)
def test_what_cannot_judge(models: dict[str, Path], tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        build_model(models["tiny_v5"], precision="int8", out=tmp_path / "out.onnx", **options)
    assert caught.value.remedy


@pytest.mark.slow
def test_data_that_also_calibrate_are_divided(models: dict[str, Path], tmp_path: Path) -> None:
    world = "synthetic://street?frames=40&size=320x192"
    said: list[str] = []
    report = build_model(
        models["tiny_v5"], precision="int8", calib=world, data=world, frames=8, out=tmp_path / "a.onnx",
        allow_loss=True, say=said.append,
    )  # fmt: skip
    assert "reading calibration frames: a part of the data, which is left out of the scores" in said
    assert report.accuracy is not None and (report.accuracy.truth, report.accuracy.frames) == ("labels", 32)


BLACK = [np.zeros((HEIGHT, WIDTH, 3), np.uint8)] * 20


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (FRAMES[:6], "not enough to calibrate with: 3 frames"),
        (BLACK, "all 10 frames of .* are black or a single colour"),
        ([FRAMES[0]] * 20, "all 10 frames of .* are identical"),
        (BLACK + FRAMES[:8], "not enough to calibrate with: 4 frames.*10 blank"),
    ],
)
def test_frames_that_say_nothing_are_refused(
    models: dict[str, Path], tmp_path: Path, frames: list[Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        build_model(models["tiny_v5"], precision="int8", calib=frames, frames=16, out=tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


def test_too_few_frames_are_refused_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["build", "squares", "--precision", "int8", "--calib", "synthetic://street?frames=40", "--frames", "6"]
    assert main([*words, "--out", str(tmp_path / "out.onnx")]) == 2
    assert capsys.readouterr().err == "error: --frames 6 is too few to calibrate with\n  -> use --frames 8 or more\n"


def test_int8_needs_frames(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="int8 needs frames"):
        build_model(models["tiny_v5"], precision="int8", out=tmp_path / "out.onnx")
    with pytest.raises(SourceError):
        build_model(models["tiny_v5"], precision="int8", calib=tmp_path / "no.mp4", out=tmp_path / "out.onnx")


def test_models_that_find_nothing_or_are_not_trained_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    def filled(part: str, weight: float, bias: float) -> Path:
        model = onnx.load(models["tiny_v5"])
        for tensor in model.graph.initializer:
            kind = tensor.name.rpartition(".")[2]
            if tensor.name.startswith(part) and kind in ("weight", "bias"):
                values = np.full(tensor.dims, weight if kind == "weight" else bias, np.float32)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        onnx.save(model, tmp_path / "changed.onnx")
        return tmp_path / "changed.onnx"

    def build(model: Path) -> None:
        build_model(model, precision="int8", calib=FRAMES, frames=64, allow_loss=True)

    with pytest.raises(UsageError, match=r"finds nothing on 20 frames of .*, so its accuracy cannot be measured"):
        build(filled("/model.8/m", 0, -20))
    with pytest.raises(NonFiniteError, match="NaN or infinity"):
        build(filled("/model.3/", np.nan, 0))


def test_a_camera_cannot_judge(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is live"):
        build_model(models["tiny_v5"], precision="int8", calib="rtsp://127.0.0.1:1/x", out=tmp_path / "out.onnx")


def test_models_that_cannot_be_lowered_are_refused(models: dict[str, Path], built: Built, tmp_path: Path) -> None:
    def build(path: Path | str, precision: Any = "int8") -> None:
        build_model(path, precision=precision, calib=FRAMES, frames=8, out=tmp_path / "out.onnx", exist_ok=True)

    with pytest.raises(ModelError, match="quantised already: it has DequantizeLinear"):
        build(built["tiny_v5", "int8"].output)
    with pytest.raises(ModelError, match="FP16 weights already"):
        build(built["tiny_v5", "fp16"].output)
    with pytest.raises(ModelError, match="none of them between stem and head"):
        build("squares")
    with pytest.raises(UsageError, match="precision 'int4'"):
        build(models["tiny_v5"], "int4")
    model = onnx.load(models["tiny_v5"])
    for opset, known in ((9, "11 to"), (99, "the newest supported one is")):
        model.opset_import[0].version = opset
        onnx.save(model, tmp_path / "strange.onnx")
        with pytest.raises(ModelError, match=f"has opset {opset}; {known}") as caught:
            build(tmp_path / "strange.onnx")
        assert "opset 17" in str(caught.value.remedy)
    model.opset_import[0].version = 17
    model.graph.node[1].op_type = "Frobnicate"
    onnx.save(model, tmp_path / "strange.onnx")
    with pytest.raises(ModelError, match=r"cannot be prepared: .*Frobnicate") as caught:
        build(tmp_path / "strange.onnx")
    assert "ONNXRuntimeError" not in str(caught.value) and "/onnxruntime_src" not in str(caught.value)
    model = onnx.load(models["tiny_v5"])
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 3
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(CardError):
        build(tmp_path / "other.onnx")


@pytest.mark.parametrize("calib", [None, FRAMES])
def test_a_model_that_puts_out_no_numbers_is_not_lowered(models: dict[str, Path], tmp_path: Path, calib: Any) -> None:
    model = onnx.load(models["tiny_v5"])
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.ndim == 4:
            tensor.CopyFrom(numpy_helper.from_array(np.full_like(values, np.nan), tensor.name))
    onnx.save(model, tmp_path / "broken.onnx")
    with pytest.raises((ModelError, NonFiniteError), match=r"(gives|returned) NaN or infinity"):
        build_model(tmp_path / "broken.onnx", precision="fp16", calib=calib, frames=8)
    assert [path.name for path in tmp_path.iterdir()] == ["broken.onnx"]


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        ({"out": 3}, "out is a int", "path of the file"),
        ({"out": ""}, "the output '' is not named .onnx", "--out tiny_v5-fp16.onnx"),
        ({"out": "model"}, "the output 'model' is not named .onnx", "--out model.onnx"),
        ({"calibration": "mean"}, "calibration 'mean' is not one of percentile", ""),
        ({"frames": "many"}, "frames is 'many'", "a whole number from 1"),
        ({"frames": 0}, "frames is 0", "a whole number from 1"),
        ({"frames": True}, "frames is True", "a whole number from 1"),
    ],
)
def test_options_of_the_wrong_kind_are_refused(
    models: dict[str, Path], options: dict[str, Any], message: str, remedy: str
) -> None:
    with pytest.raises(UsageError) as caught:
        build_model(models["tiny_v5"], precision="fp16", **options)
    assert message in caught.value.message and remedy in (caught.value.remedy or "")


def test_what_cannot_be_built_is_said_before_the_work(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["build", str(models["tiny_v5"]), "--precision", "fp8"]) == 2
    assert "add --engine tensorrt" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    assert main(["build", str(models["tiny_v5"]), "--precision", "fp16", "--engine", "tensorrt"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("error: neither package tensorrt nor tensorrt-rtx is installed")
    assert list(tmp_path.iterdir()) == []


def test_outputs_are_checked_before_the_work(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "there.onnx").write_bytes(b"mine")

    def build(out: Path, **options: Any) -> None:
        build_model(models["tiny_v5"], precision="fp16", out=out, **options)

    with pytest.raises(UsageError, match="exists"):
        build(tmp_path / "there.onnx")
    assert (tmp_path / "there.onnx").read_bytes() == b"mine"
    with pytest.raises(UsageError, match="exists"):
        build(models["tiny_v5"], exist_ok=True)
    with pytest.raises(UsageError, match=r"not named \.onnx"):
        build(tmp_path / "out.engine")
    with pytest.raises(SinkError, match="cannot write to"):
        build(tmp_path / "no" / "out.onnx")
    build(tmp_path / "there.onnx", exist_ok=True)
    onnx.checker.check_model(onnx.load(tmp_path / "there.onnx"))


def test_an_interruption_leaves_no_file(models: dict[str, Path], tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if "speed" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_model(models["tiny_v5"], precision="fp16", out=tmp_path / "out.onnx", say=interrupt)
    assert not list(tmp_path.iterdir())


def test_missing_package_is_named(models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(CapabilityError, match=r"onnxruntime.*\n.*framefuse\[build\]"):
        build_model(models["tiny_v5"], precision="fp16", out=tmp_path / "out.onnx")


def test_command_line(models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "half.onnx"
    assert main(["build", str(models["tiny_v5"]), "--precision", "fp16", "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["output"] == str(out) and "smaller" in printed.err
    assert main(["build", str(models["tiny_v5"]), "--precision", "fp16", "--out", str(out)]) == 2
    assert "--exist-ok" in capsys.readouterr().err
    assert main(["build", str(models["tiny_v5"]), "--precision", "int4"]) == 2
    assert main(["build", str(models["tiny_v5"]), "--precision", "fp16", "--out", str(out), "--exist-ok"]) == 0
    assert "runs in" in capsys.readouterr().out


@pytest.mark.slow
def test_nothing_but_json_on_stdout(models: dict[str, Path], tmp_path: Path) -> None:
    """onnxruntime.quantization prints its progress."""
    from training.squares_clip import squares_clip

    squares_clip(tmp_path / "clip.mp4", frames=40, size=(320, 192))
    words = ["build", models["tiny_v5"], "--precision", "int8", "--calib", tmp_path / "clip.mp4", "--allow-loss"]
    words += ["--out", tmp_path / "out.onnx", "--frames", "8", "--json"]
    done = subprocess.run([sys.executable, "-m", "framefuse", *words], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["precision"] == "int8"
