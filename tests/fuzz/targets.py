"""What is fuzzed: for each kind of input, intact samples, and how a damaged one is used."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import media_samples

from framefuse import Pipeline
from framefuse.config import load_settings
from framefuse.errors import FramefuseError
from framefuse.lab.evaluation.coco import open_coco
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.report.report import Report, build_report
from framefuse.sinks.repair import repair_folder
from framefuse.sources import SourceOptions, open_source, videos_in
from framefuse.sources.address import Address
from framefuse.world import World
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


TRUTH = {
    "images": [
        {"id": 1, "file_name": "a.png", "width": 64, "height": 48},
        {"id": 7, "file_name": "b.png", "width": 64, "height": 48, "complexity": 0.5},
    ],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 3, "bbox": [3, 4, 20, 10.5], "area": 200, "iscrowd": 0,
         "segmentation": [[3, 4, 20, 4, 20, 14, 3.5, 14]]},
        {"id": 2, "image_id": 7, "category_id": 9, "bbox": [0, 0, 64, 48], "iscrowd": 1,
         "segmentation": {"size": [48, 64], "counts": [100, 200, 2772]}},
        {"id": 3, "image_id": 7, "category_id": 9, "bbox": [1, 2, 3, 4],
         "segmentation": {"size": [48, 64], "counts": "b14\\1000ni2"}},
    ],
    "categories": [{"id": 3, "name": "red", "supercategory": "square"}, {"id": 9, "name": "background"}],
}  # fmt: skip
ADDRESSES = (
    "synthetic://street?seed=7&frames=900&size=1280x720&fps=30000/1001&split=test&complexity=0.5",
    "synthetic://bodies?stereo=sbs&size=1280x720",
    "rtsp://name:pass%2Fword@camera.local:554/stream?transport=udp&channel=1#x",
    "http://[::1]:8080/a/b.m3u8?token=1234",
    "udp://@239.0.0.1:1234?fifo_size=100",
    "photos/[a-z]*/**/frame?.jpg",
)
MOST_FRAMES = 200


@dataclass(frozen=True)
class Target:
    samples: Callable[[], list[bytes]]
    use: Callable[[bytes, Path], None]
    """Uses damaged content in an empty folder. It may raise FramefuseError; anything else is a finding."""
    mend: Callable[[bytes], bytes] = bytes
    """Applied to half of the inputs after the damage: makes them valid where a check would stop most of them."""


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


def read(source: str | Path, options: SourceOptions) -> None:
    """Every frame up to MOST_FRAMES, and of its planes the corners."""
    opened = open_source(source, options)
    try:
        for frame in itertools.islice(opened, MOST_FRAMES):
            for plane in frame.planes:
                assert plane[0].any() + plane[-1].any() >= 0
    finally:
        opened.close()


def use_video(content: bytes, folder: Path) -> None:
    path = folder / "video"
    path.write_bytes(content)
    half = len(content) % 2 == 1
    read(path, SourceOptions(max_pixels=1 << 22, start=0.1 if half else None, vid_stride=2 if half else 1))


def use_image(content: bytes, folder: Path) -> None:
    path = folder / "image.png"
    path.write_bytes(content)
    read(path, SourceOptions(max_pixels=1 << 22))


def use_coco(content: bytes, folder: Path) -> None:
    """As the ground truth of `framefuse val`, and as what a killed run leaves, whole and after its first line."""
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(b"not read here")
    (folder / "run.coco.part").write_bytes(content)
    (folder / "stop.coco.part").write_bytes(unfinished().splitlines(keepends=True)[0] + content)
    for done in repair_folder(folder):
        assert done
    (folder / "truth.json").write_bytes(content)
    data = open_coco(folder / "truth.json", folder)
    for key in data.keys:
        labels = data.labels(key)
        if data.mask_names and labels.class_mask and math.prod(labels.size) < 1 << 22:
            labels.class_mask()


@cache
def unfinished() -> bytes:
    """The stream of COCO results that a killed run leaves."""
    about = {"labels": "coco", "stem": "run", "names": {row["id"] - 1: row["name"] for row in TRUTH["categories"]}}
    lines = [about, *({"image": row, "annotations": TRUTH["annotations"]} for row in TRUTH["images"])]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def use_address(content: bytes, folder: Path) -> None:
    text = os.fsdecode(content)
    if text.startswith("synthetic:"):
        World.parse(text)
    elif "://" in text:
        Address(text)
    elif ".." not in text:
        videos_in(f"{folder}/{text}")


def use_stream(content: bytes, folder: Path) -> None:
    """Over TCP; if there are answers of an RTSP server in it, each is sent after a request."""
    parts = content.split(media_samples.NEXT)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError), listener.accept()[0] as client:
                listener.close()
                for part in parts:
                    if len(parts) > 1:
                        client.settimeout(1)
                        client.recv(1 << 16)
                    client.sendall(part)

        threading.Thread(target=serve, daemon=True).start()
        address = f"{'rtsp' if len(parts) > 1 else 'tcp'}://127.0.0.1:{listener.getsockname()[1]}"
        read(address, SourceOptions(timeout=0.5, reconnect=0))


TARGETS = {
    "model": Target(lambda: [find_model("squares").read_bytes()], use_model),
    "card": Target(lambda: [CARD.encode()], use_card),
    "config": Target(lambda: [CONFIG.encode()], use_config),
    "report": Target(lambda: [build_report(measurements()).to_json().encode()], use_report),
    "coco": Target(lambda: [json.dumps(TRUTH).encode(), unfinished()], use_coco),
    "address": Target(lambda: [address.encode() for address in ADDRESSES], use_address),
    "video": Target(media_samples.videos, use_video),
    "image": Target(media_samples.images, use_image, media_samples.with_valid_sums),
    "stream": Target(media_samples.streams, use_stream),
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
