"""COCO JSON: images, annotations, categories in one file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.errors import SinkError
from framefuse.frame import Frame
from framefuse.kernels.masks.instances import mask_runs
from framefuse.prediction import Masks, Result
from framefuse.sinks import SinkContext
from framefuse.sinks._base import BaseSink, tracks_of
from framefuse.sinks._lines import RecordFile, encode, is_json, make_durable, part_of, sink_errors
from framefuse.sinks.draw import UNTINTED

CHUNK = 1 << 20
TAIL = 64 << 20
"""Bytes in which the last row of a file begins; a row is a few hundred bytes, a mask up to a few megabytes."""
BEGINNING = b'{"categories": ['
ANNOTATIONS, IMAGES, IMAGES_PART = b'],\n"annotations": [', b'],\n"images": [', ".images.part"
FIRST = 1
"""Category id of class 0, as in COCO itself: CVAT takes the id 0 for an object without a label and refuses the file."""
RESERVE = 8192
"""Bytes reserved for the end of the JSON, in case the disk is full by then."""


class CocoSink(BaseSink):
    """Writes <stem>.json with COCO annotations, each with a `score`, and the `track_id`
    of a tracked object. Category ids are the model's class ids plus FIRST.
    From a semantic segmenter, each class in a frame (except background) is one annotation with a run-length
    `segmentation`; of a box it is empty, since labelling tools require the key.

    Memory does not grow with the number of frames: annotations are written immediately, and image rows to a second file
    that `close` appends. Until then the two are named <stem>.json.part and <stem>.images.part, from which `framefuse
    repair` makes the file after a kill. On a full disk, only the rows that did not fit are lost.
    """

    name = "coco"

    _image_count = _annotation_count = 0
    _open = False

    def open(self, context: SinkContext) -> None:
        super().open(context)
        path = context.output(f"{context.stem}.json")
        categories = [{"id": number + FIRST, "name": name} for number, name in sorted(context.names.items())]
        self._images = RecordFile(context.output(f"{context.stem}{IMAGES_PART}"))
        try:
            self._images.append(b" " * RESERVE)
            self._main = RecordFile(part_of(path))
            self._main.append(BEGINNING + _rows(categories) + ANNOTATIONS)
        except SinkError:
            self._images.discard()
            raise
        self.paths.append(path)
        self._open = True

    def write(self, result: Result, frame: Frame | None) -> None:
        info, found = result.frame, result.detections
        image_id = self._image_count + 1
        still = self._context.source.kind == "images"
        name = self._context.relative(info.source_id) if still else f"{self._context.stem}_{info.index}.jpg"
        image = {"id": image_id, "file_name": name, "width": info.width, "height": info.height}
        image |= {"frame": info.index, "seconds": info.seconds} | ({} if result.inferred else {"inferred": False})
        # The image first: an image without its annotations is valid COCO, an annotation without its image is not.
        self._images.append((b",\n" if self._image_count else b"") + _rows([image]))
        self._image_count += 1
        rows = [] if result.masks is None else _outlines(result.masks, image_id)
        for row, track in zip(found.to_coco(image_id), tracks_of(found), strict=True):
            _, _, width, height = row["bbox"]
            row["category_id"] += FIRST
            row |= {"area": round(width * height, 3), "segmentation": [], "iscrowd": 0}
            rows.append(row if track is None else {**row, "track_id": track})
        if rows:
            numbered = [{"id": number, **row} for number, row in enumerate(rows, self._annotation_count + 1)]
            self._main.append((b",\n" if self._annotation_count else b"") + _rows(numbered))
            self._annotation_count += len(rows)

    def close(self) -> None:
        was_open, self._open = self._open, False
        if was_open:
            join(self._main, self._images, self.paths[0])


def join(main: RecordFile, images: RecordFile, path: Path) -> None:
    """Append the rows of the images to the annotations, and give the file its name. SinkError: it cannot be written."""
    end = main.size
    try:
        with sink_errors(path):
            try:
                main.append(IMAGES)
                for start in range(RESERVE, images.size, CHUNK):
                    main.append(images.read(start, CHUNK))
                main.append(b"]}\n")
            except SinkError:
                # The disk is full: empty the second file first, to make room for its rows here.
                rows = images.read(RESERVE)
                images.truncate(0)
                main.truncate(end)
                main.append(IMAGES + rows + b"]}\n")
            main.close()
            main.path.replace(path)
            make_durable(path)
            images.discard()
    finally:
        main.close()
        images.close()


def is_part(path: Path) -> bool:
    """Whether this is the unfinished file of a run of framefuse."""
    with path.open("rb") as file:
        return file.read(len(BEGINNING)) == BEGINNING


def repair(path: Path) -> int:
    """Make <stem>.json of <stem>.json.part and <stem>.images.part, which a killed run left; the number of its images.

    SinkError: one of the two is missing, cannot be read or written, or ends before its first row.
    """
    target = path.with_suffix("")
    with ExitStack() as opened:
        main = RecordFile(path, resume=True)
        opened.callback(main.close)
        images = RecordFile(target.with_name(target.stem + IMAGES_PART), resume=True)
        opened.callback(images.close)
        header = main.read(0, TAIL).find(ANNOTATIONS)
        if header < 0 or images.size < RESERVE:
            raise SinkError(f"{path} ends before its first frame", remedy="delete it, and run again")
        tail = max(main.size - TAIL, 0)
        before, found, rest = main.read(tail).rpartition(IMAGES)
        main.truncate(tail + len(before if found else rest))
        _cut_to_rows(main, header + len(ANNOTATIONS))
        _cut_to_rows(images, RESERVE)
        rows = sum(images.read(start, CHUNK).count(b"\n") for start in range(RESERVE, images.size, CHUNK))
        count = rows + (images.size > RESERVE)
        opened.pop_all()
    join(main, images, target)
    return count


def _cut_to_rows(file: RecordFile, begin: int) -> None:
    """Remove a last row that is not complete. Rows begin at `begin`, each on its own line."""
    start = max(begin, file.size - TAIL)
    tail = file.read(start)
    before, _, last = tail.rpartition(b"\n")
    if not is_json(last.rstrip(b",")):
        tail = before
    file.truncate(start + len(tail.rstrip(b",\n")))


def _outlines(masks: Masks, image_id: int) -> list[dict[str, Any]]:
    """One row for each class present."""
    rows = []
    for number in np.unique(masks.class_id).tolist():
        if masks.name(number).lower() == UNTINTED:
            continue
        mask = masks.class_id == number
        across, along = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
        box = [int(across[0]), int(along[0]), int(across[-1] - across[0]) + 1, int(along[-1] - along[0]) + 1]
        (outline,) = mask_runs(mask[None]).to_coco()
        row = {"image_id": image_id, "category_id": number + FIRST, "bbox": box, "area": int(mask.sum()), "iscrowd": 0}
        rows.append({**row, "segmentation": {**outline, "counts": outline["counts"].decode()}})
    return rows


def _rows(rows: Sequence[dict[str, Any]]) -> bytes:
    return b",\n".join(encode(json.dumps(row, ensure_ascii=False, allow_nan=False)) for row in rows)
