"""framefuse val: what it prints, writes and exits with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from framefuse.cli import main
from framefuse.cli.val import _built
from framefuse.errors import CapabilityError
from framefuse.evaluation import validate
from framefuse.evaluation.compare import Row, Wanted, markdown, table
from framefuse.models.clip import squares_scene
from framefuse.models.squares import NAMES, write_squares


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A COCO file beside its images, in the working directory."""
    monkeypatch.chdir(tmp_path)
    content: dict[str, Any] = {"images": [], "annotations": [], "categories": []}
    content["categories"] = [{"id": number, "name": name} for number, name in NAMES.items()]
    for index, (picture, truth) in enumerate(squares_scene(4, (640, 384), seed=3)):
        Image.fromarray(picture).save(f"{index}.png", compress_level=1)
        picture_row = {"id": index, "file_name": f"{index}.png", "width": 640, "height": 384}
        content["images"].append({**picture_row, "complexity": index / 4})
        for kind, x1, y1, x2, y2 in truth:
            row = {"image_id": index, "category_id": kind, "bbox": [x1, y1, x2 - x1, y2 - y1]}
            content["annotations"].append(row)
    Path("truth.json").write_text(json.dumps(content))
    return tmp_path / "truth.json"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["val", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_engines_side_by_side(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "squares", "--data", "truth.json", "--engine", "onnxruntime, openvino", "--precision", "fp32,fp32"
    )
    assert code == 0, err
    head, first, second, *_ = out.splitlines()
    assert head.split()[:6] == ["model", "engine", "precision", "input", "MB", "mAP50-95"]
    assert first.split()[:4] == ["squares", "onnxruntime", "fp32", "640x384"]
    assert second.split()[1] == "openvino"
    assert abs(float(second.split()[-1])) < 1  # points
    assert all(name in head.split() for name in ("small", "medium", "large", "calm", "busy", "crowded"))
    assert [line.split()[1] for line in out.splitlines()[-3:]] == ["8", "8", "8"]  # objects of each class

    folder = Path("runs/val/val")
    assert sorted(path.name for path in folder.iterdir()) == [
        "1-squares-onnxruntime-fp32.png",
        "2-squares-openvino-fp32.png",
        "scores.json",
        "val.md",
    ]
    runs = json.loads((folder / "scores.json").read_text())["runs"]
    assert [entry["scores"]["frames"] for entry in runs] == [4, 4]
    with Image.open(folder / "2-squares-openvino-fp32.png") as plot:
        assert plot.size > (1000, 400)
    assert "| squares | openvino | fp32 |" in (folder / "val.md").read_text()


def test_json_and_limit(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "squares", "-d", "truth.json", "--limit", "2", "--json", "--quiet")
    assert code == 0
    (entry,) = json.loads(out)["runs"]
    assert entry["scores"]["frames"] == 2


def test_a_combination_that_cannot_run_is_named(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "squares", "-d", "truth.json", "--engine", "onnxruntime", "--precision", "fp32,bf16")
    assert code == 3
    assert out.splitlines()[2].split()[:4] == ["squares", "onnxruntime", "bf16", "failed"]
    assert "failed   squares onnxruntime bf16: ONNX Runtime has no bf16" in err
    assert "has no bf16" in json.loads(Path("runs/val/val/scores.json").read_text())["runs"][1]["error"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("squares",), 2, "--data"),
        (("squares", "-d", "none.json"), 1, "none.json"),
        (("squares", "-d", "truth.json", "--images", "nowhere"), 1, "no folder nowhere"),
        (("squares", "-d", "truth.json", "--precision", "fp32,fp33"), 2, "fp33"),
        (("squares", "-d", "truth.json", "--engine", "openvino,"), 2, "--engine is 'openvino,'"),
        (("squares", "-d", "truth.json", "--engine", "warp"), 2, "no engine is called 'warp'"),
        (("sqares", "-d", "truth.json"), 1, "did you mean 'squares'"),
        (("squares", "-d", "synthetic://street", "--images", "x"), 2, "draws its own pictures"),
    ],
)
def test_what_cannot_be_done(
    data: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str
) -> None:
    found, _, err = run(capsys, *words)
    assert message in err
    assert found == code
    assert not Path("runs").exists()


def test_without_the_extra(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(CapabilityError, match="faster-coco-eval is not installed") as error:
        validate("squares", data)
    assert error.value.remedy == "pip install 'framefuse[val]'"


def test_a_run_that_failed_has_its_line() -> None:
    row = Row(Wanted("a", "b", "int8"), error=CapabilityError("no | int8", remedy="other"))
    assert table([row])[1] == ["a", "b", "int8", "failed", "-", "-"]
    assert "- a b int8: no | int8 (other)" in markdown([row])


def test_int8_means_the_model_that_was_built_from_it(tmp_path: Path) -> None:
    model, built = write_squares(tmp_path / "m.onnx"), tmp_path / "m-int8.onnx"
    assert _built(Wanted(str(model), "auto", "int8")) == str(model)
    built.write_bytes(model.read_bytes())
    assert _built(Wanted(str(model), "auto", "int8")) == str(built)
    assert _built(Wanted(str(model), "auto", "fp32")) == str(model)
    assert _built(Wanted(str(built), "auto", "int8")) == str(built)
