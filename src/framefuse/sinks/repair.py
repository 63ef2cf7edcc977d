"""Complete the outputs of a run that was killed: `framefuse repair FOLDER`.

While a run writes, its outputs are such that a kill leaves something complete or something that can be completed: JSON
lines and CSV end with a whole line, COCO JSON, labels and Parquet lie in a stream of lines or rows, and an MP4 is
fragmented. What is not complete ends in ".part", except where the source is live, and is never complete.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from framefuse.common.text import counted
from framefuse.errors import FramefuseError, SinkError
from framefuse.sinks import labels, parquet
from framefuse.sinks.mp4 import finish_unfinished
from framefuse.sinks.records import HEADER
from framefuse.sinks.run_folder import FolderLock, is_json, make_durable, part_of, write_error

VIDEOS = ".mp4", ".mov"


class Repair(NamedTuple):
    """What was done to a file."""

    path: Path
    done: str
    failed: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {'not repaired: ' if self.failed else ''}{self.done}"


def repair_folder(folder: Path) -> Iterator[Repair]:
    """Complete every unfinished output in the folder of a run; yields what was done, for each file that needed it.

    Files that are complete, and files that framefuse has not written, stay as they are. SinkError: there is no such
    folder, a run is writing into it, or a file cannot be written.
    """
    if not folder.is_dir():
        raise SinkError(f"there is no folder {folder}", remedy="name the folder of a run, such as runs/predict/predict")
    lock = FolderLock(folder)
    try:
        for path in sorted(folder.iterdir()):
            try:
                if done := _repair(path):
                    yield Repair(path, done)
            except FramefuseError as error:
                yield Repair(path, error.message, failed=True)
            except OSError as error:
                raise write_error(path, error) from error
    finally:
        lock.release()


def _repair(path: Path) -> str:
    """What was done to a file; "" if nothing was. Only what framefuse has written is changed."""
    if not path.is_file() or path.is_symlink():
        return ""
    if path.name.endswith(f".{parquet.STREAM}"):
        rows = parquet.complete(path)
        return f"completed as {path.name.removesuffix(parquet.STREAM)}parquet, {counted(rows, 'row')}" if rows else ""
    if path.name.endswith(tuple(f".{name}.part" for name in labels.SUFFIX)):
        frames = labels.complete(path)
        return f"completed, {counted(frames, 'frame')}" if frames else ""
    if path.name.endswith(tuple(f"{suffix}.index.part" for suffix in VIDEOS)):
        video = path.with_name(path.name.removesuffix(".index.part"))
        if not video.exists() and not part_of(video).exists():
            return ""
        path.unlink()
        return f"removed: {video.name} has all of it"
    target = path.with_suffix("") if path.suffix == ".part" else path
    if target.suffix in VIDEOS:
        return finish_unfinished(path)
    if target.suffix not in LINES:
        return ""
    begins, is_whole = LINES[target.suffix]
    with path.open("rb") as file:
        if file.read(len(begins)) != begins:
            return ""
    done = _cut_line(path, is_whole)
    if path != target:
        path.replace(target)
        make_durable(target)
        done = "; ".join(filter(None, (f"completed as {target.name}", done)))
    return done


LINES = {
    ".jsonl": (b'{"schema": ', is_json),
    ".csv": (",".join(HEADER).encode() + b"\n", lambda line: line.count(b",") >= len(HEADER)),
}
"""Suffix -> how our files begin, and whether a line without an end is a whole one all the same."""


def _cut_line(path: Path, is_whole: Callable[[bytes], bool]) -> str:
    """Remove the beginning of a last line that has no end."""
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole == len(content) or is_whole(content[whole:]):
            return ""
        file.truncate(whole)
    make_durable(path)
    return f"{counted(len(content) - whole, 'byte')} of an unfinished last line removed"
