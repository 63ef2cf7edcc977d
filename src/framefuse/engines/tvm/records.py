"""Tuning database on disk: one folder per target, with TVM's two files.

database_workload.json        one function per line
database_tuning_record.json   one schedule per line, with the line number of its function and its run times in seconds
target.json                   what it was tuned for

Tuners append lines, so only the last line can be torn: readers skip it, the next tuner removes it, and `note` says so.
Any other damage is refused. Readers work on a copy, because a tuner may be writing and the folder may be read-only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from framefuse.common.files import user_cache
from framefuse.engines import cache
from framefuse.engines.tvm.package import last_line, tvm, versions
from framefuse.engines.tvm.targets import Target
from framefuse.errors import EngineError

WORKLOADS, RECORDS, TARGET = "database_workload.json", "database_tuning_record.json", "target.json"


def default_folder(target: Target) -> Path:
    """The engine's database of a target."""
    return user_cache() / "tvm" / "tuning" / target.name


class Records:
    """The database in a folder; a tuner creates it.

    Raises:
        EngineError: it belongs to another target, or is damaged beyond a torn last line.
    """

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder, self.target, self.note = folder, target, ""
        self._check_target()
        self._checked()

    def open(self) -> Any:
        """TVM's database over the files, for the tuner that holds the lock."""
        try:
            for name, content in self._checked().items():
                path = self.folder / name
                if path.exists() and path.read_bytes() != content:
                    cache.write_atomically(path, content)
            if not (self.folder / TARGET).exists():
                target = {"target": self.target.name, "tvm": versions()}
                cache.write_atomically(self.folder / TARGET, json.dumps(target).encode())
        except OSError as error:
            raise self._unwritable(error) from error
        return self._database(self.folder)

    def copy(self) -> Any:
        """TVM's database over a copy of the current files."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in self._checked().items():
                Path(folder, name).write_bytes(content)
            return self._database(Path(folder))  # TVM has read the files when this returns

    @property
    def written(self) -> int:
        """Schedules in the file, including those that failed to run."""
        try:
            return (self.folder / RECORDS).read_bytes().count(b"\n")
        except OSError:
            return 0

    @property
    def digest(self) -> str:
        """Of its schedules, for a cache key; empty if there are none."""
        try:
            content = (self.folder / RECORDS).read_bytes()
        except OSError:
            return ""
        return hashlib.sha256(content).hexdigest()[:16] if content else ""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock for the one tuner that may write.

        Raises:
            EngineError: another tuner holds it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise self._unwritable(error) from error
        with lock as file:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise EngineError(
                    f"another tuner is writing to {self.folder}", remedy="wait for it, or name another --database"
                ) from error
            yield

    def _check_target(self) -> None:
        try:
            content = json.loads((self.folder / TARGET).read_text(encoding="utf-8"))
            name = str(content["target"])
        except FileNotFoundError:
            if (self.folder / RECORDS).exists():
                raise self._unusable(f"{TARGET} is missing, so its target is unknown") from None
            return
        except cache.DAMAGED as error:
            raise self._unusable(f"{TARGET} cannot be read: {error}") from error
        if name != self.target.name:
            raise self._unusable(f"it was tuned for {name}, not for {self.target.name}")

    def _checked(self) -> dict[str, bytes]:
        """Both files without a torn last line, checked."""
        schedules = self._read(RECORDS)  # first, because a tuner writes a schedule after its function
        functions = self._checked_lines(WORKLOADS, self._read(WORKLOADS), None)
        schedules = self._checked_lines(RECORDS, schedules, len(functions))
        return {WORKLOADS: b"".join(functions), RECORDS: b"".join(schedules)}

    def _read(self, name: str) -> list[bytes]:
        try:
            return (self.folder / name).read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(f"{name} cannot be read: {error.strerror}") from error

    def _checked_lines(self, name: str, lines: list[bytes], functions: int | None) -> list[bytes]:
        for number, line in enumerate(lines):
            try:
                content = json.loads(line)
                if functions is not None and not 0 <= int(content[0]) < functions:
                    raise ValueError(f"it belongs to function {content[0]}, and {WORKLOADS} has {functions}")
            except cache.DAMAGED as error:
                if number != len(lines) - 1:
                    raise self._unusable(f"line {number + 1} of {name}: {error}") from error
                self.note = f"{self.folder / name}: its last line is torn and is skipped"
                return lines[:number]
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        return lines

    def _database(self, folder: Path) -> Any:
        from tvm.s_tir.meta_schedule.database import JSONDatabase

        tvm()
        try:
            return JSONDatabase(work_dir=str(folder))
        except Exception as error:  # valid JSON that this TVM did not write
            raise self._unusable(f"TVM cannot read it: {last_line(error)}") from error

    def _unusable(self, why: str) -> EngineError:
        return EngineError(
            f"tuning database {self.folder} cannot be used: {why}",
            remedy="move it away, or tune into another folder (framefuse tune --database)",
        )

    def _unwritable(self, error: OSError) -> EngineError:
        return EngineError(
            f"tuning database {self.folder} cannot be written: {error.strerror}",
            remedy="name another folder with --database, or set XDG_CACHE_HOME",
        )
