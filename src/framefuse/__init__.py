"""framefuse: video in, detections out, one pass over every frame.

import framefuse

for result in framefuse.Pipeline("video.mp4", "yolov8n.onnx"):
    print(result.frame.index, result.frame.seconds, result.detections.xyxy)
"""

from typing import TYPE_CHECKING, Any

from framefuse.common.version import __version__

if TYPE_CHECKING:
    from framefuse.config import Settings as Settings
    from framefuse.errors import FramefuseError as FramefuseError
    from framefuse.fleet.fleet import Fleet as Fleet
    from framefuse.frame import Frame as Frame
    from framefuse.frame import View as View
    from framefuse.lab.building import BuiltEngine as BuiltEngine
    from framefuse.lab.building import build_engine as build_engine
    from framefuse.lab.loading import LoadedEngine as LoadedEngine
    from framefuse.lab.loading import load_engine as load_engine
    from framefuse.pipeline import Pipeline as Pipeline
    from framefuse.prediction import Detections as Detections
    from framefuse.prediction import Event as Event
    from framefuse.prediction import Result as Result
    from framefuse.report.report import Report as Report
    from framefuse.runtime.batcher import Batcher as Batcher
    from framefuse.runtime.batcher import Response as Response
    from framefuse.runtime.memory import clear_cache as clear_cache
    from framefuse.runtime.memory import model_size as model_size
    from framefuse.runtime.model import Model as Model
    from framefuse.sinks import CallbackSink as CallbackSink
    from framefuse.sinks.images import draw as draw
    from framefuse.sources import SourceOptions as SourceOptions
    from framefuse.sources import open_source as open_source
    from framefuse.sources.feed import FrameFeed as FrameFeed

_NAMES = {
    "config": "Settings",
    "errors": "FramefuseError",
    "fleet.fleet": "Fleet",
    "frame": "Frame View",
    "lab.building": "BuiltEngine build_engine",
    "lab.loading": "LoadedEngine load_engine",
    "pipeline": "Pipeline",
    "prediction": "Detections Event Result",
    "report.report": "Report",
    "runtime.batcher": "Batcher Response",
    "runtime.memory": "clear_cache model_size",
    "runtime.model": "Model",
    "sinks": "CallbackSink",
    "sinks.images": "draw",
    "sources": "SourceOptions open_source",
    "sources.feed": "FrameFeed",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `import framefuse` is nearly free."""
    if name not in _MODULES:
        raise AttributeError(f"module 'framefuse' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"framefuse.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
