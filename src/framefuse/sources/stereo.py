"""How the eyes of a VR video are arranged and projected, as its metadata or its name says."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from framefuse.sources.source import SourceInfo

Arrangement = Literal["sbs", "tb", "mono"]

TOKENS: dict[str, tuple[Arrangement | None, str | None]] = {
    "sbs": ("sbs", None), "lr": ("sbs", None), "3dh": ("sbs", None), "hsbs": ("sbs", None),
    "tb": ("tb", None), "ou": ("tb", None), "3dv": ("tb", None), "htb": ("tb", None), "mono": ("mono", None),
    "180": (None, "equirect180"), "180x180": (None, "equirect180"), "360": (None, "equirect360"),
    "fisheye": (None, "fisheye180"), "fisheye180": ("sbs", "fisheye180"), "fisheye190": ("sbs", "fisheye190"),
    "fisheye200": ("sbs", "fisheye200"), "mkx200": ("sbs", "fisheye200"), "mkx220": ("sbs", "fisheye220"),
    "rf52": ("sbs", "fisheye190"), "vrca220": ("sbs", "fisheye220"), "flat": ("mono", "flat"),
}  # fmt: skip
"""Part of a name -> the arrangement and the projection that players take from it."""
ENTRIES = frozenset({b"avc1", b"avc3", b"hvc1", b"hev1", b"av01", b"vp09", b"mp4v", b"apcn", b"ap4h"})
ENTRY_BYTES = 78
"""Fields of a video's sample entry before its boxes (ISO/IEC 14496-12, VisualSampleEntry)."""
MOST_BYTES = 1 << 26
"""Size of an index that is read."""
MODES: dict[int, Arrangement] = {0: "mono", 1: "tb", 2: "sbs"}
"""Byte of the box st3d -> arrangement (Spherical Video V2, stereo_mode)."""
MESHES = "mshp", "cbmp"
"""Boxes of projections by meshes and cubes."""
HALF = 0x3FFF0000
"""Bound of the box equi, left and right, from which on half of the sphere is cropped away (of 2**32)."""


@dataclass(frozen=True)
class Stereo:
    """What is known about a VR video; None: nothing says it."""

    arrangement: Arrangement | None = None
    projection: str | None = None
    source: str = ""
    """Where that comes from, in words."""
    parts: tuple[str, str] = ("", "")
    """The name without and with only what players read at its end."""
    boxes: bytes = b""
    """The boxes st3d and sv3d of an MP4, as they are."""


def said_by_name(stem: str) -> Stereo:
    """What players take from the words at the end of a file name without suffix, such as clip_180_LR."""
    words = re.split(r"(?=[_\-. ])", stem)
    first = len(words)
    arrangement: Arrangement | None = None
    projection: str | None = None
    while first > 1 and (token := words[first - 1][1:].lower()) in TOKENS:
        first -= 1
        own = TOKENS[token]
        arrangement, projection = arrangement or own[0], projection or own[1]
    end = "".join(words[first:])
    return Stereo(arrangement, projection, f"the name ends in {end}" if end else "", ("".join(words[:first]), end))


def said_by_file(path: Path) -> Stereo:
    """What the boxes st3d and sv3d of an MP4 say (Spherical Video V2). Nothing, if it has none or is no MP4."""
    try:
        with open(path, "rb") as file:
            entry = _sample_entry(file)
    except OSError:
        return Stereo()
    boxes = {kind: body for kind, body in boxes_of(entry) if kind in (b"st3d", b"sv3d")}
    raw = b"".join(box(kind, body) for kind, body in boxes.items())
    projection = _projection(boxes[b"sv3d"]) if b"sv3d" in boxes else None
    mode = MODES.get(boxes[b"st3d"][4]) if len(boxes.get(b"st3d", b"")) > 4 else None
    return Stereo(mode, projection, "its metadata" if mode or projection else "", boxes=raw)


def find(info: SourceInfo) -> Stereo:
    """What is known about a video: its metadata decides, then its name; what contradicts them is noted."""
    if info.uri.startswith("synthetic:"):
        said = "stereo=sbs" in info.uri
        return Stereo("sbs" if said else "mono", "flat", "its address says so")
    if info.path is None:
        return Stereo()
    named, stored = said_by_name(info.path.stem), said_by_file(info.path)
    for mine, theirs in ((stored.arrangement, named.arrangement), (stored.projection, named.projection)):
        if mine and theirs and mine != theirs and mine not in MESHES:
            info.note(f"its metadata says {mine}, and its name {theirs}: the metadata counts")
    arrangement, projection = stored.arrangement or named.arrangement, stored.projection or named.projection
    if stored.projection in MESHES and named.projection:
        projection = named.projection  # which says what the mesh is about
    source = named.source if named.arrangement and not stored.arrangement else stored.source or named.source
    return Stereo(arrangement, projection, source, named.parts, stored.boxes)


def _projection(body: bytes) -> str | None:
    inner = dict(boxes_of(dict(boxes_of(body)).get(b"proj", b"")))
    if b"equi" in inner and len(inner[b"equi"]) >= 20:
        left, right = (int.from_bytes(inner[b"equi"][at : at + 4], "big") for at in (12, 16))
        return "equirect180" if left + right >= 2 * HALF else "equirect360"
    return next((name for name in MESHES if name.encode() in inner), None)


def _sample_entry(file: BinaryIO) -> bytes:
    """The boxes in the sample entry of the first video track."""
    for kind, size in boxes_in(file):
        if kind == b"moov" and size <= MOST_BYTES:
            tracks = [body for kind, body in boxes_of(file.read(size)) if kind == b"trak"]
            return next(filter(None, map(_of_track, tracks)), b"")
    return b""


def _of_track(track: bytes) -> bytes:
    for name in (b"mdia", b"minf", b"stbl", b"stsd"):
        track = dict(boxes_of(track)).get(name, b"")
    return next((body[ENTRY_BYTES:] for kind, body in boxes_of(track[8:]) if kind in ENTRIES), b"")


def boxes_in(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Kind and size of the body of each box of a file, which stands at the body. The last one may end behind the
    file, if that is damaged or no MP4."""
    begin, whole = file.tell(), file.seek(0, os.SEEK_END)
    file.seek(begin)
    while len(header := file.read(8)) == 8:
        size, kind = int.from_bytes(header[:4], "big"), header[4:]
        if size == 1:
            size = int.from_bytes(file.read(8), "big") - 8
        if size < 8:
            return
        end = file.tell() + size - 8
        yield kind, size - 8
        if end > whole:
            return
        file.seek(end)


def box(kind: bytes, body: bytes) -> bytes:
    """A box of an MP4."""
    return (len(body) + 8).to_bytes(4, "big") + kind + body


def boxes_of(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and body of each box in `data`; a damaged rest is left out."""
    at = 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size < 8 or at + size > len(data):
            return
        yield data[at + 4 : at + 8], data[at + 8 : at + size]
        at += size
