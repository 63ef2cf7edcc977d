"""Recurrent models: what a request remembers is of one stream and one view, and goes at cuts and gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from framefuse import Pipeline
from framefuse.cli.app import main
from framefuse.errors import CapabilityError, FramefuseError, UsageError
from framefuse.prediction import Array

SIZE = 64, 96
"""Height and width of the frames, which are those of the network."""


def recurrent(path: Path, *, state: int = 4, ratio: bool = True) -> Path:
    """A network at random with the interface of Robust Video Matting.

    Args:
        state: channels of the state that it gives; it takes 4.
        ratio: whether it has the input downsample_ratio.
    """
    rng = np.random.default_rng(0)
    weights = {"a": (4, 3, 3, 3), "b": (state, 8, 3, 3), "c": (1, state, 3, 3), "d": (3, state, 3, 3)}
    constants = {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in weights.items()}
    constants |= {"ones": np.ones(2, np.float32), "up": np.array([1, 1, 2, 2], np.float32)}
    if not ratio:
        constants["downsample_ratio"] = np.ones(1, np.float32)
    padded = {"pads": [1] * 4}
    nodes = [
        helper.make_node("Concat", ["ones", "downsample_ratio", "downsample_ratio"], ["scale"], axis=0),
        helper.make_node("Resize", ["src", "", "scale"], ["small"], mode="linear"),
        helper.make_node("Conv", ["small", "a"], ["features"], strides=[2, 2], **padded),
        helper.make_node("Shape", ["features"], ["shape"]),
        helper.make_node("Expand", ["r1i", "shape"], ["before"]),
        helper.make_node("Concat", ["features", "before"], ["both"], axis=1),
        helper.make_node("Conv", ["both", "b"], ["mixed"], **padded),
        helper.make_node("Tanh", ["mixed"], ["r1o"]),
        helper.make_node("Resize", ["r1o", "", "up"], ["large"], mode="linear"),
        helper.make_node("Conv", ["large", "c"], ["logits"], **padded),
        helper.make_node("Sigmoid", ["logits"], ["pha"]),
        helper.make_node("Conv", ["large", "d"], ["fgr"], **padded),
    ]

    def value(name: str, *shape: Any) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))

    axes = ("n", 4, "y", "x") if state != 4 else ("n", "c", "y", "x")
    inputs = [value("src", "batch", 3, "height", "width"), value("r1i", *axes)]
    inputs += [value("downsample_ratio", 1)] * ratio
    outputs = [value("fgr", "batch", 3, "height", "width"), value("pha", "batch", 1, "height", "width")]
    outputs.append(value("r1o", "n", "c", "y", "x"))
    initial = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "matting", inputs, outputs, initial)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    path.with_suffix(".yaml").write_text(f"imgsz: {list(SIZE)}\n")
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return recurrent(tmp_path / "rvm.onnx")


def clip(path: Path, scenes: list[int], frames: int = 6, size: tuple[int, int] = SIZE) -> Path:
    """A lossless video of scenes, each a pattern that moves a little, by its seed."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264rgb", 25, options={"qp": "0"})
        stream.height, stream.width, stream.pix_fmt = *size, "rgb24"
        for seed in scenes:
            rng = np.random.default_rng(seed)
            coarse = rng.integers(0, 256, (size[0] // 16, size[1] // 16, 3), np.uint8)
            image = coarse.repeat(16, 0).repeat(16, 1)
            for step in range(frames):
                file.mux(stream.encode(av.VideoFrame.from_ndarray(np.roll(image, step, 1), format="rgb24")))
        file.mux(stream.encode())
    return path


def mattes(source: Any, model: Path, **options: Any) -> dict[str, list[list[Array]]]:
    """Source -> for each frame the mattes of its views."""
    given: dict[str, Any] = {"save_matte": "gray", "matte_steady": 0, "matte_holes": 0, "precision": "fp32", **options}
    found: dict[str, list[list[Array]]] = {}
    for result in Pipeline(source, model, project=model.parent / "runs", **given):
        assert result.matte is not None
        found.setdefault(Path(result.frame.source_id).name, []).append([part.alpha for part in result.matte.parts])
    return found


def reference(path: Path, model: Path, *, forget: tuple[int, ...] = (), part: slice = slice(None)) -> list[Array]:
    """The mattes of a video by a loop of ONNX Runtime that passes the state on, but not to the frames `forget`."""
    import onnxruntime

    session, state, found = onnxruntime.InferenceSession(str(model)), np.zeros((1, 1, 1, 1), np.float32), []
    with av.open(str(path)) as file:
        for number, frame in enumerate(file.decode(video=0)):
            image = frame.to_ndarray(format="rgb24")[:, part].transpose(2, 0, 1)[None] / np.float32(255)
            state = np.zeros((1, 1, 1, 1), np.float32) if number in forget else state
            given = {"src": image, "r1i": state, "downsample_ratio": np.ones(1, np.float32)}
            alpha, state = session.run(["pha", "r1o"], given)
            found.append(alpha[0, 0])
    return found


def agree(found: list[list[Array]], expected: list[Array], view: int = 0) -> bool:
    assert len(found) == len(expected)
    return all(np.abs(one[view] - other).max() < 0.02 for one, other in zip(found, expected, strict=True))


def test_states_pass_from_frame_to_frame_and_end_at_cuts(tmp_path: Path, model: Path) -> None:
    source = clip(tmp_path / "clip.mp4", [1, 2])
    found = mattes(source, model)["clip.mp4"]
    assert agree(found, reference(source, model, forget=(6,)))
    assert not agree(found, reference(source, model))
    assert not agree(found, reference(source, model, forget=tuple(range(12))))


def test_each_of_several_videos_has_its_own(tmp_path: Path, model: Path) -> None:
    sources = [clip(tmp_path / f"{seed}.mp4", [seed]) for seed in (1, 2, 3)]
    for readers in (1, 3):
        found = mattes([str(path) for path in sources], model, readers=readers)
        for path in sources:
            assert agree(found[path.name], reference(path, model))


def test_each_eye_has_its_own(tmp_path: Path, model: Path) -> None:
    source = clip(tmp_path / "clip.mp4", [1], size=(SIZE[0], 2 * SIZE[1]))
    found = mattes(source, model, stereo="sbs")["clip.mp4"]
    for view, part in enumerate((slice(SIZE[1]), slice(SIZE[1], None))):
        assert agree(found, reference(source, model, part=part), view)


def test_images_know_nothing_of_each_other(tmp_path: Path, model: Path) -> None:
    source = clip(tmp_path / "clip.mp4", [1], frames=3)
    with av.open(str(source)) as file:
        for number, frame in enumerate(file.decode(video=0)):
            frame.to_image().save(tmp_path / f"{number}.png")
    found = mattes(str(tmp_path / "*.png"), model, save_matte="png")
    assert agree([one for name in sorted(found) for one in found[name]], reference(source, model, forget=(0, 1, 2)))


def test_a_model_without_a_ratio(tmp_path: Path) -> None:
    source = clip(tmp_path / "clip.mp4", [1])
    plain = recurrent(tmp_path / "plain.onnx", ratio=False)
    assert agree(mattes(source, plain)["clip.mp4"], reference(source, recurrent(tmp_path / "rvm.onnx")))


def test_the_command_line(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = clip(tmp_path / "clip.mp4", [1])
    assert main(["matte", str(source), str(tmp_path / "out.mp4"), "--model", str(model)]) == 0
    assert "batch 1: the model is recurrent" in capsys.readouterr().err
    with av.open(str(tmp_path / "out.mp4")) as file:
        assert sum(1 for _ in file.decode(video=0)) == 6


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"engine": "onnxruntime"}, CapabilityError, "recurrent model, which engine onnxruntime cannot run on cpu"),
        ({"batch": 2}, UsageError, "each frame waits for the one before"),
        ({"device": "cuda"}, FramefuseError, "cuda"),
    ],
)
def test_what_cannot_keep_states_is_refused(
    tmp_path: Path, model: Path, options: dict[str, Any], error: type[FramefuseError], message: str
) -> None:
    with pytest.raises(error, match=message):
        mattes(clip(tmp_path / "clip.mp4", [1]), model, **options)


def test_states_of_two_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FramefuseError, match=r"gives its state r1o the shape .*, and takes r1i as"):
        mattes(clip(tmp_path / "clip.mp4", [1]), recurrent(tmp_path / "other.onnx", state=6))
