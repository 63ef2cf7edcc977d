"""Labels that people correct: COCO JSON (save_json), XML of CVAT (save_cvat), JSON of Label Studio (save_label_studio).

COCO lists all images before all annotations, the last two one track after the other, so they are written at the end
only, from a line of JSON for each frame in <stem>.<name>.part, by `close`, or by `framefuse repair` after a kill. Boxes
without tracks become shapes of frames.
"""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from framefuse.errors import SinkError
from framefuse.frame import Frame
from framefuse.prediction import Masks, Result
from framefuse.sinks import UNTINTED, RecordSink, labelled, rows_of, tracks_of
from framefuse.sinks.run_folder import encode, sink_errors, written_whole

Record = Mapping[str, Any]
Row = Callable[[Record, list[Any], int | None, bool], Any]
"""(frame, box, number of the next frame if the track pauses or ends there) -> a box in a track."""
LAST = -1
"""In place of the number of the next frame: there is none."""
SUFFIX = {"coco": "json", "cvat": "cvat.xml", "label_studio": "label_studio.json"}
NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
FIRST = 1
"""Category id of class 0, as in COCO itself: CVAT takes the id 0 for an object without a label and refuses the file."""


def _outlines(masks: Masks, image_id: int) -> Iterator[dict[str, Any]]:
    """One row for each class present."""
    from framefuse.kernels.masks.instances import Runs, mask_runs

    for number in np.unique(masks.class_id).tolist():
        if masks.name(number).lower() == UNTINTED:
            continue
        mask = masks.class_id == number
        across, along = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
        box = [int(across[0]), int(along[0]), int(across[-1] - across[0]) + 1, int(along[-1] - along[0]) + 1]
        runs = mask_runs(mask[None])
        assert isinstance(runs, Runs)
        (outline,) = runs.to_json()
        row = {"image_id": image_id, "category_id": number + FIRST, "bbox": box, "area": int(mask.sum()), "iscrowd": 0}
        yield {**row, "segmentation": outline}


class LabelsSink(RecordSink):
    """Writes <stem> with the SUFFIX of its name."""

    _tracked = False

    def _header(self) -> bytes:
        context, source = self._context, self._context.source
        about = {"labels": self.name, "stem": context.stem, "names": context.names, "still": source.kind == "images"}
        video = source.path.name if source.path else f"{context.stem}.mp4"
        return encode(json.dumps({**about, "video": video, "model": context.run.get("model")}) + "\n")

    def write(self, result: Result, frame: Frame | None) -> None:
        info, boxes = result.frame, list(rows_of(result.detections))
        self._tracked = self._tracked or any(track is not None for *_, track in boxes)
        line: Record = {"frame": info.index, "seconds": info.seconds, "width": info.width, "height": info.height}
        if self._context.source.kind == "images":
            line = {**line, "name": self._context.relative(info.source_id)}
        if not result.inferred:
            line = {**line, "inferred": False}
        self._file.append(encode(json.dumps({**line, "boxes": boxes}) + "\n"))

    def _complete(self, stream: Path) -> None:
        if complete(stream) and not self._tracked and self._context.source.kind != "images":
            self.notes.append(f"{self.paths[0].name} has boxes of single frames, since nothing was tracked")


class CocoSink(LabelsSink):
    """Writes <stem>.json with COCO annotations, each with a `score`, and the `track_id` of a tracked object. Category
    ids are the model's class ids plus FIRST. From a semantic segmenter, each class in a frame (except background) is
    one annotation with a run-length `segmentation`; of a box it is empty, since labelling tools require the key."""

    name, suffix, stream = "coco", SUFFIX["coco"], "coco.part"

    _count = 0

    def write(self, result: Result, frame: Frame | None) -> None:
        info, found = result.frame, result.detections
        self._count += 1
        still = self._context.source.kind == "images"
        name = self._context.relative(info.source_id) if still else f"{self._context.stem}_{info.index}.jpg"
        image = {"id": self._count, "file_name": name, "width": info.width, "height": info.height}
        image |= {"frame": info.index, "seconds": info.seconds} | ({} if result.inferred else {"inferred": False})
        rows = [] if result.masks is None else list(_outlines(result.masks, self._count))
        areas = [None] * len(found) if found.runs is None else found.runs.areas.tolist()
        keypoints = [None] * len(found) if found.keypoints is None else list(labelled(found.keypoints))
        columns = found.to_coco(self._count), tracks_of(found), areas, keypoints
        for row, track, area, points in zip(*columns, strict=True):
            _, _, width, height = row["bbox"]
            row["category_id"] += FIRST
            row = {"segmentation": [], **row, "area": round(width * height, 3) if area is None else area, "iscrowd": 0}
            if points is not None:
                row |= {"keypoints": points.round(2).ravel().tolist(), "num_keypoints": int((points[:, 2] > 0).sum())}
            rows.append(row if track is None else {**row, "track_id": track})
        self._file.append(encode(_json({"image": image, "annotations": rows}) + "\n"))

    def _complete(self, stream: Path) -> None:
        complete(stream)


