"""Parity: does this installation give the right pixels and boxes, and if not, at which stage does it go wrong?

    certificate = certify("yolov8n.onnx", "video.mp4")
    print(certificate.markdown())

compare.py       differences of pixels and boxes, and their limits
chain.py         the stages of the reference, and ours in their place
certificate.py   every engine of this machine, stage by stage
peer.py          the same against ultralytics, in a separate Python (which runs peer_script.py)
report.py        the results: as text, Markdown, HTML, JSON
"""

from framefuse.lab.parity.certificate import certify
from framefuse.lab.parity.compare import BoxDifference, Check, PixelDifference
from framefuse.lab.parity.report import Certificate, EngineResult

__all__ = ["BoxDifference", "Certificate", "Check", "EngineResult", "PixelDifference", "certify"]
