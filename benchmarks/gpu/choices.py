"""The fastest kernels of convolutions on this kind of GPU, which ship with framefuse.

    python -m benchmarks.gpu.choices MODEL [MODEL ...] [--batches 1 8] [--sizes 640x640 640x384] [--seconds 300]

Engine cudnn measures all candidates of each layer of the models (names or files) at these sizes and batches. What it
chooses is added to the file of this GPU in src/framefuse/engines/cudnn/choices. A size that a model does not take is
left out. After --seconds no model is begun.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from itertools import product

from framefuse import Model
from framefuse.engines.cudnn import plans
from framefuse.engines.cudnn.choices import FOLDER, LIKE
from framefuse.engines.cudnn.convolutions import Builder
from framefuse.errors import FramefuseError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--sizes", nargs="+", default=["640x640", "640x384"], metavar="WIDTHxHEIGHT")
    parser.add_argument("--seconds", type=float, default=300)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:  # what was chosen before is neither used nor written again
        os.environ["XDG_CACHE_HOME"], plans.choices_for = empty, lambda environment: {}
        measure(args)
        write(plans.PlanCache(plans.environment(Builder())))


def measure(args: argparse.Namespace) -> None:
    """Fill the cache with the plans of the models."""
    begun = time.monotonic()
    for model, size, batch in product(args.models, args.sizes, args.batches):
        if time.monotonic() - begun > args.seconds:
            print("out of time before", model, size, batch, flush=True)
            break
        width, height = map(int, size.split("x"))
        try:
            with Model(model, device="cuda", engine="cudnn") as opened:
                opened.engine.execution(batch, height, width)
                opened.engine.tune()
                print(model, size, batch, *opened.engine.reasons[-1:], f"{time.monotonic() - begun:.0f} s", flush=True)
        except FramefuseError as error:
            print(model, size, batch, str(error).splitlines()[0], flush=True)


def write(cache: plans.PlanCache) -> None:
    """Add the plans of a cache to the choices."""
    gpu = cache.environment["gpu"].lower().replace(" ", "-")
    path = FOLDER / f"{gpu}-cudnn-{cache.environment['cudnn']}.json"
    facts = {name: cache.environment[name] for name in LIKE}
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    choices = known["choices"] if known.get("environment") == facts else {}
    choices |= {layer: [entry["engine"], entry["knobs"]] for layer, entry in cache.entries.items()}
    rows = ",\n".join(f"{json.dumps(layer)}: {json.dumps(choices[layer])}" for layer in sorted(choices))
    path.write_text(f'{{"environment": {json.dumps(facts)}, "choices": {{\n{rows}\n}}}}\n', encoding="utf-8")
    print(path, len(choices), "layers", flush=True)


if __name__ == "__main__":
    main()
