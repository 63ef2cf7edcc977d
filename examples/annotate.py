"""Write an annotated video, JSON lines and a report: python examples/annotate.py [SOURCE] [MODEL]"""

import sys

import framefuse

source, model = (*sys.argv[1:], "synthetic://street?frames=30&split=test", "scout-n")[:2]
report = framefuse.Pipeline(source, model, save=True, save_jsonl=True).run()
print(report.summary(), *report.outputs, sep="\n")
