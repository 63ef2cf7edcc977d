"""framefuse: video in, detections out, one pass over every frame.

import framefuse

for result in framefuse.Pipeline("video.mp4", "yolov8n.onnx"):
    print(result.frame.index, result.frame.seconds, result.detections.xyxy)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framefuse.common.version import __version__

if TYPE_CHECKING:
    from framefuse.config import Settings
    from framefuse.errors import FramefuseError
    from framefuse.fleet.fleet import Fleet
    from framefuse.frame import Frame, View
    from framefuse.lab.building import BuiltEngine, build_engine
    from framefuse.pipeline import Pipeline
    from framefuse.prediction import Detections, Event, Result
    from framefuse.report.report import Report
    from framefuse.runtime.model import Model
    from framefuse.sinks.callback import CallbackSink
    from framefuse.sinks.images import draw
    from framefuse.sources import SourceOptions, open_source

_MODULES = {
    "BuiltEngine": "lab.building",
    "CallbackSink": "sinks.callback",
    "Detections": "prediction",
    "Event": "prediction",
    "Fleet": "fleet.fleet",
    "Frame": "frame",
    "FramefuseError": "errors",
    "Model": "runtime.model",
    "Pipeline": "pipeline",
    "Report": "report.report",
    "Result": "prediction",
    "Settings": "config",
    "SourceOptions": "sources",
    "View": "frame",
    "build_engine": "lab.building",
    "draw": "sinks.images",
    "open_source": "sources",
}

__all__ = [
    "BuiltEngine",
    "CallbackSink",
    "Detections",
    "Event",
    "Fleet",
    "Frame",
    "FramefuseError",
    "Model",
    "Pipeline",
    "Report",
    "Result",
    "Settings",
    "SourceOptions",
    "View",
    "__version__",
    "build_engine",
    "draw",
    "open_source",
]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `import framefuse` is nearly free."""
    if name not in _MODULES:
        raise AttributeError(f"module 'framefuse' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"framefuse.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
