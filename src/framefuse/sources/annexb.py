"""H.264 and HEVC as MP4 and Matroska keep them -> as decoders in hardware read them: start codes before each unit.

FFmpeg's filters h264_mp4toannexb and hevc_mp4toannexb do the same, but give up the GIL three times a
packet. With many decoders in one process each of these makes some thread wait until it is woken.

What differs from the filters: parameter sets are put in at every key frame, not only at those that cut off what came
before (a reader may have jumped there); sets that a packet brings replace the header's, and are not repeated; messages
(SEI) of the header are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import av

START = b"\0\0\0\1"


@dataclass(frozen=True, slots=True)
class Kinds:
    """Numbers of the units of a codec, and where the first byte of a unit has them."""

    shift: int
    mask: int
    slices: range
    random_access: range
    """Of the slices: those of pictures that decoding can begin with."""
    sets: range
    """Parameter sets: each refers to those before it."""
    sequence: int
    """Of them, those that state the size of pictures."""

    def of(self, first: int) -> int:
        return first >> self.shift & self.mask


KINDS = {
    "h264": Kinds(0, 31, range(1, 6), range(5, 6), range(7, 9), 7),  # ITU-T H.264, table 7-1
    "hevc": Kinds(1, 63, range(32), range(16, 24), range(32, 35), 33),  # ITU-T H.265, table 7-1
}


class AnnexB:
    """Changes the packets of one stream.

    Args:
        codec: "h264" or "hevc".
        extradata: the stream's: parameter sets, and how many bytes state the length of a unit.

    Raises:
        av.error.InvalidDataError: extradata is damaged.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._kinds = known = KINDS[codec]
        marks = [*known.sets, *known.random_access]
        self._marks = frozenset(first for first in range(256) if known.of(first) in marks)
        """First bytes of units that show, without the mark of a key frame, that sets may have to be put in."""
        self._parse = _h264_sets if codec == "h264" else _hevc_sets
        self._length = 0
        """Bytes that state the length of a unit; 0: the stream has start codes."""
        self._sets: dict[int, list[Any]] = {}
        """Kind of parameter set -> those that were read last."""
        self._learn(extradata)

    def __call__(self, packet: Any) -> bytearray:
        """The units of a packet; where decoding can begin, with the parameter sets that it lacks.

        Raises:
            av.error.InvalidDataError: the lengths of the units do not fit the packet.
        """
        begins = packet.is_keyframe
        if begins and packet.has_sidedata("new_extradata"):
            self._learn(bytes(packet.get_sidedata("new_extradata")))
        data = memoryview(packet)
        if self._length:
            units = self._split(data)
        elif begins:
            units = _by_start_codes(data)
        else:
            return bytearray(data)
        if begins or not self._marks.isdisjoint([unit[0] for unit in units]):
            inserted = self._complete(units, begins)
            if not self._length and not inserted:
                return bytearray(data)
        return bytearray(START).join([b"", *units])

    def _split(self, data: memoryview) -> list[Any]:
        units = []
        position, end, length = 0, len(data), self._length
        while position + length <= end:
            begin = position + length
            position = begin + int.from_bytes(data[position:begin], "big")
            if position > end:
                break
            if begin != position:  # else padding
                units.append(data[begin:position])
        if position == end:
            return units
        if data[: len(START)] == START:  # in spite of the header
            return _by_start_codes(data)
        raise av.error.InvalidDataError(0, "the lengths of its units do not fit the packet")

    def _complete(self, units: list[Any], begins: bool) -> bool:
        """Keep the parameter sets of a packet; put those that it lacks before its first slice where decoding can begin.

        Returns:
            Whether there were any to be put in.
        """
        known = self._kinds
        kinds = [known.of(unit[0]) for unit in units]
        first = next((at for at, kind in enumerate(kinds) if kind in known.slices), None)
        lacking = []
        if first is not None and (begins or kinds[first] in known.random_access):
            lacking = [(kind, self._sets.get(kind, [])) for kind in known.sets if kind not in kinds[:first]]
        for kind in known.sets:
            if kind in kinds:
                self._sets[kind] = [bytes(unit) for unit, other in zip(units, kinds, strict=True) if other == kind]
        for kind, missing in lacking:
            later = range(kind + 1, known.sets.stop)
            place = next(at for at, other in enumerate(kinds) if other in known.slices or other in later)
            units[place:place] = missing
            kinds[place:place] = [kind] * len(missing)
        return any(missing for _, missing in lacking)

    def _learn(self, extradata: bytes) -> None:
        if not extradata:
            return
        if extradata.startswith((b"\0\0\1", START)):
            self._length, sets = 0, _by_start_codes(extradata)
        else:
            try:
                self._length, sets = self._parse(extradata)
            except IndexError as error:
                raise av.error.InvalidDataError(0, "the header of the stream is cut off") from error
        self._sets = {}
        for unit in filter(None, sets):
            self._sets.setdefault(self._kinds.of(unit[0]), []).append(unit)


def _by_start_codes(data: Any) -> list[bytes]:
    units = (unit.rstrip(b"\0") for unit in bytes(data).split(START[1:])[1:])
    return [unit for unit in units if unit]


def _h264_sets(record: bytes) -> tuple[int, list[bytes]]:
    """Bytes of a length, and the parameter sets, of an AVCDecoderConfigurationRecord (ISO/IEC 14496-15)."""
    if record[0] != 1:
        raise av.error.InvalidDataError(0, "the header of the stream has an unknown version")
    sets: list[bytes] = []
    position = 6
    for mask in (31, 255):  # sequence parameter sets, then those of pictures
        for _ in range(record[position - 1] & mask):
            position = _append(sets, record, position)
        position += 1
    return (record[4] & 3) + 1, sets


def _hevc_sets(record: bytes) -> tuple[int, list[bytes]]:
    """The same of an HEVCDecoderConfigurationRecord."""
    if record[0] > 1 or not any(record[:21]):  # 0 before the standard was published
        raise av.error.InvalidDataError(0, "the header of the stream has an unknown version")
    sets: list[bytes] = []
    position = 23
    for _ in range(record[22]):
        count = record[position + 1] << 8 | record[position + 2]
        position += 3
        for _ in range(count):
            position = _append(sets, record, position)
    return (record[21] & 3) + 1, sets


def _append(sets: list[bytes], record: bytes, position: int) -> int:
    """Put the set at a position of the record to the others; where the next one is."""
    end = position + 2 + (record[position] << 8 | record[position + 1])
    record[end - 1]  # IndexError where it is cut off
    sets.append(record[position + 2 : end])
    return end
