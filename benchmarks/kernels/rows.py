"""What a row of the kernel benchmark is: peers that do the same work, what they are held to, and the bytes they move.

Every row checks its results before it times them, runs all of its peers interleaved (protocol.measure), and reports the
ratios with the targets they are held to. A kernel that does not exist yet makes a row "missing", an error a row
"failed": neither stops the others.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from math import inf
from typing import Any

import numpy as np

from benchmarks.protocol import Measurement, Stats

OURS = "framefuse"
LAUNCHED = "framefuse, launched from Python"
"""Ours called as peers are that cannot be captured in a CUDA graph."""

SECTOR = 32
"""Bytes that memory hands out at once, on the GPU (a sector of L2) and, in halves of a cache line, on the CPU."""


class NotThere(Exception):
    """A kernel that a row needs does not exist (yet)."""


def kernel(name: str, *families: str) -> Callable[..., Any]:
    """A public function of framefuse.kernels (or of one of its `families`), looked up when a row needs it.

    Raises:
        NotThere: there is none of this name.
    """
    for home in ("framefuse.kernels", *(f"framefuse.kernels.{family}" for family in families)):
        try:
            return getattr(import_module(home), name)  # type: ignore[no-any-return]
        except (AttributeError, ModuleNotFoundError):
            continue
    raise NotThere(f"framefuse.kernels.{name}")


@dataclass(frozen=True)
class Target:
    """What a row is held to. Exactly one of `at_least` and `at_most` is given."""

    what: str
    """In words, as in "x faster than the best OpenCV chain"."""
    measured: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        return self.measured >= self.at_least if self.at_least is not None else self.measured <= (self.at_most or 0.0)


@dataclass
class Row:
    """One comparison. Times are medians in microseconds a call."""

    id: str
    title: str
    status: str = "measured"
    """measured, missing (no such kernel yet) or failed."""
    note: str = ""
    us: dict[str, float] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    """Per peer: order statistics in milliseconds a call."""
    how: dict[str, str] = field(default_factory=dict)
    """Per peer: "graph" or "stream" on a GPU."""
    targets: list[Target] = field(default_factory=list)
    error: dict[str, float] = field(default_factory=dict)
    """Per peer: largest absolute difference of its result to ours or to the reference, in the row's own unit."""
    bytes: dict[str, float] = field(default_factory=dict)
    """planes: all bytes of the inputs and outputs; sectors: of the 32-byte sectors that must be touched."""
    floor_us: dict[str, float] = field(default_factory=dict)
    """Those bytes at the copy bandwidth of this run."""
    bandwidth: dict[str, float] = field(default_factory=dict)
    """Of our kernel: GB/s over both counts, and the share of the copy bandwidth measured in this run."""

    def hold(self, what: str, measured: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
        self.targets.append(Target(what, measured, at_least, at_most))

    def faster_than(self, peer: str | Sequence[str], at_least: float, ours: str = OURS) -> None:
        """Holds us to a ratio of medians against a peer, or the fastest of several, called alike on both sides."""
        names = [name for name in ([peer] if isinstance(peer, str) else peer) if name in self.us]
        if not names or ours not in self.us:
            self.note += f"Not held to {at_least:g} times {peer}: it was not measured. "
            return
        best = min(names, key=lambda name: self.us[name])
        if self.how.get(best, "").startswith("stream") and LAUNCHED in self.us:
            ours = LAUNCHED
        self.hold(f"{ours}: times faster than {best}", self.us[best] / self.us[ours], at_least=at_least)

    def record(self, measured: Mapping[str, Measurement], repeats: Mapping[str, int] | None = None) -> None:
        """Takes over measurements; with `repeats`, each run was that many calls."""
        for name, measurement in measured.items():
            calls = (repeats or {}).get(name, 1)
            stats = scaled(measurement.device or measurement.wall, calls)
            self.us[name], self.stats[name] = stats.median * 1e3, asdict(stats)

    def moved(self, planes: float, sectors: float | None = None, *, copy: float, ours: str = OURS) -> None:
        """Records the bytes of one call, and what they mean at the time of `ours`; `copy` in GB/s."""
        self.bytes = {"planes": planes, **({} if sectors is None else {"sectors": sectors})}
        self.floor_us = {kind: count / copy / 1e3 for kind, count in self.bytes.items()}
        if ours in self.us:
            for kind, count in self.bytes.items():
                rate = count / self.us[ours] / 1e3
                self.bandwidth |= {f"{kind}_gb_s": rate, f"{kind}_share_of_copy": rate / copy}


def scaled(stats: Stats, calls: int) -> Stats:
    """Statistics per call, of runs that were `calls` calls each."""
    times = {name: value / calls for name, value in asdict(stats).items() if name not in ("runs", "fps")}
    return Stats(runs=stats.runs, fps=stats.fps * calls, **times)


Maker = Callable[..., Iterable[Row]]
"""A function that measures and yields rows as it goes: what it yielded before an error stays."""


def collect(makers: Mapping[str, Maker], wanted: Sequence[str], *arguments: Any, seconds: float = inf) -> list[Row]:
    """Runs the row functions whose name contains one of `wanted` (all, where it is empty); prints rows as they come.

    After `seconds` no further one is begun, so that what there is can be saved in time.
    """
    rows: list[Row] = []
    start = time.monotonic()
    for name, maker in makers.items():
        if wanted and not any(part in name for part in wanted):
            continue
        if time.monotonic() - start > seconds:
            rows.append(Row(name, name, "failed", f"not begun within {seconds:.0f} s"))
            show(rows[-1])
            continue
        try:
            for row in maker(*arguments):
                rows.append(row)
                show(row)
        except NotThere as error:
            rows.append(Row(name, name, "missing", str(error)))
            show(rows[-1])
        except Exception as error:  # one broken row must not cost the others their time on a rented machine
            rows.append(Row(name, name, "failed", f"{type(error).__name__}: {error}"[:500]))
            show(rows[-1])
            traceback.print_exc(limit=6)
    return rows


def show(row: Row) -> None:
    """Prints one row for people."""
    print(f"{row.id}: {row.title}" + ("" if row.status == "measured" else f" - {row.status}: {row.note}"))
    best = row.us.get(OURS)
    for name, us in row.us.items():
        ratio = f"  x{us / best:.2f}" if best and name != OURS else ""
        error = f"  differs by {row.error[name]:.3g}" if name in row.error else ""
        print(f"    {us:10.1f} us  {name}{ratio}{error}  {row.how.get(name, '')}")
    for target in row.targets:
        bound = f">= {target.at_least}" if target.at_least is not None else f"<= {target.at_most}"
        print(f"    {'MET ' if target.met else 'MISS'} {target.what}: {target.measured:.3g} ({bound})")
    if row.bandwidth:
        facts = row.bandwidth | {f"floor of {kind} us": us for kind, us in row.floor_us.items()}
        print("    " + ", ".join(f"{name} {value:.3g}" for name, value in facts.items()), flush=True)


def payload(rows: Sequence[Row], **facts: Any) -> dict[str, Any]:
    """What is saved: rows, and facts about the run."""
    listed = [asdict(row) | {"targets": [asdict(t) | {"met": t.met} for t in row.targets]} for row in rows]
    return {**facts, "rows": listed}


def sectors(row_bytes: int, rows: int, columns: np.ndarray[Any, Any], item: int) -> int:
    """Bytes of the distinct 32-byte sectors that samples at `columns` (of `item` bytes) touch, in `rows` such rows."""
    last = (columns.astype(np.int64) * item + item - 1) // SECTOR
    touched = np.unique(np.concatenate((columns.astype(np.int64) * item // SECTOR, last)))
    return rows * min(len(touched) * SECTOR, row_bytes)


def taps(source: int, target: int, subsample: int = 1, *, nearest: bool = False) -> np.ndarray[Any, Any]:
    """The samples of an axis that a resize from `source` to `target` pixels must read: those with a weight above 0."""
    odd = 2 * np.arange(target, dtype=np.int64) + 1
    last = -(-source // subsample) - 1
    if nearest:
        return np.unique(odd * source // (2 * target) // subsample)
    numerator, denominator = odd * source - subsample * target, 2 * subsample * target
    lower, rest = np.divmod(numerator, denominator)
    upper = np.where(rest > 0, lower + 1, lower)
    return np.unique(np.concatenate((lower, upper)).clip(0, last))


def input_bytes(
    kind: str, width: int, height: int, content: tuple[int, int], *, nearest: bool = False
) -> dict[str, float]:
    """Bytes of a frame: all of its planes, and the sectors that a resize to `content` must read."""
    x, y = taps(width, content[0], nearest=nearest), taps(height, content[1], nearest=nearest)
    cx, cy = (taps(n, t, 2, nearest=nearest) for n, t in ((width, content[0]), (height, content[1])))
    half = -(-width // 2)
    if kind in ("bgr24", "rgb24"):
        return {"planes": 3.0 * width * height, "sectors": float(sectors(3 * width, len(y), x, 3))}
    luma = sectors(width, len(y), x, 1)
    chroma = sectors(2 * half, len(cy), cx, 2) if kind == "nv12" else 2 * sectors(half, len(cy), cx, 1)
    return {"planes": width * height + 2.0 * half * -(-height // 2), "sectors": float(luma + chroma)}
