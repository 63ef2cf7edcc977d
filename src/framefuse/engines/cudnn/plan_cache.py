"""Plan cache on disk: one JSON file per combination of GPU, driver and library versions, with an entry per layer.

Models, batches and sizes share the entry of a layer that they have in common. A file of another combination is never
used; `note` says how the most similar one differs. A damaged file counts as empty, and `note` says so. A lock
serialises concurrent writers. Serialised kernels lie in a folder of the same name, each named by the SHA-256 that its
entry states.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framefuse.common.files import user_cache
from framefuse.engines import cache

_logger = logging.getLogger(__name__)

FORMAT = 2


def directory() -> Path:
    """$XDG_CACHE_HOME/framefuse/cudnn."""
    return user_cache() / "cudnn"


@dataclass
class PlanCache:
    """Plans by layer.

    Args:
        environment: everything that decides whether a cached plan is valid, by name.
        folder: of the cache files.
    """

    environment: dict[str, str]
    folder: Path = field(default_factory=directory)

    def __post_init__(self) -> None:
        text = json.dumps({"format": FORMAT, **self.environment}, sort_keys=True)
        self.path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        self.note = ""
        """What is wrong with the cache, if anything."""
        self.entries: dict[str, dict[str, Any]] = self._read()

    def get(self, layer: str) -> dict[str, Any] | None:
        return self.entries.get(layer)

    def kernel(self, entry: Mapping[str, Any]) -> bytes:
        """The serialised kernel of an entry; empty if it is missing or damaged."""
        name = str(entry.get("kernel", ""))
        try:
            content = (self._kernels / name).read_bytes() if name else b""
        except (OSError, ValueError):
            return b""
        return content if hashlib.sha256(content).hexdigest() == name else b""

    def update(self, entries: dict[str, dict[str, Any]], kernels: Mapping[str, bytes] | None = None) -> None:
        """Merge entries into the file, which is replaced atomically.

        Args:
            kernels: serialised kernels by layer.
        """
        for layer, content in (kernels or {}).items():
            entries[layer]["kernel"] = hashlib.sha256(content).hexdigest()
        self.entries = {**self.entries, **entries}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with cache.locked(self.path.with_suffix(".lock")):
                if kernels:
                    self._kernels.mkdir(exist_ok=True)
                for layer, content in (kernels or {}).items():
                    cache.write_atomically(self._kernels / entries[layer]["kernel"], content)
                self.entries = {**self._read(), **self.entries}
                index = json.dumps({"environment": self.environment, "plans": self.entries}, indent=0)
                cache.write_atomically(self.path, index.encode())
        except OSError as error:
            self.note = f"plans are measured again next time: {self.folder}: {error.strerror or error}"
            _logger.warning(self.note)

    @property
    def _kernels(self) -> Path:
        return self.path.with_suffix("")

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            plans = content["plans"]
            if content["environment"] != self.environment or not all(
                isinstance(plan["engine"], int) and isinstance(plan["knobs"], dict) for plan in plans.values()
            ):
                raise ValueError("it has another format")
        except FileNotFoundError:
            self.note = self._difference()
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.note = f"{self.path} cannot be used and is rebuilt: {error}"
            _logger.warning(self.note)
            return {}
        return dict(plans)

    def _difference(self) -> str:
        """Why the most similar cache of this folder is stale; empty if there is none."""
        nearest: list[str] | None = None
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                other = json.loads(path.read_text(encoding="utf-8"))["environment"]
                changed = [
                    f"{name} was {other.get(name)}, is {value}"
                    for name, value in self.environment.items()
                    if other.get(name) != value
                ]
                if changed and (nearest is None or len(changed) < len(nearest)):
                    nearest = changed
        return f"cached kernels are stale ({', '.join(nearest)}): measured again" if nearest else ""
