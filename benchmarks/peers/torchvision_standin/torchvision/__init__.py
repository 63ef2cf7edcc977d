"""A stand-in for torchvision in the peers' environment: `torchvision.ops.nms` and nothing else.

ultralytics imports torchvision when it predicts on a video, and calls one function of it, `ops.nms`. PyPI has only CUDA
builds for Linux, which do not import over a CPU build of torch. The function here is OpenCV's C++ greedy NMS, the same
algorithm in the same kind of language, so that the peer is not slowed by a substitute written in Python. A report that
was measured with it shows the version `0.28.0+standin`.
"""

from torchvision import ops as ops

__version__ = "0.28.0+standin"
