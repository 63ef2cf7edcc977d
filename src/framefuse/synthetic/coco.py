"""Ground truth of a world as a COCO file, written row by row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.synthetic.address import write
from framefuse.synthetic.world import Snapshot, World


class CocoTruth:
    """A COCO instances file. Category ids are class ids; besides COCO's own keys annotations have `track_id` and
    `visibility`, images `frame`, `seconds` and `complexity`. Objects that `Truth.ignored` names have `iscrowd` 1, so
    that evaluation neither asks for them nor counts a detection of them as wrong. Segmentations are uncompressed RLE.

    The file is complete after `close`; a frame that was not added has no image row. Where the disk is full by then, the
    last frames are given up for the end of the file, and what was wrong is raised all the same.
    """

    def __init__(self, path: Path, world: World, stem: str) -> None:
        self._world, self._stem = world, stem
        self._images: list[str] = []
        self._count = 0
        info = {"description": write(world), "synthetic_version": world.version, "year": 2026}
        categories = [{"id": number, "name": name} for number, name in world.object_names.items()]
        self._file = path.open("xb", buffering=0)
        self._ends: list[int] = []
        """Where the rows of each frame end in the file, after where the first begin."""
        self._append(f'{{"info": {json.dumps(info)},\n"categories": {json.dumps(categories)},\n"annotations": [')

    def add(self, snapshot: Snapshot) -> None:
        """One frame."""
        height, width = snapshot.truth.instances.shape
        image_id = len(self._images) + 1
        image = {
            "id": image_id,
            "file_name": f"{self._stem}_{snapshot.index}.png",
            "width": width,
            "height": height,
            "frame": snapshot.index,
            "seconds": float(snapshot.index / self._world.fps),
            "complexity": round(snapshot.truth.complexity, 4),
        }
        rows = []
        for row in rows_of(snapshot):
            start = ",\n" if self._count else "\n"
            self._count += 1
            rows.append(start + json.dumps({"id": self._count, "image_id": image_id, **row}, allow_nan=False))
        self._append("".join(rows))
        self._images.append(json.dumps(image))

    def _append(self, text: str) -> None:
        """
        Raises:
            OSError: there is no room for it.
        """
        data = memoryview(text.encode())
        while data:
            data = data[self._file.write(data) :]
        self._ends.append(self._file.tell())

    def close(self) -> None:
        """May be called twice.

        Raises:
            OSError: the last frames did not fit.
        """
        if self._file.closed:
            return
        failure: OSError | None = None
        with self._file:
            for count in range(len(self._images), -1, -1):
                try:
                    self._file.truncate(self._ends[count])
                    self._file.seek(self._ends[count])
                    self._append('],\n"images": [' + ",\n".join(self._images[:count]) + "]}\n")
                    break
                except OSError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def __enter__(self) -> CocoTruth:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rows_of(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """COCO annotations of one frame, without `id` and `image_id`."""
    truth = snapshot.truth
    for row, (x1, y1, x2, y2) in enumerate(truth.boxes.astype(int).tolist()):
        seen = truth.instances == row + 1
        yield {
            "category_id": int(truth.class_id[row]),
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": int(np.count_nonzero(seen)),
            "segmentation": {"size": list(seen.shape), "counts": run_lengths(seen)},
            "iscrowd": int(truth.ignored[row]),
            "track_id": int(truth.track_id[row]),
            "visibility": round(float(truth.visibility[row]), 4),
        }


def run_lengths(mask: NDArray[np.bool_]) -> list[int]:
    """COCO's uncompressed run-length encoding of a (h, w) mask: down the columns, the first run is of zeros."""
    flat = mask.ravel(order="F")
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs: list[int] = np.diff(edges, prepend=0, append=flat.size).tolist()
    return [0, *runs] if flat[0] else runs
