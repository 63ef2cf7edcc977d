"""A process of `Workers` that builds kernels on request: python -m framefuse.engines.cudnn.worker WORKSPACE_BYTES

stdin:  pickled (Layer, engine, knobs), until end of file
stdout: pickled (kernel, error): bytes for `Builder.load` and an empty string, or empty bytes and an error message
"""

from __future__ import annotations

import os
import pickle
import sys

from framefuse.engines.cudnn.convolutions import Builder
from framefuse.errors import EngineError


def main() -> None:
    """Serve requests until end of file."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the output of libraries out of the answers
    builder = Builder(max_workspace=int(sys.argv[1]))
    while True:
        try:
            layer, engine, knobs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        kernel, error = b"", ""
        try:
            plan = builder.build(layer, engine, knobs)
            if plan.workspace > builder.max_workspace:
                raise EngineError(f"engine {engine} needs a workspace of {plan.workspace} bytes")
            kernel = bytes(plan.graph.serialize(as_bytes=True))
        except Exception as failed:  # of any class, from the bindings too: report it and go on
            error = str(failed)[:300] or type(failed).__name__
        pickle.dump((kernel, error), answers)
        answers.flush()


if __name__ == "__main__":
    main()
