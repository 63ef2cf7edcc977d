"""Convert packets of H.264 and HEVC to Annex B, which hardware decoders read: a start code before each NAL unit.

MP4 and Matroska store the length of each NAL unit instead. FFmpeg's filters h264_mp4toannexb and hevc_mp4toannexb do
the same conversion, but release the GIL three times a packet; with many decoders in one process, each release makes a
thread wait until it gets the GIL back.

Unlike those filters, this inserts parameter sets before every key frame, since a reader may have sought there; sets
that a packet carries replace those of the header and are not repeated; SEI messages of the header are left out.
"""

from dataclasses import dataclass
from typing import Any

import av

START_CODE = b"\0\0\0\1"


@dataclass(frozen=True, slots=True)
class NalTypes:
    """NAL unit types of a codec, and where the first byte of a unit holds its type."""

    shift: int
    mask: int
    slices: range
    random_access: range
    """Slice types at which decoding can start."""
    parameter_sets: range
    """Each type refers to those before it."""
    sps: int
    """The sequence parameter set, which states the frame size."""

    def of(self, first_byte: int) -> int:
        return first_byte >> self.shift & self.mask


NAL_TYPES = {
    "h264": NalTypes(0, 31, range(1, 6), range(5, 6), range(7, 9), 7),  # ITU-T H.264, table 7-1
    "hevc": NalTypes(1, 63, range(32), range(16, 24), range(32, 35), 33),  # ITU-T H.265, table 7-1
}


class AnnexB:
    """Converts the packets of one stream.

    Args:
        codec: "h264" or "hevc".
        extradata: the stream's header: its parameter sets and the size of the length prefix.

    Raises:
        av.error.InvalidDataError: extradata is damaged.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._codec, self._types = codec, NAL_TYPES[codec]
        types = self._types
        relevant = {*types.parameter_sets, *types.random_access}
        self._relevant_bytes = frozenset(first for first in range(256) if types.of(first) in relevant)
        """First bytes of NAL units that may require parameter sets even if the packet is not marked as a key frame."""
        self._length_size = 0
        """Bytes of the length prefix; 0: the stream is already Annex B."""
        self._sets: dict[int, list[Any]] = {}
        """Type -> the latest parameter sets."""
        self._read_header(extradata)

    def __call__(self, packet: Any) -> bytearray:
        """The NAL units of a packet, with the parameter sets it lacks if decoding can start there; InvalidDataError."""
        key = packet.is_keyframe
        if key and packet.has_sidedata("new_extradata"):
            self._read_header(bytes(packet.get_sidedata("new_extradata")))
        data = memoryview(packet)
        if not (self._length_size or key):
            return bytearray(data)
        units = self.units(data)
        if key or not self._relevant_bytes.isdisjoint([unit[0] for unit in units]):
            inserted = self._insert_parameter_sets(units, key)
            if not self._length_size and not inserted:
                return bytearray(data)
        return bytearray(START_CODE).join([b"", *units])

    def units(self, packet: Any) -> list[Any]:
        """The NAL units of a packet, without what separates them; InvalidDataError."""
        data = memoryview(packet)
        return self._split_lengths(data) if self._length_size else _split_start_codes(data)

    @property
    def sps(self) -> bytes:
        """The latest sequence parameter set; empty if there was none."""
        return next(iter(self._sets.get(self._types.sps, [])), b"")

    def _split_lengths(self, data: memoryview) -> list[Any]:
        units = []
        position, end, size = 0, len(data), self._length_size
        while position + size <= end:
            begin = position + size
            position = begin + int.from_bytes(data[position:begin], "big")
            if begin != position:  # else padding
                units.append(data[begin:position])
        if position == end:
            return units
        if data[: len(START_CODE)] == START_CODE:  # contradicts the header
            return _split_start_codes(data)
        raise av.error.InvalidDataError(0, "the lengths of the NAL units do not fit the packet")

    def _insert_parameter_sets(self, units: list[Any], key: bool) -> bool:
        """Whether parameter sets were missing before a slice where decoding can start; insert these, cache others."""
        known = self._types
        types = [known.of(unit[0]) for unit in units]
        first = next((at for at, type in enumerate(types) if type in known.slices), None)
        lacking = []
        if first is not None and (key or types[first] in known.random_access):
            lacking = [(type, self._sets.get(type, [])) for type in known.parameter_sets if type not in types[:first]]
        for type in known.parameter_sets:
            if type in types:
                self._sets[type] = [bytes(unit) for unit, other in zip(units, types, strict=True) if other == type]
        for type, missing in lacking:
            later = range(type + 1, known.parameter_sets.stop)
            place = next(at for at, other in enumerate(types) if other in known.slices or other in later)
            units[place:place] = missing
            types[place:place] = [type] * len(missing)
        return any(missing for _, missing in lacking)

    def _read_header(self, extradata: bytes) -> None:
        if not extradata:
            return
        if extradata.startswith((b"\0\0\1", START_CODE)):
            self._length_size, sets = 0, _split_start_codes(extradata)
        else:
            try:
                self._length_size, sets = _parse_record(extradata, self._codec)
            except IndexError as error:
                raise av.error.InvalidDataError(0, "the header of the stream is truncated") from error
        self._sets = {}
        for unit in filter(None, sets):
            self._sets.setdefault(self._types.of(unit[0]), []).append(unit)


def _split_start_codes(data: Any) -> list[bytes]:
    units = (unit.rstrip(b"\0") for unit in bytes(data).split(START_CODE[1:])[1:])
    return [unit for unit in units if unit]


def _parse_record(record: bytes, codec: str) -> tuple[int, list[bytes]]:
    """Length size and parameter sets of a decoder configuration record, AVC or HEVC (ISO/IEC 14496-15)."""
    avc = codec == "h264"
    if record[0] != 1 and (avc or record[0] or not any(record[:21])):  # HEVC: 0 before the standard was published
        raise av.error.InvalidDataError(0, "the header of the stream has an unknown version")
    sets: list[bytes] = []
    position = 5 if avc else 23
    for kind in range(2 if avc else record[22]):
        if avc:  # sequence parameter sets, then picture parameter sets
            count, position = record[position] & (255 if kind else 31), position + 1
        else:
            count, position = record[position + 1] << 8 | record[position + 2], position + 3
        for _ in range(count):
            begin = position + 2
            position = begin + (record[position] << 8 | record[position + 1])
            record[position - 1]  # IndexError if the record is truncated
            sets.append(record[begin:position])
    return (record[4 if avc else 21] & 3) + 1, sets
