"""One process of `Workers`: python -m framefuse.engines.cudnn.worker BYTES, which builds kernels on request.

<- (Layer, engine, knobs), pickled, on stdin, until it ends
-> (kernel, error), pickled, on stdout: what `Builder.load` reads, and an empty text; or nothing, and why
"""

from __future__ import annotations

import os
import pickle
import sys

from framefuse.engines.cudnn.convolutions import Builder
from framefuse.errors import EngineError


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever libraries print does not stand between answers
    builder = Builder(scratch=int(sys.argv[1]))
    while True:
        try:
            layer, engine, knobs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        image, error = b"", ""
        try:
            plan = builder.replay(layer, engine, knobs)
            if plan.workspace > builder.scratch:
                raise EngineError(f"engine {engine} takes {plan.workspace} bytes of scratch memory")
            image = bytes(plan.graph.serialize(as_bytes=True))
        except Exception as failed:  # of the bindings, too: the next request may do
            error = str(failed)[:300] or type(failed).__name__
        pickle.dump((image, error), answers)
        answers.flush()


if __name__ == "__main__":
    main()
