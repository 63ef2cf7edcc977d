"""Pipeline: a source and a model in, one Result a frame out.

    decode(source) | infer(frames) | write(results)

Each of the three is a passive generator; `Threaded` runs it ahead of the next one. There are no other threads here: the
decoder, the engine and the encoder bring their own.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from time import monotonic, perf_counter, thread_time
from types import TracebackType
from typing import Any

from framefuse.common.machine import available_cores, lacks_memory, trim_heap
from framefuse.common.redact import brief
from framefuse.config import Settings, settings_from
from framefuse.cuda import current as gpus
from framefuse.engines import Backend, Device, Engine, EngineOptions, open_engine
from framefuse.errors import EngineError, FramefuseError, HostMemoryError, SinkError, UsageError
from framefuse.frame import Frame
from framefuse.models import find_model
from framefuse.models.card import Card, read_card
from framefuse.prediction import Result
from framefuse.report.facts import CopyFacts, ErrorFacts, ModelFacts
from framefuse.report.report import Report, build_report
from framefuse.runtime.batching import Batcher
from framefuse.runtime.channel import Threaded
from framefuse.runtime.choices import (
    check_classes,
    check_task,
    choose_batch,
    choose_device,
    choose_engine,
    choose_preprocess,
)
from framefuse.runtime.ledger import Copy, Ledger
from framefuse.runtime.outputs import SinkFactory, choose_encoder, sinks_for, writes
from framefuse.runtime.profiling import Recorder
from framefuse.runtime.program import HostProgram, Program, Selection
from framefuse.runtime.readers import count, open_sources, plan
from framefuse.runtime.stages import decode, infer, warm_up, write
from framefuse.sinks.run_folder import FolderLock, make_run_folder
from framefuse.sinks.sink_set import SinkSet
from framefuse.sinks.window import load_opencv
from framefuse.sources import SourceInfo

DEFAULT_MODEL = "squares"
UNNAMED = f"no model was named: {DEFAULT_MODEL} finds red, green and blue squares only"
CALIBRATION_FRAMES = 32
"""On which an engine chooses the precision of each layer."""


class Pipeline:
    """Detect objects in everything a source shows.

        for result in Pipeline("video.mp4", "yolov8n.onnx", conf=0.4):
            print(result.frame.seconds, result.detections.xyxy)

    The source, the model and the engine are opened here, so that what is wrong with them is raised here; nothing runs
    before the first result is asked for. A Pipeline runs once. Leaving the loop early closes everything in flight.

    Args:
        source: anything `open_source` takes. Cameras and addresses of a list are read side by side, and on CUDA the
            videos of a list, folder or glob are too (`readers`).
        model: path of an ONNX file, or the name of a shipped model; default: squares, the demo detector.
        settings: all options as one object; `options` then change single fields of it.
        sinks: makers of sinks, called once for each source (`[JsonlSink, lambda: CallbackSink(print)]`), beside those
            that the save_* options make.
        engine: name of an engine, or one that is already open.
        options: fields of `Settings`, and `preset`.

    Attributes:
        report: what was measured and decided, as known now; final once the run has ended.
        folder: where the sinks write; None while, or because, none of them does.

    Raises:
        UsageError, CapabilityError, SourceError, ModelError, EngineError, SinkError: see errors.py.
    """

    def __init__(
        self,
        source: Any,
        model: str | Path | None = None,
        *,
        settings: Settings | None = None,
        sinks: Sequence[SinkFactory] = (),
        engine: str | Engine = "auto",
        **options: Any,
    ) -> None:
        if isinstance(engine, str):
            options |= {} if engine == "auto" else {"engine": engine}
        elif not isinstance(engine, Engine):
            raise UsageError(f"engine is {brief(engine)}", remedy="pass a name, or an engine that is open")
        settings = settings_from(options, base=settings)
        self.folder: Path | None = None
        self._folder_lock: FolderLock | None = None
        self._recorder = Recorder()
        self._last: Threaded[Any] | None = None
        self._sink_set: SinkSet | None = None
        self._counts: Counter[int] = Counter()
        self._error: ErrorFacts | None = None
        self._closed = False
        self._lock = threading.Lock()
        if settings.show:
            load_opencv()
        self.card = read_card(find_model(DEFAULT_MODEL if model is None else model))
        opened_engine = None if isinstance(engine, str) else engine
        refuses = cache(partial(_refuses, self.card, settings.precision))
        settings, device_reason = choose_device(settings, refuses, opened_engine)
        self.settings = settings
        engine_name, engine_reason = choose_engine(settings, refuses, opened_engine)
        check_task(self.card, settings)
        check_classes(self.card, settings)
        source = plan(source, settings)
        batch, batch_reasons = choose_batch(self.card, settings, count(source))
        self._batcher: Batcher[Frame] = Batcher(batch, settings.batch_timeout)
        self._gpu = gpus.number(settings.gpu) if settings.on_gpu else None
        with gpus.current(self._gpu, "open the source and the model"), ExitStack() as opened:
            self.sources = open_sources(source, settings, batch)
            for item in self.sources:
                opened.callback(item.close)
            info = self.sources[0].info
            preprocess, size_reason = choose_preprocess(self.card, settings, mixed=info.mixed)
            if isinstance(engine, str):
                engine = open_engine(engine_name, self.card.path, _engine_options(settings, self.card))
            self.engine = engine
            settings, encoder_reasons = choose_encoder(settings, info, self._gpu)
            self._make_sinks = partial(sinks_for, settings, sinks)
            make_program, memory_reasons = _program_type(settings)
            self._program = make_program(
                engine,
                self.card,
                preprocess,
                Selection(settings.conf, settings.iou, settings.max_det, settings.classes, settings.agnostic_nms),
                batch=batch,
                slots=settings.slots,
                keep_frames=any(sink.needs_frame for sink in self._make_sinks(info)),
                recorder=self._recorder,
            )
            opened.callback(self._program.close)
            if info.width and info.height:
                try:
                    self._program.prepare(info.width, info.height)
                except MemoryError as error:
                    raise self._explained(error) from error
            trim_heap()
            opened.pop_all()
        self._warnings = [UNNAMED] if model is None else []
        self._choices = [device_reason, engine_reason, *engine.reasons, size_reason, *batch_reasons,
                         *memory_reasons, *encoder_reasons]  # fmt: skip

    def __iter__(self) -> Iterator[Result]:
        with self._lock:
            if self._last is not None or self._closed:
                raise UsageError("this Pipeline has already run, or was closed", remedy="make a new one for each run")
            with gpus.current(self._gpu, "begin"):
                results = self._start()
        caller = self._recorder.stage("caller", thread="caller")
        try:
            for result in results:
                self._recorder.frame(None if result.arrival is None else monotonic() - result.arrival)
                self._counts.update(result.detections.class_id.tolist())
                started, cpu_started = perf_counter(), thread_time()
                yield result
                caller.add(perf_counter() - started, cpu=thread_time() - cpu_started)
        except BaseException as error:
            known = self._explained(error)
            self._error = None if isinstance(error, GeneratorExit) else ErrorFacts.of(known)
            if known is error:
                raise
            raise known from error
        finally:
            self._recorder.stop()
            self.close()
            self._save_report()

    def run(self) -> Report:
        """Run to the end, keeping no results; what the sinks and callbacks got is all there is."""
        for _ in self:
            pass
        return self.report

    def close(self) -> None:
        """Stop now: cancel what waits, complete what is written, free the engine. Any thread, any number of times."""
        with self._lock:  # a run that another thread is just starting has all of its stages before it is closed
            self._closed = True
        if self._last is not None:
            self._last.close()
        self._close_sources()
        self._program.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def report(self) -> Report:
        sinks = self._sink_set
        width, height = self._program.largest_input
        ledger = self._program.ledger
        return build_report(
            self._recorder.snapshot(),
            sources=self._infos(),
            model=ModelFacts(
                self.card.path.stem, self.card.layout, f"{width}x{height}", self.engine.name, self.engine.precision
            ),
            choices=dict.fromkeys([*self._choices, *self._program.reasons]),
            copies=_copies(self._infos(), ledger),
            detections={self.card.names.get(number, str(number)): n for number, n in self._counts.items()},
            outputs=sinks.paths if sinks else (),
            warnings=[*self._warnings, *(sinks.notes if sinks else ())],
            error=self._error,
        )

    def _explained(self, error: BaseException) -> BaseException:
        """The error, in our words where it is about memory and nobody has explained it yet."""
        why = lacks_memory(error)
        if why is None or (isinstance(error, FramefuseError) and type(error) is not EngineError):
            return error
        width, height = self._program.largest_input
        known = HostMemoryError(
            f"not enough memory at batch {self._batcher.size} of {width}x{height}: {why}",
            remedy="use a smaller --batch or --imgsz",
        )
        known.stage = getattr(error, "stage", None)
        return known

    def _save_report(self) -> None:
        if self.folder is None:
            return
        try:
            self.report.save(self.folder)
        except SinkError:
            if self._error is None:  # else it would hide what went wrong first
                raise
        finally:
            if self._folder_lock is not None:
                self._folder_lock.release()

    def _start(self) -> Iterator[Result]:
        """Put a thread and a bounded channel between the stages."""
        settings, recorder = self.settings, self._recorder
        live = self.sources[0].info.live
        if self._make_sinks(self.sources[0].info):
            if writes(settings):
                folder = make_run_folder(settings.project, settings.name, settings.exist_ok)
                self._folder_lock = FolderLock(folder)
                self.folder = folder
            inputs = [file for source in self.sources for file in source.info.files]
            self._sink_set = SinkSet(self._make_sinks, self.folder or Path(), self.card.names, inputs=inputs)
        readers: list[Iterable[Frame]] = list(self.sources)
        if settings.on_gpu and not live:
            readers[0] = warm_up(self.sources[0], self._program)
        recorder.start()
        recorder.stage("inference", parallel=self.engine.streams)
        decode_clock = recorder.stage(
            "decode", parallel=settings.decode_threads * len(self.sources), copies=len(self.sources)
        )
        first, last = recorder.stage("preprocess"), recorder.stage("postprocess")
        frames = self._last = Threaded(
            [gpus.on(self._gpu, decode(source), "decode") for source in readers],
            name="decode",
            cancel=self._close_sources,
            capacity=1 if live else settings.queue,
            policy="latest" if live else "block",
            too_old=self._too_old if live else None,
            on_drop=self._count_drop,
            on_step=lambda busy, blocked, cpu: decode_clock.add(busy, wait_out=blocked, cpu=cpu),
            on_wait=lambda waited: first.add(0, items=0, wait_in=waited),
        )
        write_clock = recorder.stage("write", parallel=available_cores()) if self._sink_set else None
        found = self._last = Threaded(
            [gpus.on(self._gpu, infer(frames, self._program, self._batcher), "run a batch")],
            name="program",
            cancel=frames.close,
            capacity=max(settings.queue, 2 * self._batcher.size),
            on_step=lambda busy, blocked, cpu: last.add(0, items=0, wait_out=blocked),
            on_wait=lambda waited: write_clock.add(0, items=0, wait_in=waited) if write_clock else None,
        )
        if self._sink_set is None or write_clock is None:
            return (done.result for done in found)
        written = write(found, self._sink_set, self._info_of, write_clock, reader_of=self._reader_of)
        if settings.show:
            return written  # in the caller's thread, to which windows belong
        self._last = Threaded([written], name="write", cancel=found.close, capacity=settings.queue)
        return iter(self._last)

    def _infos(self) -> list[SourceInfo]:
        """Facts of every source once; of a chain those of its parts, and its own where it has something to add."""
        infos: dict[int, SourceInfo] = {}
        for source in self.sources:
            parts = list(source.info.parts.values())
            own = [] if (parts or source.info.kind == "unread") and not source.info.drops else [source.info]
            infos |= {id(info): info for info in (*own, *parts)}
        return list(infos.values())

    def _close_sources(self) -> None:
        for source in self.sources:
            source.close()

    def _reader_of(self, source_id: str) -> int:
        """Number of the source, in `sources`, that a frame is from."""
        for number, source in enumerate(self.sources):
            if source_id in source.info.parts or source.info.uri == source_id:
                return number
        return 0

    def _info_of(self, source_id: str) -> SourceInfo:
        """Facts of the source that a frame is from."""
        info = self.sources[self._reader_of(source_id)].info
        return info.parts.get(source_id, info)

    def _too_old(self, frame: Frame) -> bool:
        return frame.arrival is not None and monotonic() - frame.arrival > self.settings.max_age

    def _count_drop(self, frame: Frame, cause: str) -> None:
        if frame.lease is not None:
            frame.lease.release()
        drops = self._info_of(frame.source_id).drops
        drops[cause] = drops.get(cause, 0) + 1


def _copies(infos: Iterable[SourceInfo], ledger: Ledger) -> list[CopyFacts]:
    """What decoders and the program copied, a frame."""
    decoded = sum(info.copied for info in infos)
    rows = ledger.totals() | ({Copy("decode", "d2d", "pixels"): decoded} if decoded else {})
    return [CopyFacts(*copy, size / max(1, ledger.frames)) for copy, size in rows.items()]


def _program_type(settings: Settings) -> tuple[Callable[..., Program], list[str]]:
    """What makes the program of the device, and what was decided for it."""
    if not settings.on_gpu:
        if settings.memory != "auto":
            raise UsageError(
                f"memory {settings.memory} was asked for, but on device {settings.device} nothing enters a GPU",
                remedy="leave it out, or use --device cuda",
            )
        return HostProgram, []
    from framefuse.runtime.cuda.program import CudaProgram
    from framefuse.runtime.cuda.uploads import choose_upload_mode

    way, reason = choose_upload_mode(settings.memory)
    return partial(CudaProgram, mode=way), [reason]


def _refuses(card: Card, precision: str, backend: Backend) -> str | None:
    """Why an engine cannot run a model, as far as that is known without opening it."""
    spec = card.preprocess
    return backend.refuses(card.path, precision, spec.height, spec.width)


def _engine_options(settings: Settings, card: Card) -> EngineOptions:
    plain = card.output_indices == (0,) and card.activation == "none" and card.box_units == "pixels"
    layout = card.layout if plain and card.task == "detect" else None
    device: Device = "cuda" if settings.on_gpu else "cpu"
    frames: Sequence[Any] = ()
    if settings.calib is not None:
        from framefuse.runtime.calibration import read_inputs

        frames = read_inputs(settings.calib, card, CALIBRATION_FRAMES)
    return EngineOptions(
        device, settings.precision, settings.streams, settings.threads, settings.workspace_mb, layout, frames
    )