class CvatSink(LabelsSink):
    name, suffix, stream = "cvat", SUFFIX["cvat"], "cvat.part"


class LabelStudioSink(LabelsSink):
    name, suffix, stream = "label_studio", SUFFIX["label_studio"], "label_studio.part"


def complete(stream: Path) -> int:
    """Make the file of what there is of a <stem>.<name>.part, and remove that; the number of frames.

    0: it has none, so there is no file, or is not of this sink. SinkError: it cannot be written; the lines stay.
    """
    with sink_errors(stream):
        about: Any = next(_lines(stream), None)
        name = about.get("labels") if isinstance(about, dict) else None
        if name not in WRITERS:
            return 0
        frames = partial(_lines, stream, 1)
        try:
            tracked = [any(track is not None for *_, track in frame.get("boxes", ())) for frame in frames()]
            if not tracked:
                stream.unlink()
                return 0
            target = stream.with_name(stream.name.removesuffix(f"{name}.part") + SUFFIX[name])
            with written_whole(target, stream) as out:
                for text in WRITERS[name](about, frames, any(tracked)):
                    out.write(encode(text))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise SinkError(f"{stream} has lines that framefuse has not written", remedy="remove it") from error
        return len(tracked)


def _lines(path: Path, start: int = 0) -> Iterator[Record]:
    """The whole lines of a file that may end anywhere."""
    with path.open("rb") as file, suppress(ValueError):
        for line in islice(file, start, None):
            yield json.loads(line)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _coco(about: Record, frames: Callable[[], Iterator[Record]], tracked: bool) -> Iterator[str]:
    """COCO instances: a line for each image, then for each annotation."""
    names = {int(number): name for number, name in about["names"].items()}
    categories = [{"id": number + FIRST, "name": names[number]} for number in sorted(names)]
    yield f'{{"categories": {_json(categories)},\n"images": ['
    for number, frame in enumerate(frames()):
        yield (",\n" if number else "") + _json(frame["image"])
    yield '],\n"annotations": ['
    for number, row in enumerate((row for frame in frames() for row in frame["annotations"]), 1):
        yield (",\n" if number > 1 else "") + _json({"id": number, **row})
    yield "]}\n"


def _tracks(about: Record, frames: Iterator[Record], row: Row) -> Iterator[tuple[int, str, float, list[Any]]]:
    """Number, most frequent class, mean confidence and rows of each track, in the order of their beginnings; a box
    without one is a track of its own, with a negative number."""
    labels: dict[int, Counter[str]] = defaultdict(Counter)
    scores, rows = defaultdict[int, list[float]](list), defaultdict[int, list[Any]](list)
    seen: dict[int, tuple[Record, list[Any], bool]] = {}
    lone = count(-1, -1)
    for frame in chain(frames, [{"frame": LAST, "boxes": ()}]):
        now = {}
        for box, score, number, track in frame["boxes"]:
            track = next(lone) if track is None else track
            now[track] = frame, box, track not in seen
            labels[track][_name(about, number)] += 1
            scores[track].append(score)
        for track, (before, box, begins) in seen.items():
            key = begins or track not in now or before.get("inferred", True)
            rows[track].append(row(before, box, None if track in now else frame["frame"], key))
        seen = now
    for track, names in labels.items():
        yield track, names.most_common(1)[0][0], sum(scores[track]) / len(scores[track]), rows[track]


def _name(about: Record, number: int) -> str:
    return str(about["names"].get(str(number), number))


def _xml(text: str, put: Callable[[str], str] = quoteattr) -> str:
    return put(NOT_XML.sub("?", text))


