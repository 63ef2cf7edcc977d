"""People of real footage: the same matte as mediapipe's?

    python -m benchmarks.selfie --peers-python PYTHON

peers/selfie.py describes the environment of the peer. Its package brings two networks, which tflite.py converts to ONNX
in benchmarks/.cache, each with its card. The clip, carphone, shows a man who talks. mediapipe gets its frames as
framefuse decodes them, so that both see the same RGB.

network    The converted network alone, in ONNX Runtime, beside mediapipe's API on frames of the size of the network,
           which mediapipe does not resize: the worst difference of any pixel of a mask.
direct     framefuse's pipeline on the clip, beside mediapipe's own output. The card of the network says that frames are
           resized with `interpolation: asymmetric`, as mediapipe does. They still differ at the right and at the
           bottom, where mediapipe takes what is missing as black, and in what is resized: planes of YUV, or RGB.
matched    framefuse's pipeline on frames that are stretched as mediapipe stretches them, beside the same output of
           mediapipe: all that is left when both networks see the same.

The pipeline runs in FP32 with `matte_steady` and `matte_holes` 0, and what is compared is the matte as the network
gives it, stretched to the frame, before the guided filter: its IoU with mediapipe's mask where both are cut at 1/2, and
the mean absolute difference of the soft masks. `guided` is the IoU of the matte that framefuse writes, which follows
edges of the frame; mediapipe has no such step.

`shipped`: the mattes of body-n and body-n-2, made in the same way, beside mediapipe's masks, and those of photographs
that its environment has, each of people: how much of real people the networks find that are trained on synthetic ones.
None of these pictures is used for training.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.clips import CACHE
from benchmarks.peers.selfie import MODELS, PHOTOGRAPHS
from benchmarks.protocol import RECORDS, ROOT, save
from benchmarks.tflite import convert
from framefuse import Pipeline
from framefuse.common.files import file_hash
from framefuse.common.ort import cpu_session, onnxruntime
from framefuse.kernels.masks.call import upsample
from framefuse.models import find_model
from framefuse.prediction import Matte
from framefuse.sinks.images import FrameConverter
from framefuse.sources import open_source

GROUPS = "selfie", "model", "CPU kernel", "program", "pipeline", "engine openvino"
REACH = 0.98
"""Least IoU with mediapipe's mask that every frame is to have."""
OWN = "body-n", "body-n-2"
Images = NDArray[np.uint8]


def peer(python: Path, *words: Any) -> str:
    command = [python, "-m", "benchmarks.peers.selfie", *words]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=900).stdout


def write_model(name: str, file: Path, version: str) -> tuple[Path, tuple[int, int]]:
    """The converted network with its card, and the height and width of its input."""
    target = CACHE / f"selfie-{name}.onnx"
    CACHE.mkdir(parents=True, exist_ok=True)
    height, width = convert(file, target)
    card = ["task: semantic", "names: [person]", f"imgsz: [{height}, {width}]", "stride: 1", "fit: stretch"]
    card += ["interpolation: asymmetric"]
    card += ["mean: [0, 0, 0]", "std: [255, 255, 255]", "channel_order: rgb"]
    card += ["about:", "  licence: Apache-2.0", f"  source: {file.name} of mediapipe {version}"]
    target.with_suffix(".yaml").write_text("\n".join(card) + "\n", encoding="utf-8")
    return target, (height, width)


def stretched(images: Images, size: tuple[int, int]) -> Images:
    """Images (n, h, w, 3) at a height and width, as mediapipe stretches them: pixel i shows what is at i h / height.

    It is exact where the scale is a multiple of 1/32, which is as finely as mediapipe's OpenCV 3.4 tells positions
    apart, as that of carphone to 256x256 is. Halves are rounded up, as there; OpenCV 5 rounds them to even numbers.
    """
    found = np.pad(images.astype(np.float32), ((0, 0), (0, 1), (0, 1), (0, 0)))
    for axis, count in enumerate(size, 1):
        places = np.arange(count) * images.shape[axis] / count
        lower = places.astype(int)
        share = np.expand_dims((places - lower).astype(np.float32), tuple(range(1, 4 - axis)))
        found = found.take(lower, axis) * (1 - share) + found.take(lower + 1, axis) * share
    return (found + 0.5).astype(np.uint8)


