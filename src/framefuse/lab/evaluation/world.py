"""The synthetic world as a data set: its ground truth is exact, so only the model can be wrong."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from framefuse.lab.evaluation.dataset import Dataset, Key, Labels
from framefuse.sources import Source, SourceInfo
from framefuse.sources.ffmpeg import wrap
from framefuse.sources.source import Frames, PullSource
from framefuse.sources.synthetic import to_video
from framefuse.world import Truth, World


def open_world(uri: str) -> Dataset:
    """The world of an address `synthetic://scene?seed=...&frames=...`; ignored objects count as crowd regions.

    Raises:
        UsageError: the address has an unknown scene or key, or a wrong value.
    """
    world = World.parse(uri)
    shift = 0 if world.scene == "bodies" else 1
    truths: dict[Key, Truth] = {}
    """Each frame is drawn once: kept from the source's yield until `labels` is called."""

    def opened(keys: Sequence[Key]) -> Source:
        truths.clear()
        info = SourceInfo(uri, "synthetic", *world.size, world.fps, len(keys))

        def frames(closed: threading.Event) -> Frames:
            for key in keys:
                if closed.is_set():
                    return
                snapshot, index = world[int(key)], int(key)
                truths[key] = snapshot.truth
                image = to_video(snapshot.image)
                yield wrap(image, info, index=index, source_id=uri, pts=index, time_base=1 / world.fps)

        return PullSource(info, frames)

    def labels(key: Key) -> Labels:
        truth = truths.pop(key, None) or world[int(key)].truth
        boxes = truth.boxes.astype(np.float64)
        return Labels(
            xyxy=boxes,
            class_id=truth.class_id,
            crowd=truth.ignored,
            area=np.bincount(truth.instances.ravel(), minlength=len(boxes) + 1)[1:].astype(np.float64),
            size=world.size,
            class_mask=lambda: truth.class_mask,
            complexity=truth.complexity,
            track_id=truth.track_id,
        )

    return Dataset(
        uri=uri,
        names=world.object_names,
        keys=range(world.frames),
        open=opened,
        key_of=attrgetter("index"),
        labels=labels,
        mask_groups={"person": range(1, len(world.names))} if world.scene == "bodies" else {},
        mask_names={0: "background"} | {number + shift: name for number, name in world.names.items()},
    )
