"""Sinks take results. Each is one file; several run at once.

    video     annotated MP4, audio copied          images    one annotated picture an image
    jsonl     one line a frame                     csv       one row a detection
    coco      COCO JSON                            yolo_txt  one label file a frame
    show      annotated, in a window               callback  a function of yours
    null      counts only

A run writes into the folder that `run_folder.make_run_folder` made; `sink_set.SinkSet` gives each source its own sinks.
"""

from __future__ import annotations

import pkgutil
from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from framefuse.errors import SinkError, UsageError
from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks.run_folder import UniqueNames
from framefuse.sources import SourceInfo

SINKS: dict[str, str] = {
    "video": "framefuse.sinks.video:VideoSink",
    "images": "framefuse.sinks.images:ImagesSink",
    "jsonl": "framefuse.sinks.jsonl:JsonlSink",
    "csv": "framefuse.sinks.csv:CsvSink",
    "coco": "framefuse.sinks.coco:CocoSink",
    "yolo_txt": "framefuse.sinks.yolo_txt:YoloTxtSink",
    "show": "framefuse.sinks.show:ShowSink",
    "callback": "framefuse.sinks.callback:CallbackSink",
    "null": "framefuse.sinks.null:NullSink",
}
"""Sink name -> class, imported on use. Entry points of the group `framefuse.sinks` add to it."""


@dataclass(frozen=True)
class SinkContext:
    """What a sink may know before the first result."""

    folder: Path
    """Folder of the run; it exists. A sink writes inside it only, to paths that `output` gave."""
    source: SourceInfo
    """Its `fps` and `path` serve the video sink: frame times where a frame has none, and the audio."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Class names of the model."""
    stem: str = "result"
    """Unique in the run: the file name of the source without suffix, to name the outputs after."""
    inputs: Container[Path] = frozenset()
    """Files that the run reads."""
    taken: Mapping[str, UniqueNames] = field(default_factory=lambda: defaultdict(UniqueNames))
    """Names used so far in the run: stems under "stem", those of single pictures under the name of the sink."""

    def output(self, name: str) -> Path:
        """The path of a file to be written, which may be called `name`.part while it is.

        Raises:
            SinkError: it is one of the files that the run reads.
        """
        path = self.folder / name
        for written in (path, path.with_name(path.name + ".part")):
            if written in self.inputs:
                raise SinkError(
                    f"{written} is a source of this run, and would be overwritten",
                    remedy="choose another --project or --name",
                )
        return path


class Sink(Protocol):
    """Takes the results of one source in source order, in one thread.

    `close` completes the output (playable, last line whole) also after an error, and may be called twice. A sink raises
    SinkError with the path when it cannot write.
    """

    name: str
    paths: list[Path]
    """What it has written, or is writing."""
    notes: list[str]
    """What was changed or left out on the way: "641x361 padded to 642x362, as 4:2:0 needs", ..."""
    needs_frame: bool
    """Whether `write` reads the planes; if no sink does, frames are released as soon as the model input is filled."""

    def open(self, context: SinkContext) -> None: ...
    def write(self, result: Result, frame: Frame | None) -> None: ...
    def close(self) -> None: ...


def open_sink(name: str, **options: Any) -> Sink:
    """Make a sink by name; it writes nothing before its `open`.

    Args:
        options: the keyword arguments of the sink's class.

    Raises:
        UsageError: no sink has this name.
    """
    targets = dict(SINKS)
    if name not in targets:
        from importlib.metadata import entry_points

        targets.update({point.name: point.value for point in entry_points(group="framefuse.sinks")})
    if name not in targets:
        raise UsageError(f"no sink is called {name!r}", remedy=f"choose one of {', '.join(sorted(targets))}")
    sink: Sink = pkgutil.resolve_name(targets[name])(**options)
    return sink
