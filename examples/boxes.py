"""Print every box of a video: python examples/boxes.py [SOURCE] [MODEL]"""

import sys

import framefuse

source, model = (*sys.argv[1:], "synthetic://street?frames=30&split=test", "scout-n")[:2]
for result in framefuse.Pipeline(source, model):
    found = result.detections
    for box, score, class_id in zip(found.xyxy, found.confidence, found.class_id, strict=True):
        print(f"{result.frame.index} {found.name(class_id)} {score:.2f} {box.round(1).tolist()}")
