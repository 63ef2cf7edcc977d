"""Sinks write results. A run may use several kinds; SINKS names them, their classes say what they write. Here is what
they have in common, and the two without files: a function, and a count. `SinkSet` gives each source its own sinks."""

import os
import pkgutil
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from framefuse.common.files import Files
from framefuse.common.polygons import Point
from framefuse.common.redact import brief
from framefuse.errors import UsageError
from framefuse.frame import Frame
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.sinks.run_folder import (
    Manifest,
    RecordFile,
    UniqueNames,
    close_folder,
    new_folder,
    output_path,
    place_of,
    shorten,
)
from framefuse.sources import SourceInfo

SINKS: dict[str, str] = {
    "video": "framefuse.sinks.video:VideoSink",
    "matte": "framefuse.sinks.matte:MatteSink",
    "matte_images": "framefuse.sinks.matte:MatteImagesSink",
    "images": "framefuse.sinks.images:ImagesSink",
    "crops": "framefuse.sinks.images:CropsSink",
    "frames": "framefuse.sinks.images:FramesSink",
    "jsonl": "framefuse.sinks.records:JsonlSink",
    "csv": "framefuse.sinks.records:CsvSink",
    "events": "framefuse.sinks.records:EventsSink",
    "coco": "framefuse.sinks.labels:CocoSink",
    "cvat": "framefuse.sinks.labels:CvatSink",
    "label_studio": "framefuse.sinks.labels:LabelStudioSink",
    "parquet": "framefuse.sinks.parquet:ParquetSink",
    "mot": "framefuse.sinks.records:MotSink",
    "yolo_txt": "framefuse.sinks.records:YoloTxtSink",
    "show": "framefuse.sinks.show:ShowSink",
    "callback": "framefuse.sinks:CallbackSink",
    "null": "framefuse.sinks:NullSink",
}
"""Sink name -> class, imported on use. Entry points of the group `framefuse.sinks` add sinks."""
VP9, WEBM = "libvpx-vp9", ".webm"
"""The encoder of transparent videos for browsers, and the suffix of their files."""
VISIBLE = 0.5
"""Confidence from which on a keypoint counts as visible."""
UNTINTED = "background"
"""The class that masks do not tint."""


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
    copied: Callable[[int], None] = lambda size: None
    """Is told how many bytes of pixels a sink copies from a GPU."""

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
    """Create a sink by name, with the options of its class; it writes nothing before its `open`. UsageError: there is
    no sink of this name."""
    targets = dict(SINKS)
    if name not in targets:
        from importlib.metadata import entry_points

        targets.update({point.name: point.value for point in entry_points(group="framefuse.sinks")})
    if name not in targets:
        raise UsageError(f"no sink is called {name!r}", remedy=f"choose one of {', '.join(sorted(targets))}")
    return cast("Sink", pkgutil.resolve_name(targets[name])(**options))


class BaseSink:
    """A sink without outputs, but perhaps with folders, which `close` writes through to the disk."""

    needs_frame = False

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.notes: list[str] = []
        self._folders: dict[Path, os.stat_result] = {}

    def open(self, context: SinkContext) -> None:
        self._context = context

    def close(self) -> None:
        for folder, opened in self._folders.items():
            close_folder(folder, opened)

    def _folder(self, name: str) -> Path:
        """A folder inside the run's, created at its first use."""
        path = self._context.folder / name
        if path not in self._folders:
            self._folders[path] = new_folder(path)
        return path


class CallbackSink(BaseSink):
    """Calls `function(result, frame)` in the sink's thread; its exceptions reach the user unchanged.

    Args:
        function: its frame is None unless `needs_frame`, and must not be kept if it has a lease.
        needs_frame: whether the function reads pixels.

    Raises:
        UsageError: `function` is not callable.
    """

    name = "callback"

    def __init__(self, function: Callable[[Result, Frame | None], object], *, needs_frame: bool = False) -> None:
        if not callable(function):
            raise UsageError(f"the callback is {brief(function)}", remedy="pass a function of (result, frame)")
        super().__init__()
        self.needs_frame = needs_frame
        self._function = function

    def write(self, result: Result, frame: Frame | None) -> None:
        self._function(result, frame if self.needs_frame else None)


class NullSink(BaseSink):
    """Counts frames and detections."""

    name = "null"
    frames = detections = 0

    def write(self, result: Result, frame: Frame | None) -> None:
        self.frames += 1
        self.detections += len(result.detections)


class FolderSink(BaseSink):
    """Writes files that are complete one by one into a folder."""

    folder: str
    """Name of the folder inside the run's."""

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self.paths.append(self._folder(self.folder))


