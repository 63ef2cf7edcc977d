"""The central table: one engine, one clip, and what is around the model, stage by stage.

    python -m benchmarks.gpu.central_table [MODEL.onnx]

The engine is `cudnn`, float16, 640x640, batch 1, its network captured in a graph for every path. Frames are those of
the benchmark clip's scene, 1080p. Paths, from a decoded image to boxes on the host:

- `usual`: BGR in host memory -> OpenCV letterbox, NumPy scaling and transposition -> upload -> inference -> download of
  (1, 84, 8400) -> NumPy threshold and OpenCV's suppression per class
- `usual, a Python row loop`: the same with the loop over rows that most samples have, instead of NumPy
- `our host path`: NV12 in host memory -> framefuse's CPU kernels on both sides of the same upload and download
- `torch`: NV12 on the GPU -> PyTorch operators -> inference -> PyTorch threshold, torchvision.ops.batched_nms -> host
- `fused`: NV12 on the GPU -> `CudaProgram` -> boxes on the host

Paths take turns, round by round. Times are medians of the rounds in milliseconds; FPS is one over their sum. Recorded
as benchmarks/records/central_table.json. The last line of the output is JSON.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.program import HEIGHT, WIDTH, frames, images
from benchmarks.protocol import save
from framefuse.cuda import device
from framefuse.engines import EngineOptions, open_engine
from framefuse.models.card import read_card
from framefuse.postprocess import postprocess
from framefuse.preprocess import Preprocess
from framefuse.runtime.cuda.program import CudaProgram
from framefuse.runtime.program import Selection

SIZE, CONF, IOU, MAX_DET = 640, 0.25, 0.7, 300
LEFT, TOP, RATIO = 0, 140, SIZE / WIDTH
Stages = dict[str, float]


class Model:
    """The captured network: host or device images in, raw outputs (1, 84, 8400) out."""

    def __init__(self, path: Path) -> None:
        self.cp = cp = device.cupy()
        self.engine = open_engine("cudnn", path, EngineOptions("cuda"))
        self.execution = self.engine.execution(1, SIZE, SIZE)
        self.stream = cp.cuda.Stream(non_blocking=True)
        with self.stream:
            self.run()
            self.stream.synchronize()
            self.stream.begin_capture()
            self.run()
            self.graph = self.stream.end_capture()

    def run(self) -> None:
        self.execution.start(self.stream)
        self.execution.finish(self.stream)

    def infer(self) -> None:
        self.graph.launch(self.stream)
        self.stream.synchronize()

    def upload(self, image: np.ndarray[Any, Any]) -> None:
        """float32 (1, 3, 640, 640) from pageable memory into the model's NHWC float16."""
        with self.stream:
            there = self.cp.asarray(image)
            self.execution.input[..., :3] = there.transpose(0, 2, 3, 1)
        self.stream.synchronize()

    def download(self) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self.cp.asnumpy(self.execution.results[0], stream=self.stream)
        return found


class Timer:
    """Milliseconds since the last stage ended."""

    def __init__(self) -> None:
        self.stages: Stages = {}
        self._last = time.perf_counter()

    def stage(self, name: str) -> None:
        now = time.perf_counter()
        self.stages[name] = (now - self._last) * 1e3
        self._last = now


