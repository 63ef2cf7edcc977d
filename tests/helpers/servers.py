"""Real video servers on 127.0.0.1 for tests: MPEG-TS over HTTP, TCP and UDP, and RTSP with H.264 over RTP.

They send an endless H.264 clip in real time, and can be told to fall silent (`freeze`) and to die (`kill`); a new
one on the same port (`port=`) takes its place, with another frame size if wanted.
"""

from __future__ import annotations

import base64
import io
import re
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from functools import cache
from itertools import count, islice
from types import TracebackType
from typing import Any

import av
import numpy as np

FPS = 25
ENCODERS = {"h264": "libx264", "hevc": "libx265", "mpeg2video": "mpeg2video"}
SMALL, LARGE = (64, 48), (160, 96)
Size = tuple[int, int]


@cache
def access_units(size: Size, frames: int = FPS, b_frames: int = 0, codec: str = "h264") -> tuple[av.Packet[Any], ...]:
    """A moving clip as packets in decoding order, with a key frame every 5 frames."""
    options = {"g": "5", "bf": str(b_frames), "threads": "1"}
    if codec != "mpeg2video":
        options |= {"preset": "ultrafast", "keyint_min": "5"} | ({} if b_frames else {"tune": "zerolatency"})
    if codec == "hevc":
        options["x265-params"] = "log-level=none:pools=none:frame-threads=1"
    encoder: Any = av.CodecContext.create(ENCODERS[codec], "w")
    encoder.width, encoder.height, encoder.pix_fmt = *size, "yuv420p"
    encoder.time_base, encoder.framerate, encoder.options = Fraction(1, FPS), Fraction(FPS), options
    packets: list[av.Packet[Any]] = []
    for number in range(frames):
        luma = np.add.outer(np.arange(size[1]), np.arange(size[0])) + 9 * number
        planes = np.full((size[1] * 3 // 2, size[0]), 128, np.uint8)
        planes[: size[1]] = luma % 200 + 20
        frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
        frame.pts = number
        packets += encoder.encode(frame)
    return (*packets, *encoder.encode(None))


def endless(
    size: Size, b_frames: int = 0, damage: bool = False, codec: str = "h264", start: int = 0
) -> Iterator[tuple[bytes, int, int]]:
    """(Annex B bytes, pts, dts) of the clip in an endless loop, in frame periods.

    Args:
        damage: of every ten frames, one is noise behind a valid start, and one ends in noise.
        start: the first pts.
    """
    packets = access_units(size, FPS, b_frames, codec)
    for lap in count():
        for number, packet in enumerate(packets):
            assert packet.pts is not None and packet.dts is not None
            data = bytes(packet)
            if damage and number % 10 == 3:
                data = b"\x00\x00\x00\x01\x65" + 50 * b"\x5a"
            elif damage and number % 10 == 5:
                data = data[: len(data) // 2] + len(data) // 2 * b"\x5a"
            yield data, packet.pts + lap * FPS + start, packet.dts + lap * FPS + start


def mpegts(
    size: Size, b_frames: int = 0, damage: bool = False, codec: str = "h264", pid: int = 256, start: int = 0
) -> Iterator[bytes]:
    """The endless clip as MPEG-TS, in chunks of one frame, from each of which a reader can start."""
    out = io.BytesIO()
    options = {"mpegts_start_pid": str(pid), "mpegts_flags": "pat_pmt_at_frames"}
    with av.open(out, "w", format="mpegts", container_options=options) as container:
        container.flags |= av.container.Flags.flush_packets.value
        stream = container.add_mux_stream(codec, rate=FPS, width=size[0], height=size[1])
        for data, pts, dts in endless(size, b_frames, damage, codec, start):
            packet = av.Packet(data)
            packet.stream, packet.time_base = stream, Fraction(1, FPS)
            packet.pts, packet.dts, packet.is_keyframe = pts, dts, dts % 5 == 0
            container.mux_one(packet)
            yield out.getvalue()
            out.seek(0)
            out.truncate()


def finite(container_format: str, size: Size, frames: int = FPS) -> bytes:
    """A complete short file of `frames` frames, for example "mp4"."""
    out = io.BytesIO()
    with av.open(out, "w", format=container_format) as container:
        stream = container.add_mux_stream("h264", rate=FPS, width=size[0], height=size[1])
        for (data, pts, dts), _ in zip(endless(size), range(frames), strict=False):
            packet = av.Packet(data)
            packet.stream, packet.time_base = stream, Fraction(1, FPS)
            packet.pts, packet.dts, packet.is_keyframe = pts, dts, dts % 5 == 0
            container.mux_one(packet)
    return out.getvalue()


class Server:
    """Sends the clip to everyone who connects (raw MPEG-TS over TCP); the base of the other servers."""

    scheme = "tcp"

    def __init__(
        self,
        size: Size = SMALL,
        *,
        port: int = 0,
        b_frames: int = 0,
        damage: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.size, self.b_frames, self.damage, self.tls = size, b_frames, damage, tls
        self.connections = threading.Semaphore(0)
        """Released once for each client that connected."""
        self.silent = threading.Event()
        """Set once a sender has fallen silent after `freeze`."""
        self._dead, self._frozen = threading.Event(), threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(port)

    def _start(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._spawn(self._accept)

    def _spawn(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.append(client)
                self.connections.release()
                self._spawn(self._talk, client)

    def _talk(self, client: socket.socket) -> None:
        with suppress(OSError):
            if self.tls is not None:
                secure = self.tls.wrap_socket(client, server_side=True)
                client, plain = socket.socketpair()
                # Not `secure`: shut down by another thread, it would go on without TLS, and pass on what is encrypted.
                self._sockets += (client, plain)
                self._spawn(self._relay, secure, plain)
            self.serve(client)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        client.close()

    def _relay(self, secure: ssl.SSLSocket, plain: socket.socket) -> None:
        """Carry both directions in one thread: a TLS connection must not be read and written by two at once."""
        with suppress(OSError, ValueError), secure, plain:
            secure.settimeout(5)
            while True:
                ready, _, _ = select.select([secure, plain], [], [])
                if secure in ready:
                    if not (data := secure.recv(1 << 16)):
                        break
                    plain.sendall(data)
                if plain in ready:
                    if not (data := plain.recv(1 << 16)):
                        break
                    secure.sendall(data)

    def url(self, path: str = "/stream", login: str = "") -> str:
        return f"{self.scheme}{'s' if self.tls else ''}://{login}127.0.0.1:{self.port}{path}"

    def freeze(self) -> None:
        """Fall silent; connections stay open."""
        self._frozen.set()

    def kill(self) -> None:
        """Close every socket, as when a process is killed."""
        self._dead.set()
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(5)

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def paced(self, items: Iterator[Any]) -> Iterator[Any]:
        """The items in real time, until the server is killed; no more once it is frozen."""
        for item in items:
            if self._dead.wait(1 / FPS):
                return
            if self._frozen.is_set():
                self.silent.set()
                self._dead.wait()
                return
            yield item

    def chunks(self) -> Iterator[bytes]:
        return self.paced(mpegts(self.size, self.b_frames, self.damage))

    def serve(self, client: socket.socket) -> None:
        for chunk in self.chunks():
            client.sendall(chunk)


def _request(stream: io.BufferedIOBase) -> tuple[str, dict[str, str]]:
    """Request line and headers (names in lower case) of an HTTP or RTSP request; interleaved data is skipped."""
    while (first := stream.read(1)) == b"$":
        _, length = stream.read(1), stream.read(2)
        stream.read(int.from_bytes(length, "big"))
    line = first + stream.readline()
    if not line.strip():
        raise ConnectionError("client is gone")
    headers = {}
    while header := stream.readline().strip():
        name, _, value = header.decode().partition(":")
        headers[name.lower()] = value.strip()
    return line.decode().strip(), headers


class HttpServer(Server):
    """/stream: endless MPEG-TS. /clip.mp4: a file, with ranges. /list.m3u8: HLS. /page: no video. Else: 404."""

    scheme = "http"

    def __init__(self, size: Size = SMALL, *, login: str = "", **options: Any) -> None:
        self.login = login
        self.refusals = 0
        super().__init__(size, **options)

    def serve(self, client: socket.socket) -> None:
        line, headers = _request(client.makefile("rb"))
        path = line.split()[1].partition("?")[0]
        wanted = "Basic " + base64.b64encode(self.login.encode()).decode()

        def reply(status: str, *fields: str, body: bytes = b"") -> None:
            client.sendall("\r\n".join([f"HTTP/1.1 {status}", "Connection: close", *fields, "", ""]).encode() + body)

        if self.login and headers.get("authorization") != wanted:
            self.refusals += 1
            reply("401 Unauthorized", 'WWW-Authenticate: Basic realm="test"', "Content-Length: 0")
        elif path == "/stream":
            reply("200 OK", "Content-Type: video/mp2t")
            super().serve(client)
        elif path == "/page":
            body = b"<html>no video here</html>" * 50
            reply("200 OK", "Content-Type: text/html", f"Content-Length: {len(body)}", body=body)
        elif path == "/list.m3u8":
            body = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1.0,\npart.ts\n#EXT-X-ENDLIST\n"
            kind = "Content-Type: application/vnd.apple.mpegurl"
            reply("200 OK", kind, f"Content-Length: {len(body)}", body=body)
        elif path == "/part.ts":
            body = b"".join(islice(mpegts(self.size), FPS))
            reply("200 OK", "Content-Type: video/mp2t", f"Content-Length: {len(body)}", body=body)
        elif path == "/clip.mp4":
            body = finite("mp4", self.size)
            first = int(re.findall(r"\d+", headers.get("range", "bytes=0-"))[0])
            content = f"Content-Range: bytes {first}-{len(body) - 1}/{len(body)}"
            length = f"Content-Length: {len(body) - first}"
            reply("206 Partial Content", "Accept-Ranges: bytes", content, length, body=body[first:])
        else:
            reply("404 Not Found", "Content-Length: 0")


class HlsServer(HttpServer):
    """/live.m3u8: a playlist of the last five parts of two seconds each, of which one is added every two seconds."""

    part_frames = 2 * FPS

    def __init__(self, size: Size = SMALL, **options: Any) -> None:
        self._source, self._parts, self._making = mpegts(size), list[bytes](), threading.Lock()
        self._began = time.monotonic()
        super().__init__(size, **options)

    def _part(self, number: int) -> bytes:
        with self._making:
            while len(self._parts) <= number:
                self._parts.append(b"".join(islice(self._source, self.part_frames)))
            return self._parts[number]

    def serve(self, client: socket.socket) -> None:
        line, _ = _request(client.makefile("rb"))
        path = line.split()[1]
        made = 4 + int((time.monotonic() - self._began) * FPS) // self.part_frames
        kind, body = "video/mp2t", b""
        if path == "/live.m3u8":
            first = max(0, made - 5)
            lines = ["#EXTM3U", "#EXT-X-VERSION:3", "#EXT-X-TARGETDURATION:2", f"#EXT-X-MEDIA-SEQUENCE:{first}"]
            for number in range(first, made):
                lines += ["#EXTINF:2.0,", f"part{number}.ts"]
            kind, body = "application/vnd.apple.mpegurl", "\n".join([*lines, ""]).encode()
        elif part := re.fullmatch(r"/part(\d+)\.ts", path):
            body = self._part(int(part[1]))
        head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)


class UdpSender(Server):
    """Sends MPEG-TS datagrams to a port, whether or not anyone listens there."""

    scheme = "udp"

    def _start(self, port: int) -> None:
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if not port:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
        self.port = port
        self._spawn(self._send)

    def _send(self) -> None:
        for chunk in self.chunks():
            for start in range(0, len(chunk), 7 * 188):
                with suppress(OSError):  # nobody listens yet
                    self._listener.sendto(chunk[start : start + 7 * 188], ("127.0.0.1", self.port))


class RtspServer(Server):
    """RTSP 1.0 with Basic authentication; H.264 (RFC 6184) in RTP, interleaved or over UDP. Only /stream exists."""

    scheme = "rtsp"

    def __init__(self, size: Size = SMALL, *, login: str = "", **options: Any) -> None:
        self.login = login
        self.refusals = 0
        self.transports: list[str] = []
        super().__init__(size, **options)

    def serve(self, client: socket.socket) -> None:
        with client.makefile("rb") as stream:
            self._converse(client, stream)

    def _converse(self, client: socket.socket, stream: io.BufferedIOBase) -> None:
        wanted = "Basic " + base64.b64encode(self.login.encode()).decode()
        sdp = (
            "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=test\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\na=control:*\r\n"
            "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\na=control:track0\r\n"
        )
        datagrams = None
        while True:
            line, headers = _request(stream)
            method, url, _ = line.split()

            def reply(status: str, *fields: str, body: str = "", sequence: str = headers.get("cseq", "0")) -> None:
                lines = [f"RTSP/1.0 {status}", f"CSeq: {sequence}", "Session: 1", *fields]
                client.sendall("\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode())

            if self.login and method != "OPTIONS" and headers.get("authorization") != wanted:
                self.refusals += 1
                reply("401 Unauthorized", 'WWW-Authenticate: Basic realm="test"')
            elif not re.match(r"rtsps?://[^/]+/stream\b", url):
                reply("404 Not Found")
            elif method == "DESCRIBE":
                reply("200 OK", "Content-Type: application/sdp", f"Content-Base: {url}/", body=sdp)
            elif method == "SETUP":
                transport = headers["transport"].split(",")[0]
                self.transports.append(transport)
                if ports := re.search(r"client_port=(\d+)", transport):
                    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                    datagrams.bind(("127.0.0.1", 0))
                    datagrams.connect(("127.0.0.1", int(ports[1])))
                    self._sockets.append(datagrams)
                    own = datagrams.getsockname()[1]
                    transport += f";server_port={own}-{own + 1}"
                reply("200 OK", f"Transport: {transport}")
            elif method == "PLAY":
                reply("200 OK", "Range: npt=now-")
                self._spawn(self._play, client, datagrams)
            else:
                reply("200 OK", "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN, GET_PARAMETER")

    def _play(self, client: socket.socket, datagrams: socket.socket | None) -> None:
        with suppress(OSError):
            for number, packet in enumerate(self._rtp()):
                header = struct.pack(">BBHII", 0x80, 96 | packet[1] << 7, number & 0xFFFF, packet[2], 1)
                if datagrams is not None:
                    datagrams.send(header + packet[0])
                else:
                    client.sendall(struct.pack(">cBH", b"$", 0, 12 + len(packet[0])) + header + packet[0])

    def _rtp(self) -> Iterator[tuple[bytes, bool, int]]:
        """(payload, is the last of its frame, 90 kHz time) of each RTP packet."""
        for data, pts, _ in self.paced(endless(self.size, self.b_frames, self.damage)):
            units = [unit for unit in re.split(rb"\x00{2,3}\x01", data) if unit]
            for unit in units:
                last = unit is units[-1]
                if len(unit) <= 1200:
                    yield unit, last, pts * 90000 // FPS
                    continue
                pieces = [unit[start : start + 1200] for start in range(1, len(unit), 1200)]
                for number, piece in enumerate(pieces):
                    final = number == len(pieces) - 1
                    head = bytes([unit[0] & 0xE0 | 28, (number == 0) << 7 | final << 6 | unit[0] & 0x1F])
                    yield head + piece, last and final, pts * 90000 // FPS
