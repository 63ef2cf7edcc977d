"""Masks, keypoints and oriented boxes: the same as ultralytics finds? at what cost? how fast from a video to a video?

    python -m benchmarks.heads --peers-python .venv-peers/bin/python [--rounds 3] [--only parity|cost|speed]

The networks are ultralytics' own architectures with random weights (peers/heads.py), so nothing is downloaded; where
results are compared, the trained scouts are there, too.

parity  Networks at random find boxes with crossed corners, which ours drops and counts, and masks of much detail: where
        a letterbox is not a whole number of samples of the prototypes, ultralytics interpolates twice, and ours once.
        Images whose sides are three times those of what the network sees, made of blocks of 3x3 equal pixels: resizing
        them is exact for everybody, so both sides feed the same numbers to the same ONNX file in FP32. An object of
        theirs is found if ours has its class, its confidence within 0.01, and corners within 3 pixels.
cost    Post-processing and drawing of OBJECTS objects in a 1080p frame, and suppression of 2,000 oriented boxes.
speed   The benchmark clip to an annotated video, with `save`, every side by its defaults; medians of the rounds. An
        export of ultralytics is static, 640x640, unless it is asked for `dynamic=True`, which is a row of its own.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.clips import CACHE, STREET, clip
from benchmarks.cpu.end_to_end import run_peer
from benchmarks.protocol import RECORDS, ROOT, measure, save
from framefuse import Pipeline
from framefuse.common.keypoints import COCO_SKELETON
from framefuse.frame import PIXEL_FORMATS
from framefuse.models import find_model
from framefuse.postprocess import BoxCheck
from framefuse.postprocess.heads import Heads
from framefuse.prediction import Detections
from framefuse.preprocess import Preprocess
from framefuse.sinks.draw import Annotator
from framefuse.sources import open_source

MODELS = "yolov8n-seg", "yolo11n-seg", "yolo11n-pose", "yolo11n-obb", "yolo26n-seg", "yolo26n-pose", "yolo26n-obb"
TRAINED = {"scout-n-seg": "scout-seg", "scout-n-pose": "scout-pose"}
"""Shipped models, and the names by which peers/heads.py knows their task."""
FAST = "yolo11n-seg", "yolo11n-pose", "yolo11n-obb"
SIZES = (640, 360), (361, 640), (577, 640), (640, 361)
"""Width and height as the network sees them: 1080p, portrait, and odd ones."""
IMAGES = 16
OBJECTS = 20
GROUPS = "CPU kernel", "program", "peer"


def images(folder: Path, source: str | Path) -> None:
    """Frames of a source, each in one of SIZES."""
    frames = iter(open_source(source))
    for number in range(IMAGES):
        for _ in range(12):
            frame = next(frames)
        width, height = SIZES[number % len(SIZES)]
        image = Image.fromarray(frame.to_rgb())
        ratio = max(width / image.width, height / image.height)
        small = image.resize((max(width, round(image.width * ratio)), max(height, round(image.height * ratio))))
        blocks = np.asarray(small)[:height, :width].repeat(3, axis=0).repeat(3, axis=1)
        Image.fromarray(blocks).save(folder / f"{number:02d}.png", compress_level=1)


def peer(python: Path, *words: Any) -> str:
    command = [python, "-m", "benchmarks.peers.heads", *words]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=900).stdout


def compare(found: Detections, theirs: Mapping[str, Any], size: tuple[int, int]) -> dict[str, list[float]]:
    """How far each object of theirs is from ours."""
    differs = (found.class_id[:, None] != theirs["cls"]) | (abs(found.confidence[:, None] - theirs["conf"]) > 0.01)
    if found.obb is None:
        boxes = theirs["xyxy"].clip(0, np.tile(size, 2))
        apart = abs(found.xyxy[:, None] - boxes).max(axis=2)
    else:  # the corners may begin at another one
        turned = np.stack([np.roll(theirs["corners"], turn, axis=1) for turn in range(4)])
        apart = abs(found.obb[None, :, None] - turned[:, None]).max(axis=(3, 4)).min(axis=0)
    if found.keypoints is not None:  # of boxes that are equally near, the one with the same keypoints
        apart = apart + 1e-4 * abs(found.keypoints[:, None, :, :2] - theirs["keypoints"][None, :, :, :2]).max((2, 3))
    apart = np.where(differs, np.inf, apart)
    ours = apart.argmin(axis=0)
    pairs = [(one, other) for other, one in enumerate(ours.tolist()) if apart[one, other] < 3]
    facts: dict[str, list[float]] = {
        "pixels": [float(apart[pair]) for pair in pairs],
        "confidence": [float(abs(found.confidence[one] - theirs["conf"][other])) for one, other in pairs],
    }
    if found.runs is not None:
        masks = np.unpackbits(theirs["masks"])[: np.prod(theirs["shape"])].reshape(theirs["shape"]).astype(bool)
        both = [(found.runs[one : one + 1].decode()[0], masks[other]) for one, other in pairs]
        name = "mask_iou" if size == (1920, 1080) else "mask_iou_of_other_sizes"
        facts[name] = [float((a & b).sum() / (a | b).sum()) for a, b in both]
    if found.keypoints is not None:
        points = found.keypoints
        facts["keypoint"] = [float(abs(points[a, :, :2] - theirs["keypoints"][b, :, :2]).max()) for a, b in pairs]
    return facts


def parity(python: Path, folder: Path, file: Path) -> dict[str, Any]:
    """What ultralytics finds in the images, and how far ours is from it."""
    out = file.with_suffix(".npz")
    peer(python, "results", file, "--images", folder, "--out", out)
    stored = np.load(out)
    counts, all_facts = [0, 0], dict[str, list[float]]()
    options: dict[str, Any] = {"precision": "fp32", "engine": "onnxruntime", "conf": 0.25, "iou": 0.7}
    pipeline = Pipeline(folder, file, **options)
    for result in pipeline:
        stem = Path(result.frame.source_id).stem
        theirs = {key.partition("/")[2]: stored[key] for key in stored.files if key.startswith(f"{stem}/")}
        counts[0], counts[1] = counts[0] + len(result.detections), counts[1] + len(theirs["conf"])
        if len(result.detections) and len(theirs["conf"]):
            for name, values in compare(result.detections, theirs, (result.frame.width, result.frame.height)).items():
                all_facts.setdefault(name, []).extend(values)
    row: dict[str, Any] = {"model": file.stem, "ours": counts[0], "theirs": counts[1]}
    row["found"] = len(all_facts["pixels"])
    row |= {f"worst_{name}": max(all_facts[name]) for name in ("pixels", "confidence", "keypoint") if name in all_facts}
    for name in ("mask_iou", "mask_iou_of_other_sizes"):
        if name in all_facts:
            row[name] = {"median": median(all_facts[name]), "p5": float(np.percentile(all_facts[name], 5))}
    return row | {"warnings": pipeline.report.warnings}


def outputs(task: str, rng: np.random.Generator) -> tuple[list[np.ndarray[Any, Any]], int]:
    """Raw outputs with OBJECTS objects of a yolov8 layout at 640x384, and the values of an anchor after its classes."""
    classes, extra = {"segment": (80, 32), "pose": (1, 51), "obb": (15, 1)}[task]
    count = 2000 if task == "obb" else OBJECTS
    raw = np.zeros((1, 4 + classes + extra, 5040), np.float32)
    raw[0, :2, :count] = rng.uniform((40, 40), (600, 340), (count, 2)).T
    raw[0, 2:4, :count] = rng.uniform((30, 60), (90, 160), (count, 2)).T
    raw[0, 4 + np.arange(count) % min(classes, 3), np.arange(count)] = np.linspace(0.4, 0.9, count)
    if task == "pose":
        near = raw[0, :2, :count].T[:, None] + rng.uniform(-0.5, 0.5, (count, 17, 2)) * raw[0, 2:4, :count].T[:, None]
        raw[0, 5:, :count] = np.concatenate((near, np.ones((count, 17, 1))), 2).reshape(count, -1).T
    elif task == "obb":
        raw[0, -1] = rng.uniform(-0.7, 2.3, raw.shape[2])
    else:
        y, x = np.mgrid[:96, :160]
        waves = [np.sin(x / rng.uniform(5, 15) + k) + np.cos(y / rng.uniform(5, 15)) for k in range(32)]
        raw[0, 84:, :count] = rng.normal(0.1, 0.3, (32, count))
        return [raw, np.stack(waves).astype(np.float32)[None]], extra
    return [raw], extra


def cost(python: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds of a frame: medians of rounds, in which both sides take turns."""
    rng, (width, height) = np.random.default_rng(0), (1920, 1080)
    place = Preprocess(rectangular=True).place(width, height)
    yuv = PIXEL_FORMATS["yuv420p"]
    planes = [np.full(shape, 100, np.uint8) for shape in yuv.plane_shapes(width, height)]
    annotator = Annotator(width, height, yuv)
    calls: dict[str, Callable[[], object]] = {}
    for task in ("segment", "pose", "obb"):
        raw, extra = outputs(task, rng)
        heads = Heads(task, "yolov8", extra, BoxCheck({}, ""), keypoints=(17, 3), skeleton=COCO_SKELETON)

        def post(heads: Heads = heads, raw: list[Any] = raw) -> Detections:
            return heads(raw, [place], conf=0.25, iou=0.7, max_det=300)[0]

        found = post()[:OBJECTS]
        calls[f"{task}: post-process"] = post
        calls[f"{task}: draw"] = lambda found=found: annotator.draw(planes, found)
        if task == "segment":
            calls["segment: run lengths as COCO text"] = lambda found=found: found.segmentations()
            values = raw[0][0][84:, : len(found)].T
            given = {"prototypes": raw[1][0], "coefficients": np.ascontiguousarray(values), "boxes": found.xyxy}
    ours, theirs = list[dict[str, float]](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "given.npz"
        np.savez(file, frame=np.full((height, width, 3), 100, np.uint8), **given)
        for _ in range(rounds):
            ours.append({name: taken.wall.median for name, taken in measure(calls).items()})
            theirs.append(json.loads(peer(python, "draw", file))["milliseconds"])
    rows = {name: median(found[name] for found in ours) for name in calls}
    return {"objects": len(given["boxes"]), "milliseconds": rows, "supervision": median(theirs), "rounds": ours}


def exported(python: Path, folder: Path, source: str | Path, names: Sequence[str], *more: str) -> dict[str, Path]:
    """ONNX files of networks that are normalised on frames of a source, which become images in the folder."""
    images(folder, source)
    files = {name: CACHE / "".join((folder.name, *more)) / f"{name}.onnx" for name in names}
    for name, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            peer(python, "export", name, "--images", folder, "--out", file, *more)
    return files


def speed(
    python: Path, models: Mapping[str, Path], static: Mapping[str, Path], rounds: int, frames: int
) -> list[dict[str, Any]]:
    """Frames per second of both sides from the clip to an annotated video; ultralytics also with a static export."""
    rows = []
    for model, file in models.items():
        ours = "framefuse_save", Path(sys.executable), file
        names = {"framefuse": ours, "ultralytics": ("ultralytics_save", python, static[model])}
        names["ultralytics, dynamic"] = "ultralytics_save", python, file
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        order = random.Random(0)
        for _ in range(rounds):
            for name, (who, with_python, weights) in order.sample(list(names.items()), len(names)):
                report = run_peer(who, with_python, clip("1080p"), weights, frames)
                print(model, name, report, flush=True)
                runs[name].append(report)
        fps = {name: [report["fps"] for report in found] for name, found in runs.items()}
        pairs = {name: zip(fps["framefuse"], values, strict=True) for name, values in fps.items()}
        ratios = {name: median(ours / theirs for ours, theirs in found) for name, found in pairs.items()}
        objects = runs["framefuse"][0]["boxes_per_frame"]
        medians = {name: median(values) for name, values in fps.items()}
        rows.append({"model": model, "fps": medians, "ratio": ratios, "objects": objects})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--only", choices=("parity", "cost", "speed"))
    args = parser.parse_args()
    record = RECORDS / "heads.json"
    before = json.loads(record.read_text()) if args.only and record.exists() else {}
    facts: dict[str, Any] = {part: before[part] for part in ("parity", "cost", "speed") if part in before}
    with tempfile.TemporaryDirectory() as temporary:
        for part in ("street", "clip"):
            (Path(temporary) / part).mkdir()
        folder, python = Path(temporary) / "street", args.peers_python
        if args.only in (None, "parity"):
            facts["parity"] = []
            files = exported(python, folder, STREET, MODELS)
            for name, known in TRAINED.items():
                files[name] = Path(shutil.copy(find_model(name), Path(temporary) / f"{known}.onnx"))
                shutil.copy(find_model(name).with_suffix(".yaml"), files[name].with_suffix(".yaml"))
            for name, file in files.items():
                facts["parity"].append(parity(python, folder, file) | {"model": name})
                print(facts["parity"][-1], flush=True)
        if args.only in (None, "speed"):
            fast = exported(python, Path(temporary) / "clip", clip("1080p"), FAST)
            static = exported(python, Path(temporary) / "clip", clip("1080p"), FAST, "--static")
            facts["speed"] = speed(python, fast, static, args.rounds, args.frames)
    if args.only in (None, "cost"):
        facts["cost"] = cost(args.peers_python, 2 * args.rounds + 1)
        print(facts["cost"], flush=True)
    save("heads", facts, *GROUPS, "engine openvino", "pipeline", "sink")


if __name__ == "__main__":
    main()
