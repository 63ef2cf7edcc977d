"""The row that describes one frame to the CUDA nest of preprocess. Written by `kernels/preprocess_cuda.py`, read by
`preprocess_cuda.py`; it imports nothing, so both can import it.

A row is BYTES long: first addresses (int64), then words of 4 bytes, integers and fractions, which are read in groups of
four. Along is the output's x, across its y; each of them is an axis of the coded image, and may run backwards.
Position p on an axis reads samples at (step p + offset) / unit, for luma (0) and chroma (1) apart, in exact integers.
"""

ADDRESSES = ("plane0", "plane1", "plane2", "output", "along0", "along1", "across0", "across1")
"""Planes, output, and the tables of filters of more than two taps (0: there are none)."""

EXTENTS = ("along_begin", "along_end", "across_begin", "across_end")
"""Output positions begin .. end - 1 of an axis hold the image."""

AXIS = ("step", "offset", "unit", "pitch", "lowest", "highest", "inverse", "weight", "whole", "rest", "filter", "mode")
"""Of an axis and a kind: samples lowest .. highest may be read, `pitch` bytes apart; inverse is 1 / unit, weight the
same or 0 where samples are picked; step = whole unit + rest; a row of the table of filters has `filter` entries: first
sample, number of taps, weights. Mode, one of MODES, is that of along and luma."""

PLAIN = "along_mode1"
"""Of the modes, the word of that axis and chroma: 1 where the image is neither turned nor mirrored, so that the
samples of a pixel and those of the next lie in memory as in the output."""

MODES = {"linear": 0, "picked": 1, "filtered": 2}
"""How to read luma and what lies in one plane with it: two taps of each axis; one sample, since all weights are 0; or
the taps of a table."""

WORDS = (*EXTENTS, *(f"{axis}_{name}{kind}" for axis in ("along", "across") for kind in (0, 1) for name in AXIS))
COEFFICIENTS = 21

ADDRESS = {name: index for index, name in enumerate(ADDRESSES)}
WORD = {name: 2 * len(ADDRESSES) + index for index, name in enumerate(WORDS)}
COEFFICIENT = 2 * len(ADDRESSES) + len(WORDS)
"""Positions in elements of each type, from the start of a row; the coefficients are the last."""

BYTES = 16 * -(-(COEFFICIENT + COEFFICIENTS) // 4)

STORES = {"f32": 0, "f16": 1, "bf16": 2, "u8": 3, "i8": 4}
"""Values of the argument `store`: what the output holds."""


def span(layout: str, memory: str, alone: bool) -> int:
    """Neighbouring pixels that a thread makes: many of NV12 in a batch, where that measured faster."""
    return 8 if layout == "semiplanar" and memory == "nchw" and not alone else 4


def lanes(layout: str, memory: str, output: str, alone: bool) -> int:
    """Elements that are stored at once, where the width is a multiple of `span` and addresses of so many elements."""
    elements = {"nhwc4": 4, "nhwc8": 8}.get(memory, span(layout, memory, alone))
    return min(elements, 4) if output == "f32" else elements
