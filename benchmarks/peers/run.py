"""One way to run a video through a detector, in a process of its own; prints one line of JSON.

    python -m benchmarks.peers.run PEER --clip CLIP --model MODEL --frames N

Measured is the steady state: the clock starts when the result of frame WARMUP reaches the caller and stops at the
result of frame WARMUP + N. Import, opening, model compilation and the first frames are therefore outside, and a peer
that works ahead in threads has its pipeline full at both ends, so that nothing is counted twice or given away.

    fps                N / wall time
    cpu_ms_per_frame   processor time of all threads of the process / N: what a second camera would have to share
    peak_rss_mb        the most memory the process has held, imports included
    boxes_per_frame    so that nobody is fast by finding nothing

Every peer asks for confidence 0.25, IoU 0.7 and at most 300 boxes. The peers live in an environment of their own
(env.sh), so each function imports what it needs itself.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.heads import task_of
from benchmarks.protocol import package_versions

Selected = tuple[Any, Any, Any]
"""Boxes (n, 4), scores (n,) and classes (n,)."""

CONFIDENCE, IOU, MAX_BOXES, SIZE = 0.25, 0.7, 300, 640
WARMUP = 20


@dataclass
class Meter:
    """Counts results and holds the clock."""

    frames: int
    seen: int = 0
    boxes: int = 0
    start: tuple[float, float] = (0.0, 0.0)
    stop: tuple[float, float] = field(default=(0.0, 0.0))

    def tick(self, boxes: int) -> bool:
        """Takes the result of the next frame; true when enough frames were measured."""
        self.seen += 1
        if self.seen == WARMUP:
            self.start = (time.perf_counter(), time.process_time())
        elif WARMUP < self.seen <= WARMUP + self.frames:
            self.boxes += boxes
        if self.seen == WARMUP + self.frames:
            self.stop = (time.perf_counter(), time.process_time())
        return self.seen >= WARMUP + self.frames

    def report(self) -> dict[str, Any]:
        """The four figures of the module's docstring."""
        if self.seen < WARMUP + self.frames:
            raise RuntimeError(f"the clip ended after {self.seen} of {WARMUP + self.frames} frames")
        wall, cpu = (stop - start for start, stop in zip(self.start, self.stop, strict=True))
        return {
            "frames": self.frames,
            "fps": round(self.frames / wall, 2),
            "cpu_ms_per_frame": round(cpu / self.frames * 1e3, 2),
            "peak_rss_mb": peak_rss_bytes() // 2**20,
            "boxes_per_frame": round(self.boxes / self.frames, 1),
        }


