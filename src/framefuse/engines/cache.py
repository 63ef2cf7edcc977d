"""Built engines on disk, by one rule for all engines: an artifact is used only for exactly what it was built for.

    cached = EngineCache("tensorrt").get(key, build, suffix=".engine")

A key states everything that decides whether an artifact may be used (`KEYS`). Its hash is the file's name. A JSON file
of the same name states the key, the artifact's own hash and the time it took to build. A damaged artifact is built
again, and `note` says why. If two processes need the same one, the second waits for the first.
"""

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from framefuse.common.files import file_hash, replaced, user_cache, write_atomically
from framefuse.models.onnx_file import model_hash as model_hash

_logger = logging.getLogger(__name__)
FORMAT = 1
DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
"""What reading JSON of unknown origin may raise."""
POLL = 0.05
"""Seconds between two looks at a lock that another process holds."""
KEYS = ("model", "engine", "version", "device", "precision", "shapes", "flags")
"""What a key must state (the model by its hash); it may state more (a driver)."""


@dataclass(frozen=True)
class Cached:
    """An artifact, and where it came from."""

    path: Path
    built: bool
    """Whether this call built it."""
    seconds: float
    """Time it took to build, now or earlier."""
    note: str = ""
    """Why an existing artifact was not used; otherwise empty."""

    @property
    def reason(self) -> str:
        """One line for `Engine.reasons`."""
        how = "built" if self.built else "from the cache, built once"
        return f"{self.path.name}: {how} in {self.seconds:.1f} s" + (f"; {self.note}" if self.note else "")


class EngineCache:
    """Artifacts of one engine.

    Args:
        engine: its name, also of the folder.
        folder: default: `user_cache() / engine`.
    """

    def __init__(self, engine: str, folder: Path | None = None) -> None:
        self.engine = engine
        self.folder = folder or user_cache() / engine

    def find(self, key: Mapping[str, str], *, suffix: str) -> Cached | None:
        """The artifact of a key, if there is a usable one.

        Raises:
            KeyError: the key lacks one of `KEYS`.
        """
        found = self._read(*self._place(key, suffix))
        return found if isinstance(found, Cached) else None

    def get(self, key: Mapping[str, str], build: Callable[[Path], object], *, suffix: str) -> Cached:
        """The artifact of a key; `build(path)` writes it if no usable one exists.

        Raises:
            KeyError: the key lacks one of `KEYS`.
            OSError: the folder cannot be written.
            Exception: what `build` raises; no file is left behind.
        """
        path, key = self._place(key, suffix)
        found = self._read(path, key)
        if isinstance(found, Cached):  # no lock: the folder may be read-only
            return found
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            found = self._read(path, key)
            if isinstance(found, Cached):
                return found
            changed = difference(self.folder, "key", key, same=("model", "precision", "shapes"))
            if note := found or (changed and f"an earlier build is stale: {changed}"):
                _logger.warning("%s: %s", self.engine, note)
            self._sweep()
            started = time.perf_counter()
            with replaced(path, suffix) as scratch:
                build(scratch)
                seconds = time.perf_counter() - started
                facts = {"key": key, "sha256": file_hash(scratch), "seconds": round(seconds, 3)}
            write_atomically(path.with_suffix(".json"), json.dumps(facts, indent=1).encode())
        return Cached(path, True, seconds, note)

    def _place(self, key: Mapping[str, str], suffix: str) -> tuple[Path, dict[str, str]]:
        """The file of a key, and the whole key."""
        key = {"format": str(FORMAT), **{name: key[name] for name in KEYS}, **key}
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
        return self.folder / f"{digest}{suffix}", key

    def _sweep(self) -> None:
        """Remove unfinished files of builders that were killed: no build takes a day."""
        for path in self.folder.glob("tmp*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > 24 * 3600:
                    path.unlink()

    def _read(self, path: Path, key: Mapping[str, str]) -> Cached | str:
        """A usable artifact; or what is wrong with the existing one, if there is one."""
        try:
            facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            if facts["key"] != dict(key):
                return f"{path.name} was built for another key: built again"
            if facts["sha256"] != file_hash(path):
                return f"{path.name} is damaged ({path.stat().st_size} bytes): built again"
            return Cached(path, False, float(facts["seconds"]))
        except FileNotFoundError:
            return f"{path.name} has no description: built again" if path.exists() else ""
        except DAMAGED as error:
            return f"{path.with_suffix('.json').name} cannot be read ({error}): built again"


def difference(folder: Path, entry: str, wanted: Mapping[str, str], *, same: Iterable[str] = ()) -> str:
    """How `entry` of the most similar JSON file that agrees on `same` differs; empty if there is none."""
    found: list[list[str]] = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(*DAMAGED):
            other = json.loads(path.read_text(encoding="utf-8"))[entry]
            changed = [name for name, value in wanted.items() if other.get(name) != value]
            if changed and not {*changed} & {*same}:
                found.append([f"{name} was {other.get(name)!r}, is {wanted[name]!r}" for name in changed])
    nearest = min(found, key=len) if found else []
    return ", ".join(nearest)


@contextlib.contextmanager
def locked(path: Path, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold a lock between processes; without file locks, builders may do the work twice.

    Args:
        stopped: whether to go on without the lock, asked while another process holds it.
    """
    with path.open("w") as file:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            while not stopped():  # which could not end a wait inside of flock
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(POLL)
        yield
