"""Sinks write results. A run may use several kinds; SINKS names them, their classes say what they write.

`run_folder.make_run_folder` creates the folder of a run; `sink_set.SinkSet` gives each source its own sinks.
"""

from __future__ import annotations

import os
import pkgutil
from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from framefuse.errors import UsageError
from framefuse.frame import Frame
from framefuse.prediction import FrameInfo, Result
from framefuse.sinks.run_folder import UniqueNames, output_path, shorten
from framefuse.sources import SourceInfo

SINKS: dict[str, str] = {
    "video": "framefuse.sinks.video:VideoSink",
    "images": "framefuse.sinks.images:ImagesSink",
    "crops": "framefuse.sinks.images:CropsSink",
    "frames": "framefuse.sinks.images:FramesSink",
    "jsonl": "framefuse.sinks.records:JsonlSink",
    "csv": "framefuse.sinks.records:CsvSink",
    "events": "framefuse.sinks.events:EventsSink",
    "coco": "framefuse.sinks.coco:CocoSink",
    "cvat": "framefuse.sinks.labels:CvatSink",
    "label_studio": "framefuse.sinks.labels:LabelStudioSink",
    "parquet": "framefuse.sinks.parquet:ParquetSink",
    "mot": "framefuse.sinks.records:MotSink",
    "yolo_txt": "framefuse.sinks.records:YoloTxtSink",
    "show": "framefuse.sinks.show:ShowSink",
    "callback": "framefuse.sinks.callback:CallbackSink",
    "null": "framefuse.sinks.callback:NullSink",
}
"""Sink name -> class, imported on use. Entry points of the group `framefuse.sinks` add sinks."""


@dataclass(frozen=True)
class SinkContext:
    """The facts that a sink gets before the first result."""

    folder: Path
    """Folder of the run; it exists. A sink writes only inside it, to paths from `output`."""
    source: SourceInfo
    """The video sink uses `fps` for frames without pts, and `path` for the audio."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Class names of the model."""
    stem: str = "result"
    """Base name of the outputs, unique in the run: the file name of the source without suffix."""
    inputs: Container[Path] = frozenset()
    """Files that the run reads."""
    taken: Mapping[str, UniqueNames] = field(default_factory=lambda: defaultdict(UniqueNames))
    """Names already used in the run: stems under "stem", names of single images under the name of the sink."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """`model` (name) and `options` (settings that change results), for outputs that say how they were made."""

    @property
    def ends(self) -> bool:
        """Whether the outputs will ever be complete; until then their names end in ".part"."""
        return not self.source.live

    @cached_property
    def _images(self) -> str:
        return os.path.commonpath([Path(path).parent.absolute() for path in self.source.files])

    def relative(self, path: str) -> str:
        """The path of an image from the folder that holds all of them."""
        return os.path.relpath(path, self._images) if self.source.files else os.path.basename(path)

    def frame_stem(self, frame: FrameInfo) -> str:
        """Base name of a file for one frame: that of its image, or <stem>_<frame>."""
        return shorten(Path(frame.source_id).stem) if self.source.kind == "images" else f"{self.stem}_{frame.index}"

    def image_name(self, sink: str, frame: FrameInfo) -> str:
        """A unique file name of a frame. All names of images are stored, but only the stem of a video, which may be
        endless."""
        stems, images, name = self.taken["stem"], self.taken[sink], self.frame_stem(frame)
        if self.source.kind != "images":
            return images.take(name) if name in images else name
        video, _, number = name.rpartition("_")
        return images.take(f"{name}_image" if number.isdecimal() and video in stems else name)

    def output(self, name: str) -> Path:
        """See `output_path`."""
        return output_path(self.folder, name, self.inputs)


class Sink(Protocol):
    """Writes the results of one source in source order, in one thread.

    `close` completes the output (a playable video, a complete last line) even after an error, and may be called twice.
    A sink that cannot write raises SinkError with the path.
    """

    name: str
    paths: list[Path]
    """Outputs, complete or not."""
    notes: list[str]
    """Changes and omissions, such as "641x361 padded to 642x362, as 4:2:0 requires"."""
    needs_frame: bool
    """Whether `write` reads the planes; if no sink does, frames are released as soon as the model input is filled."""

    def open(self, context: SinkContext) -> None: ...
    def write(self, result: Result, frame: Frame | None) -> None: ...
    def close(self) -> None: ...


def open_sink(name: str, **options: Any) -> Sink:
    """Create a sink by name; it writes nothing before its `open`.

    Args:
        options: keyword arguments of the sink's class.

    Raises:
        UsageError: there is no sink of this name.
    """
    targets = dict(SINKS)
    if name not in targets:
        from importlib.metadata import entry_points

        targets.update({point.name: point.value for point in entry_points(group="framefuse.sinks")})
    if name not in targets:
        raise UsageError(f"no sink is called {name!r}", remedy=f"choose one of {', '.join(sorted(targets))}")
    sink: Sink = pkgutil.resolve_name(targets[name])(**options)
    return sink
