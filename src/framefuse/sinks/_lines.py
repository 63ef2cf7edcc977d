"""A file that always ends with a complete record."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from framefuse.errors import SinkError


def write_error(path: Path, error: OSError) -> SinkError:
    """SinkError with the path, the system's reason and a remedy."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "free some space" if full else "check that the folder exists and is writable"
    if error.errno == errno.ELOOP:
        advice = "it is a symbolic link, which is not followed: remove it"
    return SinkError(f"cannot write {path}: {error.strerror or error}", remedy=f"{advice}, or choose another --project")


@contextmanager
def sink_errors(path: Path) -> Iterator[None]:
    """Raise OSErrors as SinkErrors of a file or folder."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def encode(text: str) -> bytes:
    """UTF-8; lone surrogates (undecodable bytes of a file name) are escaped as in JSON."""
    return text.encode("utf-8", "backslashreplace")


def is_json(text: bytes) -> bool:
    """Whether this is a whole JSON text."""
    with suppress(ValueError):
        json.loads(text)
        return True
    return False


def part_of(path: Path) -> Path:
    """What an output is called until it is complete."""
    return path.with_name(path.name + ".part")


def check_unmoved(path: Path, opened: os.stat_result) -> None:
    """SinkError unless a path still names the file or folder that was opened under it."""
    with suppress(OSError):
        if os.path.samestat(path.stat(), opened):
            return
    remedy = "do not change the folder of a run before the run has ended"
    raise SinkError(f"{path} was deleted or replaced while the run was writing it", remedy=remedy)


def open_output(path: Path, flags: int = os.O_CREAT | os.O_TRUNC) -> int:
    """A descriptor to read and write a file of the run folder. OSError: it cannot be opened; ELOOP: a symbolic link."""
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o666)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file of the run folder, which gets its name once it is complete. SinkError: it cannot be written."""
    part = part_of(path)
    try:
        with os.fdopen(open_output(part), "wb") as file:
            file.write(data)
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise write_error(path, error) from error


def open_folder(folder: Path) -> os.stat_result:
    """Create a folder inside the run's, for `check_unmoved`. SinkError: it cannot be created, or is a link."""
    with sink_errors(folder):
        folder.mkdir(exist_ok=True)
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "Is a symbolic link")
        return folder.stat()


def make_durable(path: Path) -> None:
    """Write a complete file and its name through to the disk, so that both survive a loss of power, or OSError."""
    _sync(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def make_folder_durable(folder: Path) -> None:
    """The same for all files in a folder, at the end of a run, when the disk has most of them already, or SinkError."""
    with sink_errors(folder):
        for path in folder.iterdir():
            if path.is_file() and not path.is_symlink():
                _sync(path)
        _sync(folder)


@contextmanager
def finished(stream: Path, target: Path) -> Iterator[BinaryIO]:
    """A file to write `target` to, from `stream`, which is removed afterwards. SinkError: not written; it stays."""
    part = part_of(target)
    try:
        with os.fdopen(open_output(part), "wb") as out:
            yield out
        os.replace(part, target)
        make_durable(target)
        stream.unlink()
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        remedy = f"what was written is in {stream.name}: free some space, then: framefuse repair {stream.parent}"
        raise SinkError(write_error(target, error).message, remedy=remedy) from error


class RecordFile:
    """Appends records, each in one unbuffered write, so that the file ends with a complete record even after a kill.

    A record that does not fit (full disk) is removed again; so is a file whose first record does not fit.

    Args:
        resume: continue an existing file.
        part: call the file <name>.part until `close`.

    Raises:
        SinkError: the file cannot be created or written, or was deleted before `close`.
    """

    def __init__(self, path: Path, *, resume: bool = False, part: bool = False) -> None:
        self.target = path
        """The name of the complete file."""
        self.path = part_of(path) if part else path
        with sink_errors(self.path):
            if path.is_dir():
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            self._file = os.fdopen(open_output(self.path, 0) if resume else open_output(self.path), "r+b", buffering=0)
        self.size = self._file.seek(0, os.SEEK_END)

    def append(self, record: bytes) -> None:
        """Write one record completely or not at all."""
        rest = memoryview(record)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with suppress(OSError):  # the first error is the one to report
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

    def close(self, *, durable: bool = True) -> None:
        """Complete the file; durable: wait until the disk has it. May be called twice."""
        if self._file.closed:
            return
        opened = os.fstat(self._file.fileno())
        self._file.close()
        check_unmoved(self.path, opened)
        with sink_errors(self.path):
            if durable:
                make_durable(self.path)
            if self.path != self.target:
                os.replace(self.path, self.target)
                make_durable(self.target)

    def discard(self) -> None:
        """Close and remove the file; on a broken disk it stays."""
        with suppress(OSError):
            self._file.close()
            self.path.unlink(missing_ok=True)
