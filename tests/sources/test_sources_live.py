"""Live streams from real servers on 127.0.0.1 that are killed, frozen and restarted, and that refuse logins."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from framefuse.errors import AuthenticationError, CapabilityError, DecodeError, FramefuseError, SourceError, StreamError
from framefuse.frame import Frame
from framefuse.sources import Source, SourceOptions, open_source
from framefuse.sources.address import Address
from framefuse.sources.live import Backoff, Timeline, open_live
from servers import LARGE, SMALL, HttpServer, RtspServer, Server, UdpSender

SOON = 20.0
"""Timeout in seconds, generous enough for a busy machine; only a hang takes longer."""
EVERY = [Server, HttpServer, UdpSender, RtspServer]
CONNECTED = [Server, HttpServer, RtspServer]
QUICK = SourceOptions(timeout=0.5, reconnect_max_delay=0.25)


def rises(frames: list[Frame]) -> bool:
    return all(a.pts is not None and b.pts is not None and a.pts < b.pts for a, b in pairwise(frames))


def until_size(frames: Iterator[Frame], size: tuple[int, int]) -> list[Frame]:
    """The frames up to the first of a size; a few seconds' worth at most."""
    found = []
    for frame in islice(frames, 400):
        found.append(frame)
        if (frame.width, frame.height) == size:
            return found
    raise AssertionError(f"no frame of {size}")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        threading.Event().wait(0.01)


@contextmanager
def reading(source: Source) -> Iterator[tuple[list[Frame], list[BaseException], threading.Thread]]:
    """Iterate in another thread, as a pipeline does."""
    frames: list[Frame] = []
    errors: list[BaseException] = []

    def read() -> None:
        try:
            frames.extend(source)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield frames, errors, thread
    finally:
        source.close()
        thread.join(SOON)
        assert not thread.is_alive()


@pytest.mark.parametrize("kind", EVERY)
def test_delivers_frames_in_time_order(kind: type[Server]) -> None:
    began = time.monotonic()
    with kind() as server, closing(open_source(server.url(), QUICK)) as source:
        frames = list(islice(source, 12))
    assert source.info.kind == "live" and source.info.live
    assert [frame.index for frame in frames] == list(range(12))
    assert rises(frames) and frames[0].pts == 0
    # RTSP has no time for the frames before the first reference; later distances are exact.
    assert {b.pts - a.pts for a, b in pairwise(frames[2:])} == {90000 // 25}  # type: ignore[operator]
    assert all(frame.arrival is not None and began <= frame.arrival <= time.monotonic() for frame in frames)
    assert {(frame.width, frame.height) for frame in frames} == {SMALL}
    assert frames[0].planes[0].std() > 5 and frames[0].source_id == source.info.uri
    assert not list(source)


@pytest.mark.parametrize("kind", CONNECTED)
def test_comes_back_with_another_resolution_after_the_server_died(kind: type[Server]) -> None:
    first = kind()
    with first, closing(open_live(first.url(), QUICK)) as source:
        frames = list(islice(source, 5))
        first.kill()
        with kind(LARGE, port=first.port):
            frames += until_size(iter(source), LARGE)
    assert rises(frames) and [frame.index for frame in frames] == list(range(len(frames)))
    told = " | ".join(source.info.notes)
    assert "loss 1" in told and "reconnected" in told and "160x96" in told
    assert {(frame.width, frame.connection) for frame in frames} == {(SMALL[0], 0), (LARGE[0], 1)}


@pytest.mark.parametrize("kind", CONNECTED)
def test_a_silent_server_is_left_after_the_timeout(kind: type[Server]) -> None:
    with kind() as server, closing(open_live(server.url(), QUICK)) as source:
        frames = list(islice(source, 5))
        server.freeze()
        with reading(source) as (rest, errors, _):
            assert server.connections.acquire(timeout=SOON) and server.connections.acquire(timeout=SOON)
    assert not errors and rises(frames + rest)
    assert "loss 1: no data for 0.5 s" in source.info.notes


def test_a_silent_udp_sender_is_lost_and_heard_again() -> None:
    with UdpSender() as first, closing(open_live(first.url(), QUICK)) as source:
        frames = list(islice(source, 3))
        first.freeze()
        with reading(source) as (rest, errors, _):
            wait_until(lambda: any("no data for 0.5 s" in note for note in source.info.notes))
            with UdpSender(LARGE, port=first.port):
                wait_until(lambda: any(frame.width == LARGE[0] for frame in list(rest)))
        assert not errors and rises(frames + rest)


def test_a_server_that_starts_later_is_found() -> None:
    with Server() as first:
        port = first.port
    source = open_live(f"tcp://127.0.0.1:{port}", QUICK)
    with reading(source) as (frames, errors, _):
        wait_until(lambda: any("no frame yet" in note for note in source.info.notes))
        with Server(port=port):
            wait_until(lambda: len(frames) > 2)
    assert not errors and frames[0].pts == 0
    assert any("reconnected (attempt" in note for note in source.info.notes)


def connection_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "framefuse live connection"]


