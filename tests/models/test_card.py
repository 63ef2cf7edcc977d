"""Cards: what is read from an ONNX and its YAML card, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from framefuse.errors import CardError, ModelError
from framefuse.models import find_model
from framefuse.models.card import Card, read_card

Shape = list[Any]
DYNAMIC = ["batch", 3, "height", "width"]
STATIC = [1, 3, 640, 640]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write an ONNX with these inputs and outputs, and perhaps a card beside it."""

    def write(
        *outputs: tuple[str, Shape] | tuple[str, Shape, int],
        image: Shape = STATIC,
        dtype: int = TensorProto.FLOAT,
        extra_inputs: dict[str, Shape] | None = None,
        extra_dtype: int = TensorProto.INT64,
        card: dict[str, Any] | str | None = None,
        **metadata: Any,
    ) -> Path:
        inputs = [helper.make_tensor_value_info("images", dtype, image)]
        for name, shape in (extra_inputs or {}).items():
            inputs.append(helper.make_tensor_value_info(name, extra_dtype, shape))
        values = [helper.make_tensor_value_info(o[0], o[2] if len(o) > 2 else 1, o[1]) for o in outputs]
        nodes = [helper.make_node("Identity", ["images"], [value.name]) for value in values]
        model = helper.make_model(helper.make_graph(nodes, "g", inputs, values))
        helper.set_model_props(model, {key: str(value) for key, value in metadata.items()})
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        path.with_suffix(".yaml").unlink(missing_ok=True)
        if card is not None:
            path.with_suffix(".yaml").write_text(card if isinstance(card, str) else yaml.safe_dump(card))
        return path

    return write


def names(count: int) -> dict[int, str]:
    return {number: f"class {number}" for number in range(count)}


def test_exporter_metadata(write: Any) -> None:
    card = read_card(
        write(("output0", ["batch", 84, "anchors"]), image=DYNAMIC, names=names(80), imgsz=[640, 640], stride=32)
    )
    assert (card.layout, card.class_count, card.names[79]) == ("yolov8", 80, "class 79")
    assert card.dynamic_batch and card.dynamic_size and card.preprocess.rectangular
    assert (card.preprocess.width, card.preprocess.height, card.preprocess.stride) == (640, 640, 32)
    assert card.preprocess.std == (255, 255, 255) and card.preprocess.fit == "letterbox"
    assert card.outputs == ("output0",) and card.output_indices == (0,)
    assert card.origin["names"] == "onnx metadata names" and card.origin["fit"] == "default of layout yolov8"


def test_fixed_shape(write: Any) -> None:
    card = read_card(write(("output0", [4, 84, 8400]), image=[4, 3, 384, 640], names=names(80)))
    assert (card.preprocess.height, card.preprocess.width, card.batch) == (384, 640, 4)
    assert not card.dynamic_batch and not card.dynamic_size and not card.preprocess.rectangular
    assert card.origin["imgsz"] == "onnx input shape"


@pytest.mark.parametrize(
    ("outputs", "classes", "layout", "chosen"),
    [
        ([("o", [1, 84, 8400])], 80, "yolov8", ("o",)),
        ([("o", [1, 84, 8400])], None, "yolov8", ("o",)),
        ([("o", [1, 5, 8400])], 1, "yolov8", ("o",)),
        ([("o", [1, 25200, 85])], 80, "yolov5", ("o",)),
        ([("o", [1, 25200, 85])], None, "yolov5", ("o",)),
        ([("o", [1, 25200, 6])], 1, "yolov5", ("o",)),
        ([("o", [1, 300, 6])], 80, "end2end", ("o",)),
        ([("o", [1, 300, 6])], 1, "end2end", ("o",)),
        ([("o", [1, 300, 84])], 80, "detr", ("o",)),
        ([("logits", [1, 300, 80]), ("pred_boxes", [1, 300, 4])], 80, "detr", ("pred_boxes", "logits")),
        ([("dets", [1, 300, 4]), ("labels", [1, 300, 4])], 4, "detr", ("dets", "labels")),
    ],
)
def test_layouts(write: Any, outputs: Any, classes: int | None, layout: str, chosen: Any) -> None:
    card = read_card(write(*outputs, **({} if classes is None else {"names": names(classes)})))
    assert (card.layout, card.outputs) == (layout, chosen)
    assert [outputs[i][0] for i in card.output_indices] == list(chosen)
    if classes is None:
        assert card.names[0] == "0" and card.origin["names"] == "not stated: class numbers"
    if layout == "detr":
        assert card.preprocess.fit == "stretch" and card.box_units == "relative"
        assert card.activation == ("sigmoid" if len(chosen) == 2 else "none")


