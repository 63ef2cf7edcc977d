"""Plans built for real, by TensorRT for RTX, which needs no GPU for that. Its refusals are TensorRT's own words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from framefuse.engines.tensorrt.build import Bindings, Messages, Shapes, bindings, build_plan, rewrite
from framefuse.engines.tensorrt.plans import build, cached, read
from framefuse.errors import EngineError, ModelError
from framefuse.models import find_model

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed: pip install tensorrt-rtx")
# Its bindings warn of what they deprecate on import.
pytestmark = pytest.mark.filterwarnings("default")

WIDE = Shapes.parse("1x3x320x320:8x3x320x320:16x3x320x320")


@pytest.fixture(scope="module")
def rtx() -> Bindings:
    import tensorrt_rtx

    return Bindings(tensorrt_rtx, "tensorrt_rtx", tensorrt_rtx.__version__)


@pytest.mark.parametrize(
    ("name", "precision", "built"),
    [("scout-n", "auto", "fp32"), ("scout-s", "fp16", "fp16"), ("scout-n-int8", "auto", "int8"),
     ("scout-n-int8", "fp8", "fp8")],
)  # fmt: skip
def test_a_shipped_model_in_every_precision(rtx: Bindings, name: str, precision: str, built: str) -> None:
    plan = build_plan(find_model(name), WIDE, precision=precision, found=rtx)
    assert plan.precision == built and plan.content[:4] == b"vtrt" and plan.layers > 100
    assert not any("ERROR" in kind for kind in plan.messages)


def test_asymmetric_int8_is_what_it_refuses(rtx: Bindings) -> None:
    """Why `symmetric` is there."""
    said = Messages(rtx.trt)
    builder = rtx.trt.Builder(said.logger)
    network = builder.create_network(0)
    parser = rtx.trt.OnnxParser(network, said.logger)
    assert not parser.parse(find_model("scout-n-int8").read_bytes())
    assert "Non-zero zero point" in parser.get_error(0).desc()


def test_an_operator_that_it_lacks_is_named(rtx: Bindings, tmp_path: Path) -> None:
    model = onnx.load(find_model("scout-n"))
    model.graph.node.append(helper.make_node("Strange", [model.graph.output[0].name], ["odd"], "odd_one", domain="x.y"))
    model.graph.output.append(helper.make_tensor_value_info("odd", TensorProto.FLOAT, None))
    model.opset_import.append(helper.make_opsetid("x.y", 1))
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(ModelError, match="Strange"):
        build_plan(tmp_path / "odd.onnx", WIDE, found=rtx)


def test_the_workspace_limit_holds(rtx: Bindings) -> None:
    with pytest.raises(EngineError, match="--workspace"):
        build_plan(find_model("scout-n"), WIDE, workspace_mb=1, found=rtx)


def test_the_input_is_what_preprocessing_writes() -> None:
    model, _ = rewrite(find_model("scout-n"), "auto")
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    onnx.checker.check_model(model, full_check=True)


def test_plans_are_kept_and_wider_ones_are_taken(
    rtx: Bindings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = find_model("scout-n")
    build(model, WIDE, precision="fp32", found=rtx)
    kept, shapes = cached(model, "fp32", (5, 320, 320), found=rtx)
    assert shapes == WIDE and not kept.built
    kept, shapes = cached(model, "fp32", (1, 256, 416), found=rtx)
    assert shapes == Shapes.exact(1, 256, 416) and kept.built


def test_a_truncated_plan_is_refused_by_us_and_by_tensorrt(rtx: Bindings, tmp_path: Path) -> None:
    path, plan = build(find_model("scout-n"), WIDE, output=tmp_path / "n.plan", found=rtx)
    content, shapes, precision = read(path, rtx)
    assert (content, shapes, precision) == (plan.content, WIDE, "fp32")
    path.write_bytes(plan.content[:1000])
    with pytest.raises(ModelError, match="truncated: 1000 bytes"):
        read(path, rtx)
    said = Messages(rtx.trt)
    assert rtx.trt.Runtime(said.logger).deserialize_cuda_engine(plan.content[:1000]) is None
    assert "Serialization" in said.errors()


def test_a_gpu_that_it_does_not_support_or_none_is_told_in_its_words(rtx: Bindings, tmp_path: Path) -> None:
    """Without a GPU the driver is missing; on one that is no RTX it says UNSUPPORTED_CC."""
    plan = build_plan(find_model("scout-n"), Shapes.exact(1, 320, 320), found=rtx)
    said = Messages(rtx.trt)
    engine: Any = rtx.trt.Runtime(said.logger).deserialize_cuda_engine(plan.content)
    if engine is not None:
        pytest.skip("this GPU runs it")
    assert "Error Code" in said.errors()


def test_it_is_found(rtx: Bindings) -> None:
    assert bindings().name in ("tensorrt", "tensorrt_rtx") and "RTX" in str(rtx)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    from framefuse.cli.app import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["build", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_the_command_builds_plans(command: Any, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    code, out, err = command("scout-s", "--engine", "tensorrt", "--precision", "fp16", "--json",
                             "--shapes", "1x3x320x320:8x3x320x320:16x3x320x320", "--out", "s.plan")  # fmt: skip
    assert code == 0 and "fp16" in err and "before fusion" in err.replace("\n", " "), err
    assert json.loads(out)["bytes"] == (tmp_path / "s.plan").stat().st_size
    assert Path(f"{tmp_path / 's.plan'}.json").exists()
    code, _, err = command("scout-n-int8", "--engine", "tensorrt", "--precision", "int8")
    assert code == 0 and len(list((tmp_path / "cache").rglob("*.plan"))) == 1, err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--precision", "fp16", "--shapes", "1x3x64x64"), "add --engine tensorrt"),
        (("--precision", "fp16", "--engine", "tensorrt", "--shapes", "64x64"), "MIN:OPT:MAX"),
        (("--precision", "fp16", "--engine", "openvino"), "no plans"),
        (("--precision", "fp16", "--engine", "tensorrt", "--out", "s.onnx"), "is not a plan"),
        (("--precision", "fp16", "--out", "s.plan"), "is a plan"),
        (
            (
                "--precision",
                "fp8",
            ),
            "not one of",
        ),
        (("--precision", "fp32", "--engine", "tensorrt"), "written in fp16"),
    ],
)
def test_the_command_refuses(command: Any, words: tuple[str, ...], said: str) -> None:
    pytest.importorskip("typer")
    code, _, err = command("scout-s", *words)
    assert code == 2 and said in err.replace("\n", " ")