def peak_rss_bytes() -> int:
    """The most memory this process has held.

    Not `ru_maxrss`: Linux carries that over from the process that started this one, so that under a big parent every
    peer would seem as big.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


# ultralytics: whatever the model file is, the call is the one of its documentation.


def ultralytics(clip: Path, model: Path, meter: Meter) -> None:
    """`YOLO(model).predict(clip, stream=True)`."""
    _ultralytics(clip, model, meter)


def ultralytics_save(clip: Path, model: Path, meter: Meter) -> None:
    """`YOLO(model).predict(clip, stream=True, save=True)`: writes the annotated video."""
    with tempfile.TemporaryDirectory() as folder:
        _ultralytics(clip, model, meter, save=True, project=folder, name="run")


def _ultralytics(clip: Path, model: Path, meter: Meter, **options: Any) -> None:
    os.environ.update(YOLO_AUTOINSTALL="false", YOLO_OFFLINE="true", YOLO_VERBOSE="false")
    from ultralytics import YOLO

    network = YOLO(model, task=task_of(model.stem))
    results = network.predict(clip, stream=True, imgsz=SIZE, verbose=False, device="cpu", **{"save": False, **options})
    for result in results:
        if meter.tick(len(result)):
            break
    results.close()


# The script that everybody writes: OpenCV reads and resizes, ONNX Runtime infers, NumPy and OpenCV filter.


def opencv_ort_script(clip: Path, model: Path, meter: Meter) -> None:
    """The script as a careful author tunes it: blobFromImage, vectorised filter, batched NMS."""
    import cv2

    detect = _detector(model)
    capture = cv2.VideoCapture(str(clip))
    while True:
        more, frame = capture.read()
        if not more or meter.tick(len(detect(frame)[0])):
            break
    capture.release()


def _detector(model: Path) -> Callable[[np.ndarray], Selected]:
    """A function from a BGR frame to its boxes (x1 y1 x2 y2 in frame pixels), scores and classes.

    The frame is stretched to 640x640, not letterboxed: that is what blobFromImage does and what such scripts do.
    """
    import cv2
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def detect(frame: np.ndarray) -> Selected:
        blob = cv2.dnn.blobFromImage(frame, 1 / 255, (SIZE, SIZE), swapRB=True)
        xywh, scores, classes = select_vectorised(session.run(None, {"images": blob})[0])
        xywh = np.asarray(xywh, np.float32).reshape(-1, 4)
        height, width = frame.shape[:2]
        xyxy = np.hstack([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]]) * np.array([width, height] * 2, np.float32) / SIZE
        return xyxy, scores, classes

    return detect


def select_vectorised(output: np.ndarray) -> Selected:
    """(1, 4 + classes, anchors) -> kept boxes (left, top, width, height), scores, classes."""
    import cv2

    best = output[0, 4:].max(axis=0)
    rows = output[0][:, best > CONFIDENCE].T
    scores, classes = best[best > CONFIDENCE], rows[:, 4:].argmax(axis=1)
    boxes = rows[:, :4].copy()
    boxes[:, :2] -= boxes[:, 2:] / 2
    keep = np.asarray(cv2.dnn.NMSBoxesBatched(boxes, scores, classes, CONFIDENCE, IOU), int).ravel()[:MAX_BOXES]
    return boxes[keep], scores[keep], classes[keep]


def supervision_video(clip: Path, model: Path, meter: Meter) -> None:
    """`supervision.process_video` with box and label annotators over the tuned script: writes the annotated video."""
    import supervision

    detect = _detector(model)
    boxes, labels = supervision.BoxAnnotator(), supervision.LabelAnnotator()

    def annotate(frame: np.ndarray, index: int) -> np.ndarray:
        xyxy, scores, classes = detect(frame)
        found = supervision.Detections(xyxy=xyxy, confidence=scores, class_id=classes.astype(int))
        image = labels.annotate(boxes.annotate(frame.copy(), found), found)
        meter.tick(len(found))
        return np.asarray(image)

    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "annotated.mp4")
        supervision.process_video(str(clip), target, annotate, max_frames=WARMUP + meter.frames)


def framefuse(clip: Path, model: Path, meter: Meter) -> None:
    """`framefuse.Pipeline(clip, model)` with its defaults."""
    _framefuse(clip, model, meter)


def framefuse_fp32(clip: Path, model: Path, meter: Meter) -> None:
    """`framefuse.Pipeline(clip, model, precision="fp32")`."""
    _framefuse(clip, model, meter, precision="fp32")


def framefuse_bf16(clip: Path, model: Path, meter: Meter) -> None:
    """`framefuse.Pipeline(clip, model, precision="bf16")`, the default of CPUs that multiply it natively."""
    _framefuse(clip, model, meter, precision="bf16")


def framefuse_save(clip: Path, model: Path, meter: Meter) -> None:
    """`framefuse.Pipeline(clip, model, save=True)`: writes the annotated video."""
    with tempfile.TemporaryDirectory() as folder:
        _framefuse(clip, model, meter, save=True, project=Path(folder), name="run")


def _framefuse(clip: Path, model: Path, meter: Meter, **options: Any) -> None:
    from framefuse import Pipeline

    with Pipeline(clip, model, **options) as pipeline:
        for result in pipeline:
            if meter.tick(len(result.detections)):
                break


@dataclass(frozen=True)
class Peer:
    """A row of the comparison."""

    run: Callable[[Path, Path, Meter], None]
    model: str
    """Which file it gets: static (ONNX 640x640), dynamic (ONNX), int8 (what `framefuse build` made of that, or what
    ships), openvino or openvino_int8 (folders)."""
    of: str = "usual"
    """Which comparison: usual, save (writes an annotated video) or trained (a shipped model of known accuracy)."""
    ours: bool = False
    """Runs in framefuse's environment rather than in that of the peers."""


PEERS = {
    "ultralytics_onnx": Peer(ultralytics, "static"),
    "ultralytics_onnx_dynamic": Peer(ultralytics, "dynamic"),
    "ultralytics_openvino": Peer(ultralytics, "openvino"),
    "ultralytics_openvino_int8": Peer(ultralytics, "openvino_int8"),
    "opencv_ort_script": Peer(opencv_ort_script, "static"),
    "framefuse": Peer(framefuse, "dynamic", ours=True),
    "framefuse_int8": Peer(framefuse, "int8", ours=True),
    "trained_ultralytics_openvino": Peer(ultralytics, "openvino", of="trained"),
    "trained_opencv_ort_script": Peer(opencv_ort_script, "dynamic", of="trained"),
    "trained_fp32": Peer(framefuse_fp32, "dynamic", of="trained", ours=True),
    "trained_bf16": Peer(framefuse_bf16, "dynamic", of="trained", ours=True),
    "trained_int8": Peer(framefuse, "int8", of="trained", ours=True),
    "ultralytics_save": Peer(ultralytics_save, "static", of="save"),
    "ultralytics_openvino_save": Peer(ultralytics_save, "openvino", of="save"),
    "supervision_video": Peer(supervision_video, "static", of="save"),
    "framefuse_save": Peer(framefuse_save, "dynamic", of="save", ours=True),
}


def main() -> None:
    """Runs one peer and prints its report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--clip", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=150)
    options = parser.parse_args()
    meter = Meter(options.frames)
    PEERS[options.peer].run(options.clip, options.model, meter)
    print(json.dumps({"peer": options.peer, **meter.report(), "packages": package_versions()}))
    sys.stdout.flush()
    os._exit(0)  # the libraries' threads do not all end when their main thread does


if __name__ == "__main__":
    main()