def test_labels_boxes_scores_need_their_units(write: Any) -> None:
    outputs = [("scores", [1, 300]), ("labels", [1, 300], TensorProto.INT64), ("boxes", [1, 300, 4])]
    with pytest.raises(CardError, match="box_units: relative"):
        read_card(write(*outputs, names=names(80)))
    card = read_card(write(*outputs, names=names(80), card={"box_units": "pixels"}))
    assert card.outputs == ("labels", "boxes", "scores") and card.output_indices == (1, 2, 0)
    assert card.box_units == "pixels" and card.origin["box_units"] == "card model.yaml"


@pytest.mark.parametrize(
    ("outputs", "classes", "words"),
    [
        ([("o", [1, 300, 6])], 2, "2 class names is end2end or detr"),  # 2 classes + 4, or x1 y1 x2 y2 score class
        ([("o", [1, 300, 6])], None, "add layout.* and names"),
        ([("o", ["b", "n", 6])], None, "yolov5 or end2end"),
        ([("o", ["b", "r", "c"])], 80, "no known layout"),
        ([("o", [1, 1000, 3])], 80, "no known layout"),
        ([("o", [1, 84, 8400]), ("p", [1, 32, 160, 160])], 80, "80 class names .* outputs have 48 classes"),
        ([("a", [1, 3, 80, 80, 85]), ("b", [1, 3, 40, 40, 85])], 80, "export the model with its decoding"),
        ([("heat", [1, 1, 80, 80]), ("scale", [1, 2, 80, 80])], None, "export the model with its decoding"),
    ],
)
def test_unclear_outputs_name_the_key_to_add(write: Any, outputs: Any, classes: int | None, words: str) -> None:
    with pytest.raises(CardError, match=words) as caught:
        read_card(write(*outputs, **({} if classes is None else {"names": names(classes)})))
    assert "model.yaml" in str(caught.value)


def test_card_settles_what_shapes_do_not(write: Any) -> None:
    card = read_card(write(("o", [1, 300, 6]), names=names(2), card={"layout": "end2end"}))
    assert card.layout == "end2end" and card.origin["layout"] == "card model.yaml"
    assert read_card(write(("o", [1, 300, 6]), names=names(2), end2end=True)).layout == "end2end"
    card = read_card(write(("o", [1, 84, 8400]), names=names(80), end2end=False))
    assert card.layout == "yolov8" and card.origin["layout"].startswith("onnx output shape")
    card = read_card(write(("p", [1, 32, 9, 9]), ("o", [1, 84, 8400]), names=names(80), card={"outputs": ["o"]}))
    assert card.layout == "yolov8" and card.output_indices == (1,)
    with pytest.raises(CardError, match="does not fit layout yolov5"):
        read_card(write(("o", [1, 84, 5]), card={"layout": "yolov5"}))
    with pytest.raises(CardError, match=r"\['x'\] do not exist"):
        read_card(write(("o", [1, 84, 8400]), card={"outputs": ["x"]}))


def test_class_list_of_the_wrong_length(write: Any) -> None:
    with pytest.raises(CardError, match="79 class names are given, but the outputs have 80 classes"):
        read_card(write(("o", [1, 84, 8400]), names=names(79)))
    with pytest.raises(CardError, match="2 class names are given, but the outputs have 80 classes"):
        read_card(write(("o", [1, 84, 8400]), names=names(80), card={"names": ["a", "b"]}))
    two = [("boxes", [1, 100, 4]), ("logits", [1, 100, 92])]
    with pytest.raises(CardError, match=r"91 class names .* 92 classes.*\n.*activation: softmax"):
        read_card(write(*two, names=names(91)))
    assert read_card(write(*two, names=names(91), card={"activation": "softmax"})).class_count == 91


