"""PullSource: a generator of frames that can be closed from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator

from framefuse.frame import Frame
from framefuse.sources.source import SourceInfo

Frames = Generator[Frame, None, None]


class PullSource:
    """Runs a generator in the iterating thread, and ends it safely when another thread calls `close`.

    Freeing a decoder during a call into it would crash, so whichever of `__next__` and `close` returns last frees it.

    Args:
        frames: called with the event that `close` sets; the generator checks it wherever it may take long.
        release: frees the source's resources; called once, never while the generator runs.
        interrupt: called by `close` immediately, from any thread, to end a wait inside the generator.
    """

    def __init__(
        self,
        info: SourceInfo,
        frames: Callable[[threading.Event], Frames],
        release: Callable[[], None] = lambda: None,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self.info = info
        self._closed = threading.Event()
        self._frames = frames(self._closed)
        self._release = release
        self._interrupt = interrupt
        self._running = threading.Lock()

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        try:
            with self._running:
                if self._closed.is_set():
                    raise StopIteration
                frame = next(self._frames)
        except BaseException:
            self._closed.set()
            raise
        finally:
            if self._closed.is_set():
                self._finish()
        return frame

    def close(self) -> None:
        """End the source, from any thread, at any time, any number of times. Delivered frames stay valid."""
        self._closed.set()
        self._interrupt()
        self._finish()

    def _finish(self) -> None:
        """Free everything, unless a `__next__` is running: it then does so when it returns."""
        if self._running.acquire(blocking=False):
            try:
                self._frames.close()
                release, self._release = self._release, lambda: None
                release()
            finally:
                self._running.release()
