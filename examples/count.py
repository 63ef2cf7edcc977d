"""Count the objects of each class in a source: python examples/count.py [SOURCE] [MODEL]"""

import sys

import framefuse

source, model = (*sys.argv[1:], "synthetic://street?frames=30&split=test", "scout-n")[:2]
report = framefuse.Pipeline(source, model, conf=0.4).run()
for name, count in report.detections_per_class.items():
    print(f"{count:6} {name}")
print(report.verdict)
