"""The manifest of a run: which of its inputs have complete outputs, so that another run can go on after a kill.

manifest.jsonl has one line for each of them: {"input", "key", "stem", "outputs"}. The key is a hash of the files of the
input (path, size and time of change) and of the run (model and options), so that whatever differs later is done again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from framefuse.sinks._lines import RecordFile, encode

MANIFEST = "manifest.jsonl"


class Manifest:
    """
    Args:
        folder: of the run; it may change before the first `add`, and need not exist until then.
        run: makes a hash of the model and of the options that change results; called once, when it is needed.
        resume: continue the manifest of an earlier run.
    """

    def __init__(self, folder: Path, run: Callable[[], str], *, resume: bool = False) -> None:
        self.folder, self._run, self._resume = folder, cache(run), resume
        self._file: RecordFile | None = None
        self._entries: dict[str, tuple[str, list[str]]] = {}
        """Key -> (stem, names of the outputs)."""
        path = folder / MANIFEST
        for line in path.read_bytes().splitlines() if resume and path.is_file() else ():
            with suppress(ValueError, KeyError, TypeError):  # the last line of a killed run, or not ours
                entry = json.loads(line)
                self._entries[entry["key"]] = entry["stem"], list(entry["outputs"])

    def key(self, files: Iterable[Path]) -> str:
        """
        Raises:
            OSError: a file does not exist.
        """
        stats = [(os.path.abspath(path), (facts := path.stat()).st_size, facts.st_mtime_ns) for path in files]
        return hashlib.sha256(json.dumps([self._run(), stats]).encode()).hexdigest()

    def stem(self, files: Sequence[Path]) -> str | None:
        """The base name of the outputs of an input that is complete; None: it is not, or an output is gone."""
        try:
            stem, outputs = self._entries[self.key(files)]
        except (KeyError, OSError):
            return None
        return stem if all((self.folder / name).exists() for name in outputs) else None

    def add(self, name: str, key: str, stem: str, outputs: Iterable[Path]) -> None:
        """Record that the outputs of an input are complete.

        Raises:
            SinkError: the manifest cannot be written.
        """
        if self._file is None:
            path = self.folder / MANIFEST
            self._file = RecordFile(path, resume=self._resume and path.is_file())
            if self._file.size and self._file.read(self._file.size - 1) != b"\n":
                self._file.append(b"\n")
        names = [os.path.relpath(path, self.folder) for path in outputs]
        entry = {"input": name, "key": key, "stem": stem, "outputs": names}
        self._file.append(encode(json.dumps(entry, ensure_ascii=False) + "\n"))

    def close(self) -> None:
        """May be called twice."""
        if self._file is not None:
            self._file.close()
