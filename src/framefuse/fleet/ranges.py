"""Ranges: parts of one long file that several processes read, and the outputs that are made whole of them."""

import re
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from framefuse.config import Settings
from framefuse.errors import SinkError
from framefuse.runtime.requested_sinks import outputs_of
from framefuse.sinks.parquet import merge as merge_parquet
from framefuse.sinks.run_folder import written_whole
from framefuse.sources import open_source

MERGED = "save_jsonl", "save_parquet"
"""Outputs that can be merged of parts."""
WHOLE = "track", "adaptive", "start", "end", "events", "zones", "tiles", "roi"
"""Settings under which a file is one unit: what they do depends on what came before."""
FRAME = re.compile(rb'("frame": )(\d+)')
"""In a line of JSON; no text in it has these bytes, since its quotes have a backslash."""
Range = tuple[float | None, float | None]
"""Begin and end in seconds; None: those of the file."""


def can_be_cut(settings: Settings) -> bool:
    """Whether the results of a frame depend on this frame only, each is counted, and the outputs can be merged."""
    whole = any(getattr(settings, name) for name in WHOLE) or settings.vid_stride > 1
    return not whole and {*outputs_of(settings)} <= {*MERGED}


def seconds_of(file: str) -> float:
    """Of a video, by its header; 0 for everything else. FramefuseError: it cannot be opened."""
    with closing(open_source(file)) as source:
        info = source.info
    return float((info.frames or 0) / (info.fps or 1)) if info.kind == "file" else 0.0


def ranges(bounds: Sequence[float]) -> list[Range]:
    """What lies before, between and after times of a file. Two that meet have one bound, so each frame is in one."""
    return list(pairwise([None, *bounds, None]))


class Piece(NamedTuple):
    """Frames that follow each other in a video, and where their results are."""

    files: Sequence[Path]
    """Outputs of a process, in which frames have their order, too."""
    first: int
    """Number of the first frame there."""
    frames: int


def merge(folder: Path, stem: str, pieces: Sequence[Piece]) -> list[Path]:
    """Make the outputs of a file from those of its pieces, in order.

    Raises:
        SinkError: there is no space, or results of a piece are missing.
    """
    outputs = []
    for suffix, merge_all in ((".jsonl", _merge_lines), (".parquet", merge_parquet)):
        found, done = list[tuple[Path, range, int]](), 0
        for files, first, frames in pieces:
            found += [(file, range(first, first + frames), done - first) for file in files if file.suffix == suffix]
            done += frames
        if found:
            outputs.append(folder / f"{stem}{suffix}")
            merge_all(found, outputs[-1])
    return outputs


def _merge_lines(parts: Sequence[tuple[Path, range, int]], out: Path) -> None:
    """One file of the JSON lines of frames in parts, with their numbers shifted."""
    with ExitStack() as opened:
        merged = opened.enter_context(written_whole(out))
        lines = {path: opened.enter_context(path.open("rb")) for path in {path for path, _, _ in parts}}
        for path, frames, shift in parts:
            for _ in frames:
                if not (line := lines[path].readline()):
                    raise SinkError(f"{path} has fewer than {frames.stop} lines", remedy="run it again")
                merged.write(_shifted(line, shift) if shift else line)


def _shifted(line: bytes, shift: int) -> bytes:
    """All but the number stays as it was written: to parse it would take as long as to make it."""
    return FRAME.sub(lambda found: b"%s%d" % (found[1], int(found[2]) + shift), line, count=1)
