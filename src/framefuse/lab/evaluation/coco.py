"""COCO files as data sets: images and annotations, checked before anything runs.

Category ids may have gaps; class numbers follow them in ascending order. Annotations with `iscrowd` are regions that
count neither for nor against a model. If `images` is a video, `frame` of each image entry is its frame number.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from math import prod
from operator import attrgetter
from os.path import isfile
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from framefuse.common.names import nearby
from framefuse.config import UNWRITABLE
from framefuse.errors import CapabilityError, DecodeError, SourceError
from framefuse.lab.evaluation.dataset import NOTHING, Dataset, Key, Labels, plain
from framefuse.sources import Source, SourceInfo, SourceOptions, open_source
from framefuse.sources.images import open_images
from framefuse.sources.source import PullSource

Record = dict[str, Any]
NAMED = 3
"""Examples in a message."""
MOST_MASKED = 254
"""Maximum number of categories in a mask of bytes."""
SHAPES = "segmentation", "keypoints", "num_keypoints", "obb"
REPORT = "report.json"
"""Marks the output folder of a run."""


def open_coco(path: Path, images: Path | None = None) -> Dataset:
    """Read a COCO file, whose `images` are in a folder or a video; default: looked for beside the file.

    Raises:
        DecodeError: not JSON, or not COCO.
        SourceError: a missing file or image, an unknown or repeated id, or no usable annotation.
    """
    records = _read(path)
    entries, categories = _by_id(path, records, "images"), _by_id(path, records, "categories")
    _check_images(path, entries.values())
    number_of = {category: number for number, category in enumerate(sorted(categories))}
    names = {number: str(categories[category]["name"]) for category, number in number_of.items()}
    if repeated := [name for name, count in Counter(names.values()).items() if count > 1]:
        raise SourceError(f"{path}: two categories are called {repeated[0]!r}", remedy="rename or merge them")
    objects, notes = _objects(path, records["annotations"], entries, categories)
    folder = images or _find_folder(path, entries)
    video = folder.is_file()
    by_key = (_frames_of if video else _files_of)(path, folder, entries)
    values = {category: 0 if plain(names[number]) == NOTHING else number + 1 for category, number in number_of.items()}
    outlined = all(record.get("segmentation") for rows in objects.values() for record in rows)

    def labels(key: Key) -> Labels:
        image = by_key[key]
        rows = objects.get(image["id"], [])
        boxes = np.array([row["bbox"] for row in rows], np.float64).reshape(-1, 4)
        areas = [row["bbox"][2] * row["bbox"][3] if row.get("area") is None else row["area"] for row in rows]
        boxes[:, 2:] += boxes[:, :2]
        class_id = np.array([number_of[row["category_id"]] for row in rows], np.int64)
        crowd, area = np.array([bool(row.get("iscrowd")) for row in rows], np.bool_), np.array(areas, np.float64)
        mask, size = partial(_class_mask, rows, values, image), (image["width"], image["height"])
        return Labels(
            boxes, class_id, crowd, area, size, mask, image.get("complexity"), shapes=partial(_shapes, rows, image)
        )

    opened = partial(_open_video, folder) if video else lambda keys: open_images([*map(Path, keys)], SourceOptions())
    more = _masks(categories, values) if outlined else {}
    more |= {"mixed": not video and len(by_key) > 1, "notes": notes}
    more |= {"files": [path, folder] if video else [path, *map(Path, by_key)]}
    key_of = attrgetter("index" if video else "source_id")
    return Dataset(str(path), names, list(by_key), opened, key_of, labels, **more)


def _read(path: Path) -> Mapping[str, list[Any]]:
    remedy = "pass a file with the lists images, annotations and categories"
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", remedy=nearby(path, (".json",))) from error
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{path} is not JSON: {error}", remedy=remedy) from error
    for key in ("images", "annotations", "categories"):
        rows = content.get(key) if isinstance(content, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DecodeError(f"{path} is not a COCO file: it has no list {key!r}", remedy=remedy)
        if not rows:
            raise SourceError(f"{path} has no {key}, so there is nothing to compare with", remedy=remedy)
    return dict(content)


def _by_id(path: Path, records: Mapping[str, list[Record]], kind: str) -> dict[int, Record]:
    text = {"images": "file_name", "categories": "name"}[kind]
    for record in records[kind]:
        if not _is_id(record.get("id")) or not isinstance(record.get(text), str) or not record[text].strip():
            why = f"{path}: an entry of {kind} has no id or no {text}: {_short(record)}"
            raise DecodeError(why, remedy=f"give it an integer id and a string {text}")
        if re.search(UNWRITABLE if kind == "images" else "[\0\ud800-\udfff]", record[text]):
            why = f"{path}: an entry of {kind} has a {text} that is not valid text: {_short(record[text])}"
            raise DecodeError(why, remedy=f"give it a {text} in UTF-8")
    counts = Counter(record["id"] for record in records[kind])
    if repeated := [number for number, count in counts.items() if count > 1]:
        why = f"{path}: {counts[repeated[0]]} {kind} have the id {repeated[0]}"
        raise SourceError(why, remedy="make the ids unique")
    return {record["id"]: record for record in records[kind]}


def _check_images(path: Path, images: Iterable[Record]) -> None:
    for record in images:
        where = f"{path}: image {_short(record['file_name'])}"
        width, height, complexity = (record.get(key) for key in ("width", "height", "complexity"))
        if not all(_is_id(side) and side > 0 for side in (width, height)):
            why = f"{where} has width {_short(width)} and height {_short(height)}"
            raise DecodeError(why, remedy="give both in pixels")
        if complexity is not None and not (_is_length(complexity) and 0 <= complexity <= 1):
            why = f"{where} has the complexity {_short(complexity)}"
            raise DecodeError(why, remedy="leave it out, or give a number from 0 (calm) to 1 (crowded)")


def _is_id(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _objects(
    path: Path, annotations: Iterable[Record], images: Mapping[int, Record], categories: Mapping[int, Record]
) -> tuple[dict[int, list[Record]], list[str]]:
    """Annotations by image id, and notes on those left out."""
    found: dict[int, list[Record]] = defaultdict(list)
    seen: set[int] = set()
    flat = outside = 0
    for record in annotations:
        for key, known in (("image_id", images), ("category_id", categories)):
            if not _is_id(record.get(key)) or record[key] not in known:
                why = f"an annotation has the {key} {_short(record.get(key))}, which does not exist: {_short(record)}"
                raise SourceError(f"{path}: {why}", remedy=f"correct it, or add the {key.removesuffix('_id')}")
        if _is_id(number := record.get("id")):
            if number in seen:
                raise SourceError(f"{path}: two annotations have the id {number}", remedy="give each its own id")
            seen.add(number)
        _check_values(path, record)
        box, image = record["bbox"], images[record["image_id"]]
        if min(box[2:]) <= 0:
            flat += 1
        else:
            found[record["image_id"]].append(record)
            x, y, width, height = box
            outside += x >= image["width"] or y >= image["height"] or x + width <= 0 or y + height <= 0
    if not found:
        raise SourceError(f"{path}: no annotation has an area", remedy="bbox is [x, y, width, height] in pixels")
    notes = [f"annotations without an area, left out: {flat}"] if flat else []
    if outside:
        notes.append(f"annotations entirely outside their images, which cannot be found: {outside}")
    return found, notes


def _check_values(path: Path, record: Record) -> None:
    """Raise DecodeError if an annotation has an invalid box, area or iscrowd."""
    box, area, crowd = (record.get(key) for key in ("bbox", "area", "iscrowd"))
    which = f"{path}: an annotation (id {_short(record.get('id'))}) of image {record['image_id']}"
    if not isinstance(box, list) or len(box) != 4 or not all(_is_length(value) for value in box):
        raise DecodeError(f"{which} has the bbox {_short(box)}", remedy="bbox is [x, y, width, height] in pixels")
    if area is not None and not (_is_length(area) and area >= 0):
        raise DecodeError(f"{which} has the area {_short(area)}", remedy="omit it, or give a number of square pixels")
    if crowd not in (None, 0, 1):
        raise DecodeError(f"{which} has iscrowd {_short(crowd)}", remedy="iscrowd is 0 or 1")


def _is_length(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def _find_folder(path: Path, images: Mapping[int, Record]) -> Path:
    """The first folder near the file that contains the first image, else the video beside the file with its stem."""
    name = next(iter(images.values()))["file_name"]
    split = path.stem.removeprefix("instances_")
    near = [path.parent / "images", path.parent, path.parent.parent / "images", path.parent.parent / split]
    video = path.with_suffix(".mp4")  # as `framefuse synth` writes them
    found = next((folder for folder in near if isfile(folder / name)), video if isfile(video) else None)
    if found is not None and found in (path.parent, video) and (path.parent / REPORT).exists():
        why = f"the images beside {path} are the output of a run, with boxes drawn on them"
        raise SourceError(why, remedy="pass the original images with --images")
    if found is not None:
        return found
    tried = ", ".join(map(str, near))
    raise SourceError(f"{path} names {_short(name)}, which is in none of {tried}", remedy="pass --images FOLDER")


def _files_of(path: Path, folder: Path, images: Mapping[int, Record]) -> dict[Key, Record]:
    if not folder.is_dir():
        raise SourceError(f"there is no folder {folder}", remedy="check --images")
    files: dict[Key, Record] = {str(folder / record["file_name"]): record for record in images.values()}
    if len(files) < len(images):
        raise SourceError(f"{path}: two images have the same file_name", remedy="name each image once")
    if missing := [_short(file)[1:-1] for file in files if not isfile(str(file))]:
        some = ", ".join(missing[:NAMED]) + (", ..." if len(missing) > NAMED else "")
        why = f"{len(missing)} of {len(files)} images of {path.name} are missing: {some}"
        raise SourceError(why, remedy="check --images, or remove them from the file")
    return files


def _frames_of(path: Path, video: Path, images: Mapping[int, Record]) -> dict[Key, Record]:
    frames: dict[Key, Record] = {}
    for record in images.values():
        number = record.get("frame")
        if not _is_id(number) or number < 0:
            remedy = "add the frame number to each image (frame: 0, ...), or pass a folder with --images"
            why = f"has the frame {_short(number)}, which is not the number of a frame of {video}"
            raise SourceError(f"{path}: image {_short(record['file_name'])} {why}", remedy=remedy)
        if number in frames:
            raise SourceError(f"{path}: two images are frame {number} of {video}", remedy="name each frame once")
        frames[number] = record
    return {number: frames[number] for number in sorted(frames)}


def _open_video(video: Path, keys: Sequence[Key]) -> Source:
    """The video, reduced to the requested frames."""
    inner, wanted = open_source(video), set(keys)
    info = SourceInfo(**{**vars(inner.info), "frames": len(keys)})
    frames = (frame for frame in inner if frame.index in wanted)
    return PullSource(info, lambda closed: frames, inner.close, inner.close)


def _masks(categories: Mapping[int, Record], values: Mapping[int, int]) -> dict[str, Any]:
    """The mask fields of `Dataset` for class masks painted from annotations.

    Some writers list a category "background" that no annotation has; it stands for the uncovered pixels. A category
    belongs to the group named by its supercategory: "head" to "person", as does "person" itself.
    """
    if len(categories) > MOST_MASKED:
        return {"no_masks": f"{len(categories)} categories, but masks hold at most {MOST_MASKED}"}
    names = {values[category]: str(record["name"]) for category, record in categories.items() if values[category]}
    groups: dict[str, set[int]] = defaultdict(set)
    for category, record in categories.items():
        group = record.get("supercategory")
        if values[category] and isinstance(group, str) and plain(group) != NOTHING:
            groups[plain(group)].add(values[category])
    for value, name in names.items():
        if plain(name) in groups:
            groups[plain(name)].add(value)
    return {"mask_names": {0: NOTHING, **dict(sorted(names.items()))}, "mask_groups": groups}


def _class_mask(rows: Sequence[Record], values: Mapping[int, int], image: Record) -> NDArray[np.uint8]:
    """Outlines in the `values` of their categories, the largest first, so that inner objects stay visible."""
    height, width = int(image["height"]), int(image["width"])
    mask = np.zeros((height, width), np.uint8)
    if not rows or len(values) > MOST_MASKED:
        return mask
    tools = needed("faster_coco_eval").mask
    for row in sorted(rows, key=lambda row: -float(row["bbox"][2] * row["bbox"][3])):
        outline = row["segmentation"]
        try:
            _check_outline(outline, [height, width])
            if isinstance(outline, list) or isinstance(outline.get("counts"), list):
                outline = tools.frPyObjects(outline, height, width)
            decoded = tools.decode(outline).reshape(height, width, -1).any(axis=2)
        except Exception as error:  # the library raises almost any exception on invalid outlines
            why = f"has a segmentation that cannot be read: {_short(row['segmentation'])}"
            remedy = "use a list of polygons [[x1, y1, x2, y2, ...]] or run lengths {size, counts}"
            raise DecodeError(f"image {image['file_name']!r} {why}", remedy=remedy) from error
        mask[decoded] = values[row["category_id"]]
    return mask


def _shapes(rows: Sequence[Record], image: Record) -> list[Record]:
    """What the annotations of an image say besides boxes: SHAPES."""
    found = []
    for row in rows:
        shape = {key: row[key] for key in SHAPES if row.get(key)}
        try:
            if "segmentation" in shape:
                _check_outline(shape["segmentation"], [image["height"], image["width"]])
            points = shape.get("keypoints", [])
            if len(points) % 3 or not all(_is_length(value) for value in points):
                raise ValueError(points)
        except (KeyError, TypeError, ValueError) as error:
            why = f"image {image['file_name']!r} has an annotation that cannot be read: {_short(shape)}"
            remedy = "segmentation is a list of polygons or {size, counts}, keypoints are x, y, v of each"
            raise DecodeError(why, remedy=remedy) from error
        found.append(shape)
    return found


def _check_outline(outline: Any, size: list[int]) -> None:
    """Raise ValueError for outlines that the library would silently read as empty: a polygon with fewer than three
    points or with non-numbers; run lengths of the wrong size."""
    if isinstance(outline, list):
        for polygon in outline:
            if len(polygon) < 6 or len(polygon) % 2 or not all(_is_length(value) for value in polygon):
                raise ValueError(polygon)
    elif outline["size"] != size or (isinstance(outline["counts"], list) and sum(outline["counts"]) != prod(size)):
        raise ValueError(outline["size"])


def needed(module: str) -> Any:
    """A module of the extra `val`; CapabilityError if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise CapabilityError(f"package {package} is not installed", remedy="pip install 'framefuse[val]'") from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
