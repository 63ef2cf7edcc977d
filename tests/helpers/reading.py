"""Read videos to their end, with framefuse or with PyAV alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av

from framefuse.frame import Frame
from framefuse.sources import SourceInfo, SourceOptions, open_source


def read(source: Any, **options: Any) -> tuple[list[Frame], SourceInfo]:
    opened = open_source(source, SourceOptions(**options))
    return list(opened), opened.info


def seconds(frames: list[Frame]) -> list[float]:
    return [round(frame.seconds or 0.0, 6) for frame in frames]


def decoded(path: Path) -> list[av.VideoFrame]:
    with av.open(path) as container:
        return list(container.decode(video=0))