def _cvat(about: Record, frames: Callable[[], Iterator[Record]], tracked: bool) -> Iterator[str]:
    """CVAT for video 1.1 with outside=1 in gaps and a keyframe for each box that was not interpolated; without tracks
    CVAT for images 1.1."""

    def row(frame: Record, box: list[Any], ends: int | None, key: bool) -> str:
        sides = 'occluded="0" keyframe="{}" xtl="{}" ytl="{}" xbr="{}" ybr="{}" z_order="0"/>\n'.format(int(key), *box)
        shown = f'<box frame="{frame["frame"]}" outside="0" {sides}'
        return shown if ends in (None, LAST) else f'{shown}<box frame="{ends}" outside="1" {sides}'

    names = [_xml(name, escape) for name in about["names"].values()]
    labels = "".join(f"<label><name>{name}</name><type>rectangle</type></label>" for name in names)
    size = next(frames())
    yield (
        f'<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<version>1.1</version>\n<meta><task>'
        f"<name>{_xml(about['stem'], escape)}</name><size>{sum(1 for _ in frames())}</size>"
        f"<mode>{'interpolation' if tracked else 'annotation'}</mode><labels>{labels}</labels>"
        f"<original_size><width>{size['width']}</width><height>{size['height']}</height></original_size></task></meta>\n"
    )
    if tracked:
        for number, (_, label, _, rows) in enumerate(_tracks(about, frames(), row)):
            yield f'<track id="{number}" label={_xml(label)} source="auto">\n{"".join(rows)}</track>\n'
    for number, frame in enumerate(() if tracked else frames()):
        place = number if about["still"] else frame["frame"]
        name = _xml(frame.get("name", f"frame_{place:06d}"))
        yield f'<image id="{place}" name={name} width="{frame["width"]}" height="{frame["height"]}">\n'
        for box, _, kind, _ in frame["boxes"]:
            sides = 'xtl="{}" ytl="{}" xbr="{}" ybr="{}" z_order="0"'.format(*box)
            yield f'<box label={_xml(_name(about, kind))} source="auto" occluded="0" {sides}/>\n'
        yield "</image>\n"
    yield "</annotations>\n"


def _label_studio(about: Record, frames: Callable[[], Iterator[Record]], tracked: bool) -> Iterator[str]:
    """A task with a `videorectangle` for each track, whose `enabled` is false at the last box before a gap; without
    tracks a task for each frame."""

    def task(kind: str, file: str, regions: list[Any]) -> str:
        predictions = [{"model_version": about["model"] or "framefuse", "result": regions}]
        data = {kind: f"/data/local-files/?d={quote(os.fsencode(file))}"}
        return json.dumps({"data": data, "predictions": predictions})

    def place(frame: Record, box: list[float]) -> Record:
        (x1, y1, x2, y2), width, height = box, frame["width"], frame["height"]
        shares = {"x": x1 / width, "y": y1 / height, "width": (x2 - x1) / width, "height": (y2 - y1) / height}
        return {**{name: round(100 * share, 4) for name, share in shares.items()}, "rotation": 0}

    def row(frame: Record, box: list[Any], ends: int | None, _: bool) -> Record:
        key = {"frame": frame["frame"] + 1, "enabled": ends is None, "time": frame["seconds"] or 0.0}
        return {**key, **place(frame, box)}

    if tracked:
        *_, last = frames()
        length = {"framesCount": last["frame"] + 1, "duration": last["seconds"] or 0.0}
        regions = []
        for number, label, score, rows in _tracks(about, frames(), row):
            value = {**length, "sequence": rows, "labels": [label]}
            shared = {"id": f"track{number}", "type": "videorectangle", "from_name": "box", "to_name": "video"}
            regions.append({**shared, "value": value, "score": round(score, 4)})
        yield f"[{task('video', about['video'], regions)}]\n"
        return
    for number, frame in enumerate(frames()):
        size = {"original_width": frame["width"], "original_height": frame["height"], "image_rotation": 0}
        shared = {"type": "rectanglelabels", "from_name": "label", "to_name": "image", **size}
        found = [
            {**shared, "value": {**place(frame, box), "rectanglelabels": [_name(about, kind)]}, "score": score}
            for box, score, kind, _ in frame["boxes"]
        ]
        name = frame.get("name", f"images/{about['stem']}_{frame['frame']}.jpg")
        yield f"{',' if number else '['}\n{task('image', name, found)}"
    yield "]\n"


WRITERS = {"coco": _coco, "cvat": _cvat, "label_studio": _label_studio}
