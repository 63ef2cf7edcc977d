"""Score a model where the ground truth is exact: python examples/score.py [MODEL]      needs framefuse[val]"""

import sys

from framefuse.lab.evaluation import validate

model = (*sys.argv[1:], "scout-n")[0]
scores = validate(model, "synthetic://street?frames=60&split=test", limit=20)
print(f"{scores.model} on {scores.frames} frames: mAP50-95 {scores.map50_95:.3f}, mAP50 {scores.map50:.3f}")
