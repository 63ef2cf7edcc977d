"""DeviceOutputs: the end of a captured batch: postprocessing on the GPU, and one copy of the results to the host.

Each belongs to one `CapturedBatch`. `start` only launches, so it is captured; the rest is not.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from framefuse.common.machine import available_cores
from framefuse.cuda import device, driver
from framefuse.cuda.launch_plan import Workspace
from framefuse.frame import Frame, View
from framefuse.kernels.boxes.call import detections
from framefuse.kernels.boxes.cuda import LOOK, Merged, count_non_finite, merge_views, place_cells
from framefuse.kernels.boxes.reference import Found, placed_oriented
from framefuse.kernels.masks import call as masks
from framefuse.kernels.masks.canvas import guides_of
from framefuse.kernels.masks.grids import Grid
from framefuse.kernels.masks.instances import Runs, packed_runs
from framefuse.kernels.masks.mattes import DeviceShare
from framefuse.models.card import Card
from framefuse.postprocess import BoxCheck, maps, raise_non_finite, scored
from framefuse.postprocess.decoders import strides_of_cells
from framefuse.postprocess.heads import Heads, classify, content_of, runs_of
from framefuse.postprocess.mattes import Foreground, cut_out, matte_of
from framefuse.postprocess.merge import edges
from framefuse.prediction import Detections, Masks
from framefuse.preprocess import Placement
from framefuse.runtime import memory
from framefuse.runtime.program import FrameOutput, Selection, boxes_of, decode, heads_of

GROWTH = 4
"""Times the room for the runs of a mask, or of all masks of a frame, once there are more; beside what was planned."""
FOUND = len(Found._fields)
"""Arrays of the results before those of `Merged`."""
MERGED = slice(FOUND, FOUND + len(Merged._fields))
"""Those of `Merged`; what anchors say after their classes comes last."""


class DeviceOutputs(Protocol):
    """Postprocessing of one captured batch."""

    uploaded_bytes: int = 0
    """Size of the tables that the last `place` has copied to the GPU."""
    downloaded_bytes: int
    """Size of the results that `start` copies to the host."""
    fetched_bytes: int = 0
    """Size of what the last `read` has copied to the host besides."""

    def place(self, placements: Sequence[Placement], frames: Sequence[Frame], stream: Any) -> None:
        """Set where the frames of the next launch on a CuPy stream lie in the model input."""

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        """Launch everything on a CuPy stream, which must be the current one."""

    def hand_over(self, stream: Any, frames: Sequence[Frame], kept: Sequence[Frame | None]) -> None:
        """Start copying the results of a launch that stay on the GPU before the next one overwrites them; by default
        nothing.

        Args:
            frames: of each row.
            kept: the first row of each frame that stays on the GPU has it as it is kept.
        """
        return None

    def grow(self) -> bool:
        """Whether there is more memory from now on, as the last results needed, so that `start` has to be captured
        again. Nothing is in flight."""
        return False

    def grown(self, *, fits: bool) -> None:
        """After `grow`, whether `start` was captured again; otherwise it is taken back for good."""
        return None

    def read(self, count: int) -> list[FrameOutput]:
        """Copies of the results of the first `count` frames, once the launch has ended.

        Raises:
            NonFiniteError: the model produced NaN or infinity for one of them.
        """


class BoxOutputs(DeviceOutputs):
    """Boxes: confidence filter, NMS, and coordinates in source pixels.

    Args:
        layout: layout of the outputs: the card's, or "yolov8_head".
        relative: the outputs are relative to the size of the model input.
        checked: makes detections of the boxes.
        merges: most views of a frame to merge: its rows are `joined`, and the first gets the objects of all; 0: none.
    """

    def __init__(
        self,
        batch: int,
        layout: str,
        relative: bool,
        card: Card,
        selection: Selection,
        checked: BoxCheck,
        placement: Placement,
        merges: int = 0,
    ) -> None:
        self._layout, self._relative, self._card, self._selection = layout, relative, card, selection
        self._checked = checked
        self._workspace, self._merging = Workspace(), Workspace()  # tens of megabytes at large batches
        self._merges, self._heads, self._placed = merges, heads_of(card, checked), placement
        self._masks = Workspace()
        self._before: tuple[Any, ...] = ()
        """The room for runs before it has grown, until a capture has succeeded."""
        self._prototypes: Any = None
        self._rows: list[tuple[Placement, View | None, int]] = []
        """What the tables hold."""
        self._joined: list[int] = []
        """First row of each frame that is merged."""
        tables = [((batch, 8), np.float32), ((batch if merges else 0, LOOK), np.int32)]
        (self._maps, self._looks), self._tables = device.packed_allocation(tables, _pinned_bytes)
        (self._device_maps, self._device_looks), self._device_tables = device.packed_allocation(tables, _device_bytes)
        self._looks[:] = -1  # no row is merged by the launches before a capture
        device.copy_to_device(self._tables, self._device_tables, None)
        shapes: list[Any] = []
        sides = 5 if card.task == "obb" else 4
        Found.make(batch, selection.max_det, lambda *shape: shapes.append(shape), sides)
        if merges:
            Merged.make(batch // merges, selection.max_det, lambda *shape: shapes.append(shape))
        if card.extra and card.task != "obb":
            shapes.append(((batch, selection.max_det, card.extra), np.float32))
        if card.task == "segment":
            shapes += [((batch, selection.max_det), np.int32), ((batch, memory.PACKED), np.int32)]
            self._capacity, more = memory.run_room(placement.source[0])
            self._rest = device.cupy().empty((batch, more), np.int32)
            self._short, self._grown = set[str](), set[str]()
            self._threads = ThreadPoolExecutor(available_cores(), "ff-masks")  # none starts before it is needed
        self._extras = FOUND + (len(Merged._fields) if merges else 0)
        self._device, self._device_bytes = device.packed_allocation(shapes, _device_bytes)
        self._host, self._host_bytes = device.packed_allocation(shapes, _pinned_bytes)
        self.downloaded_bytes = self._host_bytes.nbytes

    def place(self, placements: Sequence[Placement], frames: Sequence[Frame], stream: Any) -> None:
        rows = [(placement, frame.view, frame.joined) for placement, frame in zip(placements, frames, strict=True)]
        if rows == self._rows:  # as for most batches of a video: the GPU has the tables
            self.uploaded_bytes = 0
            return
        self._maps[: len(placements)] = maps(tuple(placements), self._relative)
        self._looks[:] = -1
        self._joined, row = [], 0
        while row < len(frames):
            for number, frame in enumerate(frames[row : row + frames[row].joined]):
                assert frame.view is not None
                sides = edges(frame.view, (frame.width, frame.height))
                self._looks[row + number] = *sides, len(self._joined), number, 0
            self._joined += [row] * bool(frames[row].joined)
            row += max(1, frames[row].joined)
        device.copy_to_device(self._tables, self._device_tables, stream.ptr)
        self._rows, self.uploaded_bytes = rows, self._tables.nbytes

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        found, oriented = Found(*self._device[:FOUND]), self._card.task == "obb"
        boxes = outputs[:1] if self._card.task == "segment" else outputs
        detections(
            boxes, self._layout, self._device_maps, **vars(self._selection), activation=self._card.activation,
            extra=self._card.extra, extras=self._device[self._extras] if self._heads and not oriented else None,
            oriented=oriented, out=found, workspace=self._workspace,
        )  # fmt: skip
        if self._card.task == "segment":
            self._prototypes = outputs[1]
            self._start_masks(found)
        if self._merges:
            merge_views(
                found, self._device_looks, self._merges, agnostic=self._selection.agnostic,
                out=Merged(*self._device[MERGED]), workspace=self._merging,
            )  # fmt: skip
        device.copy_to_host(self._device_bytes, self._host_bytes, stream.ptr)

    def _start_masks(self, found: Found) -> None:
        """The masks of all rows, which share the memory between."""
        place, (coefficients, counts, packed) = self._placed, self._device[self._extras :]
        content = content_of(self._prototypes.shape[1:], place)
        for row in range(len(found.counts)):
            packed_runs(
                self._prototypes[row], coefficients[row], found.boxes[row], place.source[::-1], content=content,
                count=found.counts[row : row + 1], capacity=self._capacity, packed=packed[row], rest=self._rest[row],
                counts=counts[row], workspace=self._masks,
            )  # fmt: skip

    def grow(self) -> bool:
        if self._card.task != "segment" or not (short := self._short - self._grown):
            return False
        self._before = self._capacity, self._rest, self._masks
        self._grown |= short
        cp, (batch, more) = device.cupy(), self._rest.shape
        if "frame" in short:
            try:
                self._rest = cp.empty((batch, GROWTH * more), np.int32)
            except cp.cuda.memory.OutOfMemoryError:
                return False
        if "mask" in short:
            self._capacity, self._masks = GROWTH * self._capacity, Workspace()
        return True

    def grown(self, *, fits: bool) -> None:
        if not fits:
            self._capacity, self._rest, self._masks = self._before
        self._before = ()

    def _masks_of(self, row: int, found: Found, values: Any) -> Runs:
        """The masks of a row: the runs that have left the GPU, and those that have to be fetched."""
        *_, counts, packed = self._host
        ends = np.zeros(len(values) + 1, np.int32)
        counts[row, : len(values)].cumsum(out=ends[1:])
        size, room = int(ends[-1]), packed.shape[1]
        if counts[row].max(initial=0) > self._capacity or size > room + self._rest.shape[1]:
            self._short.add("mask" if counts[row].max() > self._capacity else "frame")
            return self._found_here(row, values, found.boxes[row, : len(values)])
        lengths = packed[row, :size].copy()
        if size > room:
            lengths = np.concatenate((lengths, self._fetched(self._rest[row, : size - room])))
        return Runs(lengths, ends[:-1], ends[1:], self._placed.source[::-1])

    def _found_here(self, row: int, values: Any, boxes: Any) -> Runs:
        """The masks of a row that are noise, with more runs than the GPU keeps: they are found on the host."""
        prototypes = self._fetched(self._prototypes[row]).astype(np.float32)
        step = -(-len(values) // (2 * available_cores()))  # twice as many parts as threads: masks differ in size
        parts = [slice(first, first + step) for first in range(0, len(values), step)]
        found = self._threads.map(lambda part: runs_of(prototypes, values[part], boxes[part], self._placed), parts)
        return Runs.concatenate(list(found))

    def _fetched(self, array: Any) -> Any:
        """A copy on the host of what most frames leave on the GPU."""
        self.fetched_bytes += array.nbytes
        return device.cupy().asnumpy(array)

    def read(self, count: int) -> list[FrameOutput]:
        self.fetched_bytes = 0
        boxes, scores, classes, counts, non_finite, _ = self._host[:FOUND]
        raise_non_finite(non_finite[:count], "of its anchors or queries")
        if self._heads:
            return self._with_heads(self._heads, Found(*(part[:count].copy() for part in self._host[:FOUND])))
        if self._joined:  # the objects of merged rows are those of the first row of the frame
            counts[:count][self._looks[:count, LOOK - 3] >= 0] = 0
        found = self._checked(boxes[:count], scores[:count], classes[:count], counts[:count])
        for row, *columns, size in zip(self._joined, *self._host[MERGED], strict=False):
            *columns, views = (column[:size] for column in columns)
            found[row] = self._checked.one(*columns, view=views.astype(np.int64))
        return [FrameOutput(objects) for objects in found]

    def _with_heads(self, heads: Heads, found: Found) -> list[FrameOutput]:
        """The results with what the anchors say after the classes."""
        results = []
        for row, ((place, _, _), many) in enumerate(zip(self._rows, found.counts.tolist(), strict=False)):
            if self._card.task == "obb":
                found.boxes[row, :many] = placed_oriented(found.boxes[row, :many], self._maps[row])
                values = found.boxes[row, :many, 4:]
            else:
                values = self._host[self._extras][row, :many].copy()
            runs = self._masks_of(row, found, values) if self._card.task == "segment" else None
            results.append(FrameOutput(heads.objects(found, row, values, (), place, self._maps[row], runs)))
        return results


class CellOutputs(BoxOutputs):
    """Boxes that a network states in cells (layout yolox).

    Args:
        output: of the model, (batch, anchors, 5 + classes).

    Raises:
        CardError: there is no anchor for each cell of the usual strides.
    """

    def __init__(self, output: Any, card: Card, selection: Selection, checked: BoxCheck, placement: Placement) -> None:
        super().__init__(len(output), "yolov5", False, card, selection, checked, placement)
        self._size = placement.size[::-1]
        strides_of_cells(output.shape[1], self._size)
        self._boxes = device.cupy().empty(tuple(output.shape), np.float32)

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        place_cells(outputs[0], self._boxes, self._size, self._selection.conf, stream=stream.ptr)
        super().start([self._boxes], stream)


class Finite:
    """Counts the scores of each row of a batch that are NaN or infinite."""

    def __init__(self, batch: int) -> None:
        self._counts, self._host = device.cupy().zeros((batch,), np.int32), device.pinned((batch,), np.int32)
        self.nbytes = self._host.nbytes

    def start(self, scores: Any, stream: Any) -> None:
        """Launch on a CuPy stream."""
        self._counts.data.memset_async(0, self._counts.nbytes, stream)
        count_non_finite(scores, self._counts, stream=stream.ptr)
        device.copy_to_host(self._counts, self._host, stream.ptr)

    def check(self, count: int) -> None:
        """Raise NonFiniteError if one of the first rows has some, once the launch has ended."""
        raise_non_finite(self._host[:count], "of its scores")


class MaskOutputs(DeviceOutputs):
    """The class of every pixel of what the model saw.

    All frames, or their views, have the size that the graph is captured for.

    Args:
        shape: classes, height and width of the model's scores.
        placement: where every frame, or its view, lies in the model input.

    Raises:
        CardError: the scores have another aspect ratio than the model input.
    """

    def __init__(self, batch: int, shape: tuple[int, int, int], placement: Placement, card: Card) -> None:
        self._card, self._placed = card, _place_of(placement)
        self._content = scored(shape, placement)
        self._size = placement.shown[1], placement.shown[0]
        self._labels = device.cupy().empty((batch, *self._size), np.uint8)
        self._rows = list(self._labels)
        self._finite = Finite(batch)
        self._copied: Any = None
        self._handed: list[Any] = []
        """For each row of a launch, memory that its result keeps; None: the row of `_copied`."""

    def place(self, placements: Sequence[Placement], frames: Sequence[Frame], stream: Any) -> None:
        assert all(_place_of(placement) == self._placed for placement in placements)

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        (scores,) = outputs
        self._finite.start(scores, stream)
        masks.classes(scores, self._size, content=self._content, out=self._labels)

    def hand_over(self, stream: Any, frames: Sequence[Frame], kept: Sequence[Frame | None]) -> None:
        """Also of those that go to the host, where a copy of two megabytes takes as long as all of the kernels."""
        self._handed = [device.lent(self._size, np.uint8) for _ in frames]
        if self._copied is None and any(lent is None for lent in self._handed):
            self._copied = device.pinned(self._labels.shape, np.uint8)
        self.downloaded_bytes = self._finite.nbytes + len(frames) * self._rows[0].nbytes
        for row, lent in enumerate(self._handed):
            device.copy_to_host(self._rows[row], self._copied[row] if lent is None else lent, stream.ptr)

    def read(self, count: int) -> list[FrameOutput]:
        self._finite.check(count)
        handed, self._handed = self._handed, []
        labels = [self._copied[row].copy() if lent is None else lent for row, lent in enumerate(handed[:count])]
        return [FrameOutput(Detections.none(self._card.names), Masks(one, self._card.names)) for one in labels]


class ClassOutputs(DeviceOutputs):
    """The scores of the classes of each image, which the host ranks.

    Args:
        scores: of the model, (batch, classes) or (batch, classes, 1, 1).
    """

    def __init__(self, scores: Any, card: Card) -> None:
        self._card, self._host = card, device.pinned(tuple(scores.shape), np.dtype(scores.dtype.name))
        self.downloaded_bytes = self._host.nbytes

    def place(self, placements: Sequence[Placement], frames: Sequence[Frame], stream: Any) -> None:
        """Nothing to do: a class is one of the whole frame."""

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        device.copy_to_host(outputs[0], self._host, stream.ptr)

    def read(self, count: int) -> list[FrameOutput]:
        names = self._card.names
        classes = classify(self._host[:count], names, self._card.activation)
        return [FrameOutput(Detections.none(names), None, one) for one in classes]


class UndecodedOutputs(DeviceOutputs):
    """Outputs of a network that leaves their decoding to others, which the host decodes."""

    def __init__(self, outputs: Sequence[Any], card: Card, selection: Selection, checked: BoxCheck) -> None:
        self._card, self._selection, self._checked = card, selection, checked
        self._heads = heads_of(card, checked)
        self._host = [device.pinned(tuple(output.shape), np.dtype(output.dtype.name)) for output in outputs]
        self.downloaded_bytes = sum(array.nbytes for array in self._host)
        self._placements: list[Placement] = []

    def place(self, placements: Sequence[Placement], frames: Sequence[Frame], stream: Any) -> None:
        self._placements = list(placements)

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        for output, array in zip(outputs, self._host, strict=True):
            device.copy_to_host(output, array, stream.ptr)

    def read(self, count: int) -> list[FrameOutput]:
        outputs = tuple(np.asarray(array[:count], np.float32) for array in self._host)
        decoded = decode(outputs, self._placements, self._card, self._selection)
        given = self._placements[:count], self._card, self._selection, self._checked, self._heads
        return [FrameOutput(objects) for objects in boxes_of(decoded, "yolov5", *given)]


class MatteOutputs(DeviceOutputs):
    """The mattes of the images at the resolution of the model.

    Args:
        scores: of the model, (batch, classes, h, w).
        placement: where every frame, or its view, lies in the model input.
        classes: see `Foreground`.
        stay: mattes stay on the GPU, each launch's in memory of its own (`hand_over`).
    """

    def __init__(self, scores: Any, card: Card, placement: Placement, classes: Sequence[int], *, stay: bool) -> None:
        self._card, self._placement, self._stay = card, placement, stay
        shape = tuple(scores.shape)
        self._share = DeviceShare(shape, Foreground(card.names, classes).wanted(shape[1]))
        self._cut = cut_out(shape[1:], placement)
        size = shape[2:] if self._cut is None else self._cut[1]
        self._alpha = self._share.alpha if self._cut is None else device.cupy().empty((shape[0], *size), np.float32)
        self._handed: Any = None
        self._guides: list[Any] = []
        self._finite = Finite(shape[0])
        self._host = device.pinned((0 if stay else shape[0], *size), np.float32)
        self.downloaded_bytes = self._finite.nbytes + self._host.nbytes

    def place(self, placements: Sequence[Placement], frames: Sequence[Frame], stream: Any) -> None:
        assert all(_place_of(placement) == _place_of(self._placement) for placement in placements)
        if self._stay:
            with stream:
                self._handed = device.cupy().empty(self._alpha.shape, np.float32)

    def start(self, outputs: Sequence[Any], stream: Any) -> None:
        (scores,) = outputs
        self._finite.start(scores, stream)
        self._share(scores)
        if self._cut is not None:
            masks.upsample(self._share.alpha, self._cut[1], content=self._cut[0], out=self._alpha)
        if not self._stay:
            device.copy_to_host(self._alpha, self._host, stream.ptr)

    def hand_over(self, stream: Any, frames: Sequence[Frame], kept: Sequence[Frame | None]) -> None:
        """Also start shrinking the luma that guides those of kept frames: the host does it now rather than when
        somebody waits."""
        if not self._stay:
            return
        shape = self._alpha.shape[1:]
        with stream, suppress(device.cupy().cuda.memory.OutOfMemoryError):  # then somebody waits
            driver.copy(self._handed.data.ptr, self._alpha.data.ptr, self._alpha.nbytes, stream)
            self._guides = [None] * len(frames)
            rows = {row: frame for row, frame in enumerate(kept) if frame is not None}
            views = {row: [Grid(_region_of(view), shape) for view in frames[row:] if view.planes is frames[row].planes]
                     for row in rows}  # fmt: skip
            for grids, some in groupby(rows, views.__getitem__):
                same = list(some)
                for row, guides in zip(same, guides_of([rows[row] for row in same], grids), strict=True):
                    self._guides[row : row + len(guides)] = guides

    def read(self, count: int) -> list[FrameOutput]:
        self._finite.check(count)
        if not self._stay:
            alphas, guides = self._host.copy(), [None] * count
        else:
            alphas, guides = self._handed, self._guides
            self._handed, self._guides = None, []
        names = self._card.names
        return [
            FrameOutput(Detections.none(names), matte=matte_of(alphas[row], self._placement, guides[row]))
            for row in range(count)
        ]


def _region_of(frame: Frame) -> tuple[int, int, int, int]:
    """What a row shows of its frame."""
    return (frame.view and frame.view.region) or (0, 0, frame.width, frame.height)


def _pinned_bytes(size: int) -> Any:
    return device.pinned((size,), np.uint8)


def _device_bytes(size: int) -> Any:
    return device.cupy().zeros(size, np.uint8)


def _place_of(placement: Placement) -> tuple[tuple[int, int], ...]:
    """What has to be the same for two views, wherever they lie in their frames."""
    return placement.shown, placement.size, placement.content[:2], placement.content[2:]
