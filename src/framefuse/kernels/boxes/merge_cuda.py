"""Merging the boxes of views on CUDA: `postprocess.merge` on what a batch of `detections` has left on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from framefuse.cuda import device, kernel
from framefuse.cuda.launch_plan import Workspace
from framefuse.kernels.boxes import cuda
from framefuse.kernels.boxes.reference import Found

BLOCKS = 64
"""Blocks that write the objects of a frame, 8 at a time each."""
LEAST = 2.0**-40
"""Where the ranks of boxes that an edge cuts end, which is to share out work evenly and nothing else."""
LOOK = 8
"""Integers that describe the view of a row of the batch: `Look` in merge.cu."""


class Merged(NamedTuple):
    """Objects of frames, padded to K = max_det rows; rows at and beyond counts[b] are undefined."""

    boxes: Any
    """(frames, K, 4) float32: x1, y1, x2, y2 in pixels."""
    scores: Any
    """(frames, K) float32, descending."""
    classes: Any
    """(frames, K) int32."""
    views: Any
    """(frames, K) int32: number of the view in which each was found."""
    counts: Any
    """(frames,) int32."""

    @classmethod
    def make(cls, frames: int, max_det: int, new: Callable[..., Any]) -> Merged:
        """Arrays made by `new(shape, dtype)`."""
        rows = (frames, max_det)
        return cls(
            new((*rows, 4), np.float32),
            new(rows, np.float32),
            new(rows, np.int32),
            new(rows, np.int32),
            new((frames,), np.int32),
        )


def merge_views(
    found: Found, looks: Any, views: int, *, agnostic: bool, out: Merged, workspace: Workspace | None = None
) -> None:
    """Join the objects of each frame's views, on CuPy's current device and stream. Reads nothing back.

    Args:
        found: objects of the rows of a batch, in pixels of their frame.
        looks: (batch, LOOK) int32 on the GPU: left, top, right and bottom of the row's view in pixels of the frame; the
            sides that lie inside the frame (1 left, 2 top, 4 right, 8 bottom); the frame's number in `out`, -1: the row
            is not merged; the number of the view in its frame; 0. Views of a frame are neighbours, in order from 0.
        views: most views that a frame has.
        agnostic: whether boxes of different classes may be one object.
        out: the objects of each frame, on the GPU.
    """
    (batch, detections), frames = found.scores.shape, len(out.counts)
    room, stream = views * detections, device.current_stream()
    work = cuda._scratch(workspace, device.current_gpu(), stream, frames, room, room, room, True, 8)
    workspace = workspace or Workspace()
    kept = workspace.get("views_kept", (frames, room), np.int32)
    counts = workspace.get("views_counts", (frames,), np.int32)
    verdicts = workspace.get("views_verdicts", (batch, detections), np.int32)
    grown = workspace.get("views_grown", (frames, room, 4), np.float32)
    scores = workspace.get("views_scores", (frames, room), np.float32)
    labels = {"looks": looks, "found_classes": found.classes, "batch": batch, "detections": detections}
    rows = {"found_boxes": found.boxes, "found_scores": found.scores, "found_counts": found.counts}
    rows |= labels | {"verdicts": verdicts, "agnostic": int(agnostic)}
    boxes = {"kept": kept, "kept_counts": counts, "grown": grown, "grown_scores": scores, "room": room}
    boxes |= {"blocks": BLOCKS, "images": frames}
    candidates = cuda._candidates(work, frames, room)
    kernel.launch("gather_views", stream=stream, **candidates | rows)
    results = {"maps": 0, "out_boxes": 0, "out_scores": 0, "out_classes": kept, "out_counts": counts}
    results |= {"out_non_finite": 0, "indices": 1}
    cuda._select(work, frames, room, room, room, LEAST, 0.5, agnostic, True, results, stream, "_views")
    kernel.launch("grow_views", stream=stream, **rows, **boxes)
    written = {f"out_{name}": array for name, array in out._asdict().items()}
    kernel.launch("order_views", stream=stream, **labels, **boxes, **written)
