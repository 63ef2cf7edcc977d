"""What tells how wrong the frames between two looks would be? Ridge regression and trees, on signs of several kinds.

    python -m benchmarks.predictors [--cache FOLDER]

Each predictor learns from blocks of three clips of the synthetic street's split "val", and is judged on the clips of
`benchmarks.adaptive`, of the split "test": correlation, and mean error in objects lost per object. Signs:

- "boxes": what the two looks show (`Bridge.signs`).
- "difference": mean, maximum and range of the mean difference of the lumas of neighbouring frames in the block.
- "packets": likewise of the sizes of the frames' packets in H.264, over their median; key frames count as the median.

It prints the weights of "boxes, ridge", which are the governor's. Trees need scikit-learn. The record is predictors.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from benchmarks.adaptive import BEST, clip
from benchmarks.protocol import save
from framefuse.adaptive import Bridge, disagreement
from framefuse.lab.adaptive_bench import CONF, SCHEDULES

TUNING, SEEDS = (("cycle", 51), ("day", 52), ("fast", 53)), (61, 62, 63)
GAPS = 2, 4, 8, 16
KINDS = {
    "boxes": (0,),
    "boxes, difference": (0, 1),
    "boxes, packets": (0, 2),
    "all": (0, 1, 2),
    "without boxes": (1, 2),
}
Array = NDArray[Any]
Table = tuple[Array, ...]
"""(blocks, n) signs of the boxes, of differences and of packets; (blocks,) losses."""


def frames_of(path: Path) -> tuple[Array, Array]:
    """(frames,) difference of the luma to the frame before, and size of the packet over the median."""
    sizes, lumas, order = dict[int, tuple[int, bool]](), [], []
    with av.open(str(path)) as file:
        for packet in file.demux(video=0):
            if packet.size and packet.pts is not None:
                sizes[packet.pts] = packet.size, packet.is_keyframe
    with av.open(str(path)) as file:
        for frame in file.decode(video=0):
            lumas.append(frame.to_ndarray()[: frame.height : 4, ::4])
            order.append(sizes[frame.pts or 0])
    differences = [
        float(np.abs(one - other.astype(np.int16)).mean()) for one, other in zip(lumas[1:], lumas, strict=False)
    ]
    found, keys = np.array([size for size, _ in order], float), np.array([key for _, key in order])
    found[keys] = np.median(found[~keys])
    return np.array([0.0, *differences]) / 10, found / np.median(found)


def table(name: str, seed: int, split: str, cache: Path) -> Table:
    best = clip(name, seed, split, cache, [BEST]).found[BEST]
    differences, packets = frames_of(cache / f"{name}-{split}-{seed}.mp4")
    print(f"{name} {seed} is read", flush=True)
    columns: tuple[list[Any], ...] = [], [], [], []
    for gap in GAPS:
        for begin in range(0, len(best) - gap, max(2, gap // 2)):
            bridge = Bridge(best[begin], best[begin + gap], gap)
            lost = [disagreement(best[begin + step], bridge.at(step, CONF)) for step in range(1, gap)]
            inside = [values[begin + 1 : begin + gap + 1] for values in (differences, packets)]
            images = [(values.mean(), values.max(), values.max() - values.min()) for values in inside]
            for column, value in zip(
                columns, (bridge.signs, *images, np.mean(lost) / (1 + bridge.objects)), strict=True
            ):
                column.append(value)
    return tuple(map(np.array, columns))


def joined(tables: list[Table]) -> Table:
    return tuple(np.concatenate(columns) for columns in zip(*tables, strict=True))


def ridge(signs: Array, losses: Array) -> Callable[[Array], Array]:
    """The first sign is 1, so its weight is not held down."""
    least = 1e-3 * len(signs) * np.diag([0, *np.ones(signs.shape[1] - 1)])
    weights = np.linalg.solve(signs.T @ signs + least, signs.T @ losses)
    print("weights", tuple(weights.round(3).tolist()))
    return lambda others: others @ weights


def trees(signs: Array, losses: Array) -> Callable[[Array], Array]:
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(max_depth=3, random_state=0).fit(signs, losses)
    return lambda others: np.asarray(model.predict(others))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("build/adaptive"))
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    learned = joined([table(name, seed, "val", args.cache) for name, seed in TUNING])
    judged = {name: joined([table(name, seed, "test", args.cache) for seed in SEEDS]) for name in SCHEDULES}
    rows = []

    def signs(of: Table, kinds: tuple[int, ...]) -> Array:
        first = [] if 0 in kinds else [of[0][:, [0, 4]]]  # the constant, and the distance
        return np.hstack([*first, *(of[kind] for kind in kinds)])

    for method in ridge, trees:
        for kind, numbers in KINDS.items():
            predict = method(signs(learned, numbers), learned[-1])
            row: dict[str, Any] = {"signs": kind, "method": method.__name__}
            for name, of in judged.items():
                guess = predict(signs(of, numbers))
                row[name] = {
                    "correlation": float(np.corrcoef(guess, of[-1])[0, 1]),
                    "error": float(np.abs(guess - of[-1]).mean()),
                }
            rows.append(row)
            print(row, flush=True)
    facts = {"learned": len(learned[-1]), "judged": {name: len(of[-1]) for name, of in judged.items()}}
    save("predictors", {**facts, "rows": rows}, "adaptive", "synthetic world", "model")


if __name__ == "__main__":
    main()
