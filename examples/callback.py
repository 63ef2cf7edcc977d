"""Look at the decoder's own planes beside each result: python examples/callback.py"""

import framefuse
from framefuse import CallbackSink


def look(result, frame):
    luma = frame.planes[0]
    print(result.frame.index, frame.format.name, luma.shape, f"mean luma {luma.mean():.1f}", len(result.detections))


source = "synthetic://street?frames=10&split=test"
framefuse.Pipeline(source, "scout-n", sinks=[lambda: CallbackSink(look, needs_frame=True)]).run()
