"""All sinks of a run: each source has its own, opened at its first result."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from framefuse.common.files import Files
from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks import Sink, SinkContext
from framefuse.sinks.run_folder import Manifest, UniqueNames, output_path, shorten
from framefuse.sources import SourceInfo


def stem_of(source: SourceInfo) -> str:
    """Base name of a source's outputs: clip.mp4 -> clip, rtsp://host/live/1 -> host_live_1, camera 0 -> camera_0."""
    if source.path is not None:
        name = source.path.stem
    elif source.live:
        name = re.sub(r"^\w+://", "", source.uri)
        name = f"camera_{name}" if name.isdecimal() else name
    else:
        name = source.kind
    return shorten(re.sub(r"[^\w.-]+", "_", name).strip("._")) or source.kind


class SinkSet:
    """Distributes results to the sinks of each source.

    A sink that fails is closed and not used again; the others still get the result, then the error is raised.

    Args:
        make: creates the unopened sinks of a source.
        folder: folder of the run; it exists.
        names: class names of the model.
        inputs: known files that the run reads; no output overwrites one.
        beside: files that the run itself writes into the folder.
        manifest: where to record the inputs whose outputs are complete.
        stems: base names of outputs that an earlier run has completed.
        run: see `SinkContext`.

    Raises:
        SinkError: one of `beside` is an input.
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
    ) -> None:
        self._make, self._folder, self._names, self._inputs = make, folder, names or {}, tuple(inputs)
        self._run, self._manifest = run, manifest
        self._taken: Mapping[str, UniqueNames] = defaultdict(UniqueNames)
        self._working: dict[str, list[Sink]] = {}
        self._all: list[Sink] = []
        self._inputs_of: dict[str, tuple[SourceInfo, str, str]] = {}
        """Source, key and stem of what the manifest will list."""
        paths = [output_path(folder, name, Files(self._inputs)) for name in beside]
        for stem in (*{path.stem for path in paths}, *stems):
            self._taken["stem"].take(stem)

    @property
    def paths(self) -> list[Path]:
        """Outputs so far; those that could not be started do not exist."""
        return [path for sink in self._all for path in sink.paths if path.exists()]

    @property
    def notes(self) -> list[str]:
        """Changes and omissions of the sinks."""
        return [note for sink in self._all for note in sink.notes]

    def write(self, result: Result, frame: Frame | None, source: SourceInfo) -> None:
        """Pass a result to the sinks of its source: one set per source_id, or one for all images of a source.

        Raises:
            SinkError: a sink cannot write.
            Exception: raised by a callback.
        """
        key = source.unit_of(result.frame.source_id)
        if key not in self._working:
            self._open(key, source)
        errors: list[Exception] = []
        for sink in list(self._working[key]):
            if failed := _errors_of(sink.write, result, frame):
                self._working[key].remove(sink)
                errors += failed + _close([sink])
        _raise_first(errors)

    def end(self, source_id: str) -> None:
        """Complete the outputs of a source that has ended, so that a long run does not keep every file open."""
        sinks = self._working.pop(source_id, [])
        _raise_first(_close(sinks))
        if self._manifest is not None and source_id in self._inputs_of:
            info, key, stem = self._inputs_of.pop(source_id)
            if info.error is None:
                self._manifest.add(info.uri, key, stem, [path for sink in sinks for path in sink.paths])

    def finish(self) -> None:
        """The same for all that are open."""
        for key in list(self._working):
            self.end(key)

    def close(self) -> None:
        """Complete every output, then raise the first error, if any. May be called twice."""
        errors = _close([sink for group in self._working.values() for sink in group])
        self._working.clear()
        if self._manifest is not None:
            self._manifest.close()
        _raise_first(errors)

    def _open(self, key: str, source: SourceInfo) -> None:
        own = [] if source.path is None else [source.path]
        inputs = Files((*self._inputs, *source.files, *own))
        stem = self._taken["stem"].take(stem_of(source))
        context = SinkContext(self._folder, source, self._names, stem, inputs, self._taken, self._run)
        self._working[key] = []
        if self._manifest is not None and (files := source.files or own):
            self._inputs_of[key] = source, self._manifest.key(files), stem
        errors: list[Exception] = []
        for sink in self._make(source):
            self._all.append(sink)
            failed = _errors_of(sink.open, context)
            self._working[key] += [] if failed else [sink]
            errors += failed
        _raise_first(errors)


def _close(sinks: Sequence[Sink]) -> list[Exception]:
    return [error for sink in sinks for error in _errors_of(sink.close)]


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
