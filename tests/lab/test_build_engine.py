"""build_engine: from an ONNX or a PyTorch module to an engine that has run; profiles that exclude a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import framefuse
import small_models
from framefuse.engines import EngineOptions, open_engine
from framefuse.errors import CapabilityError, ModelError, UsageError
from framefuse.pipeline import Pipeline

HEIGHT, WIDTH, SHAPES = small_models.HEIGHT, small_models.WIDTH, small_models.SHAPES


@pytest.mark.parametrize("engine", ["auto", "onnxruntime"])
def test_what_is_built_runs_within_its_profile(model: Path, tmp_path: Path, engine: str) -> None:
    built = framefuse.build_engine(model, shapes=SHAPES, engine=engine, device="cpu", output=tmp_path / "b.onnx")
    assert built.engine == ("openvino" if engine == "auto" else engine)
    assert built.path.stat().st_size == built.bytes and built.seconds > 0 and built.reasons
    opened = open_engine(built.engine, built.path, EngineOptions("cpu"))
    assert any("min 1x3x64x64 opt 1x3x96x160 max 2x3x96x160" in reason for reason in opened.reasons)
    opened.request_pool(2, HEIGHT, 64, 1).close()
    with pytest.raises(UsageError, match="batch 3 of input"):
        opened.request_pool(3, HEIGHT, WIDTH, 1)
    with pytest.raises(UsageError, match="width 192"):
        opened.request_pool(1, HEIGHT, 192, 1)
    opened.close()


def test_a_pipeline_runs_it_and_says_what_the_profile_excludes(model: Path, tmp_path: Path) -> None:
    built = framefuse.build_engine(model, shapes=SHAPES, device="cpu", output=tmp_path / "b.onnx")
    images = list(small_models.drawn_images(3))
    assert len(list(Pipeline(images, built.path, engine=built.engine))) == 3
    with pytest.raises(UsageError, match="outside the profile"):
        list(Pipeline(images, built.path, engine=built.engine, imgsz=[192, 320], rect=False))


def test_metadata_is_written_beside_what_the_onnx_has(model: Path, tmp_path: Path) -> None:
    mine = {"author": "me", "names": "{0: 'lynx'}"}
    built = framefuse.build_engine(
        model, shapes=SHAPES, engine="onnxruntime", device="cpu", output=tmp_path / "b.onnx", metadata=mine
    )
    before, after = (
        {entry.key: entry.value for entry in onnx.load(path).metadata_props} for path in (model, built.path)
    )
    assert {name: after[name] for name in before | mine} == before | mine


def test_a_profile_that_the_model_excludes(tmp_path: Path) -> None:
    model = small_models.write_segmenter(tmp_path / "fixed.onnx")
    with pytest.raises(UsageError, match="batch 1 to 2, but the model fixes it at 1"):
        framefuse.build_engine(model, shapes=SHAPES | {"min": SHAPES["opt"]}, device="cpu")
    assert list(tmp_path.iterdir()) == [model]


def test_what_cannot_be_built(model: Path, tmp_path: Path) -> None:
    (tmp_path / "there.onnx").write_bytes(b"mine")
    build: Any = framefuse.build_engine
    with pytest.raises(UsageError, match="exists"):
        build(model, shapes=SHAPES, device="cpu", output=tmp_path / "there.onnx")
    assert (tmp_path / "there.onnx").read_bytes() == b"mine"
    with pytest.raises(UsageError, match="no engine is called 'nothing'"):
        build(model, shapes=SHAPES, device="cpu", engine="nothing", output=tmp_path / "b.onnx")
    with pytest.raises(UsageError, match="model is a int"):
        build(5, shapes=SHAPES)
    with pytest.raises(UsageError, match="precision 'fp64' is not one of"):
        build(model, shapes=SHAPES, precision="fp64", output=tmp_path / "b.onnx")
    with pytest.raises(UsageError, match="device 'tpu' is not one of"):
        build(model, shapes=SHAPES, device="tpu", output=tmp_path / "b.onnx")
    with pytest.raises(UsageError, match="int8 needs frames"):
        build(model, shapes=SHAPES, device="cpu", precision="int8", output=tmp_path / "b.onnx")
    with pytest.raises(ModelError, match=r"no model .*none\.onnx"):
        build(tmp_path / "none.onnx", shapes=SHAPES, device="cpu", output=tmp_path / "b.onnx")
    with pytest.raises(CapabilityError, match="fp16"):
        build(model, shapes=SHAPES, device="cpu", engine="onnxruntime", precision="fp16", output=tmp_path / "b.onnx")
    assert not (tmp_path / "b.onnx").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": 3}, "shapes has 3"),
        ({"shapes": None}, "shapes has None"),
        ({"shapes": {"opt": 3}}, "shapes has 3"),
        ({"shapes": "1x3x64x64"}, "shapes has '1x3x64x64'"),
        ({"shapes": (True, 3, 64, 64)}, "shapes min is"),
        ({"output": 3}, "output is a int"),
        ({"output": ""}, "output '' is not named .onnx"),
        ({"output": "model.engine"}, "output 'model.engine' is not named .onnx"),
        ({"metadata": 3}, "metadata is a int"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(
    model: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    build: Any = framefuse.build_engine
    with pytest.raises(UsageError) as caught:
        build(model, **{"shapes": SHAPES, "device": "cpu", "output": tmp_path / "b.onnx"} | options)
    assert message in caught.value.message and caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_model_with_two_inputs_is_refused(model: Path, tmp_path: Path) -> None:
    network = onnx.load(model)
    network.graph.input.append(onnx.helper.make_tensor_value_info("size", onnx.TensorProto.INT64, [2]))
    onnx.save(network, tmp_path / "two.onnx")
    with pytest.raises(ModelError, match=r"has the inputs .*, size \(2\) int64, expected one image"):
        framefuse.build_engine(tmp_path / "two.onnx", shapes=SHAPES, device="cpu", output=tmp_path / "b.onnx")
    assert not (tmp_path / "b.onnx").exists()


def test_a_quantised_model_is_int8_as_it_is(tmp_path: Path) -> None:
    shape = (1, 3, 64, 64)
    for engine in ("openvino", "onnxruntime"):
        built = framefuse.build_engine(
            "scout-n-int8",
            shapes=shape,
            precision="int8",
            engine=engine,
            device="cpu",
            output=tmp_path / f"{engine}.onnx",
        )
        assert "the model is already quantised: left unchanged" in built.reasons


def test_a_build_that_fails_leaves_neither_model_nor_card(model: Path, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(model.read_bytes())
    (tmp_path / "m.yaml").write_text("pad_value: 0\n")
    build: Any = framefuse.build_engine
    for there in (False, True):
        made = tmp_path / "made"
        made.mkdir(exist_ok=True)
        if there:
            (made / "b.onnx").write_bytes(b"mine")
            (made / "b.yaml").write_text("mine: too\n")
        with pytest.raises(CapabilityError):
            build(
                tmp_path / "m.onnx", shapes=SHAPES, engine="onnxruntime", precision="bf16", device="cpu",
                output=made / "b.onnx", exist_ok=True,
            )  # fmt: skip
        left = {path.name: path.read_bytes() for path in made.iterdir()}
        assert left == ({"b.onnx": b"mine", "b.yaml": b"mine: too\n"} if there else {})


@pytest.mark.parametrize(
    ("engine", "needs"), [("openvino", "openvino"), ("onnxruntime", "onnxruntime"), ("torch", "torch"), ("tvm", "tvm")]
)
def test_an_operator_that_the_engine_lacks_is_named(model: Path, tmp_path: Path, engine: str, needs: str) -> None:
    pytest.importorskip(needs)
    network = onnx.load(model)
    network.graph.node.append(
        onnx.helper.make_node("Strange", [network.graph.output[0].name], ["odd"], "odd_one", domain="x.y")
    )
    network.graph.output.append(onnx.helper.make_tensor_value_info("odd", onnx.TensorProto.FLOAT, None))
    network.opset_import.append(onnx.helper.make_opsetid("x.y", 1))
    odd = tmp_path / "odd.onnx"
    onnx.save(network, odd)
    with pytest.raises(ModelError, match="Strange"):
        framefuse.build_engine(odd, shapes=SHAPES, engine=engine, device="cpu", output=tmp_path / "b.onnx")
    assert list(tmp_path.iterdir()) == [odd]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_plan_of_tensorrt_lies_where_its_engine_looks(
    model: Path, tmp_path: Path, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx")
    from framefuse.engines.tensorrt.plans import cached

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    built = framefuse.build_engine(
        model, shapes=SHAPES, engine="tensorrt", device="cuda", precision=precision, output=tmp_path / "b.onnx"
    )
    assert built.precision == precision and "not run" in built.reasons[-1]
    kept, shapes = cached(built.path, precision, (2, HEIGHT, 64))
    assert not kept.built and shapes.allow(2, HEIGHT, WIDTH)


def test_a_module_becomes_an_engine(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Small(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Conv2d(3, 8, 3, 2, 1)
            self.head = torch.nn.Conv2d(8, 6, 1)

        def forward(self, x: Any) -> Any:
            return self.head(torch.nn.functional.silu(self.stem(x))).flatten(2)

    module = Small().train()
    built = framefuse.build_engine(
        module, shapes=SHAPES, engine="onnxruntime", device="cpu", output=tmp_path / "small.onnx",
        metadata={"names": "{0: 'a', 1: 'b'}"},
    )  # fmt: skip
    assert module.training and any("exported from PyTorch" in reason for reason in built.reasons)
    x = np.random.default_rng(0).random((2, 3, 64, 96), np.float32)
    pool = open_engine("onnxruntime", built.path, EngineOptions()).request_pool(2, 64, 96, 1)
    slot = pool.acquire()
    assert slot is not None
    slot.input[...] = x
    pool.submit(slot)
    with torch.no_grad():
        np.testing.assert_allclose(slot.outputs[0], module(torch.from_numpy(x)).numpy(), atol=1e-5)


def test_a_module_that_cannot_be_exported(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Broken(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            raise RuntimeError("not today")

    with pytest.raises(ModelError, match=r"cannot export Broken .*not today"):
        framefuse.build_engine(Broken(), shapes=SHAPES, device="cpu", output=tmp_path / "broken.onnx")


def test_a_build_that_fails_leaves_what_was_there(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import framefuse.lab.building

    def broken(*_: Any) -> Any:
        raise CapabilityError("no such engine today")

    monkeypatch.setattr(framefuse.lab.building, "_run_once", broken)
    mine = tmp_path / "mine.onnx"
    mine.write_bytes(b"mine")
    with pytest.raises(CapabilityError, match="no such engine today"):
        framefuse.build_engine(model, shapes=SHAPES, device="cpu", output=mine, exist_ok=True)
    assert mine.read_bytes() == b"mine"
    with pytest.raises(CapabilityError):
        framefuse.build_engine(model, shapes=SHAPES, device="cpu", output=tmp_path / "new.onnx")
    assert list(tmp_path.iterdir()) == [mine]
    with pytest.raises(UsageError, match="is the model itself"):
        framefuse.build_engine(model, shapes=SHAPES, device="cpu", output=model, exist_ok=True)
