"""Decoder: packets -> pictures -> frames; and FFmpeg's."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Protocol

from framefuse.frame import Frame
from framefuse.sources.planes import wrap
from framefuse.sources.source import SourceInfo


class Decoder(Protocol):
    """From packets to pictures, and from pictures to frames.

    A picture has pts, time_base, width, height and is_corrupt, as PyAV's have.
    """

    def decode(self, packet: Any, closed: threading.Event) -> Iterable[Any]:
        """Pictures that are ready once this packet is in; an empty packet asks for those that are left.

        Raises:
            EOFError: there are no more.
            av.FFmpegError: the packet is damaged.
        """

    def restart(self) -> None:
        """The next packet does not follow the last one."""

    def wrap(self, picture: Any, info: SourceInfo, **facts: Any) -> Frame:
        """The picture as a Frame; `facts` are those of `planes.wrap`."""


class HostDecoder:
    """FFmpeg on the CPU."""

    def decode(self, packet: Any, closed: threading.Event) -> Iterable[Any]:
        pictures: Iterable[Any] = packet.decode()
        return pictures

    def restart(self) -> None:
        """PyAV does that when it seeks."""

    def wrap(self, picture: Any, info: SourceInfo, **facts: Any) -> Frame:
        return wrap(picture, info, **facts)
