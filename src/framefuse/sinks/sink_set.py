"""All sinks of a run: each source gets its own, opened at its first result."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks import Sink, SinkContext
from framefuse.sinks.run_folder import UniqueNames
from framefuse.sources import SourceInfo


def stem_of(source: SourceInfo) -> str:
    """What to call a source's outputs: clip.mp4 -> clip, rtsp://host/live/1 -> host_live_1, camera 0 -> camera_0."""
    if source.path is not None:
        name = source.path.stem
    elif source.live:
        name = re.sub(r"^\w+://", "", source.uri)
        name = f"camera_{name}" if name.isdecimal() else name
    else:
        name = source.kind
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or source.kind


class SinkSet:
    """Fans results out to several sinks a source.

    Args:
        make: the new, unopened sinks of a source.
        folder: folder of the run; it exists.
        names: class names of the model.

    A sink that fails is completed and left out from then on; the others still get the result, then its error is raised.
    """

    def __init__(
        self, make: Callable[[SourceInfo], Sequence[Sink]], folder: Path, names: Mapping[int, str] | None = None
    ) -> None:
        self._make, self._folder, self._names = make, folder, names or {}
        self._stems = UniqueNames()
        self._working: dict[str, list[Sink]] = {}
        self._all: list[Sink] = []

    def __enter__(self) -> SinkSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def paths(self) -> list[Path]:
        """Everything written so far."""
        return [path for sink in self._all for path in sink.paths]

    @property
    def notes(self) -> list[str]:
        """What the sinks changed or left out."""
        return [note for sink in self._all for note in sink.notes]

    def write(self, result: Result, frame: Frame | None, source: SourceInfo) -> None:
        """Give a result to the sinks of its source: one set a source_id, or one for all the images of a source.

        Raises:
            SinkError: a sink could not write.
            Exception: what a callback raised.
        """
        key = source.uri if source.kind == "images" else result.frame.source_id
        if key not in self._working:
            self._open(key, source)
        errors: list[Exception] = []
        for sink in list(self._working[key]):
            try:
                sink.write(result, frame)
            except Exception as error:
                errors.append(error)
                self._working[key].remove(sink)
                errors += _close([sink])
        _raise_first(errors)

    def end(self, source_id: str) -> None:
        """Complete the outputs of a source that has ended, so that a long run does not hold every file open."""
        _raise_first(_close(self._working.pop(source_id, [])))

    def close(self) -> None:
        """Complete every output, then raise the first error met, if any. May be called twice."""
        sinks = [sink for group in self._working.values() for sink in group]
        self._working.clear()
        _raise_first(_close(sinks))

    def _open(self, key: str, source: SourceInfo) -> None:
        context = SinkContext(self._folder, source, self._names, self._stems.take(stem_of(source)))
        self._working[key] = []
        errors: list[Exception] = []
        for sink in self._make(source):
            self._all.append(sink)
            try:
                sink.open(context)
                self._working[key].append(sink)
            except Exception as error:
                errors.append(error)
        _raise_first(errors)


def _close(sinks: Sequence[Sink]) -> list[Exception]:
    errors: list[Exception] = []
    for sink in sinks:
        try:
            sink.close()
        except Exception as error:
            errors.append(error)
    return errors


def _raise_first(errors: list[Exception]) -> None:
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"also: {other}")
        raise errors[0]