def test_a_model_that_puts_out_another_number_of_classes_than_it_states(write: Any) -> None:
    card = read_card(write(("o", [1, 6, 20]), names=names(2), card={"layout": "yolov8"}))
    card.check_outputs([np.zeros((1, 6, 20))])
    with pytest.raises(CardError, match=r"states 2 classes \(onnx metadata names\), but its outputs have 5"):
        card.check_outputs([np.zeros((1, 9, 20))])
    card = read_card(write(("o", [1, 300, 6]), names=names(2), end2end=True))
    card.check_outputs([np.zeros((1, 7, 6))])  # it does not tell


def test_card_wins(write: Any, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    settings = {
        "names": "classes.txt",
        "imgsz": 320,
        "stride": 16,
        "mean": [123.7, 116.3, 103.5],
        "std": [58.4, 57.1, 57.4],
        "pad_value": 0,
        "fit": "stretch",
        "interpolation": "nearest",
        "channel_order": "bgr",
        "rect": False,
    }
    path = write(("o", ["b", 6, "n"]), image=DYNAMIC, names="broken", imgsz="broken", card=settings)
    card = read_card(path)
    assert card.names == {0: "cat", 1: "dog"} and card.preprocess.mean[0] == 123.7 and card.preprocess.width == 320
    assert card.preprocess.channel_order == "bgr" and not card.preprocess.rectangular
    assert {card.origin[key] for key in settings} == {"card model.yaml"}


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ({"interpolaton": "linear"}, "unknown key 'interpolaton'.*\n.*'interpolation'"),
        ({"fit": "letterbx"}, "fit = 'letterbx'"),
        ({"imgsz": "big"}, "imgsz = 'big'"),
        ({"imgsz": 0}, "imgsz = 0"),
        ({"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}, "multiply both by 255"),
        ({"std": [0, 0, 0]}, "has a zero"),
        ({"names": {1: "a", 2: "b"}}, "expected 0..1"),
        ({"names": "nowhere.txt"}, "nowhere.txt' cannot be read"),
        ({"names": []}, "are empty"),
        ({"imgsz": 320}, "imgsz \\[320, 320\\] says height 320, but the model's input is fixed at 640"),
        ({"rect": True}, "input is fixed at 640x640"),
        ({"task": "segment"}, "needs boxes with coefficients, and prototypes"),
        ({"task": "pose"}, "nothing says how many keypoints"),
        ({"task": "pose", "keypoints": [17, 4]}, "do not say how many keypoints"),
        ({"task": "pose", "keypoints": [30, 3]}, "does not fit layout|no known layout"),
        ({"task": "pose", "keypoints": [2, 2], "keypoint_names": ["a"]}, "1 keypoint_names are given for 2 keypoints"),
        ({"task": "pose", "keypoints": [2, 2], "skeleton": [[0, 2]]}, "skeleton has a keypoint beyond 1"),
        ({"task": "classify"}, r"the output of a classifier is \(b, nc\)"),
        ({"task": "mattes"}, "task = 'mattes'"),
        ("just text", "not a mapping"),
        ("a: [", "cannot be read"),
        ("a: &x [*x]", "aliases are not allowed"),
        ("[" * 5000, "nested too deeply"),
        ("names: [2024-02-30, b]", "day is out of range for month, line 1"),
        ("names: {2024-02-30: a}", "day is out of range for month, line 1"),
        ('names: ["\\ud800"]', "lone surrogate"),
        ("std: [.inf, 1, 1]", "std = \\[inf, 1, 1\\]"),
        ("mean: [.nan, 0, 0]", "mean = \\[nan, 0, 0\\]"),
        ("mean: [1.0e+300, 0, 0]", "mean = "),
        ("std: [1, 1, -1.0e-300]", "multiply both by 255"),
        ("pad_value: .nan", "pad_value = nan"),
        ({"outputs": []}, "outputs = \\[\\]"),
        ({"names": "/etc/hostname"}, "outside the model's folder"),
        ({"names": "../classes.txt"}, "outside the model's folder"),
        ({"names": "."}, "it is not a file"),
        ({"names": "a\0b"}, "names .* cannot be read"),
        ({"names": "x" * 300}, "File name too long"),
        ({"names": "model.onnx"}, "cannot be read"),
    ],
)
def test_wrong_cards(write: Any, card: Any, words: str) -> None:
    with pytest.raises(CardError, match=words) as caught:
        read_card(write(("o", [1, 84, 8400]), card=card))
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "{0: 'a'",
        "[" * 5000,
        "3",
        "{'x': 'a'}",
        "{}",
        "{None: 'a'}",
        "{(1, 2): 'a'}",
        "{1e999: 'a'}",
        '["\\ud800"]',
    ],
)
def test_names_in_metadata_are_parsed_never_run(write: Any, text: str) -> None:
    with pytest.raises(CardError, match="names"):
        read_card(write(("o", [1, 84, 8400]), names=text))


