"""The table of the levels of a detection head, which CUDA kernels read as `Level` of `levels.cuh`.

A row of FIELDS int64 for each level: at FIRST its first anchor; from SIDES and from SCORES on, where the logits of
distances and of classes lie: address, elements from image to image, elements from anchor to anchor.
"""

FIELDS = 8
FIRST, SIDES, SCORES = 0, 1, 4
