"""What an MP4 says about VR, in a WebM: elements StereoMode and Projection of its video (Matroska, RFC 9559)."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from framefuse.sinks.run_folder import make_durable
from framefuse.sources.stereo import boxes_of

SEGMENT, SEEK_HEAD, TRACKS, CLUSTER = b"\x18\x53\x80\x67", b"\x11\x4d\x9b\x74", b"\x16\x54\xae\x6b", b"\x1f\x43\xb6\x75"
VOID, SEEK, SEEK_POSITION, TRACK, VIDEO = b"\xec", b"\x4d\xbb", b"\x53\xac", b"\xae", b"\xe0"
STEREO_MODE, PROJECTION, PROJECTION_TYPE, PROJECTION_PRIVATE = b"\x53\xb8", b"\x76\x70", b"\x76\x71", b"\x76\x72"
POSE = b"\x76\x73", b"\x76\x74", b"\x76\x75"
"""Yaw, pitch and roll in degrees, which the box prhd has as well, as 16.16 bits; 0, where they are left out."""
HEAD_BYTES = 1 << 16
"""From the beginning of a file; what is longer than that before the first frames is left as it is."""
STEREO_MODES = {0: 0, 1: 3, 2: 1}
"""Mode of the box st3d -> StereoMode: mono, the left eye above, the left eye on the left."""
PROJECTIONS = {b"equi": 1, b"cbmp": 2, b"mshp": 3}
"""Box of a projection -> ProjectionType; ProjectionPrivate is the body of the box."""


class Element(NamedTuple):
    """An element of EBML in `data`."""

    id: bytes
    begin: int
    body: int
    """Where its body begins."""
    end: int


def add_vr(path: Path, boxes: bytes) -> bool:
    """Say in a WebM of FFmpeg what the boxes st3d and sv3d of an MP4 say; whether it could be said.

    What is in front of the frames grows into the space that FFmpeg leaves there, so frames and index stay where they
    are.
    """
    said = _elements(boxes)
    try:
        with open(path, "r+b") as file:
            head = file.read(HEAD_BYTES)
            changed = _with(head, said) if said else None
            if changed is None:
                return False
            file.seek(0)
            file.write(changed)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return False
    make_durable(path)
    return True


def _elements(boxes: bytes) -> bytes:
    """The elements for the video's description; none, if the boxes say nothing that can be said."""
    known = dict(boxes_of(boxes))
    mode, said = known.get(b"st3d", b""), b""
    if len(mode) > 4 and mode[4] in STEREO_MODES:
        said += _element(STEREO_MODE, bytes([STEREO_MODES[mode[4]]]))
    projection = dict(boxes_of(dict(boxes_of(known.get(b"sv3d", b""))).get(b"proj", b"")))
    for name, number in PROJECTIONS.items():
        if name in projection:
            inner = _element(PROJECTION_TYPE, bytes([number])) + _element(PROJECTION_PRIVATE, projection[name])
            turned = projection.get(b"prhd", b"")[4:16].ljust(12, b"\0")
            for id, turn in zip(POSE, struct.unpack(">3i", turned), strict=True):
                inner += _element(id, struct.pack(">f", turn / 65536)) if turn else b""
            said += _element(PROJECTION, inner)
    return said


def _with(head: bytes, said: bytes) -> bytes | None:
    """The beginning of a file, as long as before, with elements in the description of its video; None: no room."""
    segment = next((one for one in _walk(head, 0, len(head)) if one.id == SEGMENT), None)
    if segment is None:
        return None
    found: dict[bytes, Element] = {}
    for one in _walk(head, segment.body, len(head)):
        if one.id == CLUSTER:
            break
        found.setdefault(one.id, one)
    if not {SEEK_HEAD, VOID, TRACKS} <= found.keys() or found[TRACKS].end > len(head):
        return None
    seeks, void, tracks = (found[id] for id in (SEEK_HEAD, VOID, TRACKS))
    grown = _described(head, tracks, said)
    more = len(grown) - (tracks.end - tracks.begin)
    room = void.end - void.begin - more - 9  # an empty element with a size of 8 bytes
    if grown == head[tracks.begin : tracks.end] or room < 0 or not seeks.end <= void.begin < tracks.begin:
        return None
    empty = VOID + _size(room, 8) + bytes(room)
    between = head[void.end : tracks.begin]
    moved = range(void.end - segment.body, tracks.end - segment.body)
    index = _moved(head, seeks, moved, more)
    return head[: seeks.begin] + index + head[seeks.end : void.begin] + empty + between + grown + head[tracks.end :]


def _described(data: bytes, element: Element, said: bytes) -> bytes:
    """An element, with what is said about its videos."""
    body = b"".join(
        _described(data, one, said) if one.id in (TRACK, VIDEO) else data[one.begin : one.end]
        for one in _walk(data, element.body, element.end)
    )
    return _element(element.id, body + said if element.id == VIDEO else body)


def _moved(data: bytes, seeks: Element, moved: range, by: int) -> bytes:
    """The list of elements; those at the positions `moved` lie earlier by some bytes."""
    changed = bytearray(data[seeks.begin : seeks.end])
    for seek in _walk(data, seeks.body, seeks.end):
        for one in _walk(data, seek.body, seek.end):
            if one.id == SEEK_POSITION and (at := int.from_bytes(data[one.body : one.end], "big")) in moved:
                place = slice(one.body - seeks.begin, one.end - seeks.begin)
                changed[place] = (at - by).to_bytes(one.end - one.body, "big")
    return bytes(changed)


def _walk(data: bytes, at: int, end: int) -> Iterator[Element]:
    """The elements from one place to another; one of unknown size goes on to the end. A damaged rest is left out."""
    while at < end:
        body = at + _length(data[at])
        if body >= min(end, len(data)):
            return
        length = _length(data[body])
        bits = 7 * length
        size = int.from_bytes(data[body : body + length], "big") & (1 << bits) - 1
        unknown = size == (1 << bits) - 1
        one = Element(data[at:body], at, body + length, end if unknown else body + length + size)
        yield one
        at = one.end


def _length(first: int) -> int:
    """Bytes of a number of variable length, by its first."""
    return 9 - first.bit_length()


def _size(size: int, length: int) -> bytes:
    return (size | 1 << 7 * length).to_bytes(length, "big")


def _element(id: bytes, body: bytes) -> bytes:
    return id + _size(len(body), 1 if len(body) < 127 else 8) + body
