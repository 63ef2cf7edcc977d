"""Outputs: the sinks that follow from Settings, beside those that the caller makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.config import Settings
from framefuse.errors import UsageError
from framefuse.sinks import Sink, open_sink
from framefuse.sources import SourceInfo

SinkFactory = Callable[[], Sink]


def writes(settings: Settings) -> bool:
    """Whether anything goes into a run folder."""
    return any((settings.save, settings.save_txt, settings.save_json, settings.save_jsonl, settings.save_csv))


def sinks_for(settings: Settings, factories: Sequence[SinkFactory], info: SourceInfo) -> list[Sink]:
    """New sinks of one source.

    Raises:
        UsageError: a factory is no factory.
    """
    names = {"save_jsonl": "jsonl", "save_csv": "csv", "save_json": "coco", "save_txt": "yolo_txt"}
    sinks = [open_sink(name) for flag, name in names.items() if getattr(settings, flag)]
    if settings.save:
        if info.kind in ("images", "array"):
            sinks.append(open_sink("images"))
        else:
            sinks.append(
                open_sink(
                    "video",
                    encoder=settings.encoder,
                    crf=settings.crf,
                    preset=settings.encode_preset,
                    threads=settings.encode_threads,
                )
            )
    if settings.show:
        sinks.append(open_sink("show"))
    for make in factories:
        sink = make() if callable(make) and (isinstance(make, type) or not hasattr(make, "write")) else None
        if sink is None or not hasattr(sink, "write"):
            raise UsageError(
                f"sinks has {make!r}, which makes no sink",
                remedy="pass classes or functions without arguments: JsonlSink, lambda: CallbackSink(function)",
            )
        sinks.append(sink)
    return sinks