def test_names_as_json_or_list(write: Any) -> None:
    assert read_card(write(("o", [1, 6, 8400]), names='{"0": "a", "1": "b"}')).names == {0: "a", 1: "b"}
    assert read_card(write(("o", [1, 6, 8400]), names="['a', 'b']")).names == {0: "a", 1: "b"}


def test_free_size_must_be_stated(write: Any) -> None:
    with pytest.raises(CardError, match="add imgsz: 640"):
        read_card(write(("o", ["b", 84, "n"]), image=DYNAMIC))


@pytest.mark.parametrize(
    ("image", "words"),
    [([1, 640, 640, 3], "is not"), ([1, 1, 640, 640], "is not"), ([3, 640, 640], "is not"), ([], "is not")],
)
def test_inputs_that_are_no_image(write: Any, image: Shape, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_card(write(("o", [1, 84, 8400]), image=image))


def test_input_types(write: Any) -> None:
    assert read_card(write(("o", [1, 84, 8400]), dtype=TensorProto.FLOAT16)).input_dtype == "float16"
    card = read_card(write(("o", [1, 84, 8400]), dtype=TensorProto.UINT8))
    assert card.input_dtype == "uint8" and card.preprocess.std == (1, 1, 1)
    with pytest.raises(ModelError, match="int64"):
        read_card(write(("o", [1, 84, 8400]), dtype=TensorProto.INT64))


def test_several_inputs_are_named(write: Any) -> None:
    with pytest.raises(ModelError, match=r"has 3 inputs.*images.*depth.*pose"):
        read_card(write(("o", [1, 84, 8400]), extra_inputs={"depth": [1, 1, 9, 9], "pose": [1, 6]}))
    with pytest.raises(ModelError, match=r"has 2 inputs.*images.*depth"):
        read_card(write(("o", [1, 84, 8400]), extra_inputs={"depth": [1, 1, 9, 9]}))


def test_a_recurrent_model(write: Any) -> None:
    """Robust Video Matting: what it remembers of the frame before is in four inputs and outputs."""
    states = {f"r{n}i": ["batch", "channels", "h", "w"] for n in range(1, 5)}
    outputs = [("fgr", DYNAMIC), ("pha", ["batch", 1, "height", "width"])]
    outputs += [(f"r{n}o", ["batch", "channels", "h", "w"]) for n in range(1, 5)]
    given: dict[str, Any] = {"image": DYNAMIC, "extra_inputs": states | {"downsample_ratio": [1]}, "extra_dtype": 1}
    card = read_card(write(*outputs, **given))
    assert card.states == {f"r{n}i": f"r{n}o" for n in range(1, 5)}
    assert (card.task, card.outputs, card.output_indices, card.names) == ("semantic", ("pha",), (1,), {0: "person"})
    assert (card.preprocess.height, card.preprocess.width) == (288, 512)
    assert card.origin["names"] == "assumed: Robust Video Matting, by its inputs and outputs"
    card = read_card(write(*outputs, **given, card={"names": ["dancer"], "imgsz": [576, 1024]}))
    assert (card.names, card.preprocess.width) == ({0: "dancer"}, 1024)
    (ratio,) = (one for one in onnx.load(card.path).graph.initializer if one.name == "downsample_ratio")
    assert numpy_helper.to_array(ratio) == 0.5
    with pytest.raises(ModelError, match=r"has 6 inputs, expected one image: .*r1i.*r4i.*depth"):
        read_card(write(*outputs, image=DYNAMIC, extra_inputs=states | {"depth": [1]}))


def test_one_class_is_a_matte(write: Any) -> None:
    card = read_card(write(("alpha", [1, 1, 640, 640]), card={"task": "semantic", "names": ["person"]}))
    assert (card.task, card.layout, card.names) == ("semantic", "semantic", {0: "person"})
    with pytest.raises(CardError, match=r"add task: semantic to the card if .* or a matte"):
        read_card(write(("alpha", [1, 1, 640, 640])))
    with pytest.raises(CardError, match="1 to 256 classes"):
        read_card(write(("alpha", [1, 257, 640, 640]), card={"task": "semantic"}))
    with pytest.raises(CardError, match="2 class names are given, but the outputs have 1 classes"):
        read_card(write(("alpha", [1, 1, 640, 640]), card={"task": "semantic", "names": ["sky", "person"]}))


def test_weights_listed_among_the_inputs(tmp_path: Path, write: Any) -> None:
    path = write(("o", [1, 84, 8400]), extra_inputs={"w": [2]})
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.int64), "w"))
    onnx.save(model, path)
    assert read_card(path).input_name == "images"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no model"),
        (b"", "empty"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git LFS pointer"),
        (b"<!doctype html>", "web page"),
        (b"\x80\x02}q\x00", "pickle"),
        (bytes(range(256)), "not ONNX"),
        (b"\x08\x07", "not ONNX, or truncated"),
    ],
)
def test_files_that_are_not_onnx(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=words) as caught:
        read_card(path)
    assert caught.value.remedy