class RecordSink(BaseSink):
    """Appends records to <stem>.<suffix>, or to <stem>.<stream>, of which `_complete` makes it; none leave no file."""

    name: str
    suffix = ""
    """Default: the name of the sink."""
    stream = ""

    def open(self, context: SinkContext) -> None:
        super().open(context)
        target = context.output(f"{context.stem}.{self.suffix or self.name}")
        written = context.output(f"{context.stem}.{self.stream}") if self.stream else target
        self._file = RecordFile(written, part=context.ends and not self.stream)
        self._file.append(self._header())
        self._begin, self._closed = self._file.size, False
        self.paths.append(target)

    def close(self) -> None:
        if not self.paths or self._closed:
            return
        self._closed = True
        if self._file.size > self._begin:
            self._file.close()
            self._complete(self._file.path)
        else:
            self._file.discard()

    def _header(self) -> bytes:
        """The beginning of the file, which is no record."""
        return b""

    def _complete(self, stream: Path) -> None:
        pass


@dataclass(frozen=True)
class Style:
    """What is drawn of results, and how."""

    trail: float = 0.0
    """Seconds of its path that are drawn of each track."""
    views: bool = False
    """Outline the views of each frame."""
    line_width: int = 0
    """Pixels; 0: by the size of the frame."""
    labels: bool = True
    confidence: bool = True
    """Also in the labels."""
    places: Sequence[tuple[str, Sequence[Point]]] = ()
    """Zones and lines to outline: their names, and their corners or ends, in pixels or as shares of the frame."""


USUAL = Style()


def tracks_of(found: Detections) -> list[int | None]:
    """The id of each detection; None: it has no track."""
    numbers = [-1] * len(found) if found.tracker_id is None else found.tracker_id.tolist()
    return [number if number >= 0 else None for number in numbers]


def labelled(keypoints: NDArray[Any]) -> NDArray[np.float64]:
    """(n, k, 3) keypoints as labels have them: x, y and 2, or all three 0 if the keypoint is not VISIBLE."""
    points = keypoints.astype(np.float64)
    points[:, :, 2] = 2
    points[keypoints[:, :, 2] < VISIBLE] = 0
    return points


def rows_of(found: Detections) -> Iterator[tuple[list[float], float, int, int | None]]:
    """Box (2 decimals), confidence (4 decimals), class id and track of each detection."""
    boxes = np.round(found.xyxy.astype(np.float64), 2).tolist()
    scores = np.round(found.confidence.astype(np.float64), 4).tolist()
    return zip(boxes, scores, found.class_id.tolist(), tracks_of(found), strict=True)


def stem_of(source: SourceInfo) -> str:
    """Base name of a source's outputs: clip.mp4 -> clip, rtsp://host/live/1 -> host_live_1, camera 0 -> camera_0."""
    if source.path is not None:
        name = source.path.stem
    elif source.live:
        name = re.sub(r"^\w+://", "", source.uri)
        name = f"camera_{name}" if name.isdecimal() else name
    else:
        name = source.kind
    return clean_stem(name) or source.kind


def clean_stem(name: str) -> str:
    """A name as outputs have it: letters, digits, dots, dashes and underscores; empty if nothing is left."""
    return shorten(re.sub(r"[^\w.-]+", "_", name).strip("._"))


