"""The sinks that Settings ask for, plus those that the caller provides."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from framefuse.common.polygons import Point
from framefuse.common.redact import brief
from framefuse.config import Settings
from framefuse.errors import UsageError
from framefuse.sinks import Sink, Style, open_sink
from framefuse.sources import SourceInfo

SinkFactory = Callable[[], Sink] | str
STILLS = "images", "array"
"""Kinds of sources whose annotated images are written as separate files."""


def outputs_of(settings: Settings) -> list[str]:
    """The settings that ask for outputs, by name."""
    return [name for name in Settings.model_fields if name.startswith("save") and getattr(settings, name)]


def needs_frames(settings: Settings, factories: Sequence[SinkFactory]) -> bool:
    """Whether a sink may need the pixels of frames; one that the caller provides may."""
    fields = "save", "save_crop", "save_frames", "save_hits", "save_matte", "show"
    thumbnails = settings.save_events and settings.thumbnails
    return bool(factories) or thumbnails or any(getattr(settings, name) for name in fields)


def sinks_for(
    settings: Settings,
    factories: Sequence[SinkFactory],
    info: SourceInfo,
    *,
    events: Callable[[], Sink] | None = None,
    places: Sequence[tuple[str, Sequence[Point]]] = (),
) -> list[Sink]:
    """New sinks for one source; UsageError if an entry of `factories` does not make a sink.

    Args:
        events: makes the sink of `save_events`.
        places: see `Style`.
    """
    if not isinstance(factories, (list, tuple)):
        raise UsageError(f"sinks is {brief(factories)}", remedy="pass a list: sinks=[JsonlSink]")
    names = {
        "save_jsonl": "jsonl", "save_csv": "csv", "save_json": "coco", "save_txt": "yolo_txt", "save_mot": "mot",
        "save_crop": "crops", "save_parquet": "parquet", "save_cvat": "cvat", "save_label_studio": "label_studio",
    }  # fmt: skip
    sinks = [open_sink(name) for flag, name in names.items() if getattr(settings, flag)]
    if settings.save_events and events is not None:
        sinks.append(events())
    if settings.save_frames or settings.save_hits:
        sinks.append(open_sink("frames", hits=not settings.save_frames))
    style = Style(
        settings.trail,
        settings.show_views,
        settings.line_width,
        not settings.hide_labels,
        not settings.hide_conf,
        places,
    )
    encoding = {
        "crf": settings.crf, "preset": settings.encode_preset, "threads": settings.encode_threads,
        "gpu": settings.gpu, "low_latency": settings.low_latency,
    }  # fmt: skip
    if settings.save and info.kind in STILLS:
        sinks.append(open_sink("images", style=style))
    elif settings.save:
        sinks.append(open_sink("video", encoder=settings.encoder, **encoding, style=style))
    if settings.save_matte and (info.kind in STILLS or settings.save_matte == "png"):
        sinks.append(open_sink("matte_images", mode=settings.save_matte))
    elif settings.save_matte:
        own = settings.save and settings.save_matte == "alpha"  # the encoder is that of the annotated video
        encoder = "auto" if own else settings.encoder
        sinks.append(open_sink("matte", mode=settings.save_matte, stereo=settings.stereo, encoder=encoder, **encoding))
    if settings.show:
        sinks.append(open_sink("show", style=style, matte=settings.save_matte))
    for make in factories:
        if isinstance(make, str):
            sinks.append(open_sink(make))
            continue
        maker = callable(make) and (isinstance(make, type) or not hasattr(make, "write")) and _takes_nothing(make)
        sink = make() if maker else None
        if sink is None or not hasattr(sink, "write"):
            remedy = "pass names such as 'csv', or classes or functions without arguments"
            raise UsageError(f"sinks has {make!r}, which does not make a sink", remedy=remedy)
        sinks.append(sink)
    return sinks


def _takes_nothing(make: Any) -> bool:
    """Whether it can be called without arguments, as far as its signature tells."""
    try:
        inspect.signature(make).bind()
    except TypeError:
        return False
    except ValueError:  # some built-in functions have no signature
        return True
    return True
