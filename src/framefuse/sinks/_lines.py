"""A file that always ends with a complete record."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from framefuse.errors import SinkError


def write_error(path: Path, error: OSError) -> SinkError:
    """SinkError with the path, the system's reason and a remedy."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "free some space" if full else "check that the folder exists and is writable"
    return SinkError(
        f"cannot write {path}: {error.strerror or error}", remedy=f"{advice}, or choose another with --project"
    )


def encode(text: str) -> bytes:
    """UTF-8; lone surrogates (undecodable bytes of a file name) are escaped as in JSON."""
    return text.encode("utf-8", "backslashreplace")


def check_unmoved(path: Path, opened: os.stat_result) -> None:
    """Check that a path still names the file or folder that was opened under it.

    Raises:
        SinkError: it was deleted or replaced.
    """
    try:
        unmoved = os.path.samestat(path.stat(), opened)
    except OSError:
        unmoved = False
    if not unmoved:
        raise SinkError(
            f"{path} was deleted or replaced while the run was writing it",
            remedy="do not change the folder of a run before the run has ended",
        )


class RecordFile:
    """Appends records, each in one unbuffered write, so that the file ends with a complete record even after a kill.

    A record that does not fit (full disk) is removed again; so is a file whose first record does not fit.

    Raises:
        SinkError: the file cannot be created or written, or was deleted before `close`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        try:
            self._file = open(path, "w+b", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise write_error(path, error) from error

    def append(self, record: bytes) -> None:
        """Write one record completely or not at all."""
        rest = memoryview(record)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.truncate(self.size)
            if not self.size:
                self.discard()
            raise write_error(self.path, error) from error
        self.size += len(record)

    def read(self, start: int, count: int = -1) -> bytes:
        """Up to `count` bytes from `start` (all by default)."""
        self._file.seek(start)
        found = self._file.read(count) or b""
        self._file.seek(self.size)
        return found

    def truncate(self, size: int) -> None:
        """Remove everything after `size` bytes."""
        self._file.truncate(size)
        self.size = self._file.seek(size)

    def close(self) -> None:
        """May be called twice."""
        if not self._file.closed:
            opened = os.fstat(self._file.fileno())
            self._file.close()
            check_unmoved(self.path, opened)

    def discard(self) -> None:
        """Close and remove the file."""
        self._file.close()
        self.path.unlink(missing_ok=True)
