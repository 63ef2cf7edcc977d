"""framefuse demo, doctor, models and config."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from framefuse import __version__
from framefuse.cli import synth
from framefuse.cli.config import commented_yaml
from framefuse.config import Settings, load_settings
from framefuse.models import find_model

ROOT = Path(__file__).parents[2]


def test_demo_finds_what_is_there_and_writes_everything(run: Any) -> None:
    code, out, err = run("demo", "--frames", "30")
    assert (code, out) == (0, "")
    objects, detections, right = map(int, re.search(r"truth +(\d+) objects, (\d+) detections, (\d+) of", err).groups())
    assert objects > 90
    assert right > synth.COLLAPSE["precision"] * detections and right > synth.COLLAPSE["recall"] * objects
    truth = json.loads(next(Path("runs/demo/demo/input").glob("*.json")).read_text())
    assert sum(not row["iscrowd"] for row in truth["annotations"]) == objects
    written = {path.suffix for path in Path("runs/demo/demo").rglob("*.*")}
    assert written >= {".mp4", ".jsonl", ".csv", ".json", ".txt", ".html"}


def test_demo_fails_when_nothing_is_found(run: Any) -> None:
    code, _, err = run("demo", "--frames", "6", "--engine", "null", "--quiet")
    assert code == 4
    assert "recall 0.000" in err


def test_demo_is_held_to_what_the_model_has_reached(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Settings()
    held, loose = synth.required(synth.FRAMES, usual), synth.required(30, usual)
    assert all(0 < synth.RECORDED[name] - held[name] <= 0.03 and loose[name] < held[name] for name in held)
    assert (
        synth.required(synth.FRAMES, Settings(conf=0.5)) == synth.required(synth.FRAMES, Settings(imgsz=[320])) == loose
    )
    assert synth.required(synth.FRAMES, Settings(engine="onnxruntime", precision="fp32")) == held
    monkeypatch.setattr(synth, "FRAMES", 6)
    monkeypatch.setattr(synth, "RECORDED", {"precision": 1.5, "recall": 0.5})
    code, _, err = run("demo", "--frames", "6", "--quiet")
    assert code == 4
    assert "expected at least 1.480 and 0.480" in err


def test_doctor_says_what_works(run: Any) -> None:
    code, out, _ = run("doctor", "--json")
    found = json.loads(out)
    rows = {row["name"]: row for row in found["checks"]}
    assert code == 0
    assert all(rows[name]["status"] == "PASS" for name in ("kernels", "decode", "engine null", "engine openvino"))
    assert all(row["remedy"] for row in rows.values() if row["status"] != "PASS")
    assert found["facts"]["framefuse"] == __version__
    if rows["nvidia driver"]["status"] == "ABSENT":
        for name in ("engine cudnn", "engine onnxruntime-tensorrt", "cuda", "nvdec"):
            assert "no NVIDIA driver" in rows[name]["detail"] and "framefuse[cuda13]" in rows[name]["remedy"]


def test_doctor_names_the_extra_of_an_engine_that_is_absent() -> None:
    extras = {"onnxruntime": "ort", "torch": "torch", "tvm": "tvm"}
    code = f"import sys, framefuse.cli.app; sys.modules.update(dict.fromkeys({list(extras)})); " + (
        "framefuse.cli.app.main(['doctor', '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    rows = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for package, extra in extras.items():
        found = rows[f"engine {package}"]
        assert (found["status"], found["remedy"]) == ("ABSENT", f"pip install 'framefuse[{extra}]'")
        assert package in found["detail"]
    assert rows["onnxruntime packages"]["remedy"] == "reinstall it"


def test_doctor_in_words(run: Any) -> None:
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert re.search(r"^PASS +engine openvino", out, re.MULTILINE)


@pytest.mark.slow
def test_doctor_exits_with_3_when_the_core_does_not_work() -> None:
    code = "import sys, framefuse.cli.app; sys.modules['openvino'] = None; sys.exit(framefuse.cli.app.main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3
    assert re.search(r"^ABSENT +engine openvino", done.stdout, re.MULTILINE)
    assert re.search(r"^PASS +engine null", done.stdout, re.MULTILINE)
    assert "the core does not work here: engine openvino" in done.stderr


def test_doctor_where_nothing_can_be_cached(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose home cannot be written."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, out, _ = run("doctor", "--json")
    rows = {row["name"]: row for row in json.loads(out)["checks"]}
    assert code == 0
    assert all(rows[name]["status"] == "PASS" for name in ("engine null", "engine openvino"))
    assert rows["engine tvm"]["status"] == "ABSENT" or "XDG_CACHE_HOME" in rows["engine tvm"]["remedy"]


def test_doctor_warns_of_two_onnxruntimes(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnxruntime", "onnxruntime_gpu"):
        folder = tmp_path / f"{package}-9.9.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    row = next(row for row in json.loads(run("doctor", "--json")[1])["checks"] if row["name"] == "onnxruntime packages")
    assert row["status"] == "FAIL" and "overwrite each other" in row["detail"] and "pip uninstall" in row["remedy"]


def test_models_lists_names_and_explains_one(run: Any) -> None:
    assert "squares" in run("models")[1]
    code, out, _ = run("models", "show", "squares", "--json")
    facts = json.loads(out)
    assert (code, facts["names"]["value"]) == (0, "3: red, green, blue")
    assert facts["names"]["from"] == "onnx metadata names"
    assert "letterbox" in run("models", "show", "squares")[1]
    card = Path("many.yaml")
    card.write_text(f"names: [{', '.join(f'kind of object {number}' for number in range(10))}]\n")
    shutil.copy(find_model("scout-n"), "many.onnx")
    assert json.loads(run("models", "show", "many.onnx", "--json")[1])["names"]["value"].endswith("kind of object 9")
    assert "... (framefuse models show --json has all)" in run("models", "show", "many.onnx")[1]
    code, out, err = run("models", "show", "missing.onnx")
    assert (code, out) == (1, "") and "missing.onnx" in err


def test_config_show_names_the_origin_of_each_value(run: Any) -> None:
    Path("run.yaml").write_text("preset: latency\nconf: 0.3\n")
    code, out, _ = run("config", "show", "-c", "run.yaml", "--iou", "0.5")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line.strip()}
    assert code == 0
    assert rows["conf"] == "0.3 file run.yaml, line 2"
    assert rows["iou"] == "0.5 command line"
    assert rows["streams"] == "1 preset latency"
    assert rows["max_det"] == "300 default"


def test_settings_from_the_environment(run: Any, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEFUSE_SAVE_CSV", "1")
    monkeypatch.setenv("FRAMEFUSE_SOURCE", str(clip))
    monkeypatch.setenv("FRAMEFUSE_MODEL", "squares")
    code, out, _ = run("config", "show", "--iou", "0.5")
    assert code == 0 and "variable FRAMEFUSE_SAVE_CSV" in out and "variable FRAMEFUSE_MODEL" in out
    assert run("predict", "--name", "env")[0] == 0
    assert list(Path("runs/predict/env").glob("*.csv"))
    assert run("predict", "--name", "off", "--no-save-csv")[0] == 0
    assert not list(Path("runs/predict/off").glob("*.csv"))


def test_config_init_writes_a_file_that_changes_nothing(run: Any, tmp_path: Path) -> None:
    code, out, err = run("config", "init")
    assert (code, out) == (0, "") and "framefuse.yaml" in err
    text = Path("framefuse.yaml").read_text()
    assert load_settings(Path("framefuse.yaml")).settings == Settings()
    Path("all.yaml").write_text(re.sub(r"^# (\w+: )", r"\1", text, flags=re.MULTILINE).replace("preset: latency", ""))
    effective = load_settings(Path("all.yaml"))
    assert effective.settings == Settings(save_jsonl=True)
    assert set(effective.origin.values()) != {"default"}
    assert run("config", "init")[0] == 2
    assert run("config", "init", "--force")[0] == 0
    assert text == commented_yaml("framefuse.yaml")


def test_the_committed_option_reference_is_up_to_date(run: Any) -> None:
    code, out, _ = run("config", "reference")
    assert code == 0
    page = "docs/reference/options.md"
    assert (ROOT / page).read_text() == out, f"framefuse config reference > {page}"


@pytest.mark.parametrize(
    "words", ["bench engines m.onnx --out m.onnx", "parity squares --source m.json --out m.json",
              "build m.onnx --precision fp16 --exist-ok --out m.onnx"],
)  # fmt: skip
def test_no_command_writes_over_its_input(run: Any, words: str) -> None:
    Path("m.onnx").write_text("mine")
    Path("m.json").write_text("mine")
    code, _, err = run(*words.split())
    assert code == 1 and "it is an input of this command" in err
    assert Path("m.onnx").read_text() == Path("m.json").read_text() == "mine"
