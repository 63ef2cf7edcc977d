"""Parity: does this installation give the pixels and boxes that it should, and if not, at which stage does it begin?

    certificate = certify("yolov8n.onnx", "video.mp4")
    print(certificate.markdown())

compare.py       how far pixels and boxes are apart, and how far they may be
clip.py          a clip to compare on
chain.py         the reference path, and each stage of ours in its place
certificate.py   every engine of this machine, stage by stage
peer.py          the same against ultralytics, in a Python of its own (peer_script.py runs there)
result.py        what came of it
report.py        one page: text, Markdown, HTML
"""

from framefuse.lab.parity.certificate import certify
from framefuse.lab.parity.compare import BoxDifference, Check, PixelDifference
from framefuse.lab.parity.result import Certificate, EngineResult

__all__ = ["BoxDifference", "Certificate", "Check", "EngineResult", "PixelDifference", "certify"]
