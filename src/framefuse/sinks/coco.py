"""COCO JSON: images, annotations, categories in one file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.errors import SinkError
from framefuse.frame import Frame
from framefuse.kernels.masks.instances import mask_runs
from framefuse.prediction import Masks, Result
from framefuse.sinks import SinkContext
from framefuse.sinks._lines import RecordFile, encode, write_error
from framefuse.sinks.draw import UNTINTED

CHUNK = 1 << 20
RESERVE = 8192
"""Bytes reserved for the end of the JSON, in case the disk is full by then."""


class CocoSink:
    """Writes <stem>.json with COCO annotations, each with a `score`; category ids are the model's class ids. From a
    semantic segmenter, each class in a frame (except background) is one annotation with a run-length `segmentation`.

    Memory does not grow with the number of frames: annotations are written immediately, and image rows to a second file
    that `close` appends. Until then the two are named <stem>.json.part and <stem>.images.part. On a full disk, only the
    rows that did not fit are lost.
    """

    name = "coco"
    needs_frame = False

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.notes: list[str] = []
        self._image_count = 0
        self._annotation_count = 0
        self._open = False

    def open(self, context: SinkContext) -> None:
        self._context = context
        path = context.output(f"{context.stem}.json")
        categories = [{"id": number, "name": name} for number, name in sorted(context.names.items())]
        self._images = RecordFile(context.output(f"{context.stem}.images.part"))
        try:
            self._images.append(b" " * RESERVE)
            self._main = RecordFile(path.with_name(path.name + ".part"))
            self._main.append(b'{"categories": [' + _rows(categories) + b'],\n"annotations": [')
        except SinkError:
            self._images.discard()
            raise
        self.paths.append(path)
        self._open = True

    def write(self, result: Result, frame: Frame | None) -> None:
        info, found = result.frame, result.detections
        image_id = self._image_count + 1
        still = self._context.source.kind == "images"
        image = {
            "id": image_id,
            "file_name": Path(info.source_id).name if still else f"{self._context.stem}_{info.index}.jpg",
            "width": info.width,
            "height": info.height,
            "frame": info.index,
            "seconds": info.seconds,
        }
        # The image first: an image without its annotations is valid COCO, an annotation without its image is not.
        self._images.append((b",\n" if self._image_count else b"") + _rows([image]))
        self._image_count += 1
        annotations = []
        for number, row in enumerate(found.to_coco(image_id), self._annotation_count + 1):
            _, _, width, height = row["bbox"]
            annotations.append({"id": number, **row, "area": round(width * height, 3), "iscrowd": 0})
        if result.masks is not None:
            rows = _outlines(result.masks, image_id)
            annotations = [{"id": number, **row} for number, row in enumerate(rows, self._annotation_count + 1)]
        if annotations:
            self._main.append((b",\n" if self._annotation_count else b"") + _rows(annotations))
            self._annotation_count += len(annotations)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            self._join_images()
            self._main.close()
            self._main.path.replace(self.paths[0])
            self._images.discard()
        except OSError as error:
            raise write_error(self.paths[0], error) from error
        finally:
            self._main.close()
            self._images.close()

    def _join_images(self) -> None:
        end = self._main.size
        try:
            self._main.append(b'],\n"images": [')
            for start in range(RESERVE, self._images.size, CHUNK):
                self._main.append(self._images.read(start, CHUNK))
            self._main.append(b"]}\n")
        except SinkError:
            # The disk is full: empty the second file first, to make room for its rows here.
            rows = self._images.read(RESERVE)
            self._images.truncate(0)
            self._main.truncate(end)
            self._main.append(b'],\n"images": [' + rows + b"]}\n")


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
        row = {"image_id": image_id, "category_id": number, "bbox": box, "area": int(mask.sum()), "iscrowd": 0}
        rows.append({**row, "segmentation": {**outline, "counts": outline["counts"].decode()}})
    return rows


def _rows(rows: Sequence[dict[str, Any]]) -> bytes:
    return b",\n".join(encode(json.dumps(row, ensure_ascii=False, allow_nan=False)) for row in rows)
