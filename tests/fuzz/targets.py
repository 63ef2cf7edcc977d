"""What is fuzzed: for each kind of input, intact samples, and how a damaged one is used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from framefuse import Pipeline
from framefuse.config import load_settings
from framefuse.errors import FramefuseError
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.report.report import Report, build_report
from measured import measurements

CLIP = "synthetic://street?frames=2&size=160x96"
CARD = """# squares
layout: yolov8
imgsz: [640, 640]
names: {0: red, 1: green, 2: blue}
mean: [0, 0, 0]
std: [255, 255, 255]
channel_order: rgb
stride: 32
outputs: [output0]
"""
CONFIG = """source: video.mp4
model: squares
conf: 0.4
iou: 0.6
imgsz: 320
save: true
classes: [0, 2]
max_det: 100
encoder: libx264
"""


@dataclass(frozen=True)
class Target:
    samples: Callable[[], list[bytes]]
    use: Callable[[bytes, Path], None]
    """Uses damaged content in an empty folder. It may raise FramefuseError; anything else is a finding."""


def use_model(content: bytes, folder: Path) -> None:
    path = folder / "model.onnx"
    path.write_bytes(content)
    card = read_card(path)
    if max(card.preprocess.width, card.preprocess.height) <= 1024 and card.batch <= 4:
        for _ in Pipeline(CLIP, path, engine=("openvino", "onnxruntime")[len(content) % 2]):
            pass


def use_card(content: bytes, folder: Path) -> None:
    shutil.copy(find_model("squares"), folder / "squares.onnx")
    (folder / "squares.yaml").write_bytes(content)
    read_card(folder / "squares.onnx")


def use_config(content: bytes, folder: Path) -> None:
    path = folder / "run.yaml"
    path.write_bytes(content)
    load_settings(path)


def use_report(content: bytes, folder: Path) -> None:
    Report.from_json(content).to_html()


TARGETS = {
    "model": Target(lambda: [find_model("squares").read_bytes()], use_model),
    "card": Target(lambda: [CARD.encode()], use_card),
    "config": Target(lambda: [CONFIG.encode()], use_config),
    "report": Target(lambda: [build_report(measurements()).to_json().encode()], use_report),
}


def try_one(target: Target, content: bytes, folder: Path) -> str:
    """What went wrong; "" if the input was used, or refused by a typed error."""
    try:
        target.use(content, folder)
    except FramefuseError as error:
        return "" if str(error).strip() else f"{type(error).__name__} without a message"
    except Exception as error:
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = "" if where is None else f" at {Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno}"
        return f"{type(error).__name__}{place}: {json.dumps(str(error)[:200])}"
    return ""
