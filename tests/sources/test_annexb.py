"""Annex B from MP4 and Matroska: the same NAL units as from FFmpeg's own filters, or an error."""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random
from typing import Any

import av
import pytest

import media
from framefuse.sources.annexb import START_CODE, AnnexB

FILTERS = {"h264": "h264_mp4toannexb", "hevc": "hevc_mp4toannexb"}
SEI = 39
"""NAL unit type of HEVC; x265 writes one into the header."""
ENCODERS = {"h264": "libx264", "hevc": "libx265"}
FLV_HEADER = 13
"""Size of the header in bytes."""
RECORD = b"\1\x64\0\x1f\xff\xe1\0\3\x67AB\1\0\2\x68C"
"""Header of H.264 with a parameter set of each type and four-byte lengths."""


@pytest.fixture(scope="module", params=FILTERS)
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("annexb")


def units(data: Any) -> list[bytes]:
    return [unit.rstrip(b"\0") for unit in bytes(data).split(b"\0\0\1")[1:]]


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_units_are_those_of_ffmpegs_filter(folder: Path, codec: str, suffix: str) -> None:
    path = media.video(folder / f"{codec}.{suffix}", codec=ENCODERS[codec])
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        ours = AnnexB(codec, stream.codec_context.extradata or b"")
        theirs = av.BitStreamFilterContext(FILTERS[codec], stream)
        count = 0
        for packet in container.demux(stream):
            if packet.size:
                found = units(ours(packet))  # the filter empties the packet
                expected = [unit for one in theirs.filter(packet) for unit in units(one)]
                if codec == "hevc" and suffix != "ts":
                    expected = [unit for unit in expected if unit[0] >> 1 != SEI]
                assert found == expected
                count += 1
    assert count > 5


def test_a_key_frame_gets_parameter_sets_once_and_before_its_first_slice() -> None:
    ours = AnnexB("h264", RECORD)
    key = packet(b"\0\0\0\2\x09\xf0" + b"\0\0\0\2\x65\1" + b"\0\0\0\2\x65\2", key=True)
    assert units(ours(key)) == [b"\x09\xf0", b"\x67AB", b"\x68C", b"\x65\1", b"\x65\2"]
    assert units(ours(packet(lengths(b"\x67XY", b"\x68Z", b"\x65\1"), key=True))) == [b"\x67XY", b"\x68Z", b"\x65\1"]
    assert units(ours(packet(b"\0\0\0\2\x41\1", key=False))) == [b"\x41\1"]
    assert ours(packet(b"\0\0\0\0\0\0\0\2\x41\1\0\0\0\0", key=False)) == START_CODE + b"\x41\1"


@pytest.mark.parametrize("data", [b"\0\0\0\x09\x41\1", b"\0\0\0\2\x41\1\0\0", b"\0\0"])
def test_lengths_that_do_not_fit_are_refused(data: bytes) -> None:
    ours = AnnexB("h264", b"\1\x64\0\x1f\xff\xe0\0")
    with pytest.raises(av.error.InvalidDataError):
        ours(packet(data, key=False))


def test_a_truncated_header_is_refused(codec: str) -> None:
    with pytest.raises(av.error.InvalidDataError):
        AnnexB(codec, b"\1\x64\0\x1f\xff\xe1\0\3\x67A")


def test_headers_of_an_unknown_version_are_refused(codec: str) -> None:
    for record in (bytes(60), b"\xa5" * 60):
        with pytest.raises(av.error.InvalidDataError):
            AnnexB(codec, record)


def test_a_stream_that_has_start_codes_stays_as_it_is_but_for_sets_that_it_lacks() -> None:
    data = b"\0\0\1\x65\1\2"
    sets = START_CODE + b"\x67A" + START_CODE + b"\x68C"
    for header in (b"", sets):
        assert AnnexB("h264", header)(packet(sets + data, key=True)).endswith(data)
        assert AnnexB("h264", header)(packet(b"\0\0\1\x41\1", key=False)) == b"\0\0\1\x41\1"
        assert AnnexB("h264", header)(packet(b"no start", key=True)) == b"no start"
    assert AnnexB("h264", b"")(packet(data, key=True)) == data
    assert units(AnnexB("h264", header)(packet(data, key=True))) == [b"\x67A", b"\x68C", b"\x65\1\2"]


def test_start_codes_in_spite_of_the_header_are_read() -> None:
    ours = AnnexB("h264", RECORD)
    assert units(ours(packet(START_CODE + b"\x65\1\2", key=True))) == [b"\x67AB", b"\x68C", b"\x65\1\2"]


