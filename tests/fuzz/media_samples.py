"""Intact videos, images and streams for the fuzzers, of every format, a few kilobytes each."""

from __future__ import annotations

import itertools
import re
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

import media
import servers

NEXT = b"--- next answer ---"
"""Between the answers of an RTSP server."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def _written(write: Callable[[Path], object]) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return [path.read_bytes() for path in sorted(Path(folder).iterdir())]


def videos() -> list[bytes]:
    def write(folder: Path) -> None:
        for suffix, how in media.CONTAINERS.items():
            media.clip(folder / f"clip.{suffix}", frames=8, **how)
        fast = {"movflags": "faststart"}
        media.clip(folder / "sound.mp4", frames=8, audio=True, container_options=fast)
        media.clip(folder / "fragments.mp4", frames=8, container_options={"movflags": "frag_keyframe+empty_moov"})
        media.clip(folder / "clip.mpg", frames=8, codec="mpeg2video")
        media.video(folder / "clip.mov", frames=2, codec="prores_ks", pixel_format="yuv422p10le")
        media.video(folder / "png.avi", frames=4, codec="png", pixel_format="rgb24")
        media.video(folder / "hevc.mkv", frames=4, codec="libx265", options={"x265-params": "log-level=none"})
        media.y4m(folder / "clip.y4m", 32, 24, 3)

    return _written(write)


def images() -> list[bytes]:
    def write(folder: Path) -> None:
        exif = Image.Exif()
        exif[0x0112] = 7
        for suffix in ("png", "jpg", "bmp", "dib", "gif", "tif", "webp", "avif", "ppm", "tga", "jp2", "ico"):
            media.image(folder / f"rgb.{suffix}")
        for suffix in ("png", "jpg", "tif", "webp"):
            media.image(folder / f"turned.{suffix}", exif=exif)
        for suffix in ("gif", "png", "webp"):
            media.animation(folder / f"moving.{suffix}", [40, 80, 0])
        for mode in ("P", "1", "LA"):
            media.image(folder / f"{mode}.png", mode=mode)
        media.image(folder / "cmyk.jpg", mode="CMYK")
        first, second = (Image.fromarray(media.rgb_image(number)) for number in range(2))
        for compression in ("tiff_lzw", "tiff_deflate", "jpeg", "group4"):
            page = first.convert("1") if compression == "group4" else first
            page.save(folder / f"{compression}.tif", compression=compression)
        first.save(folder / "pages.tif", save_all=True, append_images=[second])
        first.save(folder / "gain.jpg", format="MPO", save_all=True, append_images=[second])
        Image.fromarray(np.arange(768, dtype=np.uint16).reshape(24, 32)).save(folder / "deep.png")

    return _written(write)


def with_valid_sums(content: bytes) -> bytes:
    """A PNG whose chunks have the right CRC again, as damage would otherwise go no further than to them."""
    if not content.startswith(SIGNATURE):
        return content
    data, place = bytearray(content), len(SIGNATURE)
    while place + 12 <= len(data):
        end = place + 8 + int.from_bytes(data[place : place + 4], "big")
        data[end : end + 4] = zlib.crc32(data[place + 4 : end]).to_bytes(4, "big")
        place = end + 4
    return bytes(data)


def streams() -> list[bytes]:
    """MPEG-TS, and the answers of an RTSP server."""
    sdp = (
        "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=test\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\na=control:*\r\n"
        "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\na=control:track0\r\n"
    )
    fields = (
        "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\nContent-Length: 0\r\n\r\n",
        f"Content-Type: application/sdp\r\nContent-Length: {len(sdp)}\r\n\r\n{sdp}",
        "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nContent-Length: 0\r\n\r\n",
        "Range: npt=now-\r\nContent-Length: 0\r\n\r\n",
    )
    answers = [f"RTSP/1.0 200 OK\r\nCSeq: {number}\r\nSession: 1\r\n{text}" for number, text in enumerate(fields, 1)]
    play = b""
    for time, packet in enumerate(servers.access_units(servers.SMALL)):
        for unit in filter(None, re.split(rb"\x00{2,3}\x01", bytes(packet))):
            rtp = struct.pack(">BBHII", 0x80, 96, len(play) & 0xFFFF, 3600 * time, 1) + unit
            play += struct.pack(">cBH", b"$", 0, len(rtp)) + rtp
    transport = b"".join(itertools.islice(servers.mpegts(servers.SMALL), servers.FPS))
    return [transport, NEXT.join(answer.encode() for answer in answers) + play]
