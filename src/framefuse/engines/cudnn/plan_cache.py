"""Measured plans on disk: one JSON file for each combination of GPU, driver and versions, entries by layer.

Entries do not belong to a model: two models, batches or sizes with one layer in common share its entry. A file of
another combination is never looked at; one that is damaged counts as empty, and says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_logger = logging.getLogger(__name__)

FORMAT = 1


def directory() -> Path:
    """$XDG_CACHE_HOME/framefuse/cudnn."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "framefuse" / "cudnn"


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

    def update(self, entries: dict[str, dict[str, Any]]) -> None:
        """Add entries, beside those that other processes have written meanwhile. Readers never see half a file."""
        self.entries = {**self._read(), **self.entries, **entries}
        content = {"environment": self.environment, "plans": self.entries}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, scratch = tempfile.mkstemp(dir=self.folder)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(content, file, indent=0)
                os.replace(scratch, self.path)
            except BaseException:
                Path(scratch).unlink(missing_ok=True)
                raise
        except OSError as error:
            self.note = f"plans are measured again next time: {self.folder}: {error.strerror or error}"
            _logger.warning(self.note)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            plans = content["plans"]
            if content["environment"] != self.environment or not all(
                isinstance(plan["engine"], int) and isinstance(plan["knobs"], dict) for plan in plans.values()
            ):
                raise ValueError("it is of another kind")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.note = f"{self.path} cannot be used and is made anew: {error}"
            _logger.warning(self.note)
            return {}
        return dict(plans)
