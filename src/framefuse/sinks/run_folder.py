"""The folder of a run: its lock, files that always end with a complete record or appear whole, their names (unique, and
none of an input), and its manifest: which inputs have complete outputs, so that another run can go on after a kill."""

import errno
import fcntl
import hashlib
import itertools
import json
import os
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from framefuse.errors import SinkError

MANIFEST = "manifest.jsonl"
STEM_BYTES = 200
"""Maximum length of an output's stem. File systems allow 255 bytes, and a frame number, suffixes and ".part" follow."""


def make_run_folder(project: Path, name: str | None = None, exist_ok: bool = False) -> Path:
    """Create the folder of a run below `project` and return it: the first of name, name2, name3, ... that is free.

    Creation is atomic, so that runs that start at the same time never share one. SinkError: it cannot be created.

    Args:
        name: default "predict".
        exist_ok: use `project/name` even if it exists.
    """
    folder = wanted = Path(project) / (name or "predict")
    numbers = itertools.count(2)
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                folder.mkdir(exist_ok=exist_ok)
                return folder
            except FileExistsError:
                if exist_ok:
                    raise
                folder = wanted.with_name(f"{wanted.name}{next(numbers)}")
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        why = getattr(error, "strerror", None) or error
        remedy = "choose a writable folder with --project"
        raise SinkError(f"cannot create the run folder {folder}: {why}", remedy=remedy) from error


@contextmanager
def run_folder(project: Path, name: str | None = None, exist_ok: bool = False) -> Iterator[Path]:
    """The folder of a run, created and checked before the run starts, and removed afterwards if it is empty.
    SinkError: it cannot be created or is not writable."""
    wanted = Path(project) / (name or "predict")
    missing = [place for place in wanted.parents if not place.exists()]
    existed = exist_ok and wanted.exists()
    folder = make_run_folder(project, name, exist_ok)
    try:
        if not os.access(folder, os.W_OK):
            raise SinkError(f"the folder {folder} is not writable", remedy="choose another --project")
        yield folder
    finally:
        with suppress(OSError):  # it is not empty
            for place in (*([] if existed else [folder]), *missing):
                place.rmdir()


class FolderLock:
    """Keeps other runs out of a folder until `release` or the end of the process.

    The lock is on the folder itself (flock), so it leaves no file behind. On file systems without such locks (some
    network ones) the folder is used unlocked. SinkError: another run is writing into it.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return
            self.release()
            raise SinkError(f"another run is writing into {folder}", remedy="choose another --name, or wait") from error

    def release(self) -> None:
        """May be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def output_path(folder: Path, name: str, inputs: Container[Path]) -> Path:
    """The path of an output file. SinkError: the run reads it, or `name`.part or `name`.index.part, written before."""
    path = folder / name
    for written in (path.with_name(path.name + suffix) for suffix in ("", ".part", ".index.part")):
        if written in inputs:
            raise SinkError(f"{written} is an input of this run", remedy="choose another --project or --name")
    return path


def shorten(stem: str) -> str:
    """The stem, truncated to STEM_BYTES."""
    encoded = os.fsencode(stem)
    return stem if len(encoded) <= STEM_BYTES else encoded[:STEM_BYTES].decode("utf-8", "ignore")


class UniqueNames:
    """Makes names unique: clip, clip_2, clip_3, ... Case is ignored, as on some file systems."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._used

    def take(self, wanted: str) -> str:
        numbered = (f"{wanted}_{number}" for number in itertools.count(2))
        name = next(name for name in itertools.chain([wanted], numbered) if name not in self)
        self._used.add(name.lower())
        return name


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


@contextmanager
def written_whole(path: Path, stream: Path | None = None) -> Iterator[BinaryIO]:
    """A file of the run folder to write, which gets its name once it is complete; what it is made of, a `stream`, is
    removed once the disk has the file, so it stays after an error. SinkError: the file cannot be written."""
    part = part_of(path)
    try:
        with os.fdopen(open_output(part), "wb") as out:
            yield out
        os.replace(part, path)
        if stream is not None:
            make_durable(path)
            stream.unlink()
    except OSError as error:
        failed = write_error(path, error)
        if stream is not None:
            failed.remedy = (
                f"what was written is in {stream.name}: free some space, then: framefuse repair {path.parent}"
            )
        raise failed from error
    finally:
        with suppress(OSError):  # it has its name
            part.unlink()


def save(path: Path, data: bytes) -> None:
    """Write a file of the run folder, which gets its name once it is complete. SinkError: it cannot be written."""
    with written_whole(path) as file:
        file.write(data)


def new_folder(folder: Path) -> os.stat_result:
    """Create a folder inside the run's, for `close_folder`. SinkError: it cannot be created, or is a link."""
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


def close_folder(folder: Path, opened: os.stat_result) -> None:
    """`make_durable` for all files in a folder of `new_folder`, at the end of a run, when the disk has most of them
    already. SinkError: it was replaced, or cannot be written."""
    check_unmoved(folder, opened)
    with sink_errors(folder):
        for path in folder.iterdir():
            if path.is_file() and not path.is_symlink():
                _sync(path)
        _sync(folder)


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
                self._file.truncate(self.size)
                self._file.seek(self.size)
            if not self.size:
                self.discard()
            raise write_error(self.path, error) from error
        self.size += len(record)

    def close(self) -> None:
        """Complete the file, and wait until the disk has it. May be called twice."""
        if self._file.closed:
            return
        opened = os.fstat(self._file.fileno())
        self._file.close()
        check_unmoved(self.path, opened)
        with sink_errors(self.path):
            make_durable(self.path)
            if self.path != self.target:
                os.replace(self.path, self.target)
                make_durable(self.target)

    def discard(self) -> None:
        """Close and remove the file; on a broken disk it stays."""
        with suppress(OSError):
            self._file.close()
            self.path.unlink(missing_ok=True)


