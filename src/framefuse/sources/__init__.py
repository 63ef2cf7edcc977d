"""Sources yield `Frame`s. A source is a passive iterator.

Only live sources have threads, one per connection, because FFmpeg's network reads cannot be interrupted.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote_to_bytes, urlsplit

from framefuse.common.redact import brief
from framefuse.errors import UsageError
from framefuse.sources.source import SCHEMES, Source, SourceInfo, SourceOptions, is_camera


def open_source(source: Any, options: SourceOptions | None = None) -> Source:
    """Open a source of frames.

    Args:
        source: path, glob, folder, camera (0, "0", "/dev/video0"), rtsp:// http:// udp:// tcp:// address,
            synthetic://street?seed=7 (see `framefuse.world`), NumPy array or PIL image or iterable of them, a `Source`,
            or a list of any of these, which are read one after the other.

    Raises:
        SourceError: nothing can be read there.
        UsageError: the kind of source is unknown, the string is empty, or `options` is not a SourceOptions.
    """
    if options is None:
        options = SourceOptions()
    elif not isinstance(options, SourceOptions):
        raise UsageError(f"options is {brief(options)}", remedy="pass framefuse.SourceOptions(...)")
    if is_camera(source):
        from framefuse.sources.camera import open_camera

        return open_camera(str(source), options)
    if isinstance(source, (str, Path)):
        return _open_text(source, options)
    if isinstance(getattr(source, "info", None), SourceInfo) and hasattr(source, "close"):
        return cast("Source", source)
    from framefuse.sources.arrays import is_image, open_arrays
    from framefuse.sources.paths import PathList, open_paths

    if isinstance(source, PathList):
        return open_paths(source, options)
    if isinstance(source, (list, tuple)) and not all(is_image(item) for item in source):
        from framefuse.sources.chain import open_chain

        return open_chain(source, options, open_source)
    if is_image(source) or isinstance(source, Iterable):
        return open_arrays(source, options)
    raise UsageError(
        f"a {type(source).__name__} is not a source of frames",
        remedy="pass a path, a glob, an address, a camera number, arrays, or a list of these",
    )


def _open_text(source: str | Path, options: SourceOptions) -> Source:
    """Open a path, glob, folder or address."""
    text = str(source)
    if not text.strip():
        raise UsageError("the source is an empty string", remedy="name a video, image, folder, camera or address")
    scheme, separator, _ = text.partition("://")
    if isinstance(source, str) and separator and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        if scheme.lower() == "file":
            return _open_text(_local_path(text), options)
        return _open_address(scheme.lower(), text, options)
    from framefuse.sources.paths import open_path

    return open_path(text, options)


def _local_path(address: str) -> Path:
    """The path in a file:// address."""
    try:
        path = os.fsdecode(unquote_to_bytes(urlsplit(address).path))
    except ValueError:
        path = ""
    if not path:
        raise UsageError(f"{brief(address)} names no file", remedy="write file:///folder/name")
    return Path(path)


def _open_address(scheme: str, uri: str, options: SourceOptions) -> Source:
    if scheme in SCHEMES:
        return cast("Source", importlib.import_module(SCHEMES[scheme]).open_live(uri, options))
    if scheme == "synthetic":
        from framefuse.sources.synthetic import open_synthetic

        return open_synthetic(uri, options)
    from importlib.metadata import entry_points

    plugins = {point.name: point for point in entry_points(group="framefuse.sources")}
    if scheme not in plugins:
        known = ", ".join(sorted({"file", "synthetic", *SCHEMES, *plugins}))
        raise UsageError(f"no source reads {scheme}:// addresses", remedy=f"choose one of {known}")
    return cast("Source", plugins[scheme].load()(uri, options))


__all__ = ["Source", "SourceInfo", "SourceOptions", "open_source"]
