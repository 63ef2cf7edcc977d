"""A tuning database on disk: one folder for each target, in TVM's own two files, which a killed tuner may leave torn.

database_workload.json        one function a line, by number
database_tuning_record.json   one schedule a line, with the number of its function and the seconds it took
target.json                   what it was tuned for

A tuner appends lines, so a torn one can only be the last: readers leave it out, the next tuner cuts it off, and `note`
says so. Anything else that cannot be read was not done by a tuner, and the database is refused. Readers work on a copy:
a tuner may be writing, and the folder may be one that is only read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from framefuse.engines import cache
from framefuse.engines.tvm.package import tvm, versions
from framefuse.engines.tvm.targets import Target
from framefuse.errors import EngineError

WORKLOADS, RECORDS, TARGET = "database_workload.json", "database_tuning_record.json", "target.json"


def default_folder(target: Target) -> Path:
    """Where the engine looks for schedules of a target."""
    return cache.directory() / "tvm" / "tuning" / target.name


class Records:
    """The database in a folder, which is made if it is not there.

    Raises:
        EngineError: it is of another target, or damaged beyond a torn last line.
    """

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder, self.target, self.note = folder, target, ""
        self._check_target()
        self._whole()

    def open(self) -> Any:
        """TVM's object over the files, for the tuner that holds the lock."""
        try:
            for name, content in self._whole().items():
                path = self.folder / name
                if path.exists() and path.read_bytes() != content:
                    cache.write_atomically(path, content)
            if not (self.folder / TARGET).exists():
                facts = {"target": self.target.name, "tvm": versions()}
                cache.write_atomically(self.folder / TARGET, json.dumps(facts).encode())
        except OSError as error:
            raise self._unwritable(error) from error
        return self._opened(self.folder)

    def copy(self) -> Any:
        """TVM's object over a copy of what is there now."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in self._whole().items():
                Path(folder, name).write_bytes(content)
            return self._opened(Path(folder))  # it has read them when it is there

    @property
    def written(self) -> int:
        """Schedules in the file, those included that did not run."""
        try:
            return (self.folder / RECORDS).read_bytes().count(b"\n")
        except OSError:
            return 0

    @property
    def digest(self) -> str:
        """Of what is in it, for a cache key; empty where there is nothing."""
        try:
            content = (self.folder / RECORDS).read_bytes()
        except OSError:
            return ""
        return hashlib.sha256(content).hexdigest()[:16] if content else ""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Held by the one tuner that may write.

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
            facts = json.loads((self.folder / TARGET).read_text(encoding="utf-8"))
            name = str(facts["target"])
        except FileNotFoundError:
            if (self.folder / RECORDS).exists():
                raise self._refused(f"{TARGET} is missing: what it was tuned for is unknown") from None
            return
        except cache.DAMAGED as error:
            raise self._refused(f"{TARGET} cannot be read: {error}") from error
        if name != self.target.name:
            raise self._refused(f"it was tuned for {name}, not for {self.target.name}")

    def _whole(self) -> dict[str, bytes]:
        """Both files without a torn last line; every other line is one that a tuner can have written."""
        schedules = self._read(RECORDS)  # first: a tuner may add to both, and a schedule comes after its function
        functions = self._whole_lines(WORKLOADS, self._read(WORKLOADS), None)
        schedules = self._whole_lines(RECORDS, schedules, len(functions))
        return {WORKLOADS: b"".join(functions), RECORDS: b"".join(schedules)}

    def _read(self, name: str) -> list[bytes]:
        try:
            return (self.folder / name).read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._refused(f"{name} cannot be read: {error.strerror}") from error

    def _whole_lines(self, name: str, lines: list[bytes], functions: int | None) -> list[bytes]:
        for number, line in enumerate(lines):
            try:
                content = json.loads(line)
                if functions is not None and not 0 <= int(content[0]) < functions:
                    raise ValueError(f"it is of function {content[0]}, and {WORKLOADS} has {functions}")
            except cache.DAMAGED as error:
                if number != len(lines) - 1:
                    raise self._refused(f"line {number + 1} of {name}: {error}") from error
                self.note = f"{self.folder / name}: its last line is torn and is left out"
                return lines[:number]
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        return lines

    def _opened(self, folder: Path) -> Any:
        from tvm.s_tir.meta_schedule.database import JSONDatabase

        tvm()
        try:
            return JSONDatabase(work_dir=str(folder))
        except Exception as error:  # a line is JSON, but not one that this TVM wrote
            raise self._refused(f"TVM cannot read it: {str(error).strip().splitlines()[-1]}") from error

    def _refused(self, why: str) -> EngineError:
        return EngineError(
            f"tuning database {self.folder} cannot be used: {why}",
            remedy="move it away, or tune into another folder (framefuse tune --database)",
        )

    def _unwritable(self, error: OSError) -> EngineError:
        return EngineError(
            f"tuning database {self.folder} cannot be written: {error.strerror}",
            remedy="name another folder with --database, or set XDG_CACHE_HOME",
        )
