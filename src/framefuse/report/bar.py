"""How far a run is: a bar on a terminal and in a notebook, elsewhere a line now and then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from framefuse.common.text import counted
from framefuse.sources import SourceInfo

if TYPE_CHECKING:
    from rich.console import Console

LINE_SECONDS = 10.0


class Bar:
    """Frames, frames per second, remaining time and dropped frames.

    Args:
        infos: of the sources that are read at the same time.
        line: says the lines where there is no bar: the text, and the facts `frames`, `fps` and `dropped`.
        bar: whether to draw a bar; default: on a terminal and in a notebook.
    """

    def __init__(
        self,
        infos: Sequence[SourceInfo],
        console: Console | None = None,
        *,
        shown: bool = True,
        line: Callable[..., None] | None = None,
        bar: bool | None = None,
    ) -> None:
        self._shown, self._infos, self._frames = shown, infos, 0
        if not shown:
            return
        from rich import progress
        from rich.console import Console

        counts = [info.frames for info in infos]
        total = sum(count for count in counts if count) if counts and all(counts) else None
        console = console or Console(stderr=True, highlight=False)
        drawn = console.is_terminal or console.is_jupyter if bar is None else bar
        self._progress = progress.Progress(
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("frames  {task.fields[fps]:.1f} fps"),
            progress.TimeRemainingColumn() if total else progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[drops]}", style="yellow"),
            console=console,
            transient=True,
            disable=not drawn,
        )
        self._task = self._progress.add_task("", total=total, fps=0.0, drops="")
        self._line = line or (lambda text, **_: console.print(text, markup=False))
        self._started = monotonic()
        self._next_line = self._started + LINE_SECONDS

    def __enter__(self) -> Bar:
        if self._shown:
            self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._shown:
            self._progress.stop()

    def advance(self) -> None:
        self.reach(self._frames + 1)

    def reach(self, frames: int) -> None:
        """Show that this many frames are done."""
        self._frames, now = frames, monotonic()
        if not self._shown or (self._progress.disable and now < self._next_line):
            return
        infos = [part for info in self._infos for part in (info, *info.parts.values())]
        dropped = sum(sum(info.drops.values()) for info in infos)
        fps, drops = frames / max(now - self._started, 1e-9), f"{dropped:,} dropped" if dropped else ""
        if not self._progress.disable:
            self._progress.update(self._task, completed=frames, fps=fps, drops=drops)
            return
        self._next_line = now + LINE_SECONDS
        text = ", ".join(filter(None, (counted(frames, "frame"), f"{fps:.1f} fps", drops)))
        self._line(text, frames=frames, fps=round(fps, 2), dropped=dropped)
