"""Layout of the table row that describes one frame to the CUDA kernel of preprocess. `cuda.py` writes it,
`tir_cuda.py` and `resize.cu` read it; this module imports nothing, so that both Python files can import it.

A row has BYTES bytes: addresses (int64), then words of 4 bytes, integers and floats, which are read in groups of four;
at its end what only frames of mode "resized" have.
"along" is the output's x axis and "across" its y axis; each is an axis of the coded image and may run backwards.
Position p on an axis reads samples at (step p + offset) / unit, separately for luma (0) and chroma (1), in exact
integers.
"""

ADDRESSES = ("plane0", "plane1", "plane2", "output", "along0", "along1", "across0", "across1")
"""Planes, output, and tables of filters of more than two taps (0: none)."""

EXTENTS = ("along_begin", "along_end", "across_begin", "across_end")
"""Output positions begin .. end - 1 of an axis hold the image."""

AXIS = ("step", "offset", "unit", "pitch", "lowest", "highest", "inverse", "weight", "whole", "rest", "filter", "mode")
"""Facts of an axis for luma or chroma: samples lowest .. highest may be read, `pitch` bytes apart; inverse is 1 / unit;
weight is the same, or 0 where samples are picked; step = whole * unit + rest; a row of the filter table has `filter`
entries: first sample, number of taps, weights. Only the mode of along and luma, one of MODES, is used."""

PLAIN = "along_mode1"
"""The otherwise unused mode of along and chroma: 1 if the image is neither rotated nor mirrored, so that neighbouring
samples lie in memory as in the output."""

MODES = {"linear": 0, "picked": 1, "filtered": 2, "resized": 3}
"""How luma, and everything in the same plane, is read: two taps on each axis; one sample, since all weights are 0; the
taps of a table; or, with chroma, from the scratch to which `resize.cu` has applied the tables."""

WORDS = (*EXTENTS, *(f"{axis}_{name}{kind}" for axis in ("along", "across") for kind in (0, 1) for name in AXIS))
COEFFICIENTS = 21

ADDRESS = {name: index for index, name in enumerate(ADDRESSES)}
WORD = {name: 2 * len(ADDRESSES) + index for index, name in enumerate(WORDS)}
COEFFICIENT = 2 * len(ADDRESSES) + len(WORDS)
"""Positions in elements of each type from the start of a row; the coefficients come after the words."""

COLUMNS = COEFFICIENT + COEFFICIENTS
"""Position of a word: the columns that `resize.cu` computes at once (0: it cannot resize the frame)."""
ADDRESS["scratch"] = (COLUMNS + 2) // 2
"""The frame's scratch: (3, height, `scratch_pitch`), float32."""

BYTES = 16 * -(-2 * (ADDRESS["scratch"] + 1) // 4)

STORES = {"f32": 0, "f16": 1, "bf16": 2, "u8": 3, "i8": 4}
"""Values of the argument `store`: the output's type."""


def scratch_pitch(width: int) -> int:
    """Elements of a row of the scratch: whole vectors of the most that a thread reads, for an output of that width."""
    return (width + 7) // 8 * 8


def span(layout: str, memory: str, alone: bool) -> int:
    """Neighbouring pixels per thread: 8 for NV12 in a batch, which measured faster, else 4."""
    return 8 if layout == "semiplanar" and memory == "nchw" and not alone else 4


def lanes(layout: str, memory: str, output: str, alone: bool) -> int:
    """Elements that are stored at once if the width is a multiple of `span` and addresses are aligned to that many."""
    elements = {"nhwc4": 4, "nhwc8": 8}.get(memory, span(layout, memory, alone))
    return min(elements, 4) if output == "f32" else elements