class SinkSet:
    """Distributes results to the sinks of each source.

    A sink that fails is closed and not used again; the others still get the result, then the error is raised.

    Args:
        make: creates the unopened sinks of a source.
        folder: folder of the run; it exists.
        names: class names of the model.
        inputs: known files that the run reads; no output overwrites one.
        beside: files that the run itself writes into the folder. SinkError: one is an input.
        manifest: where to record the inputs whose outputs are complete.
        stems: base names of outputs that an earlier run has completed.
        run, copied: see `SinkContext`.
    """

    def __init__(
        self,
        make: Callable[[SourceInfo], Sequence[Sink]],
        folder: Path,
        names: Mapping[int, str] | None = None,
        *,
        inputs: Iterable[Path] = (),
        beside: Iterable[str] = (),
        manifest: Manifest | None = None,
        stems: Iterable[str] = (),
        run: Mapping[str, Any] = MappingProxyType({}),
        copied: Callable[[int], None] = SinkContext.copied,
    ) -> None:
        self._make, self._folder, self._names, self._inputs = make, folder, names or {}, tuple(inputs)
        self._run, self._manifest, self._copied = run, manifest, copied
        self._taken: Mapping[str, UniqueNames] = defaultdict(UniqueNames)
        self._working: dict[str, list[Sink]] = {}
        self._ended: list[str] = []
        """Outputs of sinks that are closed, as text, which takes a fraction of the memory of paths."""
        self._notes: dict[str, None] = {}
        self._inputs_of: dict[str, tuple[SourceInfo, str, str, str]] = {}
        """Source, place, key and stem of what the manifest will list."""
        paths = [output_path(folder, name, Files(self._inputs)) for name in beside]
        for stem in (*{path.stem for path in paths}, *stems):
            self._taken["stem"].take(stem)

    @property
    def paths(self) -> list[Path]:
        """Outputs so far; those that could not be started do not exist."""
        own = (path for sink in self._open_sinks for path in sink.paths)
        return [path for path in dict.fromkeys(chain(map(Path, list(self._ended)), own)) if path.exists()]

    @property
    def notes(self) -> list[str]:
        """Changes and omissions of the sinks, each once."""
        return list(dict.fromkeys(chain(self._notes, *(sink.notes for sink in self._open_sinks))))

    @property
    def _open_sinks(self) -> list[Sink]:
        return [sink for group in list(self._working.values()) for sink in list(group)]

    def begin(self, results: Sequence[tuple[Result, Frame | None]], source: SourceInfo) -> bool:
        """Let sinks start what a GPU does for results of a unit of a source, which `write` gets later, perhaps in
        another thread; whether one did. Those of a source are opened by its first `write`."""
        sinks = self._working.get(source.unit_of(results[0][0].frame.source_id), ())
        return any([begin(results) for sink in sinks if (begin := getattr(sink, "begin", None))])

    def write(self, result: Result, frame: Frame | None, source: SourceInfo) -> None:
        """Pass a result to the sinks of its source: one set per source_id, or one for all images of a source.
        SinkError: a sink cannot write; any other error comes from a callback."""
        key = source.unit_of(result.frame.source_id)
        if key not in self._working:
            self._open(key, source)
        errors: list[Exception] = []
        for sink in list(self._working[key]):
            if failed := _errors_of(sink.write, result, frame):
                self._working[key].remove(sink)
                errors += failed + self._complete([sink])
        _raise_first(errors)

    def end(self, source_id: str) -> None:
        """Complete the outputs of a source that has ended, so that a long run does not keep every file open."""
        sinks = self._working.get(source_id, [])
        errors = self._complete(sinks)
        self._working.pop(source_id, None)
        _raise_first(errors)
        if self._manifest is not None and source_id in self._inputs_of:
            info, place, key, stem = self._inputs_of.pop(source_id)
            if info.error is None:
                outputs = [path for sink in sinks for path in sink.paths]
                self._manifest.add(info.uri, place, key, stem, outputs)

    def finish(self) -> None:
        """The same for all that are open."""
        for key in list(self._working):
            self.end(key)

    def close(self) -> None:
        """Complete every output, then raise the first error, if any. May be called twice."""
        errors = self._complete(self._open_sinks)
        self._working.clear()
        if self._manifest is not None:
            self._manifest.close()
        _raise_first(errors)

    def _open(self, key: str, source: SourceInfo) -> None:
        own = [] if source.path is None else [source.path]
        inputs = Files((*self._inputs, *source.files, *own))
        stem = self._taken["stem"].take(stem_of(source))
        context = SinkContext(self._folder, source, self._names, stem, inputs, self._taken, self._run, self._copied)
        self._working[key] = []
        if self._manifest is not None and (files := source.files or own):
            self._inputs_of[key] = source, place_of(files), self._manifest.key(files), stem
        errors: list[Exception] = []
        for sink in self._make(source):
            failed = _errors_of(sink.open, context)
            if failed:
                self._keep(sink)
            else:
                self._working[key].append(sink)
            errors += failed
        _raise_first(errors)

    def _complete(self, sinks: Iterable[Sink]) -> list[Exception]:
        """Close sinks, which are not used again; the errors."""
        errors = []
        for sink in sinks:
            errors += _errors_of(sink.close)
            self._keep(sink)
        return errors

    def _keep(self, sink: Sink) -> None:
        """Remember what a report says of a sink that is not used again."""
        self._ended += [str(path) for path in sink.paths if path.exists()]
        self._notes |= dict.fromkeys(sink.notes)


def _errors_of(call: Callable[..., None], *values: object) -> list[Exception]:
    try:
        call(*values)
    except Exception as error:
        return [error]
    return []


def _raise_first(errors: list[Exception]) -> None:
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"also: {other}")
        raise errors[0]