def test_truncated_at_any_place(write: Any) -> None:
    path = write(("o", [1, 84, 8400]), names=names(80))
    data = path.read_bytes()
    end_of_graph = data.rindex(b"class 79") - len(str(names(80)))
    for end in range(1, end_of_graph, 7):
        path.write_bytes(data[:end])
        with pytest.raises(ModelError):
            read_card(path)


@pytest.mark.parametrize(("name", "words"), [("x" * 300, "too long"), ("", "no model"), ("a\0b", "no model")])
def test_names_that_no_file_has(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        find_model(name)


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_card(tmp_path)


class TestExternalData:
    @pytest.fixture
    def refer(self, write: Any, tmp_path: Path) -> Callable[[str], Path]:
        """A model whose weights are said to be at `location`; it lies in tmp_path/inside."""
        (tmp_path / "inside").mkdir()
        (tmp_path / "outside.bin").write_bytes(bytes(64))

        def refer(location: str) -> Path:
            model = onnx.load(write(("o", [1, 84, 8400])))
            tensor = numpy_helper.from_array(np.zeros(8, np.float32), "w")
            external_data_helper.set_external_data(tensor, location, offset=0, length=32)
            tensor.ClearField("raw_data")
            node = helper.make_node("Constant", [], ["w"], value=tensor)  # in an attribute, not an initializer
            model.graph.node.append(node)
            path = tmp_path / "inside" / "model.onnx"
            path.write_bytes(model.SerializeToString())
            return path

        return refer

    def test_beside_the_model(self, refer: Any) -> None:
        path = refer("weights.bin")
        path.with_name("weights.bin").write_bytes(bytes(32))
        assert isinstance(read_card(path), Card)
        path.with_name("weights.bin").write_bytes(bytes(31))
        with pytest.raises(ModelError, match="ends at byte 32, the file at 31"):
            read_card(path)

    @pytest.mark.parametrize("location", ["../outside.bin", "a/../../outside.bin", "..\\outside.bin", "C:\\x", ""])
    def test_outside(self, refer: Any, location: str) -> None:
        with pytest.raises(ModelError, match="outside its folder"):
            read_card(refer(location))

    def test_absolute_and_symlink(self, refer: Any, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="outside its folder"):
            read_card(refer(str(tmp_path / "outside.bin")))
        with pytest.raises(ModelError, match="outside its folder"):
            read_card(refer(str(tmp_path / "inside" / "weights.bin")))
        (tmp_path / "inside" / "link.bin").symlink_to(tmp_path / "outside.bin")
        with pytest.raises(ModelError, match="outside its folder"):
            read_card(refer("link.bin"))

    @pytest.mark.parametrize("location", ["a\0b", "x" * 300])
    def test_impossible_name(self, refer: Any, location: str) -> None:
        with pytest.raises(ModelError, match="invalid external data"):
            read_card(refer(location))

    @pytest.mark.parametrize(("length", "words"), [("abc", "impossible"), ("-1", "truncated"), ("9" * 5000, "impos")])
    def test_impossible_length(self, refer: Any, length: str, words: str) -> None:
        path = refer("weights.bin")
        path.with_name("weights.bin").write_bytes(bytes(32))
        model = onnx.load(path, load_external_data=False)
        for entry in model.graph.node[-1].attribute[0].t.external_data:
            if entry.key == "length":
                entry.value = length
        path.write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match=words):
            read_card(path)

    def test_missing(self, refer: Any) -> None:
        with pytest.raises(ModelError, match="no such file"):
            read_card(refer("weights.bin"))


