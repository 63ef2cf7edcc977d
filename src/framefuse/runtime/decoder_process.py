"""Decoder process: a process of its own that decodes a long video into memory of the GPU, which the run has lent to it.

    the run                                  the decoder process
    DecoderProcess, a source   <- frames --  Ahead: several decoders
    memory of their rings      -- lent --->  NvDecoder copies surfaces into it
    leases                     - released >  the memory is used again

Title: why a process of its own
    A decoder needs Python's lock several times a frame, and so do the threads that run the model. With six decoders in
    the process of a run on an H200, each waits for the lock about as long as the GPU takes to decode (mattes of
    3840x1920: 0.69 of what the decoders give alone). Beside the same decoders in another process, the same run loses
    nothing, and neither do they.

Frames never leave the GPU: CUDA lets both processes use the memory. It belongs to the run, so frames stay valid when
the decoder process ends, however it does. Where CUDA refuses that, or the process ends before the first frame, the
video is decoded in the process of the run.

The processes exchange pickled tuples over a pair of sockets:

<- Job                                     once
-> ("memory", bytes)                       a decoder needs memory for its ring
<- ("memory", handle of CUDA)
-> ("look", Look)                          what frames have in common, numbered from 0
-> ("frames", [Row, ...], [seconds of a step, ...], Facts)
-> ("host", Frame)                         one that NVDEC could not decode
-> ("retired", number of a block)          nothing uses this memory any more: frames have another size
<- ("released", [numbers of frames])
-> ("end", number of frames)
-> ("error", kind, message, remedy)
"""

import os
import queue
import select
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic, process_time, sleep
from typing import Any, NamedTuple

import numpy as np

from framefuse import errors
from framefuse.common.machine import python_path
from framefuse.common.text import first_line
from framefuse.cuda import device, driver
from framefuse.errors import DecodeError, EngineError, FramefuseError, SourceError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.runtime.ahead import Ahead
from framefuse.sources.segments import Segmented
from framefuse.sources.source import Frames, PullSource, SourceInfo, SourceOptions

POLL_MS = 5
"""For which the run waits for frames before it looks at what was released meanwhile."""
GATHER_SECONDS = 2e-3
"""For which frames are gathered for a message: each costs both processes as much as some frames."""
HOST_FRAMES = 8
"""Frames decoded on the host that may wait to be sent: memory of the GPU limits only those that are in it."""
DYING_SECONDS = 5.0
"""For which the exit code of a process is waited for that has closed its connection."""
COMMON = "matrix", "full_range", "rotation", "time_base", "sample_aspect_ratio", "source_id", "connection"
MODULE = "framefuse.runtime.decoder_process"


@dataclass(frozen=True)
class Job:
    """What the decoder process reads."""

    source: Segmented
    options: SourceOptions
    stride: int
    gpu: int | None

    def open(self, ring: Callable[[int, int], Sequence[Any]] | None = None) -> Ahead:
        """The decoders; SourceError or DecodeError as of `open_file`.

        Args:
            ring: see `SourceOptions`.
        """
        segments = self.source.open(replace(self.options, ring=ring))
        return Ahead(segments, self.source.readers, self.source.ahead, stride=self.stride, gpu=self.gpu)


class Look(NamedTuple):
    """What frames have in common."""

    format: str
    shapes: tuple[tuple[int, ...], ...]
    """Of the planes."""
    strides: tuple[tuple[int, ...], ...]
    facts: dict[str, Any]
    """Attributes of `Frame`."""


class Row(NamedTuple):
    """A frame."""

    number: int
    look: int
    block: int
    """Memory that was lent: the first is 0."""
    offsets: tuple[int, ...]
    """Of the planes in it, in bytes."""
    position: int
    """`Frame.index`."""
    pts: int | None


class Facts(NamedTuple):
    """What is known of the source by now, as in `SourceInfo`."""

    copied: int
    drops: dict[str, int]
    notes: list[str]
    cpu_seconds: float = 0.0
    """Of the decoder process, since it decodes."""


class Returned:
    """The lease of a frame of another process."""

    __slots__ = ("_number", "_released", "lasting")

    def __init__(self, number: int, released: deque[tuple[int, Any]], lasting: bool) -> None:
        self._number: int | None = number
        self._released, self.lasting = released, lasting

    def release(self, after: Any = None) -> None:
        number, self._number = self._number, None
        if number is not None:
            self._released.append((number, after))


