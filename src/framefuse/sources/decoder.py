"""The decoder interface: packets to decoded frames to `Frame`; and FFmpeg's implementation on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Protocol

from framefuse.frame import Frame
from framefuse.sources.planes import wrap
from framefuse.sources.source import SourceInfo


class Decoder(Protocol):
    """Decodes the packets of one stream.

    A decoded frame has pts, time_base, width, height and is_corrupt, as PyAV's frames have.
    """

    def decode(self, packet: Any, closed: threading.Event) -> Iterable[Any]:
        """Decoded frames that are ready after this packet; an empty packet flushes the decoder.

        Raises:
            EOFError: there are no more.
            av.FFmpegError: the packet is damaged.
        """

    def restart(self) -> None:
        """The next packet does not follow the last one."""

    def wrap(self, decoded: Any, info: SourceInfo, **facts: Any) -> Frame:
        """A decoded frame as a `Frame`; `facts` are the keyword arguments of `planes.wrap`."""


class HostDecoder:
    """FFmpeg on the CPU."""

    def decode(self, packet: Any, closed: threading.Event) -> Iterable[Any]:
        decoded: Iterable[Any] = packet.decode()
        return decoded

    def restart(self) -> None:
        """PyAV flushes the decoder when it seeks."""

    def wrap(self, decoded: Any, info: SourceInfo, **facts: Any) -> Frame:
        return wrap(decoded, info, **facts)
