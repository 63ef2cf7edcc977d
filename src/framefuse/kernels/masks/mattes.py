"""Mattes at the resolution of a model: made of its scores, compared from frame to frame, and steadied over frames.

As in `masks.call`, numpy arrays go to the CPU, others to the GPU on which they lie, in order with CuPy's current
stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, kernel
from framefuse.kernels.arrays import checked, new, on_gpu, pitch
from framefuse.kernels.masks.grids import TOGETHER, follow, grids_of, joined, most, new_samples, table

OVERSHOOT = 0.1
"""How far a matte may leave 0..1, by rounding or interpolation inside the model; logits leave it further."""
CUT = 0.12
"""Mean change of luma (0..1) from one frame to the next above which the scene has changed."""
MOVES = 0.02
"""Change of luma of a sample, or of one beside it, from which on other frames say nothing about it."""
REACH = 3
"""Frames before and after one that say something about it."""

BITS = 8
"""Classes of which a GPU gets as bits whether they are wanted, as many as it reads at once."""
PARTS = 16
"""Blocks of a GPU that measure the change of one view."""
_SLOTS = 2 * (REACH + 1) + TOGETHER
"""Frames of which a GPU knows something where it steadies so many."""
_UNREAD = "guide_0", f"guide_{_SLOTS - 1}", "change_0"
_NOWHERE = {f"{name}_{slot}": 0 for slot in range(_SLOTS) for name in ("alpha", "guide", "change")}
"""What is known of no frame, by the names of the kernel, and by those that it does not have."""


def share(scores: NDArray[np.float32], wanted: Sequence[int]) -> NDArray[np.float32]:
    """(classes, h, w) scores to (h, w) in 0..1: the probability that a pixel is of one of the classes `wanted`; of one
    class alone its value, or the sigmoid of it where it is a logit."""
    if len(scores) == 1:
        logits = scores.min() < -OVERSHOOT or scores.max() > 1 + OVERSHOOT
        single: NDArray[np.float32] = 1 / (1 + np.exp(-scores[0].clip(-80, 80))) if logits else scores[0].clip(0, 1)
        return single
    powers = np.exp(scores - scores.max(0))
    found: NDArray[np.float32] = powers[list(wanted)].sum(0) / powers.sum(0)
    return found


class DeviceShare:
    """`share` of batches on a GPU. A call allocates nothing, so it can be captured in a CUDA graph.

    Args:
        shape: of the scores, (batch, classes, h, w).
        wanted: as of `share`.
    """

    def __init__(self, shape: tuple[int, ...], wanted: Sequence[int]) -> None:
        batch, classes, height, width = shape
        self._wanted = device.uploaded(np.isin(np.arange(classes), wanted).astype(np.int32))
        self._first = sum(1 << one for one in set(wanted) if one < BITS)
        self._ranges = new(True, (batch, 2), np.float32)
        self.alpha = new(True, (batch, height, width), np.float32)
        """(batch, h, w) float32, of the last call."""

    def __call__(self, scores: Any) -> None:
        """(batch, classes, h, w) float32, each (h, w) contiguous."""
        scores = checked("scores", scores, True, tuple(scores.shape), "float32", dense=2)
        n, classes, height, width = scores.shape
        given = {"scores_address": scores, "score_item": pitch(scores, 0), "pixels": height * width, "n": n}
        if classes == 1:
            kernel.launch("matte_range", **given, ranges_address=self._ranges)
        given |= {"class_pitch": pitch(scores, 1), "classes": classes, "overshoot": OVERSHOOT}
        given |= {"first_wanted": self._first}
        tables = {"wanted_address": self._wanted, "ranges_address": self._ranges, "target_address": self.alpha}
        kernel.launch("matte_share", **given, **tables)


@dataclass(eq=False)
class Moment:
    """The mattes of the views of one frame.

    `change` is the mean change of the luma of each view since the frame before, on a GPU as an array of which the host
    does not wait for the values: what a cut separates is left out where mattes are steadied.
    """

    alphas: Sequence[Any]
    """(rows, columns) float32 in 0..1 of each view."""
    guides: Sequence[Any]
    """Luma of each, of the same shapes and in 0..1."""
    change: Any = None
    """(views,) float32; on a GPU (views, PARTS), of which those of a view add up to it; None: it is the first."""
    plain: list[Any] = field(default_factory=list)
    """On the host: the mattes without what this frame alone shows, once they were needed."""

    @cached_property
    def joined(self) -> tuple[Any, Any]:
        """On a GPU: the mattes of all views, one after the other, and their guides."""
        return joined(self.alphas), joined(self.guides)

    @cached_property
    def places(self) -> tuple[int, int]:
        """The addresses of these, for which several launches ask."""
        alphas, guides = map(device.address, self.joined)
        return alphas, guides

    @cached_property
    def change_address(self) -> int:
        """On a GPU, once it was compared; 0: it is the first."""
        return 0 if self.change is None else device.address(self.change)


def compare(before: Moment, moments: Sequence[Moment]) -> None:
    """Measure the change of each frame since the one before it. All have guides of the same shapes."""
    if before.guides and on_gpu(before.guides[0]):
        _compare_on_gpu(before, moments)
        return
    for last, moment in pairwise((before, *moments)):
        pairs = zip(moment.guides, last.guides, strict=True)
        moment.change = np.array([np.abs(guide - other).mean() for guide, other in pairs])


def _compare_on_gpu(before: Moment, moments: Sequence[Moment]) -> None:
    grids, chain, begin = grids_of(guide.shape for guide in before.guides), [before, *moments], 0
    changes = [*new(True, (len(moments), len(grids), PARTS), np.float32)]
    while begin < len(moments):
        end = begin + 1  # of those whose guides, and that of the frame before, follow each other in memory
        while end < len(moments) and follow([guide for moment in chain[begin : end + 2] for guide in moment.guides]):
            end += 1
        every = grids * (end - begin)
        both = {"guide_address": chain[begin + 1].places[1], "before_address": chain[begin].places[1]}
        tables = {"grids_address": table(every)[0], "change_address": changes[begin]}
        kernel.launch("matte_change", **both, **tables, views=len(every), parts=PARTS)
        begin = end
    for moment, change in zip(moments, changes, strict=True):
        moment.change = change


def steadied(moments: Sequence[Moment], frames: range, *, weight: float, medians: bool) -> list[list[Any]]:
    """The mattes of each frame, given those around it: the weighted mean of its own and those up to REACH frames away.

    That of another frame has the weight (1 - d / MOVES), at least 0, times `weight`, where d is the greatest difference
    of the guides at a sample and its eight neighbours. Frames beyond a cut count for nothing.

    Args:
        moments: frames that follow each other; those more than REACH + 1 away do not count.
        frames: their numbers; on a GPU up to TOGETHER of them.
        medians: the matte of a frame is first the median of its own, the one before and the one after, where both are
            there.
    """
    if len(moments) == 1 or not moments[0].alphas:
        return [list(moments[at].alphas) for at in frames]
    if on_gpu(moments[0].alphas[0]):
        return _steadied_on_gpu(moments, frames, weight, medians)
    return [_steadied_on_host(moments, at, weight, medians) for at in frames]


def _steadied_on_host(moments: Sequence[Moment], at: int, weight: float, medians: bool) -> list[Any]:
    first, end = at, at + 1
    while first > 0 and _follows(moments[first]):
        first -= 1
    while end < len(moments) and _follows(moments[end]):
        end += 1
    around = [n for n in range(max(first, at - REACH), min(end, at + REACH + 1)) if n != at]
    plain = {n: _plain(moments, n, first, end) if medians else moments[n].alphas for n in (at, *around)}
    return [
        _mean(plain[at][view], moments[at].guides[view],
              [(moments[n].guides[view], plain[n][view]) for n in around], weight)
        for view in range(len(moments[at].alphas))
    ]  # fmt: skip


def _follows(moment: Moment) -> bool:
    """Whether it shows the scene of the frame before it."""
    return moment.change is not None and bool((moment.change <= CUT).all())


def _plain(moments: Sequence[Moment], n: int, first: int, end: int) -> Sequence[Any]:
    """The mattes of a frame, each the median of three; its own, if it is the first or the last of those it is among."""
    moment = moments[n]
    if not moment.plain:
        three = [moments[k].alphas for k in range(n - 1, n + 2)] if first < n < end - 1 else []
        moment.plain = [np.maximum(np.minimum(before, after), np.minimum(np.maximum(before, after), alpha))
                        for before, alpha, after in zip(*three, strict=True)] or list(moment.alphas)  # fmt: skip
    return moment.plain


def _mean(alpha: Any, guide: Any, around: Sequence[tuple[Any, Any]], weight: float) -> Any:
    total, weights = alpha, np.ones_like(alpha)
    for other_guide, other in around:
        own = (1 - _most_around(np.abs(other_guide - guide)) / np.float32(MOVES)).clip(0, 1)
        own *= np.float32(weight)
        total, weights = total + own * other, weights + own
    return total / weights


def _most_around(values: NDArray[Any]) -> NDArray[Any]:
    """The greatest value of each sample and its eight neighbours."""
    padded = np.pad(values, 1, mode="edge")
    across = np.maximum(np.maximum(padded[:, :-2], padded[:, 1:-1]), padded[:, 2:])
    most: NDArray[Any] = np.maximum(np.maximum(across[:-2], across[1:-1]), across[2:])
    return most


def _steadied_on_gpu(moments: Sequence[Moment], frames: range, weight: float, medians: bool) -> list[list[Any]]:
    middle, places = REACH + 1, dict(_NOWHERE)
    for slot in range(2 * middle + len(frames)):
        n = frames.start + slot - middle
        if 0 <= n < len(moments):
            alphas, guides = moments[n].places
            change = moments[n].change_address if n else 0  # before the first there is no frame
            places |= {f"alpha_{slot}": alphas, f"guide_{slot}": guides, f"change_{slot}": change}
    for name in _UNREAD:
        del places[name]
    grids = grids_of(alpha.shape for alpha in moments[0].alphas)
    made, views = new_samples(grids * len(frames)), len(grids)
    facts: dict[str, Any] = {"cut": CUT, "moves": MOVES, "steady": weight, "medians": medians, "parts": PARTS}
    facts |= {"frames": len(frames), "samples": sum(alpha.size for alpha in moments[0].alphas)}
    tables = {"grids_address": table(grids)[0], "target_address": made[0]}
    kernel.launch("matte_steady", **places, **facts, **tables, **most(grids))
    return [made[at : at + views] for at in range(0, len(made), views)]