def run(source: Any, model: Path) -> tuple[list[Matte], str]:
    """The mattes of a source, and the engine that ran the network."""
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            "precision": "fp32",
            "save_matte": "gray",
            "matte_steady": 0,
            "matte_holes": 0,
            "project": folder,
        }
        pipeline = Pipeline(source, model, **settings)
        mattes = [result.matte for result in pipeline]
    return [matte for matte in mattes if matte is not None], pipeline.report.model.engine


def masks(python: Path, name: str, **images: Images) -> dict[str, NDArray[np.float32]]:
    """mediapipe's masks of several arrays of images."""
    with tempfile.TemporaryDirectory() as folder:
        stored, found = Path(folder) / "images.npz", Path(folder) / "masks.npz"
        np.savez(stored, **images)  # type: ignore[arg-type]  # its other parameter is a bool
        peer(python, "masks", name, "--images", stored, "--out", found)
        return dict(np.load(found))


def iou(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    return float((one & other).sum() / max(1, (one | other).sum()))


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"min": min(values), "median": float(np.median(values)), "mean": float(np.mean(values)), "max": max(values)}


def beside(mattes: Sequence[Matte], theirs: NDArray[np.float32]) -> dict[str, Any]:
    """How near the mattes are to mediapipe's masks."""
    ours = [upsample(matte.parts[0].alpha, theirs.shape[1:]) for matte in mattes]
    ious = [iou(one > 0.5, other > 0.5) for one, other in zip(ours, theirs, strict=True)]
    apart = [float(abs(one - other).mean()) for one, other in zip(ours, theirs, strict=True)]
    return {"iou": spread(ious), "reached": sum(value >= REACH for value in ious), "difference": spread(apart)}


def compare(python: Path, name: str, found: dict[str, str]) -> dict[str, Any]:
    """A network and its mattes beside mediapipe's."""
    model, size = write_model(name, Path(found[name]), found["version"])
    frames = list(open_source(found["clip"]))
    images = np.stack([frame.to_rgb() for frame in frames])
    small = np.stack([np.asarray(Image.fromarray(image).resize(size[::-1])) for image in images])
    theirs = masks(python, name, frames=images, small=small)
    session = cpu_session(onnxruntime("ort"), model)
    inputs = (small.astype(np.float32) / 255).transpose(0, 3, 1, 2)
    alone = np.concatenate([session.run(None, {"image": one[None]})[0][0] for one in inputs])
    mattes, engine = run(found["clip"], model)
    matched, _ = run(list(stretched(images, size)[..., ::-1]), model)
    converter = FrameConverter()
    written = [matte.alpha(converter.yuv420p(frame)[0][0]) for matte, frame in zip(mattes, frames, strict=True)]
    guided = [iou(one > 127, other > 0.5) for one, other in zip(written, theirs["frames"], strict=True)]
    return {
        "model": name,
        "input": list(size),
        "frames": len(frames),
        "size": [frames[0].width, frames[0].height],
        "engine": engine,
        "network": float(abs(alone - theirs["small"]).max()),
        "direct": beside(mattes, theirs["frames"]),
        "matched": beside(matched, theirs["frames"]),
        "guided": spread(guided),
    }


def shipped(python: Path, found: dict[str, str]) -> list[dict[str, Any]]:
    """The shipped segmenters beside mediapipe's general network, on the clip and on each photograph."""
    clip = np.stack([frame.to_rgb() for frame in open_source(found["clip"])])
    images = {"carphone": clip} | {name: next(iter(open_source(found[name]))).to_rgb()[None] for name in PHOTOGRAPHS}
    theirs = masks(python, "general", **images)
    rows = []
    for name in OWN:
        for picture, stack in images.items():
            mattes, _ = run(list(stack[..., ::-1]), Path(name))
            facts = {"model": name, "sha256": file_hash(find_model(name)), "of": picture, "frames": len(stack)}
            rows.append(facts | beside(mattes, theirs[picture]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", type=Path, required=True)
    args = parser.parse_args()
    found = json.loads(peer(args.peers_python, "files"))
    rows = [compare(args.peers_python, name, found) for name in MODELS]
    facts = {"clip": Path(found["clip"]).name, "peer": f"mediapipe {found['version']}", "reach": REACH, "rows": rows}
    save("selfie", facts | {"shipped": shipped(args.peers_python, found)}, *GROUPS)
    print(RECORDS / "selfie.json")


if __name__ == "__main__":
    main()