def silent_listener() -> socket.socket:
    """Accepts connections and never sends anything."""
    return socket.create_server(("127.0.0.1", 0))


@pytest.mark.parametrize("scheme", ["tcp", "rtsp", "http"])
def test_close_ends_connecting(scheme: str) -> None:
    with silent_listener() as listener:
        options = SourceOptions(timeout=60.0 if scheme != "http" else 0.3)  # http connects when it is opened
        source = open_live(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/x", options)
        with reading(source) as (frames, errors, thread), listener.accept()[0]:
            source.close()
            thread.join(SOON)
            assert not thread.is_alive()
    assert not frames and not errors


@pytest.mark.parametrize("kind", EVERY)
def test_close_ends_a_read_from_a_frozen_server(kind: type[Server]) -> None:
    with kind() as server:
        source = open_live(server.url(), SourceOptions(timeout=60.0))
        next(iter(source))
        server.freeze()
        with reading(source) as (_, errors, thread):
            assert server.silent.wait(SOON)
            source.close()
            thread.join(SOON)
            assert not thread.is_alive()
        wait_until(lambda: not connection_threads())
    assert not errors
    assert not list(source)


def test_close_ends_the_back_off() -> None:
    with Server() as server:
        port = server.port
    source = open_live(f"tcp://127.0.0.1:{port}", SourceOptions(reconnect_max_delay=3600.0))
    with reading(source) as (_, errors, thread):
        wait_until(lambda: bool(source.info.notes))
        source.close()
        thread.join(SOON)
        assert not thread.is_alive()
    assert not errors


def test_close_before_the_first_frame_and_twice() -> None:
    with HttpServer() as server:
        source = open_live(server.url(), QUICK)
        source.close()
        source.close()
        assert not list(source)


@pytest.mark.parametrize("kind", EVERY)
def test_the_process_ends_beside_a_connection_that_was_left_behind(kind: type[Server]) -> None:
    code = (
        "import atexit, sys, threading; atexit.register(lambda: print(threading.active_count()))\n"
        "from framefuse.sources import SourceOptions; from framefuse.sources.live import open_live\n"
        "source = open_live(sys.argv[1], SourceOptions(timeout=60.0)); print(next(iter(source)).width, flush=True)\n"
        "input(); source.close()"
    )
    pipe = subprocess.PIPE
    with (
        kind() as server,
        subprocess.Popen(
            [sys.executable, "-c", code, server.url()], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        ) as child,
    ):
        assert child.stdout is not None and child.stdout.readline() == "64\n"
        server.freeze()
        assert server.silent.wait(SOON)
        out, err = child.communicate("\n", timeout=30)
    assert (child.returncode, out, err) == (0, "1\n", "")


def test_gives_up_after_the_attempts_asked_for() -> None:
    server = Server()
    source = open_live(server.url(), SourceOptions(reconnect=2, reconnect_max_delay=0.05, timeout=0.5))
    with server:
        next(iter(source))
    with pytest.raises(StreamError, match=r"was lost, consecutive failures: 3: Connection refused"):
        list(source)


def test_never_reached_is_a_stream_error() -> None:
    with Server() as server:
        url = server.url()
    with pytest.raises(StreamError, match=r"delivered no frame, consecutive failures: 1: Connection refused") as caught:
        list(open_live(url, SourceOptions(reconnect=0)))
    assert caught.value.remedy


@pytest.mark.parametrize("scheme", ["rtsp", "http", "tcp"])
def test_a_host_that_nobody_knows_is_named(scheme: str) -> None:
    address = f"{scheme}://me:secret@camera.invalid:554/live"
    with pytest.raises(StreamError, match=r"cannot resolve the host camera\.invalid") as caught:
        list(open_live(address, SourceOptions(reconnect=0)))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", CONNECTED)
def test_without_reconnection_the_end_of_the_server_is_the_end(kind: type[Server]) -> None:
    with kind() as server:
        source = open_live(server.url(), SourceOptions(reconnect=0, timeout=2.0))
        frames = list(islice(source, 3))
    assert rises(frames + list(source))


@pytest.mark.parametrize("kind", [HttpServer, RtspServer])
def test_a_refused_login_is_final(kind: type[Any]) -> None:
    right, wrong = "me:s3cret", "me:wr0ng"
    with kind(login=right) as server:
        with pytest.raises(AuthenticationError) as caught:
            list(open_live(server.url(login=wrong + "@"), QUICK))
        assert server.refusals <= 3  # one without a login to learn the method, then the refused one
        with closing(open_live(server.url(login=right + "@"), QUICK)) as source:
            assert next(iter(source)).width == SMALL[0]
        hidden = [repr(source.info), "".join(source.info.notes)]
    assert "***@127.0.0.1" in str(caught.value)
    for text in [*hidden, *everything_about(caught.value)]:
        assert wrong[3:] not in text and right[3:] not in text


def everything_about(error: BaseException) -> Iterator[str]:
    yield "".join(traceback.format_exception(error))
    seen: BaseException | None = error
    while seen is not None:
        yield f"{seen!s} {seen!r} {seen.args}"
        seen = seen.__cause__ or seen.__context__


@pytest.mark.parametrize("kind", [HttpServer, RtspServer])
def test_not_found_is_final_at_first(kind: type[Any]) -> None:
    with kind() as server, pytest.raises(SourceError, match="404"):
        list(open_live(server.url("/nothing?token=s3cret"), QUICK))


def test_a_web_page_is_no_video() -> None:
    secret = "s3cret"
    with HttpServer() as server, pytest.raises(DecodeError, match="Invalid data") as caught:
        list(open_live(server.url("/page?key=" + secret), QUICK))
    assert not any(secret in text for text in everything_about(caught.value))


def test_a_finite_http_video_behaves_as_a_file() -> None:
    with HttpServer() as server:
        source = open_live(server.url("/clip.mp4"), QUICK)
        assert source.info.kind == "file" and source.info.frames == 25 and source.info.width == SMALL[0]
        frames = list(source)
        some = list(open_live(server.url("/clip.mp4"), SourceOptions(start=0.2, end=0.8, vid_stride=2)))
    assert len(frames) == 25 and rises(frames) and frames[-1].pts == 24 * 3600
    assert [frame.pts for frame in some] == [number * 3600 for number in range(5, 20, 2)]
    assert [frame.index for frame in some] == list(range(0, 15, 2))


def test_rtsp_over_udp() -> None:
    with RtspServer() as server, closing(open_live(server.url("/stream?transport=udp"), QUICK)) as source:
        assert rises(list(islice(source, 5)))
        assert "UDP" in server.transports[0] and "transport" not in source.info.uri


@pytest.mark.parametrize("kind", [HttpServer, RtspServer])
def test_reordered_frames_come_in_presentation_order(kind: type[Server]) -> None:
    with kind(b_frames=2) as server, closing(open_live(server.url(), QUICK)) as source:
        frames = list(islice(source, 20))
    assert {b.pts - a.pts for a, b in pairwise(frames[5:])} == {3600}  # type: ignore[operator]


def test_damaged_packets_are_counted_and_survived() -> None:
    with Server(LARGE, damage=True) as server, closing(open_live(server.url(), QUICK)) as source:
        frames = list(islice(source, 30))
    assert rises(frames) and source.info.drops["corrupt"] > 0
    assert "damaged frames are delivered as concealed by the decoder" in source.info.notes
    assert not any("loss" in note for note in source.info.notes)


@pytest.mark.parametrize(
    "uri",
    [
        "rtsp://me:s3cret@/path",
        "rtsp://me:s3/cret@host/path",
        "rtsp://me:s3 cret@host/path",
        "rtsp://me:s3cret@host:99999/path",
        "rtsp://me:s3cret@[host/path",
        "tcp://127.0.0.1",
        "udp://127.0.0.1",
        "gopher://me:s3cret@host/",
        "rtsp://me:s3cret@host/path?transport=pigeon",
    ],
)
def test_malformed_addresses_are_refused_without_repeating_them(uri: str) -> None:
    with pytest.raises(SourceError) as caught:
        open_live(uri, SourceOptions())
    assert caught.value.remedy
    for text in everything_about(caught.value):
        assert "s3cret" not in text and "cret@" not in text and "s3" not in text


def test_a_protocol_that_ffmpeg_lacks_is_a_missing_capability() -> None:
    import av

    try:
        av.open("srt://127.0.0.1:1", timeout=0.1).close()
    except av.error.ProtocolNotFoundError:
        with pytest.raises(CapabilityError, match="srt"):
            list(open_live("srt://127.0.0.1:1", SourceOptions()))
    except av.FFmpegError:
        pytest.skip("this FFmpeg knows srt")


def test_addresses_have_no_secret_in_their_repr() -> None:
    address = Address("rtsp://me:pw@host/a?x=1&transport=udp")
    assert address.url == "rtsp://me:pw@host/a?x=1" and repr(address) == "rtsp://***@host/a?x=1"


def test_back_off_doubles_to_its_limit_and_starts_again() -> None:
    backoff = Backoff(-1, 3.0, Random(1))
    delays = [backoff.failed() or 0.0 for _ in range(2000)]
    for delay, full in zip(delays, [0.25, 0.5, 1.0, 2.0, 3.0, 3.0], strict=False):
        assert 0.8 * full <= delay <= full
    assert max(delays) <= 3.0 and len(set(delays)) > 1000
    backoff.failures = 0  # the stream delivers frames
    assert (backoff.failed() or 1.0) <= 0.25


@pytest.mark.parametrize("attempts", [0, 1, 3])
def test_back_off_gives_up(attempts: int) -> None:
    backoff = Backoff(attempts, 1.0, Random(1))
    assert [backoff.failed() is None for _ in range(attempts + 1)] == [False] * attempts + [True]


def test_timeline() -> None:
    line, period = Timeline(), Fraction(1, 25)

    def at(source: float | None, arrival: float) -> float:
        return line.pts(None if source is None else Fraction(source), arrival, period) / 90000

    assert [at(100.0, 5.0), at(100.5, 5.5), at(100.75, 5.5)] == [0.0, 0.5, 0.75]
    assert at(100.75, 6.0) == 0.79  # stands still
    assert at(50.0, 6.0) == 0.83 and at(50.25, 6.25) == 1.08  # goes back
    assert at(1e6, 6.5) == 1.12 and at(1e6 + 1, 7.5) == 2.12  # jumps
    assert at(None, 8.0) == 2.16
    line.reconnected()
    assert [at(7.0, 12.0), at(8.0, 13.0)] == [6.16, 7.16]  # 4 s between the arrivals
    line.reconnected()
    assert [at(None, 13.0), at(0.0, 13.0), at(0.5, 13.0)] == [7.2, 7.24, 7.74]
    assert at(60.0, 100.0) == 67.24  # a long step, as long as the wait


def test_entry_by_path_object_is_not_an_address(tmp_path: Path) -> None:
    with pytest.raises(FramefuseError, match="no such file"):
        open_source(tmp_path / "rtsp:")
