"""The convolutions of networks, one by one: our kernel on tensor cores beside cuDNN's, on a GPU.

    python -m benchmarks.gpu.layers --models FOLDER [--only NAME...] [--batches 1 8]

FOLDER holds the files of benchmarks.gpu.networks. Each layer is timed as engine cudnn times its candidates: launched 20
times in a CUDA graph, the fastest of four replays, over random float16. `cudnn`: the fastest of the first eight that
cuDNN lists; `tiles`: our kernel with each of its tiles, in the order in which the engine tries them. `us` sums up
a network: with cuDNN's kernels where there are any, with the faster of both as the engine finds it, and with that
if it tried all tiles. Our kernel starts before the previous one has ended, and here that one is itself.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from benchmarks.network_graphs import SIZES
from benchmarks.protocol import save
from framefuse.cuda import kernel
from framefuse.engines.cudnn.compiled import compile_network
from framefuse.engines.cudnn.convolutions import CANDIDATES, TRIED, Builder, Layer, Plan
from framefuse.engines.cudnn.plans import Workers, fastest_plans

RECORD, GROUPS = "layers_gpu", ("network kernel", "engine cudnn")


class OnlyCudnn(Builder):
    """Builds and measures cuDNN's kernels alone."""

    def fastest_tile(self, layer: Layer, measure: Any) -> None:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    args = parser.parse_args()
    builder, known = OnlyCudnn(), dict[Layer, dict[str, Any]]()
    workers = Workers(builder.max_workspace)
    rows = list[dict[str, Any]]()
    try:
        for path in sorted(args.models.glob("*.onnx")):
            for batch in args.batches if not args.only or path.stem in args.only else ():
                size = SIZES.get(path.stem, 640)
                layers = Counter(Layer.all_of(compile_network(path, batch, size, size)).values())
                measure([layer for layer in layers if layer not in known], builder, workers, known)
                rows.append(row := summary(layers, known) | {"network": path.stem, "batch": batch, "size": size})
                print(path.stem, batch, row["us"], row["ours"], "of", sum(layers.values()), flush=True)
                save(RECORD, {"rows": rows}, *GROUPS)
    finally:
        workers.close()


def measure(layers: list[Layer], builder: Builder, workers: Workers, known: dict[Layer, dict[str, Any]]) -> None:
    """Time the layers that are not known."""
    for layer, plan in fastest_plans(builder, workers, layers, candidates=CANDIDATES):
        known[layer] = {"cudnn": plan.microseconds if isinstance(plan, Plan) else None}
        found = builder.on_tensor_cores(layer, None)
        kernel.prepare(tiled.tile.symbol for tiled in found)
        timer = builder.timer(layer)
        known[layer]["tiles"] = {tiled.tile.symbol.rpartition("_")[2]: timer(tiled) for tiled in found}


def summary(layers: Counter[Layer], known: dict[Layer, dict[str, Any]]) -> dict[str, Any]:
    """Microseconds of a network, how many of its layers are faster in our kernel, and each of them."""
    sums, ours, each = defaultdict[str, float](float), 0, []
    for layer, count in layers.items():
        cudnn, times = known[layer]["cudnn"] or math.inf, list(known[layer]["tiles"].values())
        tried, best = (min(some, default=math.inf) for some in (times[:TRIED], times))
        alone = cudnn if cudnn < math.inf else tried
        for name, us in {"cudnn": alone, "both": min(cudnn, tried), "all tiles": min(cudnn, best)}.items():
            sums[name] += count * us
        ours += count * (tried < cudnn)
        tiles = {name: round(us, 2) for name, us in known[layer]["tiles"].items()}
        shown = {"x": layer.x, "weight": layer.weight, "stride": layer.stride, "dilation": layer.dilation}
        each.append({**shown, "count": count, "cudnn": known[layer]["cudnn"] and round(cudnn, 2), "tiles": tiles})
    return {"us": {name: round(us, 1) for name, us in sums.items()}, "ours": ours, "layers": each}


if __name__ == "__main__":
    main()
