"""States: what a recurrent model remembers of the frames before, as inputs that are outputs of its last run."""

import re
from collections.abc import Iterable

ENDINGS = (r"in$", "out"), (r"^in(?=_)", "out"), (r"i$", "o"), (r"prev$", "next")
"""How names of inputs become those of the outputs: h_in and h_out, r1i and r1o (Robust Video Matting), ..."""


def state_pairs(inputs: Iterable[str], outputs: Iterable[str]) -> dict[str, str]:
    """Input -> the output that it is in the next frame, by their names; empty: the model remembers nothing."""
    known, pairs = set(outputs), dict[str, str]()
    for name in inputs:
        for ending, other in ENDINGS:
            found = re.sub(ending, other, name)
            if found != name and found in known:
                pairs[name] = found
                break
    return pairs
