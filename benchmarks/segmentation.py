"""Mattes of VR video on the CPU: how right, how steady, and how fast, beside a loop of OpenCV and ONNX Runtime.

    python -m benchmarks.segmentation [--parts quality speed]

- `quality`: body-n on noisy clips of the synthetic world, H.264, 1920x960, both eyes side by side, against exact masks:
  mean IoU of an eye; F of the boundary as DAVIS defines it (a pixel counts within 0.8 % of the diagonal); both also by
  the share of the eye that people cover; flicker, the mean change of alpha, and flips, the share of pixels whose mask
  changes, where neither the truth nor the picture does; and how well the eyes agree: the IoU of both, moved by the true
  disparity, where both see the same. Rows: what `framefuse matte` does by default; with small holes filled; with eyes
  that support each other; without the frames around; and stretched without a guide
- `speed`: frames/s from a 1920x960 clip with sound to a written video, in turns with a loop that decodes and encodes
  with PyAV as well, and takes the two eyes through OpenCV (resize, arg-max, morphology, Gaussian) and ONNX Runtime

The record is segmentation; the last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import av
import cv2
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks import protocol
from benchmarks.clips import CACHE
from framefuse import Pipeline
from framefuse.common.machine import available_cores
from framefuse.models import find_model
from framefuse.sinks.images import planes_of
from framefuse.world import Snapshot, World

SIZE = 1920, 960
EYE = 960
SEEDS = range(9101, 9105)
FRAMES = 90
NOISE, CRF = 4.0, 26
"""Standard deviation of the noise of the clips, in 8-bit steps, and their quality."""
CALM = 2
"""Largest difference of two 8-bit samples where the picture does not change."""
DIAGONAL_SHARE = 0.008
SHARES = {"small": (0.0, 0.35), "medium": (0.35, 0.6), "large": (0.6, 1.0)}
"""Share of the eye that people cover."""
WAYS: dict[str, dict[str, Any]] = {
    "framefuse matte": {},
    "holes filled up to 0.1 %": {"matte_holes": 0.001},
    "with the other eye": {"matte_eyes": 0.5},
    "without the frames around": {"matte_steady": 0.0},
    "stretched, without a guide": {"matte_steady": 0.0},
}
GROUPS = (
    "model",
    "CPU kernel",
    "program",
    "pipeline",
    "views",
    "engine openvino",
    "sink",
    "matting",
    "synthetic world",
)

Mask = NDArray[np.bool_]
Row = dict[str, Any]


def world_of(seed: int) -> World:
    return World(scene="bodies", seed=seed, split="test", frames=3 * FRAMES, size=SIZE, stereo="sbs")


def snapshots(seed: int) -> Iterator[Snapshot]:
    """The frames of a world: its busy middle, or for every second one its calm beginning."""
    world, first = world_of(seed), FRAMES * (seed % 2)
    return (world[index] for index in range(first, first + FRAMES))


def clip_of(seed: int) -> Path:
    """The video of these frames, with the noise of a sensor; made once."""
    path = CACHE / f"segmentation-{World.version}-{seed}-{FRAMES}.mp4"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        random, part = np.random.default_rng(seed), path.with_suffix(".part")
        with av.open(str(part), "w", format="mp4") as container:
            stream: Any = container.add_stream("libx264", rate=30, options={"preset": "veryfast", "crf": str(CRF)})
            stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
            for snapshot in snapshots(seed):
                noisy = np.clip(snapshot.image + random.normal(0, NOISE, snapshot.image.shape), 0, 255).astype(np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(noisy, format="rgb24")))
            container.mux(stream.encode(None))
        part.rename(path)
    return path


def boundary(mask: Mask) -> Mask:
    """The pixels of a mask that touch others."""
    shrunk = cv2.erode(mask.astype(np.uint8), np.ones((3, 3), np.uint8), borderType=cv2.BORDER_REPLICATE)
    return mask & (shrunk == 0)


def boundary_f(found: Mask, truth: Mask) -> float:
    """Perazzi et al. 2016: F of precision and recall of boundary pixels within a distance."""
    reach = int(np.ceil(DIAGONAL_SHARE * np.hypot(*truth.shape)))
    disk = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach + 1, 2 * reach + 1))
    edges = boundary(found), boundary(truth)
    near = [cv2.dilate(edge.astype(np.uint8), disk) > 0 for edge in edges]
    if not (edges[0].any() and edges[1].any()):
        return float(edges[0].any() == edges[1].any())
    precision, recall = (edges[0] & near[1]).sum() / edges[0].sum(), (edges[1] & near[0]).sum() / edges[1].sum()
    return float(2 * precision * recall / max(precision + recall, 1e-9))


def iou(a: Mask, b: Mask) -> float:
    joined = (a | b).sum()
    return float((a & b).sum() / joined) if joined else 1.0


def agreement(found: Mask, disparity: NDArray[np.float32]) -> float:
    """The IoU of what the left eye shows and what the right eye shows at the same points, where both see them."""
    rows = np.arange(found.shape[0])[:, None]
    across = np.arange(EYE) - disparity[:, :EYE].round().astype(int)
    inside = (across >= 0) & (across < EYE)
    across = across.clip(0, EYE - 1) + EYE
    same = inside & (np.abs(disparity[rows, across] - disparity[:, :EYE]) < 1)  # otherwise something hides it
    return iou(found[:, :EYE] & same, found[rows, across] & same)


def quality() -> list[Row]:
    sums: dict[str, dict[str, list[float]]] = {way: {} for way in WAYS}
    for seed in SEEDS:
        clip = clip_of(seed)
        runs = [iter(Pipeline(clip, "body-n", stereo="sbs", save_matte="gray", project=folder(), **options))
                for options in WAYS.values()]  # fmt: skip
        before: Any = None
        alphas: dict[str, Any] = {}
        with av.open(str(clip)) as container:
            decoded = (planes_of(one)[0].copy() for one in container.decode(video=0))
            for snapshot, luma, *results in zip(snapshots(seed), decoded, *runs, strict=True):
                truth, image = snapshot.truth.class_mask > 0, snapshot.image.astype(np.int16)
                still: Any = None
                if before is not None:
                    still = (np.abs(image - before[1]).max(-1) <= CALM) & (truth == before[0])
                before = truth, image
                for way, result in zip(WAYS, results, strict=True):
                    guide = None if "without a guide" in way else luma
                    alpha = result.matte.alpha(guide)
                    note(sums[way], alpha, alphas.get(way), truth, still, snapshot.truth.disparity)
                    alphas[way] = alpha
    return [{"way": way, **{name: float(np.mean(values)) for name, values in found.items()},
             "eyes": len(found["iou"])} for way, found in sums.items()]  # fmt: skip


def note(found: dict[str, list[float]], alpha: Any, last: Any, truth: Mask, still: Any, disparity: Any) -> None:
    """Add what one frame shows."""
    mask = alpha > 127
    for eye in (0, 1):
        part = slice(eye * EYE, (eye + 1) * EYE)
        share = truth[:, part].mean()
        scores = {"iou": iou(mask[:, part], truth[:, part]), "boundary": boundary_f(mask[:, part], truth[:, part])}
        for name, value in scores.items():
            found.setdefault(name, []).append(value)
            size = next(size for size, (low, high) in SHARES.items() if low <= share <= high)
            found.setdefault(f"{name}_{size}", []).append(value)
    if still is not None and still.any():
        found.setdefault("flicker", []).append(float(np.abs(alpha.astype(int) - last)[still].mean()))
        found.setdefault("flips", []).append(float((mask != (last > 127))[still].mean()))
    if truth.any():
        found.setdefault("agreement", []).append(agreement(mask, disparity))


_folders: list[TemporaryDirectory[str]] = []


def folder() -> Path:
    _folders.append(TemporaryDirectory())
    return Path(_folders[-1].name)


def ours(clip: Path, mode: str) -> float:
    begin = time.perf_counter()
    report = Pipeline(clip, "body-n", stereo="sbs", save_matte=mode, project=folder()).run()
    assert len(report.outputs) == 1
    return report.frames / (time.perf_counter() - begin)


def loop(clip: Path, mode: str) -> float:
    """What is written first: each eye resized, arg-max, opened and closed, blurred, stretched, composed."""
    begin, count = time.perf_counter(), 0
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = available_cores()
    session = onnxruntime.InferenceSession(str(find_model("body-n")), options, providers=["CPUExecutionProvider"])
    name, kernel = session.get_inputs()[0].name, np.ones((5, 5), np.uint8)
    with av.open(str(clip)) as source, av.open(str(folder() / "out.mp4"), "w") as target:
        source.streams.video[0].thread_type = "AUTO"
        stream: Any = target.add_stream("libx264", rate=30, options={"preset": "ultrafast", "crf": "23"})
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        for frame in source.decode(video=0):
            image = frame.to_ndarray(format="bgr24")
            alphas = []
            for eye in (image[:, :EYE], image[:, EYE:]):
                small = cv2.resize(eye, (384, 384))[..., ::-1].astype(np.float32) / 255
                scores = session.run(None, {name: np.ascontiguousarray(small.transpose(2, 0, 1))[None]})[0][0]
                mask = (scores.argmax(0) > 0).astype(np.uint8) * 255
                mask = cv2.morphologyEx(cv2.morphologyEx(mask, cv2.MORPH_OPEN, kernel), cv2.MORPH_CLOSE, kernel)
                alphas.append(cv2.resize(cv2.GaussianBlur(mask, (5, 5), 0), (EYE, EYE)))
            alpha = np.hstack(alphas)
            if mode == "gray":
                composed = cv2.cvtColor(alpha, cv2.COLOR_GRAY2BGR)
            else:
                weight = alpha[..., None].astype(np.float32) / 255
                composed = (image * weight + np.array([0, 255, 0], np.float32) * (1 - weight)).astype(np.uint8)
            target.mux(stream.encode(av.VideoFrame.from_ndarray(composed, format="bgr24")))
            count += 1
        target.mux(stream.encode(None))
    return count / (time.perf_counter() - begin)


def with_sound(clip: Path, out: Path) -> Path:
    """The clip with a tone beside it."""
    with av.open(str(clip)) as source, av.open(str(out), "w") as target:
        video = target.add_stream_from_template(source.streams.video[0])
        sound: Any = target.add_stream("aac", rate=48000, layout="mono")
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = video
                target.mux(packet)
        samples = (8000 * np.sin(np.arange(48000 * 3) / 20)).astype(np.int16)
        block = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        block.sample_rate, block.pts, block.time_base = 48000, 0, Fraction(1, 48000)
        target.mux(sound.encode(block))
        target.mux(sound.encode(None))
    return out


def speed(rounds: int) -> list[Row]:
    clip = with_sound(clip_of(SEEDS[0]), folder() / "clip_180_LR.mp4")
    turns: dict[tuple[str, str], Callable[[], float]] = {}
    for mode in ("gray", "green"):
        turns["framefuse", mode] = partial(ours, clip, mode)
        turns["OpenCV and ONNX Runtime", mode] = partial(loop, clip, mode)
    for mode in ("blur", "overlay", "alpha", "packed"):
        turns["framefuse", mode] = partial(ours, clip, mode)
    order, rates = random.Random(0), {key: list[float]() for key in turns}
    names = list(turns)
    for _ in range(rounds):
        order.shuffle(names)
        for key in names:
            rates[key].append(turns[key]())
            print(*key, f"{rates[key][-1]:.1f}", flush=True)
    found = []
    for (who, mode), values in rates.items():
        row: Row = {"who": who, "mode": mode, "fps": median(values), "runs": values}
        if theirs := rates.get(("OpenCV and ONNX Runtime", mode)):
            row["ratio"] = median(a / b for a, b in zip(rates["framefuse", mode], theirs, strict=True))
        found.append(row)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("quality", "speed"), default=["quality", "speed"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    parts: dict[str, Callable[[], Any]] = {"quality": quality, "speed": lambda: speed(options.rounds)}
    found: dict[str, Any] = {"world": World.version, "frames": FRAMES * len(SEEDS), "size": SIZE}
    for part in options.parts:
        found[part] = parts[part]()
        protocol.save("segmentation", found, *GROUPS)


if __name__ == "__main__":
    main()
