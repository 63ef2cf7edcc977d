"""Class names that are markup: every page that a command writes shows them as text."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import markdown
import pytest
from PIL import Image

from training.squares import write_squares
from training.squares_clip import squares_scene

NAMES = ["<img src=x onerror=alert(1)>", "a|b `c`\n# d", r"$\nothing$ *e* _f_"]
SHOWN = [name.replace("\n", "\\n") for name in NAMES]


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = write_squares(tmp_path / "a_`b`_<i>.onnx", dynamic=False, size=(96, 160))
    path.with_suffix(".yaml").write_text(json.dumps({"names": NAMES}))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A COCO file of one image, with the same classes."""
    ((image, truth),) = squares_scene(1, (160, 96), seed=3)
    Image.fromarray(image).save(tmp_path / "0.png")
    boxes = [{"image_id": 0, "category_id": kind, "bbox": [x, y, x2 - x, y2 - y]} for kind, x, y, x2, y2 in truth]
    (tmp_path / "truth.json").write_text(json.dumps({
        "images": [{"id": 0, "file_name": "0.png", "width": 160, "height": 96}],
        "annotations": boxes,
        "categories": [{"id": number, "name": name} for number, name in enumerate(NAMES)],
    }))  # fmt: skip
    return tmp_path / "truth.json"


def test_the_report_of_a_run(run: Any, model: Path, data: Path) -> None:
    assert run("predict", data.with_name("0.png"), model, "--conf", "0.01")[0] == 0
    page = Page(Path("runs/predict/predict/report.html").read_text())
    found = set(json.loads(Path("runs/predict/predict/report.json").read_text())["detections_per_class"])
    assert NAMES[0] in found
    assert all(name in page.text for name in found)
    assert "img" not in page.tags and "i" not in page.tags


def test_the_scores_of_a_model(run: Any, model: Path, data: Path) -> None:
    code, out, err = run("val", model, "--data", data)
    assert code == 0, err
    assert all(name in out for name in SHOWN)
    source = Path("runs/val/val/val.md").read_text()
    page = Page(markdown.markdown(source, extensions=["tables"]))
    assert all(name in page.text for name in [*SHOWN, model.stem])
    assert page.tags <= {"h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "img"}
    assert source.count("<") == 1  # "small < 32"
    assert page.text.count("onerror") == 1


def test_a_certificate(run: Any, model: Path) -> None:
    words = ["--frames", "1", "--engine", "openvino", "--conf", "0.01", "--out", "page.md"]
    assert run("parity", model, *words)[0] in (0, 4)
    page = Page(markdown.markdown(Path("page.md").read_text(), extensions=["tables"]))
    assert model.stem in page.text and "i" not in page.tags
