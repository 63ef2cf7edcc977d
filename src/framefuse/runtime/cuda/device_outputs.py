"""The end of a captured batch: from the model's results on the GPU to what is found, in one copy to pinned memory.

A DeviceOutputs belongs to one `CapturedBatch`. `upload` and `start` only launch, so they are captured; `place` and
`read` are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from framefuse.cuda import device, kernel
from framefuse.cuda.pools import packed_allocation
from framefuse.cuda.workspace import Workspace
from framefuse.errors import CardError, NonFiniteError
from framefuse.kernels.boxes.call import detections
from framefuse.kernels.boxes.reference import Found
from framefuse.kernels.masks import call as masks
from framefuse.kernels.masks import cuda as masks_cuda
from framefuse.models.card import Card
from framefuse.postprocess import maps
from framefuse.prediction import Detections, Masks
from framefuse.preprocess import Placement
from framefuse.runtime.program import Selection

Answer = tuple[Detections, Masks | None]


class DeviceOutputs(Protocol):
    """Post-processing of one captured batch."""

    sent: int
    """Bytes of tables that `upload` copies to the GPU."""
    fetched: int
    """Bytes that `start` copies from it."""

    def place(self, placements: Sequence[Placement]) -> None:
        """Where the pictures of the next launch lie in the model input."""

    def upload(self, stream: Any) -> None:
        """Start to copy what `place` wrote."""

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        """Launch everything on a stream of CuPy, which is the current one."""

    def read(self, count: int) -> list[Answer]:
        """What was found in each of `count` pictures, once the launch has ended; copies of it.

        Raises:
            NonFiniteError: the model put out NaN or infinity for one of them.
        """


class BoxOutputs:
    """Boxes: filter, suppression and places in source pixels.

    Args:
        layout: of the outputs; what the card says, or "yolov8_head".
    """

    def __init__(self, batch: int, layout: str, relative: bool, card: Card, selection: Selection) -> None:
        self._layout, self._relative, self._card, self._selection = layout, relative, card, selection
        self._workspace = Workspace()  # of tens of megabytes at large batches: it goes with the graph
        cp = device.cupy()
        self._maps = device.pinned((batch, 8), np.float32)
        self._maps_there = cp.zeros((batch, 8), np.float32)
        count = selection.max_det
        shapes = [((batch, count, 4), np.float32), ((batch, count), np.float32), ((batch, count), np.int32),
                  ((batch,), np.int32), ((batch,), np.int32)]  # fmt: skip
        self._there, self._memory = packed_allocation(shapes, lambda size: cp.zeros(size, np.uint8))
        self._here, self._home = packed_allocation(shapes, lambda size: device.pinned((size,), np.uint8))
        self.sent, self.fetched = self._maps.nbytes, self._home.nbytes

    def place(self, placements: Sequence[Placement]) -> None:
        self._maps[: len(placements)] = maps(tuple(placements), self._relative)

    def upload(self, stream: Any) -> None:
        runtime = device.cupy().cuda.runtime  # CuPy's own copies refuse a stream that is being captured
        runtime.memcpyAsync(self._maps_there.data.ptr, self._maps.ctypes.data, self._maps.nbytes,
                            runtime.memcpyHostToDevice, stream.ptr)  # fmt: skip

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        selection = self._selection
        detections(
            outputs, self._layout, self._maps_there, conf=selection.conf, iou=selection.iou,
            max_det=selection.max_det, classes=selection.classes, agnostic=selection.agnostic,
            activation=self._card.activation, out=Found(*self._there), workspace=self._workspace,
        )  # fmt: skip
        _fetch(self._home, self._memory, stream)

    def read(self, count: int) -> list[Answer]:
        boxes, scores, classes, counts, non_finite = self._here
        _check_finite(non_finite, count, "of its anchors or queries")
        return [
            (
                Detections(
                    boxes[row, : counts[row]].copy(),
                    scores[row, : counts[row]].copy(),
                    classes[row, : counts[row]].astype(np.int64),
                    self._card.names,
                ),
                None,
            )
            for row in range(count)
        ]


class MaskOutputs:
    """The class of every pixel, in source pixels: scores stretched over the picture, then the best class.

    All pictures of a batch have one size, for which the graph is captured.

    Args:
        shape: classes, height and width of the model's scores.
        placement: where every picture lies in the model input.

    Raises:
        CardError: the scores are not the same part of the input's sides.
    """

    sent = 0

    def __init__(self, batch: int, shape: tuple[int, int, int], placement: Placement, card: Card) -> None:
        cp = device.cupy()
        classes, height, width = shape
        wide, high = placement.size
        if height * wide != width * high:
            raise CardError(
                f"the model put out {width}x{height} scores for an input of {wide}x{high}",
                remedy="export it with scores at the size of the input, or at 1/2, 1/4, ... of it",
            )
        self._card, self._placement, self._batch = card, placement, batch
        left, top, across, down = (side * width / wide for side in placement.content)
        self._content = left, top, across, down
        self._size = placement.source[1], placement.source[0]
        # A captured graph reads them: they must outlive the cache that they come from.
        self._taps = masks_cuda.device_taps(self._size, self._content, (height, width))
        self._stretched = cp.empty((1, classes, *self._size), np.float32)
        shapes = [((batch, *self._size), np.uint8), ((batch,), np.int32)]
        (self._labels, self._bad), self._memory = packed_allocation(shapes, lambda size: cp.zeros(size, np.uint8))
        self._here, self._home = packed_allocation(shapes, lambda size: device.pinned((size,), np.uint8))
        self.fetched = self._home.nbytes

    def place(self, placements: Sequence[Placement]) -> None:
        assert all(placement == self._placement for placement in placements)

    def upload(self, stream: Any) -> None:
        """There is nothing: the graph is made for its place."""

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        (scores,) = outputs
        self._bad.data.memset_async(0, self._bad.nbytes, stream)
        values = scores[0].size
        kernel.launch("count_non_finite_f32", stream=stream.ptr, values=scores, image_pitch=values,
                    n=self._batch, size=values, counts=self._bad)  # fmt: skip
        for slot in range(self._batch):
            masks.upsample(scores[slot], self._size, content=self._content, out=self._stretched[0])
            masks.argmax(self._stretched, out=self._labels[slot : slot + 1])
        _fetch(self._home, self._memory, stream)

    def read(self, count: int) -> list[Answer]:
        labels, bad = self._here
        _check_finite(bad, count, "of its scores")
        names = self._card.names
        return [(Detections.none(names), Masks(labels[row].copy(), names)) for row in range(count)]


def _fetch(here: Any, there: Any, stream: Any) -> None:
    runtime = device.cupy().cuda.runtime
    runtime.memcpyAsync(here.ctypes.data, there.data.ptr, here.nbytes, runtime.memcpyDeviceToHost, stream.ptr)


def _check_finite(counts: Any, shown: int, of_what: str) -> None:
    bad = np.flatnonzero(counts[:shown])
    if len(bad):
        raise NonFiniteError(
            f"the model put out NaN or infinity in {counts[bad[0]]} {of_what} for frame {bad[0]} of a batch of {shown}",
            remedy="run it with --precision fp32; if they are still there, the model file is damaged",
        )
