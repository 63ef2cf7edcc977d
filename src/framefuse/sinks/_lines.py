"""A file that only ever holds whole records."""

from __future__ import annotations

import errno
from pathlib import Path

from framefuse.errors import SinkError


def write_error(path: Path, error: OSError) -> SinkError:
    """SinkError that names the path, the system's reason and what to do."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "free some space" if full else "check that the folder exists and may be written to"
    return SinkError(
        f"cannot write {path}: {error.strerror or error}", remedy=f"{advice}, or choose another with --project"
    )


class RecordFile:
    """Appends records, each handed to the system in one piece: the file ends with a whole one even after a kill.

    A record that does not fit (full disk) is taken back out.

    Raises:
        SinkError: the file cannot be created or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "w+b", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise write_error(path, error) from error

    def append(self, record: bytes) -> None:
        """Write one record, whole or not at all."""
        rest = memoryview(record)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.truncate(self.size)
            raise write_error(self.path, error) from error
        self.size += len(record)

    def read(self, start: int, count: int = -1) -> bytes:
        """Up to `count` bytes from `start` (all by default)."""
        self._file.seek(start)
        found = self._file.read(count) or b""
        self._file.seek(self.size)
        return found

    def truncate(self, size: int) -> None:
        """Take back what was appended after `size`."""
        self._file.truncate(size)
        self.size = self._file.seek(size)

    def close(self) -> None:
        self._file.close()