class DecoderProcess:
    """A source: the frames of a video that a process of its own decodes. It starts at once, beside what else is opened.

    Args:
        job: what it reads.
        own: the decoders that the job opens in this process, in case that the other cannot decode.

    Attributes:
        info, readers, on_step: as of `Ahead`.
        cpu_seconds: of the process by now.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, job: Job, own: Ahead) -> None:
        self.info: SourceInfo = own.info
        self.readers = own.readers
        self.on_step: Callable[[float, float, float], None] = lambda busy, blocked, cpu: None
        self.cpu_seconds = 0.0
        self._own, self._lasting = own, job.options.lasting
        self._before = Facts(own.info.copied, dict(own.info.drops), list(own.info.notes))
        self._memory: list[Any] = []
        self._looks: list[tuple[Look, Frame | None]] = []
        self._planes: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._released = deque[tuple[int, Any]]()
        self._ending = deque[tuple[Any, list[int]]]()
        """Released frames whose readers have not ended on the GPU, and the event after them."""
        self._spare: list[Any] = []
        self._stream: Any = None
        self._delivered = 0
        self._connection, self._stop = start_process()
        with suppress(OSError):  # it has ended: that is found where frames are expected
            self._connection.send(job)
        self._frames = PullSource(self.info, self._received, self._close, own.close)

    def __iter__(self) -> Iterator[Frame]:
        return self._frames

    def close(self) -> None:
        """End the process, from any thread, at any time, any number of times."""
        self._frames.close()

    def _close(self) -> None:
        self._stop(0)
        self._connection.close()
        self._own.close()

    def _received(self, closed: threading.Event) -> Frames:
        failure: FramefuseError | None = None
        of_video = False
        try:
            for frame in self._messages(closed):
                self._delivered += 1
                yield frame
        except FramefuseError as error:
            failure, of_video = error, isinstance(error, SourceError | DecodeError)
        except (EOFError, OSError):
            reason = f"the process that decodes {self.info.uri} ended with code {self._stop(DYING_SECONDS)}"
            failure = DecodeError(reason, remedy="run it again; with readers 1, the process of the run decodes")
        if failure is None or closed.is_set():
            return
        if self._delivered or of_video:
            raise failure
        self._stop(0)
        for kept in (self._memory, self._planes, self._looks):
            kept.clear()
        self.info.drops.clear()
        self._learn(self._before)
        self.info.note(f"decoded in the process of the run: {failure.message}")
        self._own.on_step = lambda *seconds: self.on_step(*seconds)
        yield from self._own

    def _messages(self, closed: threading.Event) -> Iterator[Frame]:
        poll = select.poll()
        poll.register(self._connection.fileno(), select.POLLIN)
        while not closed.is_set():
            self._give_back()
            if not poll.poll(POLL_MS):
                continue
            kind, *content = self._connection.recv()
            if kind == "frames":
                rows, steps, facts = content
                self._learn(facts)
                for step in steps:
                    self.on_step(*step)
                for row in rows:
                    yield self._frame(row)
                    self._give_back()
            elif kind == "host":
                yield content[0].replace_unchecked(arrival=monotonic())
            elif kind == "retired":
                self._retire(content[0])
            elif kind == "look":
                self._looks.append((content[0], None))
            elif kind == "memory":
                self._connection.send(("memory", self._lend(content[0])))
            elif kind == "error":
                name, message, remedy = content
                raise getattr(errors, name, EngineError)(message, remedy=remedy)
            else:
                if (sent := content[0]) != self._delivered:
                    raise EngineError(f"{sent} frames of {self.info.uri} were decoded, {self._delivered} have arrived")
                return

    def _learn(self, facts: Facts) -> None:
        self.info.copied, self.info.notes[:] = facts.copied, facts.notes
        self.info.drops.update(facts.drops)
        self.cpu_seconds = facts.cpu_seconds

    def _retire(self, block: int) -> None:
        """Keep memory only as long as its frames do."""
        self._memory[block] = None
        self._planes = {key: planes for key, planes in self._planes.items() if key[1] != block}
        self._looks = [(look, None) for look, _ in self._looks]

    def _lend(self, size: int) -> bytes | None:
        """The handle of new memory; None: there is not enough."""
        try:
            memory, handle = device.shared(size)
        except MemoryError:
            return None
        self._memory.append(memory)
        return handle

    def _frame(self, row: Row) -> Frame:
        key = row.look, row.block, row.offsets
        look, template = self._looks[row.look]
        memory = self._memory[row.block]
        if (planes := self._planes.get(key)) is None:
            format = PIXEL_FORMATS[look.format]
            planes = self._planes[key] = tuple(
                device.array_in(memory, offset, shape, format.dtype, strides)
                for offset, shape, strides in zip(row.offsets, look.shapes, look.strides, strict=True)
            )
        if template is None:
            template = Frame(planes, PIXEL_FORMATS[look.format], owner=memory, **look.facts)
            self._looks[row.look] = look, template
        lease = Returned(row.number, self._released, self._lasting)
        return template.replace_unchecked(
            planes=planes, owner=memory, lease=lease, index=row.position, pts=row.pts, arrival=monotonic()
        )

    def _give_back(self) -> None:
        """Tell of the frames that were released, once the GPU has done what was to be done before."""
        numbers, after = list[int](), list[int]()
        if self._stream is None:
            self._stream = device.cupy().cuda.Stream(non_blocking=True)
        while self._released:
            number, event = self._released.popleft()
            if event is None:
                numbers.append(number)
            else:  # which its owner may record again, so it cannot be asked later
                driver.wait(event, self._stream)
                after.append(number)
        if after:
            event = self._spare.pop() if self._spare else device.cupy().cuda.Event(disable_timing=True)
            driver.record(event, self._stream)
            self._ending.append((event, after))
        while self._ending and driver.has_ended(self._ending[0][0]):
            event, ended = self._ending.popleft()
            self._spare.append(event)
            numbers += ended
        if numbers:
            with suppress(OSError):  # it has ended: what it has sent before is still there
                self._connection.send(("released", numbers))


def start_process() -> tuple[Any, Callable[[float], int]]:
    """Start a decoder process; the connection to it, and what ends it unless it does so within some seconds, and
    returns its exit code.

    Raises:
        OSError: there is no executable of Python, or the system allows no more files or processes.
    """
    from multiprocessing.connection import Pipe

    if not sys.executable:
        raise OSError("this program does not say which Python runs it")
    here, there = Pipe()
    try:
        # In a session of its own, it does not get the Ctrl-C after which the run still completes its outputs.
        process = subprocess.Popen([sys.executable, "-P", "-m", MODULE, str(there.fileno())],
                                   pass_fds=(there.fileno(),), stdin=subprocess.DEVNULL, stdout=2,
                                   start_new_session=True, env={**os.environ, "PYTHONPATH": python_path()})  # fmt: skip
    except BaseException:
        here.close()
        raise
    finally:
        there.close()

    def stop(patience: float) -> int:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(patience)
        process.kill()
        return process.wait()

    return here, stop


class Server:
    """The other end: decodes in this process, and sends what it decodes.

    Args:
        connection: to the run.
    """

    def __init__(self, connection: Any) -> None:
        self._connection, self._sending, self._asking = connection, threading.Lock(), threading.Lock()
        self._lent = queue.SimpleQueue[Any]()
        self._blocks: list[tuple[int, int] | None] = []
        """First and last address of the memory that was lent; None: nothing uses it any more."""
        self._unused = deque[int]()
        """Blocks of which the run is to be told that."""
        self._looks: dict[tuple[Any, ...], int] = {}
        self._leases: dict[int, Any] = {}
        self._decoded = deque[tuple[int, Frame]]()
        self._room = threading.Semaphore(HOST_FRAMES)
        self._there, self._ended = threading.Event(), False
        self._steps = deque[tuple[float, float, float]]()
        self._cpu_before = 0.0
        self._failure: Exception | None = None
        """Why frames cannot reach the run."""

    def run(self) -> None:
        """Decode the video of the job, and stay until the run has gone."""
        job: Job = self._connection.recv()
        threads = [
            threading.Thread(target=self._guarded, args=(job.gpu, target), name=name, daemon=True)
            for name, target in (("ff-listen", self._listen), ("ff-send", self._send_frames))
        ]
        try:
            with device.current(job.gpu, "decode"):
                self._ahead = job.open(self._ring)
                if not self._ahead.on_gpu:
                    raise EngineError("; ".join(self._ahead.info.notes))
                self._ahead.on_step = lambda *seconds: self._steps.append(seconds)
                self._cpu_before = process_time()
                for thread in threads:
                    thread.start()
                number = 0
                try:
                    for number, frame in enumerate(self._ahead, 1):
                        if frame.lease is None:
                            self._room.acquire()
                        self._decoded.append((number, frame))
                        self._there.set()
                finally:
                    self._ended = True
                    self._there.set()
                    threads[1].join()
            if self._failure:
                raise self._failure
            self._send_rows([])  # the last steps and facts
            self._send("end", number)
        except Exception as error:
            message = getattr(error, "message", None) or str(error) or type(error).__name__
            self._send("error", type(error).__name__, message, getattr(error, "remedy", None))
        if threads[0].is_alive():
            threads[0].join()

    def _guarded(self, gpu: int | None, work: Callable[[], None]) -> None:
        """Run a thread; what ends it ends the decoders, too."""
        try:
            with device.current(gpu, "decode"):
                work()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._lent.put(None)
        self._ahead.close()
        self._room.release(HOST_FRAMES)

    def _facts(self) -> Facts:
        info = self._ahead.info
        return Facts(self._ahead.copied, dict(info.drops), list(info.notes), process_time() - self._cpu_before)

    def _send(self, *message: Any) -> None:
        with self._sending, suppress(OSError):  # the run has gone: `_listen` ends the decoders
            self._connection.send(message)

    def _listen(self) -> None:
        while True:
            try:
                kind, content = self._connection.recv()
            except (EOFError, OSError) as error:
                self._fail(error)
                return
            if kind == "memory":
                self._lent.put(content)
            else:
                for number in content:
                    self._leases.pop(number).release()

    def _ring(self, count: int, size: int) -> list[Any]:
        """Memory of `count` frames, lent by the run, as long as anything uses it."""
        with self._asking:
            self._send("memory", count * size)
            if (handle := self._lent.get()) is None:
                raise MemoryError(f"{count * size / 1e6:.0f} MB for frames are not free")
            user = _User()
            try:
                block = device.opened(handle, count * size, user)
            except Exception as error:
                self._fail(EngineError(f"CUDA shares no memory: {first_line(error)}"))
                raise
            self._blocks.append((block.ptr, block.ptr + count * size))
            weakref.finalize(user, self._unused.append, len(self._blocks) - 1).atexit = False
        return list(device.array_in(block, 0, (count, size), np.uint8))

    def _send_frames(self) -> None:
        while not self._ended or self._decoded:
            self._there.wait()
            self._there.clear()
            sleep(0.0 if self._ended else GATHER_SECONDS)
            rows = list[Row]()
            while self._decoded and not self._failure:
                number, frame = self._decoded.popleft()
                if frame.lease is None:
                    self._send_rows(rows)
                    self._send("host", frame.replace_unchecked(owner=None))
                    self._room.release()
                    rows = []
                else:
                    rows.append(self._row(number, frame))
                del frame
            if self._failure:  # without memory, a decoder goes on to decode on the host
                return
            self._send_rows(rows)

    def _send_rows(self, rows: list[Row]) -> None:
        steps = [self._steps.popleft() for _ in range(len(self._steps))]
        self._send("frames", rows, steps, self._facts())
        while self._unused:
            if block := self._blocks[at := self._unused.popleft()]:
                self._blocks[at] = None
                device.close_opened(block[0])  # before the run frees it
            self._send("retired", at)

    def _row(self, number: int, frame: Frame) -> Row:
        """What the run needs to know of a frame in its memory, once that is written."""
        if frame.ready is not None and not driver.has_ended(frame.ready):
            frame.ready.synchronize()
        self._leases[number] = frame.lease
        planes: Sequence[Any] = frame.planes
        addresses = [plane.data.ptr for plane in planes]
        block, start = next(
            (at, known[0]) for at, known in enumerate(self._blocks) if known and known[0] <= addresses[0] < known[1]
        )
        shapes, strides = (tuple(getattr(plane, name) for plane in planes) for name in ("shape", "strides"))
        facts = {name: getattr(frame, name) for name in COMMON}
        key = frame.format.name, shapes, strides, *facts.values()
        if (look := self._looks.get(key)) is None:
            look = self._looks[key] = len(self._looks)
            self._send("look", Look(frame.format.name, shapes, strides, facts))
        return Row(number, look, block, tuple(address - start for address in addresses), frame.index, frame.pts)


class _User:
    """Something that memory belongs to: once it is gone, nothing uses the memory."""


def main() -> None:
    """The decoder process."""
    from multiprocessing.connection import Connection

    Server(Connection(int(sys.argv[1]))).run()
    sys.stderr.flush()
    os._exit(0)  # CUDA's exit takes longer than what there is to tidy up


if __name__ == "__main__":
    # What is sent belongs to the module by its name.
    from framefuse.runtime import decoder_process

    decoder_process.main()
