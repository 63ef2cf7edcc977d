"""framefuse val: what it prints, writes and exits with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from framefuse.cli.app import main
from framefuse.errors import CapabilityError
from framefuse.lab.evaluation import scored, validate
from framefuse.lab.evaluation.scores import Row, Wanted, markdown, table
from training.squares import NAMES, write_squares
from training.squares_clip import squares_scene


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A COCO file beside its images, in the working directory."""
    monkeypatch.chdir(tmp_path)
    content: dict[str, Any] = {"images": [], "annotations": [], "categories": []}
    content["categories"] = [{"id": number, "name": name} for number, name in NAMES.items()]
    for index, (image, truth) in enumerate(squares_scene(4, (640, 384), seed=3)):
        Image.fromarray(image).save(f"{index}.png", compress_level=1)
        image_row = {"id": index, "file_name": f"{index}.png", "width": 640, "height": 384}
        content["images"].append({**image_row, "complexity": index / 4})
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
    assert "failed   squares onnxruntime bf16: engine onnxruntime has no bf16" in err
    assert "has no bf16" in json.loads(Path("runs/val/val/scores.json").read_text())["runs"][1]["error"]


@pytest.mark.slow
def test_what_failed_is_said_even_quietly(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "squares", "none.onnx", "-d", "truth.json", "--quiet", "--json")
    assert code == 1 and len(json.loads(out)["runs"]) == 2
    assert err.startswith("failed   none.onnx auto auto: there is no model 'none.onnx' -> ")


def test_where_the_scores_go_is_tried_before_anything_is_measured(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framefuse.lab.evaluation.scored", lambda *_, **__: pytest.fail("measured"))
    for project in ("truth.json", "/proc/runs"):
        code, _, err = run(capsys, "squares", "-d", "truth.json", "--project", project)
        assert code == 1 and f"cannot create the run folder {project}" in err


@pytest.mark.parametrize(("output", "kept"), [("scores.json", "truth.json"), ("val.md", "0.png"), ("val.md", "m.yaml")])
def test_no_score_overwrites_what_it_was_measured_on(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, output: str, kept: str
) -> None:
    write_squares(Path("m.onnx"))
    Path("m.yaml").write_text("stride: 32\n")
    before = Path(kept).read_bytes()
    Path("out").mkdir()
    Path("out", output).hardlink_to(kept)
    monkeypatch.setattr("framefuse.lab.evaluation.scored", lambda *_, **__: pytest.fail("measured"))
    code, _, err = run(capsys, "m.onnx", "-d", "truth.json", "--project", ".", "--name", "out", "--exist-ok")
    assert code == 1 and f"out/{output} is an input of this run" in err
    assert Path(kept).read_bytes() == before


def test_scores_follow_no_link(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    Path("mine").write_text("precious")
    Path("out/val.md").symlink_to("../mine")
    code, _, err = run(capsys, "squares", "-d", "truth.json", "--project", ".", "--name", "out", "--exist-ok")
    assert code == 1 and "symbolic link" in err and Path("mine").read_text() == "precious"


def test_what_was_scored_before_an_interruption_is_kept(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(row: Row, *rest: Any, **options: Any) -> Row:
        if row.wanted.engine == "openvino":
            raise KeyboardInterrupt
        return scored(row, *rest, **options)

    monkeypatch.setattr("framefuse.lab.evaluation.scored", interrupted)
    code, out, err = run(capsys, "squares", "-d", "truth.json", "--engine", "onnxruntime,openvino")
    assert (code, err) == (130, "error: interrupted\n")
    assert out.splitlines()[1].split()[:2] == ["squares", "onnxruntime"]
    assert len(json.loads(Path("runs/val/val/scores.json").read_text())["runs"]) == 1
    code, out, _ = run(capsys, "squares", "-d", "truth.json", "--engine", "openvino", "--project", "other")
    assert (code, out) == (130, "") and not Path("other").exists()


def test_an_int8_file_is_int8_on_every_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("-d", "synthetic://street?frames=2&size=320x192", "--precision", "int8", "--imgsz", "96", "160")
    code, out, err = run(capsys, "scout-n-int8", *words, "--engine", "onnxruntime,openvino")
    assert code == 0, err
    assert [line.split()[1:3] for line in out.splitlines()[1:3]] == [["onnxruntime", "fp32"], ["openvino", "int8"]]
    assert "note     int8 was requested; engine onnxruntime multiplies in fp32" in err
    assert "note     scout-n-int8 is calibrated with 64 frames of synthetic://street?split=val" in err
    code, _, err = run(capsys, "scout-s", *words, "--engine", "onnxruntime,openvino")
    assert code == 2 and "framefuse build MODEL --precision int8 --calib SOURCE" in err


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
        (("squares", "-d", "synthetic://street", "--images", "x"), 2, "draws its own images"),
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
    assert "- a b int8: no &#124; int8 (other)" in markdown([row])


def test_int8_means_the_model_that_was_built_from_it(tmp_path: Path) -> None:
    model, built = write_squares(tmp_path / "m.onnx"), tmp_path / "m-int8.onnx"
    assert Wanted(str(model), "auto", "int8").built().model == str(model)
    built.write_bytes(model.read_bytes())
    assert Wanted(str(model), "auto", "int8").built().model == str(built)
    assert Wanted(str(model), "auto", "fp32").built().model == str(model)
    assert Wanted(str(built), "auto", "int8").built().model == str(built)


def test_images_that_a_run_has_drawn_boxes_on_are_not_taken_for_its_sources(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "*.png", "squares", "--save", "--save-json", "--name", "found", "-q"]) == 0
    (truth,) = Path("runs/predict/found").glob("[!r]*.json")
    code, _, err = run(capsys, "squares", "--data", str(truth))
    assert code == 1 and "with boxes drawn on them" in " ".join(err.split()) and "--images" in err
    code, out, _ = run(capsys, "squares", "--data", str(truth), "--images", ".")
    assert code == 0 and out.splitlines()[1].split()[5] == "100.0"