def not_utf8(tmp_path: Path, where: str) -> Path:
    """The model squares with the Latin-1 word "Café" somewhere."""
    model = onnx.load(find_model("squares"))
    if where == "class":
        for entry in model.metadata_props:
            entry.value = entry.value.replace("red", "Xafe") if entry.key == "names" else entry.value
    elif where == "author":
        model.metadata_props.add(key="author", value="Xafe")
    else:
        setattr(model.graph.node[0], where, "Xafe")
    path = tmp_path / "latin.onnx"
    path.write_bytes(model.SerializeToString().replace(b"Xafe", "Café".encode("latin-1")))
    return path


def test_metadata_in_latin_1(tmp_path: Path) -> None:
    assert read_card(not_utf8(tmp_path, "class")).names[0] == "Café"
    assert read_card(not_utf8(tmp_path, "author")).names[0] == "red"


@pytest.mark.parametrize("where", ["name", "op_type"])
def test_names_in_the_graph_that_are_not_utf8(tmp_path: Path, where: str) -> None:
    with pytest.raises(ModelError, match=r"(?s)a name in its graph that is not UTF-8: b.Caf.*ASCII"):
        read_card(not_utf8(tmp_path, where))


@pytest.mark.parametrize("name", ["squares", "scout-n", "scout-s", "body-n"])
@pytest.mark.parametrize("rank", [True, False], ids=["free axes", "no shape"])
def test_exports_whose_outputs_have_free_axes_only(tmp_path: Path, name: str, rank: bool) -> None:
    """As exporters write models of dynamic size that nobody simplified."""
    source = find_model(name)
    model = onnx.load(source)
    for output in model.graph.output:
        tensor = output.type.tensor_type
        for axis in tensor.shape.dim:
            axis.Clear()
        if not rank:
            tensor.ClearField("shape")
    del model.graph.value_info[:]
    onnx.save(model, tmp_path / source.name)
    if source.with_suffix(".yaml").exists():
        (tmp_path / source.name).with_suffix(".yaml").write_text(source.with_suffix(".yaml").read_text())
    found, expected = read_card(tmp_path / source.name), read_card(source)
    assert (found.layout, found.outputs, found.names) == (expected.layout, expected.outputs, expected.names)
    assert found.dynamic_batch and found.dynamic_size


def test_errors_about_free_axes_name_the_sizes_of_a_test_run(tmp_path: Path) -> None:
    source = find_model("scout-n")
    model = onnx.load(source)
    for axis in model.graph.output[0].type.tensor_type.shape.dim:
        axis.Clear()
    onnx.save(model, tmp_path / "free.onnx")
    (tmp_path / "free.yaml").write_text("names: [one, two]\n")
    with pytest.raises(CardError, match=r"2 class names .* the outputs have \d+ classes .*\(1, \d+, 8400\)"):
        read_card(tmp_path / "free.onnx")
