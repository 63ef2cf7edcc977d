"""Mistakes at the command line: the answer names what to type instead."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from framefuse import Model, Pipeline
from framefuse.cli.app import main
from framefuse.errors import UsageError
from framefuse.report import bar


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("predict {all}", "quote it: framefuse predict 'clips/*.mp4'"),
        ("predict {all} m.onnx --conf 0.4", "quote it: framefuse predict 'clips/*.mp4' m.onnx --conf 0.4"),
        ("parity m.onnx --source {all}", "quote it: framefuse parity m.onnx --source 'clips/*.mp4'"),
        (
            "build m.onnx --precision int8 --calib {all}",
            "framefuse build m.onnx --precision int8 --calib 'clips/*.mp4'",
        ),
        (
            "predict clips/1.mp4 clips/2.mp4 m.onnx --save",
            "framefuse predict --source clips/1.mp4 --source clips/2.mp4 --model m.onnx --save",
        ),
        ("predict clips/1.mp4 clips/2.mp4", "framefuse predict --source clips/1.mp4 --source clips/2.mp4"),
        ("predict clips/1.mp4 m.onnx more", "framefuse predict --help"),
    ],
)
def test_files_in_place_of_a_pattern(run: Any, words: str, remedy: str) -> None:
    Path("clips").mkdir()
    files = [f"clips/{number}.mp4" for number in (1, 2, 3)]
    for file in (*files, "clips/notes.txt"):
        Path(file).touch()
    code, out, err = run(*shlex.split(words.format(all=" ".join(files))))
    assert (code, out, err.splitlines()[1].endswith(remedy)) == (2, "", True), err


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("predict a.mp4 --no-such-option", "framefuse predict --help"),
        ("predict a.mp4 --confidence 0.3", "did you mean --conf?"),
        ("predict a.mp4 --conf-thres 0.3", "use --conf"),
        ("predict a.mp4 --iou-thres=0.3", "use --iou"),
        ("predict a.mp4 --weights m.onnx", "use --model"),
        ("val --weights m.onnx", "use MODEL"),
        ("val m.onnx --data x --half", "use --precision fp16"),
        ("predict a.mp4 --tracker botsort.yaml", "use --track bytetrack"),
        ("predict a.mp4 --track-buffr 3", "did you mean --track-buffer?"),
        ("predict a.mp4 --view-img", "use --show"),
        ("predict a.mp4 -o out", "--project"),
        ("predict a.mp4 --line_thickness 2", "use --line-width"),
        (
            "predict a.mp4 --mode green",
            "use --save-matte; otherwise leave it out: the command says what to do",
        ),
        ("val scout-n --mode green", "--mode is for matte, not for val"),
        ("build m.onnx --source a.mp4", "--source is for predict, profile, parity, not for build"),
        ("doctor --track", "--track is for predict"),
        ("doctor --conf-thres 0.3", "framefuse doctor --help"),
        ("predict a.mp4 --device gpu", "did you mean cuda?"),
        ("predict a.mp4 --device 0", "did you mean cuda:0?"),
        ("predict a.mp4 --precision half", "did you mean fp16?"),
        ("predict a.mp4 --config runn.yaml", "did you mean run.yaml?"),
        ("val squares --data thruth.json", "did you mean truth.json?"),
        ("predict strt.mp4 squares", "did you mean street.mp4?"),
        ("detect street.mp4", "framefuse predict SOURCE MODEL"),
        ("train model=x.pt", "framefuse trains no models"),
        ("track street.mp4", "framefuse predict SOURCE MODEL --track bytetrack"),
        ("predictt street.mp4", "did you mean predict?"),
        ("street.mp4 m.onnx --save", "framefuse predict street.mp4 m.onnx --save"),
    ],
)
def test_what_does_not_exist(run: Any, words: str, remedy: str) -> None:
    for name in ("run.yaml", "truth.json", "street.mp4"):
        Path(name).touch()
    code, out, err = run(*words.split())
    assert code in (1, 2) and out == ""
    assert remedy in err.splitlines()[1], err


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("predict model=x.onnx source=a.mp4", "framefuse predict a.mp4 x.onnx"),
        ("predict source=a.mp4 conf=0.4", "framefuse predict a.mp4 --conf 0.4"),
        ("predict a.mp4 conf=0.4", "framefuse predict a.mp4 --conf 0.4"),
        ("predict a.mp4 squares conf=0.4 --show", "framefuse predict a.mp4 squares --show --conf 0.4"),
        ("predict model=x.onnx source=a.mp4 save=True show=False", "framefuse predict a.mp4 x.onnx --save"),
        ("task=detect mode=predict model=x.onnx source=0", "framefuse predict 0 x.onnx"),
        ("val model=x.onnx imgsz=320", "framefuse val x.onnx --imgsz 320"),
    ],
)
def test_options_without_dashes(run: Any, words: str, command: str) -> None:
    code, out, err = run(*words.split())
    assert code in (1, 2) and out == ""
    assert "--name value, not name=value" in err and err.splitlines()[1] == f"  -> {command}"


def test_a_file_may_have_an_equals_sign_in_its_name(run: Any) -> None:
    Path("source=a.mp4").touch()
    assert "not name=value" not in run("predict", "source=a.mp4", "squares")[2]
    assert "not name=value" not in run("predict", "missing.mp4", "squares", "--name", "conf=0.4")[2]


@pytest.mark.parametrize(
    "words",
    [
        "predict a.mp4 --classes Car Person",
        "predict a.mp4 squares --classes Car Person --save",
        "predict a.mp4 squares --classes Car, Person",
        "predict --classes Car Person a.mp4 squares",
    ],
)
def test_classes_between_spaces(run: Any, words: str) -> None:
    code, out, err = run(*words.split())
    assert code in (1, 2) and out == ""
    assert "--classes Car,Person" in err.splitlines()[1], err


def test_one_class_before_the_source_is_no_mistake(run: Any) -> None:
    assert "--classes" not in run("predict", "--classes", "red", "missing.mp4", "squares")[2]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"confidence": 0.3}, "did you mean 'conf'?"),
        ({"conf_thres": 0.3}, "use conf"),
        ({"half": True}, "use precision='fp16'"),
        ({"tracker": "bytetrack.yaml"}, "use track='bytetrack'"),
        ({"device": "gpu"}, "did you mean cuda?"),
        ({"device": 0}, "did you mean cuda:0?"),
        ({"nonsense": 0}, "lists all settings"),
    ],
)
def test_the_same_answers_in_python(options: dict[str, Any], remedy: str) -> None:
    for build in (lambda: Pipeline("a.mp4", "squares", **options), lambda: Model("squares", **options)):
        with pytest.raises(UsageError) as caught:
            build()
        assert remedy in (caught.value.remedy or "")


def test_rendering_in_a_pipe_says_how_far_it_is(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["synth", "street?seed=1&frames=3&size=128x64", "--out"]
    assert "rendering" not in run(*words, "calm")[2]
    monkeypatch.setattr(bar, "LINE_SECONDS", 0.0)
    assert "rendering: 2 of 3 frames\nrendering: 3 of 3 frames\n" in run(*words, "busy")[2]
    assert run(*words, "quiet", "--quiet")[2] == ""


@pytest.mark.parametrize(
    "words",
    [
        ["profile", "scout-n", "--data", "truth.json", "--out", "truth.json"],
        ["profile", "scout-n", "--source", "clip.png", "--out", "clip.json"],
        ["bench", "adaptive", "scout-n", "--data", "truth.json", "--out", "truth.html"],
        ["tune-batch", "model.png", "--out", "model.json"],
    ],
)
def test_no_output_of_a_measurement_overwrites_its_input(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("truth.json", "clip.png", "model.png"):
        (tmp_path / name).write_text('{"images": [], "annotations": [], "categories": []}')
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert main(words) != 0
    capsys.readouterr()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
