"""Complete the outputs of a run that was killed: `framefuse repair FOLDER`.

While a run writes, its outputs are such that a kill leaves something complete or something that can be completed: JSON
lines and CSV end with a whole line, COCO JSON lies in two growing files, and an MP4 is fragmented.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from framefuse.errors import FramefuseError, SinkError
from framefuse.sinks import coco
from framefuse.sinks._lines import make_durable, write_error
from framefuse.sinks.mp4 import finish_unfinished
from framefuse.sinks.run_folder import FolderLock

LINES = ".jsonl", ".csv"
PART = ".part"


def repair_folder(folder: Path) -> Iterator[str]:
    """Complete every unfinished output in the folder of a run; yields what was done, a line for each file.

    Files that are complete stay as they are, so that it may run any number of times.

    Raises:
        SinkError: there is no such folder, a run is writing into it, or a file cannot be written.
    """
    if not folder.is_dir():
        raise SinkError(f"there is no folder {folder}", remedy="name the folder of a run, such as runs/detect/predict")
    lock = FolderLock(folder)
    try:
        for path in sorted(folder.iterdir()):
            try:
                done = _repair(path)
            except FramefuseError as error:
                done = f"not repaired: {error.message}"
            except OSError as error:
                raise write_error(path, error) from error
            if done:
                yield f"{path.name}: {done}"
    finally:
        lock.release()


def _repair(path: Path) -> str:
    """What was done to a file; "" if it was complete."""
    if not path.is_file() or path.is_symlink():
        return ""
    if path.name.endswith(coco.IMAGES_PART):
        if path.with_name(path.name.removesuffix(coco.IMAGES_PART) + ".json.part").exists():
            return ""  # used, and then removed, with the annotations
        path.unlink()
        return "removed, since the JSON is complete"
    if path.name.endswith(".json.part"):
        return f"completed as {path.with_suffix('').name}, {coco.repair(path)} images"
    if path.suffix == PART:
        path.unlink()
        return "removed: it is the incomplete copy of a file"
    if path.suffix == ".mp4":
        return finish_unfinished(path)
    return _cut_line(path) if path.suffix in LINES else ""


def _cut_line(path: Path) -> str:
    """Remove the beginning of a last line that has no end."""
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole == len(content):
            return ""
        file.truncate(whole)
    make_durable(path)
    return f"{len(content) - whole} bytes of an unfinished last line removed"
