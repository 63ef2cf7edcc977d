"""Measured plans on disk: one JSON file for each combination of GPU, driver and versions, entries by layer.

Entries do not belong to a model: two models, batches or sizes with one layer in common share its entry. A file of
another combination is never used, and `note` says in what the nearest differs; one that is damaged counts as empty, and
says so. Processes that write at once wait for each other. Built kernels lie beside it in
a folder of the same name, each under the SHA-256 of its bytes, which the entry states.
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

from framefuse.engines import cache

_logger = logging.getLogger(__name__)

FORMAT = 1


def directory() -> Path:
    """$XDG_CACHE_HOME/framefuse/cudnn."""
    return cache.directory() / "cudnn"


@dataclass
class PlanCache:
    """Plans by layer.

    Args:
        environment: everything that decides whether a plan can be used again, by name.
        folder: where files lie.
    """

    environment: dict[str, str]
    folder: Path = field(default_factory=directory)

    def __post_init__(self) -> None:
        text = json.dumps({"format": FORMAT, **self.environment}, sort_keys=True)
        self.path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        self.note = ""
        """What was wrong with the file, if anything."""
        self.entries: dict[str, dict[str, Any]] = self._read()

    def get(self, layer: str) -> dict[str, Any] | None:
        return self.entries.get(layer)

    def image(self, entry: Mapping[str, Any]) -> bytes:
        """The built kernel of an entry; empty where there is none, or not the one that was written."""
        name = str(entry.get("image", ""))
        try:
            content = (self._images / name).read_bytes() if name else b""
        except (OSError, ValueError):
            return b""
        return content if hashlib.sha256(content).hexdigest() == name else b""

    def update(self, entries: dict[str, dict[str, Any]], images: Mapping[str, bytes] | None = None) -> None:
        """Add entries, beside those that other processes have written meanwhile. Readers never see half a file.

        Args:
            images: built kernels by layer.
        """
        for layer, content in (images or {}).items():
            entries[layer]["image"] = hashlib.sha256(content).hexdigest()
        self.entries = {**self.entries, **entries}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with cache.locked(self.path.with_suffix(".lock")):
                if images:
                    self._images.mkdir(exist_ok=True)
                for layer, content in (images or {}).items():
                    cache.write_atomically(self._images / entries[layer]["image"], content)
                self.entries = {**self._read(), **self.entries}
                index = json.dumps({"environment": self.environment, "plans": self.entries}, indent=0)
                cache.write_atomically(self.path, index.encode())
        except OSError as error:
            self.note = f"plans are measured again next time: {self.folder}: {error.strerror or error}"
            _logger.warning(self.note)

    @property
    def _images(self) -> Path:
        return self.path.with_suffix("")

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            plans = content["plans"]
            if content["environment"] != self.environment or not all(
                isinstance(plan["engine"], int) and isinstance(plan["knobs"], dict) for plan in plans.values()
            ):
                raise ValueError("it is of another kind")
        except FileNotFoundError:
            self.note = self._difference()
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.note = f"{self.path} cannot be used and is made anew: {error}"
            _logger.warning(self.note)
            return {}
        return dict(plans)

    def _difference(self) -> str:
        """In what the plans of this folder that are the most alike differ from these: why they are of no use."""
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
        return f"kernels that were measured before are stale ({', '.join(nearest)}): measured again" if nearest else ""
