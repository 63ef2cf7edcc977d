"""The peers of benchmarks/heads.py, in their own environment (env.sh):

    python -m benchmarks.peers.heads export NAME --images FOLDER --out FILE.onnx [--static]
    python -m benchmarks.peers.heads results FILE.onnx --images FOLDER --out FILE.npz
    python -m benchmarks.peers.heads draw FILE.npz

`export` writes an architecture of ultralytics with random weights, normalised on images, whose class logits are shifted
so that about OBJECTS anchors an image pass confidence 0.25. `results` writes what ultralytics finds in each image, with
masks of its size (retina_masks). `draw` prints the milliseconds of masks, run lengths and drawing with supervision.
"""

import argparse
import json
import os
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

OBJECTS = 40
RUNS = 40


def load(name: str) -> Any:
    os.environ.update(YOLO_AUTOINSTALL="false", YOLO_OFFLINE="true", YOLO_VERBOSE="false")
    from ultralytics import YOLO

    return YOLO(name, task=task_of(Path(name).stem) if name.endswith(".onnx") else None)


def task_of(name: str) -> str:
    """The task of a model of ultralytics, from its name."""
    suffix = name.partition("-")[2]
    return {"seg": "segment", "pose": "pose", "obb": "obb", "cls": "classify"}.get(suffix, "detect")


def export(name: str, images: list[Path], out: Path, dynamic: bool) -> None:
    import torch

    torch.manual_seed(0)
    model = load(f"{name}.yaml")
    network, size = model.model, 224 if task_of(name) == "classify" else 640
    batch = torch.stack([_tensor(path, size) for path in images])
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None
            layer.reset_running_stats()
    with torch.no_grad():
        network.train()
        network(batch)
        network.eval()
        for branch in ("cv3", "one2one_cv3"):
            levels = getattr(network.model[-1], branch, None)
            if levels is not None and size == 640:
                _shift(network, [level[-1] for level in levels], batch)
    Path(model.export(format="onnx", dynamic=dynamic, imgsz=size, simplify=False)).replace(out)


def _shift(network: Any, layers: list[Any], batch: Any) -> None:
    """Scale and shift the class logits: their standard deviation is 1.5, and so many anchors pass 0.25."""
    import torch

    found: list[Any] = []
    for layer in layers:
        layer.bias.zero_()
    hooks = [layer.register_forward_hook(lambda _, __, out: found.append(out.flatten(2))) for layer in layers]
    network(batch)
    for hook in hooks:
        hook.remove()
    if not found:
        return
    logits = torch.cat(found, 2)
    scale = 1.5 / float(logits.std())
    best = logits.amax(1).flatten().sort(descending=True).values * scale
    for layer in layers:
        layer.weight.mul_(scale)
        layer.bias.add_(float(np.log(1 / 3)) - float(best[OBJECTS * len(batch)]))


def _tensor(path: Path, size: int) -> Any:
    """An image as the networks see it, with a letterbox."""
    import cv2
    import torch

    image = cv2.imread(str(path))
    ratio = size / max(image.shape[:2])
    small = cv2.resize(image, (round(image.shape[1] * ratio), round(image.shape[0] * ratio)))
    padded = np.full((size, size, 3), 114, np.uint8)
    top, left = (size - small.shape[0]) // 2, (size - small.shape[1]) // 2
    padded[top : top + small.shape[0], left : left + small.shape[1]] = small
    return torch.from_numpy(padded[..., ::-1].transpose(2, 0, 1).astype(np.float32) / 255)


def results(file: Path, images: list[Path], out: Path) -> None:
    import cv2

    model, found = load(str(file)), dict[str, Any]()
    for path in images:
        options: dict[str, Any] = {"conf": 0.25, "iou": 0.7, "imgsz": 640, "retina_masks": True, "verbose": False}
        (result,) = model.predict(cv2.imread(str(path)), **options)
        boxes = result.boxes if result.obb is None else result.obb
        found |= {f"{path.stem}/{part}": getattr(boxes, part).numpy() for part in ("xyxy", "conf", "cls")}
        if result.masks is not None:
            masks = result.masks.data.numpy().astype(bool)
            found |= {f"{path.stem}/masks": np.packbits(masks), f"{path.stem}/shape": masks.shape}
        if result.keypoints is not None:
            found[f"{path.stem}/keypoints"] = result.keypoints.data.numpy()
        if result.obb is not None:
            found[f"{path.stem}/corners"] = result.obb.xyxyxyxy.numpy()
    np.savez(out, **found)


def draw(file: Path) -> dict[str, float]:
    """From prototypes, coefficients and boxes to a drawn BGR frame and run lengths with ultralytics and supervision."""
    import supervision as sv
    import torch
    from supervision.detection.utils.converters import mask_to_rle
    from ultralytics.utils.ops import process_mask_native

    given = np.load(file)
    frame, labels = given["frame"], [f"{number} 0.50" for number in range(len(given["boxes"]))]
    prototypes, coefficients, boxes = (
        torch.from_numpy(given[name]) for name in ("prototypes", "coefficients", "boxes")
    )
    annotators = sv.MaskAnnotator(), sv.BoxAnnotator()
    label, seconds = sv.LabelAnnotator(), []
    for _ in range(RUNS + 3):
        started = perf_counter()
        masks = process_mask_native(prototypes, coefficients, boxes, frame.shape[:2]).numpy().astype(bool)
        count = len(masks)
        found = sv.Detections(given["boxes"], masks, np.full(count, 0.5), np.arange(count) % 3)
        scene = frame.copy()
        for annotator in annotators:
            scene = annotator.annotate(scene, found)
        label.annotate(scene, found, labels)
        for mask in masks:
            mask_to_rle(mask)
        seconds.append(perf_counter() - started)
    return {"milliseconds": float(np.median(seconds[3:])) * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("export", "results", "draw"))
    parser.add_argument("what")
    parser.add_argument("--images", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--static", action="store_true")
    asked = parser.parse_args()
    images = sorted(asked.images.glob("*.png")) if asked.images else []
    if asked.verb == "export":
        export(asked.what, images, asked.out, not asked.static)
    elif asked.verb == "results":
        results(Path(asked.what), images, asked.out)
    else:
        print(json.dumps(draw(Path(asked.what))))


if __name__ == "__main__":
    main()
