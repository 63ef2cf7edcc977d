"""Dataset: images with known ground truth, in the order in which the pipeline sees them, and their classes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.models.card import Card
from framefuse.prediction import Detections, FrameInfo
from framefuse.sources import Source

Key = Any
"""Identifies an image: the path of a file, the index of a frame, or (number of the part, key) in joined data."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The ground truth of one image: n objects, in pixels of the image as displayed."""

    xyxy: NDArray[np.float64]
    """(n, 4): x1, y1, x2, y2."""
    class_id: NDArray[np.int64]
    """(n,) numbers of `Dataset.names`."""
    crowd: NDArray[np.bool_]
    """(n,): a region with an unknown number of objects; detections in it count neither as right nor as wrong."""
    area: NDArray[np.float64]
    """(n,) pixels; it decides whether an object is small, medium or large."""
    size: tuple[int, int]
    """Width and height of the image."""
    class_mask: Callable[[], NDArray[np.uint8]] | None = None
    """Returns (height, width): the class of each pixel, a key of `Dataset.mask_names`; None without masks."""
    complexity: float | None = None
    """How crowded the scene is, 0..1; None if unknown."""
    track_id: NDArray[np.int64] | None = None
    """(n,): an object has the same number in every frame of its video; None if unknown."""
    shapes: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    """Returns of each object what COCO knows besides the box: segmentation, keypoints, num_keypoints."""


UNKNOWN = 0, 0
"""A size that the data do not state."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and their ground truth, read on demand."""

    uri: str
    names: Mapping[int, str]
    """Class names of the objects, by class number."""
    keys: Sequence[Key]
    """One per image."""
    open: Callable[[Sequence[Key]], Source]
    """Returns a source that yields the images of these keys, in this order."""
    key_of: Callable[[FrameInfo], Key]
    """The key of a frame from such a source."""
    labels: Callable[[Key], Labels]
    """The ground truth of an image; called once per frame, after the source has yielded it."""
    mask_names: Mapping[int, str] = field(default_factory=dict)
    """Class names of the values of `Labels.class_mask`; empty for data without masks."""
    mask_groups: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Values of `Labels.class_mask` that a model may have as one class: {"person": head, torso, ...}."""
    mixed: bool = False
    """Whether the images may differ in size."""
    whole: bool = False
    """Whether the only label of an image is its class."""
    no_masks: str = "no masks"
    """Why there are no masks, for messages."""
    files: Sequence[Path] = ()
    """What it is read from, so that no output overwrites one."""
    notes: Sequence[str] = ()
    """Oddities of the data, and what was left out."""

    def __len__(self) -> int:
        return len(self.keys)

    def spread(self, limit: int | None) -> Sequence[Key]:
        """At most `limit` keys, evenly spread over a video; UsageError if the limit is not a positive integer."""
        if limit is not None and (not isinstance(limit, Integral) or isinstance(limit, bool) or limit < 1):
            raise UsageError(f"limit is {limit!r}", remedy="limit takes a whole number from 1")
        if limit is None or limit >= len(self.keys):
            return self.keys
        return [self.keys[(2 * number + 1) * len(self.keys) // (2 * limit)] for number in range(limit)]


NOTHING = "background"
"""Class name of pixels that belong to no object."""


def plain(name: str) -> str:
    """A name normalised for comparison."""
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


class BoxClasses:
    """Maps labels and detections to the shared classes, of the model's class numbers `classes` if these are given.
    UsageError if model and data share none.
    """

    def __init__(self, data: Dataset, card: Card, classes: Sequence[Any] | None = None) -> None:
        asked = {number: name for number, name in card.names.items() if number in (classes or card.names)}
        self.names, model_to, data_to, self.notes = match_names(asked, data.names, card)
        self._model_to, self._data_to = table_of(model_to, -1), table_of(data_to, -1)

    def labels(self, labels: Labels) -> Labels:
        """The objects of shared classes; `class_id` indexes `names`."""
        number = self._data_to[labels.class_id]
        kept = number >= 0
        track_id = None if labels.track_id is None else labels.track_id[kept]
        own: dict[str, Any] = {name: getattr(labels, name)[kept] for name in ("xyxy", "crowd", "area")}
        if (shapes := labels.shapes) is not None:
            own["shapes"] = lambda: [shape for shape, is_kept in zip(shapes(), kept, strict=True) if is_kept]
        return replace(labels, class_id=number[kept], track_id=track_id, **own)

    def shared(self, found: Detections) -> Detections:
        """The detections of shared classes; `class_id` indexes `names`."""
        number = self._model_to[found.class_id]
        return replace(found, class_id=number)[number >= 0]


def match_names(
    model: Mapping[int, str], data: Mapping[int, str], card: Card
) -> tuple[list[str], dict[int, int], dict[int, int], list[str]]:
    """Names that both share, in the order of the data; class number -> index of the name, of the model and of the data;
    notes. UsageError if they share none.

    Case is ignored, and blank, - and _ are equal; class numbers with the same name are one class.
    """
    known = {plain(name) for name in model.values()}
    shared: dict[str, str] = {}
    for name in data.values():
        if plain(name) in known:
            shared.setdefault(plain(name), name)
    position = {name: number for number, name in enumerate(shared)}
    if set(shared) <= {NOTHING}:
        why = f"{card.path.name} and the data have no class in common{' except the background' if shared else ''}"
        remedy = f"correct names in the card {card.path.with_suffix('.yaml')}, or use other data"
        raise UsageError(f"{why}: the model has {_some(model)}, the data {_some(data)}", remedy=remedy)
    notes = []
    model_to, data_to = (
        {number: position[plain(name)] for number, name in names.items() if plain(name) in position}
        for names in (model, data)
    )
    for names, known_to, who in ((data, data_to, "the model does"), (model, model_to, "the data do")):
        if unknown := {number: name for number, name in names.items() if number not in known_to}:
            notes.append(f"not scored, because {who} not have them: {_some(unknown)}")
    return list(shared.values()), model_to, data_to, notes


def _some(names: Mapping[int, str]) -> str:
    listed = list(names.values())
    return ", ".join(listed[:8]) + (f", ... ({len(listed)} in all)" if len(listed) > 8 else "")


def table_of(numbers: Mapping[int, int], other: int) -> NDArray[np.int64]:
    """(65536,) table of `numbers`, `other` for every class number that it lacks."""
    table = np.full(65536, other, np.int64)
    table[list(numbers)] = list(numbers.values())
    return table
