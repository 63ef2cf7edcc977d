"""Files compared by identity or by hash, written as a whole or not at all, and the user's cache."""

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from framefuse.errors import FramefuseError


def user_cache() -> Path:
    """$XDG_CACHE_HOME/framefuse."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "framefuse"


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def os_errors_as(
    kind: type[FramefuseError], what: str, remedy: str, caught: tuple[type[Exception], ...] = (OSError,)
) -> Iterator[None]:
    """Raise OSErrors, or what else is `caught`, as errors of ours, with what could not be done and why."""
    try:
        yield
    except caught as error:
        raise kind(f"{what}: {getattr(error, 'strerror', None) or error}", remedy=remedy) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see either the old or the new content."""
    with replaced(path) as scratch:
        scratch.write_bytes(content)


@contextmanager
def replaced(path: Path, suffix: str = "") -> Iterator[Path]:
    """A new file beside `path`, with default permissions, which replaces it at the end."""
    scratch = path.parent / f"tmp{secrets.token_hex(8)}{suffix}"
    try:
        scratch.touch(exist_ok=False)
        yield scratch
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


class Files:
    """A set of files compared by identity, not by name: a link to a file is that file."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)

    def __contains__(self, path: object) -> bool:
        assert isinstance(path, Path)
        found = _identity(path)
        return found is not None and found in self._identities

    @cached_property
    def _identities(self) -> frozenset[tuple[int, int]]:
        """Computed only if an output already exists, which is never the case in a new folder."""
        return frozenset(found for path in self._paths if (found := _identity(path)) is not None)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except (OSError, ValueError):  # ValueError: a null byte
        return None
    return facts.st_dev, facts.st_ino