def test_sets_that_come_in_a_packet_are_those_of_later_key_frames() -> None:
    ours = AnnexB("h264", RECORD)
    ours(packet(lengths(b"\x67XY", b"\x68Z", b"\x65\1"), key=True))
    assert units(ours(packet(lengths(b"\x68N", b"\x41\1"), key=False))) == [b"\x68N", b"\x41\1"]
    assert units(ours(packet(lengths(b"\x41\1"), key=True))) == [b"\x67XY", b"\x68N", b"\x41\1"]
    assert units(ours(packet(lengths(b"\x65\1", b"\x68P"), key=True))) == [b"\x67XY", b"\x68N", b"\x65\1", b"\x68P"]
    assert units(ours(packet(lengths(b"\x65\1"), key=True))) == [b"\x67XY", b"\x68P", b"\x65\1"]


def test_only_the_sets_that_are_missing_are_put_in_and_in_order() -> None:
    assert units(AnnexB("h264", RECORD)(packet(lengths(b"\x68Z", b"\x65\1"), key=True))) == [
        b"\x67AB",
        b"\x68Z",
        b"\x65\1",
    ]
    assert units(AnnexB("h264", RECORD)(packet(lengths(b"\x67X", b"\x06S", b"\x65\1"), key=True))) == [
        b"\x67X",
        b"\x06S",
        b"\x68C",
        b"\x65\1",
    ]


def test_frames_are_those_of_ffmpeg_where_another_stream_follows(folder: Path, codec: str) -> None:
    """Its parameter sets come once, before its first slice; no packet, or every one, is marked as a key frame."""
    keys = "keyint=4:min-keyint=4:scenecut=0:open-gop=1:bframes=0"
    streams = []
    for number, size in enumerate([(64, 64), (96, 80)]):
        options = {"x264-params" if codec == "h264" else "x265-params": keys}
        streams.append(media.video(folder / f"{codec}{number}.mp4", codec=ENCODERS[codec], size=size, options=options))
    (header, first), (other, second) = map(packets, streams)
    head = b"".join(lengths(unit) for unit in units(AnnexB(codec, other)(packet(second[0][0], key=True))))
    second[0] = head, True
    expected = decode(codec, [data for data, _ in first + second], header)
    assert len(expected) == len(first + second)
    for mark in (lambda key: key, lambda key: False, lambda key: True):
        ours = AnnexB(codec, header)
        assert decode(codec, [ours(packet(data, key=mark(key))) for data, key in first + second]) == expected


def test_a_header_that_changes_in_the_stream_is_used(folder: Path) -> None:
    """FLV sends it in a separate tag; the demuxer attaches it to the next packet."""
    parts = [
        media.video(
            folder / f"{width}.flv", codec="libx264", size=(width, 48), frames=4, options={"bf": "0"}
        ).read_bytes()
        for width in (64, 96)
    ]
    path = folder / "both.flv"
    path.write_bytes(parts[0] + parts[1][FLV_HEADER:])
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        ours = AnnexB("h264", stream.codec_context.extradata or b"")
        found = [one for one in container.demux(stream) if one.size]
        assert any(one.has_sidedata("new_extradata") for one in found)
        data = [ours(one) for one in found]
    with av.open(str(path)) as container:
        assert decode("h264", data) == [frame.to_ndarray().tobytes() for frame in container.decode(video=0)]


def test_damaged_headers_and_packets_are_refused_or_passed_on(folder: Path, codec: str) -> None:
    header, stream = packets(media.video(folder / f"damaged_{codec}.mp4", codec=ENCODERS[codec]))
    random = Random(0)

    def damaged(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(random.randrange(4)):
            changed[random.randrange(len(changed))] = random.choice([0, 1, 255])
        return bytes(changed[: random.randrange(1, 2 * len(changed))])

    for _ in range(500):
        with contextlib.suppress(av.error.InvalidDataError):
            ours = AnnexB(codec, damaged(header))
            for data, key in stream:
                with contextlib.suppress(av.error.InvalidDataError):
                    ours(packet(damaged(data), key=key))


def lengths(*units: bytes) -> bytes:
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)


def packets(path: Path) -> tuple[bytes, list[tuple[bytes, bool]]]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        found = [(bytes(one), one.is_keyframe) for one in container.demux(stream) if one.size]
        return stream.codec_context.extradata or b"", found


def decode(codec: str, stream: list[Any], header: bytes | None = None) -> list[bytes]:
    decoder: Any = av.CodecContext.create(codec, "r")
    if header is not None:
        decoder.extradata = header
    fed = [av.Packet(bytes(data)) for data in stream]
    return [frame.to_ndarray().tobytes() for one in [*fed, None] for frame in decoder.decode(one)]


def packet(data: bytes, *, key: bool) -> Any:
    made = av.Packet(data)
    made.is_keyframe = key
    return made
