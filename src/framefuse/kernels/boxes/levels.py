"""The table of the levels of a detection head, which the CUDA kernels that read one share with what launches them.

A row of FIELDS int64 for each level: at FIRST its first anchor; from SIDES and from SCORES on, where the logits of
distances and of classes lie: address, elements from image to image, elements from anchor to anchor. It imports
nothing, so both can import it.
"""

FIELDS = 8
FIRST, SIDES, SCORES = 0, 1, 4
