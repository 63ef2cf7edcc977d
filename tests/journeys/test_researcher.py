"""A researcher: a notebook, parts of their own in a package, scores that others can check, precisions compared."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import COMMAND, run_python, spawn
from framefuse.common.machine import python_path
from pages import DOCS, block

pytestmark = pytest.mark.slow

EXTENSIONS = DOCS / "guide/extend.md"


def run_cells(path: Path) -> list[Any]:
    """What a notebook shows below each cell of code, run as IPython does: the value of the last expression."""
    cells = json.loads(path.read_text())["cells"]
    names: dict[str, Any] = {}
    shown = []
    for code in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
        *before, last = ast.parse(code).body
        assert isinstance(last, ast.Expr)
        exec(compile(ast.Module(before, []), "cell", "exec"), names)
        shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    names["model"].close()
    return shown


def test_a_notebook() -> None:
    names, result, drawn, crop, table, report, counts = run_cells(DOCS.parent / "examples/notebook.ipynb")
    assert set(counts) <= set(names.values())
    found = result.detections
    html = result._repr_html_()
    assert html.startswith("<table>") and html.count("<tr>") == len(found) + 1 > 1
    assert f"<td>{found[0].name}</td><td>{found[0].confidence:.3f}</td>" in html
    assert np.abs(np.asarray(drawn).astype(int) - result.pixels.to_rgb()).max() > 100
    x1, y1, x2, y2 = found.xyxy[0]
    assert abs(crop.width - (x2 - x1)) < 2 and abs(crop.height - (y2 - y1)) < 2
    assert list(table.name) == [one.name for one in found] and "<table" in table._repr_html_()
    page = report._repr_html_()
    assert page.startswith("<iframe") and report.verdict.partition(":")[0].lower() in page.lower()
    assert report.frames == 12


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the page about own sources and engines, as pip installs it."""
    codes = [block("extend.md", f"# mypackage/{name}.py") for name in ("camera", "engine")]
    for code in codes:
        path = tmp_path / code.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
    points = tomllib.loads(block("extend.md", "[project.entry-points"))["project"]["entry-points"]
    facts = tmp_path / "mypackage-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "\n".join(f"[{group}]\n" + "\n".join(f"{key} = {value}" for key, value in rows.items())
                  for group, rows in points.items())
    )  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), python_path()]))


@pytest.mark.usefixtures("package")
def test_own_source_engine_and_sink() -> None:
    done = spawn("predict", "mycam://640x360", "model.onnx", "--engine", "myengine", "--json", "--name", "own")
    report = json.loads(done.stdout)
    assert (done.returncode, report["frames"]) == (0, 10), done.stderr
    assert any("myengine" in choice for choice in report["choices"])

    sink = block("extend.md", "class CountSink").partition("report = ")[0]
    run_python(sink + block("extend.md", 'Pipeline("mycam://').strip().replace(")", ", sinks=[CountSink]).run()"))
    assert [line.split()[0] for line in Path("counts.txt").read_text().splitlines()] == [str(i) for i in range(10)]

    words = re.search(r"framefuse (val [^`]+myengine)", EXTENSIONS.read_text())
    assert words is not None
    scored = subprocess.run(
        [*COMMAND, *words[1].split(), "--images", "video.mp4", "--json", "--quiet"], capture_output=True, text=True
    )
    runs = {run["scores"]["engine"]: run["scores"]["boxes"]["map50_95"] for run in json.loads(scored.stdout)["runs"]}
    assert set(runs) == {"openvino", "myengine"}, scored.stderr
    assert runs["myengine"] == pytest.approx(runs["openvino"], abs=0.02)


def test_scores_that_pycocotools_confirms() -> None:
    """In two ways: with the rows of each result, and with the file that the command writes."""
    done = spawn("val", "model.onnx", "--data", "annotations.json", "--images", "video.mp4", "--json", "--quiet")
    boxes = json.loads(done.stdout)["runs"][0]["scores"]["boxes"]
    expected = [boxes["map50_95"], boxes["map50"]]
    show = "\nprint(list(map(float, scores.stats[:2])))"
    recipe = block("recipes.md", "COCOeval")
    printed = run_python(recipe + show).splitlines()[-1]
    assert json.loads(printed) == pytest.approx(expected, abs=1e-9)

    words = "video.mp4", "model.onnx", "--conf", "0.001", "--save-json", "--name", "low"
    assert spawn("predict", *words).returncode == 0
    load = (
        'found = json.load(open("runs/predict/low/video.json"))\n'
        'names = {row["id"]: row["name"] for row in found["categories"]}\n'
        'rows = [row | {"category_id": category_ids[names[row["category_id"]]]} for row in found["annotations"]]\n'
    )
    before, rest = recipe.partition("rows = []")[0], recipe[recipe.index("scores = ") :]
    assert json.loads(run_python("import json\n" + before + load + rest + show).splitlines()[-1]) == pytest.approx(
        expected, abs=1e-3
    )


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_precisions_on_frames_that_no_calibration_has_seen() -> None:
    """INT8 is calibrated on one seed, admitted on another, and compared with FP32 on the own video."""
    calib, admit = (f"synthetic://street?seed={seed}&frames=16&size=640x360&fps=3" for seed in (1, 5))
    words = "build", "model.onnx", "--precision", "int8", "--frames", "8", "--calib", calib, "--data", admit, "--quiet"
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path("model-int8.onnx").stat().st_size < Path("model.onnx").stat().st_size / 2.5

    words = "val", "model.onnx", "--precision", "fp32,int8", "--data", "annotations.json", "--images", "video.mp4"
    done = subprocess.run([*COMMAND, *words, "--json", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    full, small = (run["scores"] for run in json.loads(done.stdout)["runs"])
    assert [full["precision"], small["precision"]] == ["fp32", "int8"] and full["frames"] == small["frames"] == 12
    assert small["boxes"]["map50_95"] > full["boxes"]["map50_95"] - 0.05
