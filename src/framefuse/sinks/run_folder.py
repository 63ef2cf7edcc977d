"""The folder of a run, and names in it that are used once."""

from __future__ import annotations

import itertools
from pathlib import Path

from framefuse.errors import SinkError


def make_run_folder(project: Path, name: str | None = None, exist_ok: bool = False) -> Path:
    """Create the folder of a run below `project` and return it: name, name2, name3, ... whichever is free.

    Two runs that start at the same moment never get the same folder: making it is what reserves it.

    Args:
        name: default "predict".
        exist_ok: use `project/name` even if it exists.

    Raises:
        SinkError: the folder cannot be made.
    """
    wanted = Path(project) / (name or "predict")
    folder = wanted
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(2):
            try:
                folder.mkdir(exist_ok=exist_ok)
                return folder
            except FileExistsError:
                if exist_ok:
                    raise
                folder = wanted.with_name(f"{wanted.name}{number}")
    except OSError as error:
        raise SinkError(
            f"cannot make the run folder {folder}: {error.strerror}",
            remedy="choose a place you may write to with --project",
        ) from error
    raise AssertionError("unreachable")


class UniqueNames:
    """Gives each name once: clip, clip_2, clip_3, ... Case is ignored, as some file systems do."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def take(self, wanted: str) -> str:
        name = wanted
        for number in itertools.count(2):
            if name.lower() not in self._used:
                break
            name = f"{wanted}_{number}"
        self._used.add(name.lower())
        return name