def letterbox(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As the samples of the training frameworks do it: BGR (h, w, 3) -> float32 (1, 3, 640, 640)."""
    import cv2

    resized = cv2.resize(image, (SIZE, round(HEIGHT * RATIO)), interpolation=cv2.INTER_LINEAR)
    padded = cv2.copyMakeBorder(resized, TOP, TOP, LEFT, LEFT, cv2.BORDER_CONSTANT, value=(114, 114, 114))
    return np.ascontiguousarray(padded[..., ::-1].transpose(2, 0, 1)[None], np.float32) / 255


def suppress(boxes: Any, scores: Any, classes: Any) -> np.ndarray[Any, Any]:
    """Rows that stay, by OpenCV, class by class; boxes as x, y, width, height."""
    import cv2

    if not len(boxes):
        return np.zeros(0, int)
    kept = cv2.dnn.NMSBoxesBatched(boxes.tolist(), scores.tolist(), classes.tolist(), CONF, IOU)
    return np.asarray(kept, int).ravel()[:MAX_DET]


def choose(output: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Boxes x1, y1, x2, y2 in source pixels, score and class."""
    rows = output[0].T
    scores = rows[:, 4:].max(1)
    rows, scores = rows[scores > CONF], scores[scores > CONF]
    classes = rows[:, 4:].argmax(1)
    boxes = np.concatenate([rows[:, :2] - rows[:, 2:4] / 2, rows[:, 2:4]], 1)
    return placed(boxes, scores, classes)


def choose_in_a_loop(output: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same, row by row."""
    boxes, scores, classes = [], [], []
    for row in output[0].T:
        best = int(np.argmax(row[4:]))
        if row[4 + best] > CONF:
            boxes.append([row[0] - row[2] / 2, row[1] - row[3] / 2, row[2], row[3]])
            scores.append(float(row[4 + best]))
            classes.append(best)
    return placed(np.array(boxes, np.float32).reshape(-1, 4), np.array(scores), np.array(classes, int))


def placed(boxes: Any, scores: Any, classes: Any) -> np.ndarray[Any, Any]:
    kept = suppress(boxes, scores, classes)
    boxes = boxes[kept]
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    corners = ((corners - (LEFT, TOP, LEFT, TOP)) / RATIO).clip(0, (WIDTH, HEIGHT, WIDTH, HEIGHT))
    return np.column_stack([corners, scores[kept], classes[kept]])


def usual(model: Model, image: Any, chooser: Callable[[Any], Any]) -> tuple[Stages, Any]:
    timer = Timer()
    array = letterbox(image)
    timer.stage("preprocess")
    model.upload(array)
    timer.stage("upload")
    model.infer()
    timer.stage("inference")
    output = model.download()
    timer.stage("download")
    found = chooser(output)
    timer.stage("postprocess")
    return timer.stages, found


def ours_on_host(model: Model, frame: Any, spec: Preprocess, array: Any) -> tuple[Stages, Any]:
    timer = Timer()
    placement = spec(frame, array[0])
    timer.stage("preprocess")
    model.upload(array)
    timer.stage("upload")
    model.infer()
    timer.stage("inference")
    output = model.download()
    timer.stage("download")
    found = postprocess([output], "yolov8", [placement], conf=CONF, iou=IOU, max_det=MAX_DET)
    count = int(found.counts[0])
    boxes = np.column_stack([found.boxes[0, :count], found.scores[0, :count], found.classes[0, :count]])
    timer.stage("postprocess")
    return timer.stages, boxes


class Torch:
    """Preprocessing and suppression by PyTorch and torchvision, around the same network."""

    def __init__(self, model: Model) -> None:
        import torch

        self.torch, self.model = torch, model
        self.stream = torch.cuda.ExternalStream(model.stream.ptr)
        self.matrix = torch.tensor([[1.164384, 0.0, 1.596027], [1.164384, -0.391762, -0.812968],
                                    [1.164384, 2.017232, 0.0]], device="cuda")  # fmt: skip
        self.input = torch.as_tensor(model.execution.input, device="cuda")
        self.output = torch.as_tensor(model.execution.results[0], device="cuda")

    def __call__(self, surface: Any) -> tuple[Stages, Any]:
        torch = self.torch
        from torch.nn import functional
        from torchvision.ops import batched_nms

        timer = Timer()
        with torch.cuda.stream(self.stream), torch.inference_mode():
            luma = surface[:HEIGHT].float()
            chroma = surface[HEIGHT:].view(HEIGHT // 2, WIDTH // 2, 2).permute(2, 0, 1).float()[None]
            chroma = functional.interpolate(chroma, scale_factor=2, mode="nearest")[0]
            yuv = torch.stack([luma - 16, chroma[0] - 128, chroma[1] - 128])
            rgb = torch.einsum("cd,dhw->chw", self.matrix, yuv).clamp_(0, 255)
            small = functional.interpolate(rgb[None], (360, SIZE), mode="bilinear", align_corners=False)
            padded = functional.pad(small, (0, 0, TOP, TOP), value=114.0)[0] / 255
            self.input[0, :, :, :3] = padded.permute(1, 2, 0)
            self.stream.synchronize()
            timer.stage("preprocess")
            self.model.infer()
            timer.stage("inference")
            rows = self.output[0].T
            scores, classes = rows[:, 4:].max(1)
            keep = scores > CONF
            rows, scores, classes = rows[keep], scores[keep], classes[keep]
            boxes = torch.cat([rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2], 1)
            kept = batched_nms(boxes, scores, classes, IOU)[:MAX_DET]
            offset = torch.tensor([LEFT, TOP, LEFT, TOP], device="cuda")
            limit = torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT], device="cuda")
            corners = ((boxes[kept] - offset) / RATIO).clamp(min=0).minimum(limit)
            found = torch.cat([corners, scores[kept, None], classes[kept, None].float()], 1).cpu().numpy()
            timer.stage("postprocess")
        return timer.stages, found


def fused(program: CudaProgram, frame: Any) -> tuple[Stages, Any]:
    timer = Timer()
    (done,) = [*program.submit([frame]), *program.drain()]
    timer.stage("all in one graph")
    found = done.result.detections
    return timer.stages, np.column_stack([found.xyxy, found.confidence, found.class_id])


def agree(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Part of the boxes of `a` that has one of the same class in `b` with every edge within 4 pixels of 1080p."""
    if not len(a):
        return 1.0
    near = (np.abs(a[:, None, :4] - b[None, :, :4]).max(-1) < 4) & (a[:, None, 5] == b[None, :, 5])
    return float(near.any(1).mean())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--loop-rounds", type=int, default=12, help="rounds of the slow row loop")
    options = parser.parse_args()
    if options.model is None:
        from benchmarks.models import model

        options.model = model("yolov8n")
    import cv2

    cp = device.cupy()
    made = images(8, noise=False)
    bgr = [cv2.cvtColor(one, cv2.COLOR_YUV2BGR_NV12) for one in made]
    host = frames(made)
    there = [cp.asarray(one) for one in made]
    resident = frames(there)
    network, card, spec = Model(options.model), read_card(options.model), Preprocess(SIZE, SIZE)
    program = CudaProgram(
        open_engine("cudnn", options.model, EngineOptions("cuda", layout="yolov8")),
        card, spec, Selection(CONF, IOU, MAX_DET),
    )  # fmt: skip
    array = np.empty((1, 3, SIZE, SIZE), np.float32)
    paths: dict[str, Callable[[int], tuple[Stages, Any]]] = {
        "usual": lambda n: usual(network, bgr[n], choose),
        "our host path": lambda n: ours_on_host(network, host[n], spec, array),
        "fused": lambda n: fused(program, resident[n]),
        "usual, a Python row loop": lambda n: usual(network, bgr[n], choose_in_a_loop),
    }
    notes = []
    try:
        torch_path = Torch(network)
        surfaces = [torch_path.torch.as_tensor(one, device="cuda") for one in there]
        paths["torch"] = lambda n: torch_path(surfaces[n])
    except Exception as error:  # no PyTorch here: the other paths count
        notes.append(f"torch: {type(error).__name__} {error}"[:200])
    notes.append(
        "boxes are compared for the same model input only: the weights are random, and OpenCV's chroma, 0.4 grey "
        "levels off on average, already changes which boxes they find"
    )
    times: dict[str, list[Stages]] = {name: [] for name in paths}
    boxes: dict[str, list[Any]] = {name: [] for name in paths}
    for name, path in paths.items():
        for n in range(8):
            boxes[name].append(path(n)[1])  # warm, and what they find
    for turn in range(options.rounds):
        for name, path in paths.items():
            if "loop" in name and turn >= options.loop_rounds:
                continue
            times[name].append(path(turn % 8)[0])
    rows = []
    for name, measured in times.items():
        stages = {stage: round(float(np.median([one[stage] for one in measured])), 4) for stage in measured[0]}
        total = float(np.median([sum(one.values()) for one in measured]))
        rows.append({"path": name, "ms": round(total, 4), "fps": round(1e3 / total, 1), "stages_ms": stages,
                     "boxes_a_frame": round(float(np.mean([len(one) for one in boxes[name]])), 2)})  # fmt: skip
        if name == "our host path":
            alike = [agree(ours, other) for ours, other in zip(boxes["fused"], boxes[name], strict=True)]
            rows[-1]["boxes_of_fused_found"] = round(float(np.mean(alike)), 4)
    ours = next(row["ms"] for row in rows if row["path"] == "fused")
    for row in rows:
        row["of_fused"] = round(row["ms"] / ours, 2)
    for row in rows:
        print(row)
    save("central_table", {"model": options.model.name, "notes": notes, "rows": rows,
                           "clip": "8 frames of the benchmark clip's scene, 1080p, batch 1"},
         "CUDA kernel", "engine cudnn", "program", "CUDA program")  # fmt: skip


if __name__ == "__main__":
    main()