class _Entry(NamedTuple):
    """A line of a manifest."""

    place: str
    """See `place_of`."""
    key: str
    stem: str
    outputs: list[str]
    sizes: dict[str, int]
    """Bytes of the outputs that are files."""


def place_of(files: Sequence[str | Path]) -> str:
    """What tells the files of an input from those of others, whatever is in them: a file, or the folder of several."""
    return os.path.abspath(files[0] if len(files) == 1 else os.path.dirname(files[0]))


def _size(path: Path) -> int | None:
    """Bytes of a file; None: it is a folder, or gone."""
    with suppress(OSError):
        facts = path.stat()
        return facts.st_size if stat.S_ISREG(facts.st_mode) else None
    return None


class Manifest:
    """manifest.jsonl has a line for each input with complete outputs: {"input", "place", "key", "stem", "outputs",
    "sizes"}.

    The key is a hash of the files of the input (path, size and time of change) and of the run (model and options), so
    that whatever differs later is done again. So is what has been written over since: an output has another size than
    then, or is that of a later line.

    Args:
        folder: of the run; it may change before the first `add`, and need not exist until then.
        run: makes a hash of the model and of the options that change results; called once, when it is needed.
        resume: continue the manifest of an earlier run. A line that is damaged says nothing.

    Raises:
        SinkError: the manifest to continue cannot be read, or is not a file.
    """

    def __init__(self, folder: Path, run: Callable[[], str], *, resume: bool = False) -> None:
        self.folder, self._run, self._resume = folder, cache(run), resume
        self._file: RecordFile | None = None
        self._entries: dict[str, _Entry] = {}
        """By key."""
        path, lines, owners = folder / MANIFEST, list[bytes](), dict[str, str]()
        with sink_errors(path):
            if resume and path.exists():
                if not path.is_file():
                    raise SinkError(f"{path} is not a file", remedy="remove it, or choose another --name")
                lines = path.read_bytes().splitlines()
        for line in lines:
            with suppress(ValueError, KeyError, TypeError, RecursionError):  # the last of a killed run, or not ours
                entry = json.loads(line)
                place = entry["place"] if "place" in entry else os.path.abspath(entry["input"])
                found = _Entry(place, entry["key"], entry["stem"], entry["outputs"], entry.get("sizes") or {})
                is_ours = isinstance(found.outputs, list) and isinstance(found.sizes, dict)
                if is_ours and all(isinstance(name, str) for name in (*found[:3], *found.outputs)):
                    for name in found.sizes:  # not folders, which several inputs share
                        if (before := owners.get(name)) is not None:
                            self._entries.pop(before, None)
                        owners[name] = found.key
                    self._entries[found.key] = found

    def key(self, files: Iterable[str | Path]) -> str:
        """Of an input, for `add`. OSError: a file does not exist."""
        stats = [(os.path.abspath(path), (facts := os.stat(path)).st_size, facts.st_mtime_ns) for path in files]
        return hashlib.sha256(json.dumps([self._run(), stats]).encode()).hexdigest()

    def stem(self, files: Sequence[str | Path]) -> str | None:
        """The base name of the outputs of an input that is complete; None: it is not, or an output is gone."""
        try:
            entry = self._entries[self.key(files)]
        except (KeyError, OSError):
            return None
        return entry.stem if self._is_whole(entry) else None

    def of_others(self, inputs: Iterable[Sequence[str | Path]]) -> list[str]:
        """The base names of complete outputs of inputs that exist and are not among these, each of its files."""
        own = set(map(place_of, inputs))
        others = (entry for entry in self._entries.values() if entry.place not in own and os.path.exists(entry.place))
        return [entry.stem for entry in others if self._is_whole(entry)]

    def _is_whole(self, entry: "_Entry") -> bool:
        """Whether all outputs are there, as they were written."""
        there = {name: self.folder / name for name in entry.outputs}
        return all(
            _size(path) == entry.sizes[name] if name in entry.sizes else path.exists() for name, path in there.items()
        )

    def add(self, name: str, place: str, key: str, stem: str, outputs: Iterable[Path]) -> None:
        """Record that the outputs of an input are complete; `place` and `key` are those of its files. SinkError: the
        manifest cannot be written."""
        if self._file is None:
            path = self.folder / MANIFEST
            earlier = path.read_bytes() if self._resume and path.is_file() else b""
            self._file = RecordFile(path, resume=bool(earlier))
            if earlier and not earlier.endswith(b"\n"):
                self._file.append(b"\n")
        names = [os.path.relpath(path, self.folder) for path in outputs]
        sizes = {one: size for one in names if (size := _size(self.folder / one)) is not None}
        entry = {"input": name, "place": place, "key": key, "stem": stem, "outputs": names, "sizes": sizes}
        self._file.append(encode(json.dumps(entry, ensure_ascii=False) + "\n"))

    def close(self) -> None:
        """May be called twice."""
        if self._file is not None:
            self._file.close()
