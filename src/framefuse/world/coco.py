"""Ground truth of a world as a COCO file, written row by row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.keypoints import COCO_KEYPOINTS, COCO_SKELETON
from framefuse.world.address import write
from framefuse.world.truth import Snapshot, Truth
from framefuse.world.world import World


class CocoTruth:
    """Writes a COCO instances file. Category ids are class ids + 1, as many tools read 0 as no object. In addition to
    COCO's keys, annotations have `track_id` and `visibility`, images `frame`, `seconds` and `complexity`. Objects in
    `Truth.ignored` have `iscrowd` 1, so that evaluation counts them neither as missed nor as false detections.
    Segmentations are uncompressed RLE; people have COCO's keypoints; `obb` has the corners of the oriented box. In the
    scene bodies, each person is followed by its parts, as categories whose
    `supercategory` is person.

    The file is complete after `close`; a frame that was not added has no image row. If the disk is full, `close` drops
    the last frames to make space for the end of the file, and raises the error.
    """

    def __init__(self, path: Path, world: World, stem: str) -> None:
        self._world, self._stem = world, stem
        self._images: list[str] = []
        self._count = 0
        info = {"description": write(world), "synthetic_version": world.version, "year": 2026}
        categories: list[dict[str, Any]]
        categories = [{"id": number + 1, "name": name} for number, name in world.object_names.items()]
        categories[0] |= {"keypoints": COCO_KEYPOINTS, "skeleton": [(a + 1, b + 1) for a, b in COCO_SKELETON]}
        if world.scene == "bodies":
            whole = categories[0]["name"]
            parts = [(number, name) for number, name in world.names.items() if number]
            categories += [{"id": number + 1, "name": name, "supercategory": whole} for number, name in parts]
        self._file = path.open("xb", buffering=0)
        self._ends: list[int] = []
        """File offsets: where the annotations begin, then where those of each frame end."""
        self._append(f'{{"info": {json.dumps(info)},\n"categories": {json.dumps(categories)},\n"annotations": [')

    def add(self, snapshot: Snapshot) -> None:
        """Add one frame."""
        (height, width), image_id, index = snapshot.truth.instances.shape, len(self._images) + 1, snapshot.index
        image = {"id": image_id, "file_name": f"{self._stem}_{index}.png", "width": width, "height": height}
        moment = {"frame": index, "seconds": float(index / self._world.fps)}
        rows = []
        for row in rows_of(snapshot, parts=self._world.scene == "bodies"):
            start = ",\n" if self._count else "\n"
            self._count += 1
            rows.append(start + json.dumps({"id": self._count, "image_id": image_id, **row}, allow_nan=False))
        self._append("".join(rows))
        self._images.append(json.dumps({**image, **moment, "complexity": round(snapshot.truth.complexity, 4)}))

    def _append(self, text: str) -> None:
        """Raises OSError if the disk is full."""
        data = memoryview(text.encode())
        while data:
            data = data[self._file.write(data) :]
        self._ends.append(self._file.tell())

    def close(self) -> None:
        """May be called twice; OSError if the last frames did not fit."""
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

    def __exit__(self, *raised: object) -> None:
        self.close()


def rows_of(snapshot: Snapshot, *, parts: bool) -> Iterator[dict[str, Any]]:
    """COCO annotations of one frame, without `id` and `image_id`; with `parts`, each object is followed by its own."""
    truth = snapshot.truth
    shapes = shapes_of(truth)
    for row, (x1, y1, x2, y2) in enumerate(truth.boxes.astype(int).tolist()):
        window = slice(y1, y2), slice(x1, x2)
        seen = truth.instances[window] == row + 1
        facts: dict[str, Any] = {"iscrowd": int(truth.ignored[row]), "track_id": int(truth.track_id[row])}
        visibility = round(float(truth.visibility[row]), 4)
        own, outline = int(truth.class_id[row]) + 1, _outline(seen, (x1, y1), truth.instances.shape)
        yield {"category_id": own, **outline, **shapes[row], **facts, "visibility": visibility}
        if parts:
            shown = np.where(seen, truth.class_mask[window], 0)
            for part in np.unique(shown[shown > 0]).tolist():
                outline = _outline(shown == part, (x1, y1), truth.instances.shape)
                yield {"category_id": part + 1, **outline, **facts}


def shapes_of(truth: Truth) -> list[dict[str, Any]]:
    """Of each object, what an annotation says besides box and mask: `obb`, a polygon; of people `keypoints` (x, y, v of
    each) and `num_keypoints`."""
    outlines = truth.corners.astype(float).reshape(-1, 8).round(2).tolist()
    shapes: list[dict[str, Any]] = [{"obb": [outline]} for outline in outlines]
    for row in np.flatnonzero(truth.class_id == 0):
        points = truth.keypoints[row].astype(float)
        count = int(np.count_nonzero(points[:, 2]))
        shapes[row] |= {"keypoints": points.ravel().round(2).tolist(), "num_keypoints": count}
    return shapes


def _outline(mask: NDArray[np.bool_], corner: tuple[int, int], shape: tuple[int, ...]) -> dict[str, Any]:
    """bbox, area and segmentation of a mask that is not empty, of a window at `corner` (x, y) of an image."""
    columns, rows = np.nonzero(mask.T)
    columns, rows = columns + corner[0], rows + corner[1]
    left, top = int(columns[0]), int(rows.min())
    # COCO's uncompressed run lengths: of the pixels in column order, from zeros on.
    pixels = columns * shape[0] + rows
    breaks = np.flatnonzero(np.diff(pixels) > 1)
    starts, ends = pixels[np.concatenate([[0], breaks + 1])], pixels[np.concatenate([breaks, [-1]])] + 1
    runs = np.diff(np.stack([starts, ends], 1).ravel(), prepend=0, append=shape[0] * shape[1]).tolist()
    mask_runs = {"size": list(shape), "counts": runs if runs[-1] else runs[:-1]}
    box = [left, top, int(columns[-1]) + 1 - left, int(rows.max()) + 1 - top]
    return {"bbox": box, "area": len(rows), "segmentation": mask_runs}
