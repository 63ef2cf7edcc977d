"""Pipeline: a source and a model in, one Result per frame out.

    decode(source) | infer(frames) | write(results)

Each of the three is a passive generator; `Threaded` runs it ahead of the next one. There are no other threads here: the
decoder, the engine and the encoder bring their own.
"""

import atexit
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, Self, cast
from weakref import WeakSet, ref

from framefuse.common.machine import available_cores, lacks_memory, trim_heap
from framefuse.common.redact import brief
from framefuse.config import Settings, settings_from
from framefuse.cuda import device as gpus
from framefuse.engines import Engine, open_engine
from framefuse.errors import EngineError, FramefuseError, HostMemoryError, SinkError, UsageError
from framefuse.frame import Frame, View
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.prediction import Event, Result
from framefuse.report.bar import Bar
from framefuse.report.facts import CopyFacts, ErrorFacts, ModelFacts
from framefuse.report.report import FILES, Report, build_report
from framefuse.runtime.adaptive import adapter_for
from framefuse.runtime.ahead import Ahead
from framefuse.runtime.batching import FrameBatcher
from framefuse.runtime.channel import EMPTY, JOIN_SECONDS, Policy, Threaded
from framefuse.runtime.choices import choose_rung, without_effect
from framefuse.runtime.decoder_process import DecoderProcess
from framefuse.runtime.inputs import Inputs
from framefuse.runtime.job import options_of, plan_job
from framefuse.runtime.ladder import rungs_below, with_rungs
from framefuse.runtime.ledger import Copy
from framefuse.runtime.matting import Matting
from framefuse.runtime.model import Model
from framefuse.runtime.output_check import OutputCheck, Subject
from framefuse.runtime.plan import LIKELY, RunPlan, plan_run
from framefuse.runtime.power import Meter, find_counters
from framefuse.runtime.profiling import Recorder, StageClock
from framefuse.runtime.program import FrameResult, Observer
from framefuse.runtime.readers import frames_of, is_live, open_sources
from framefuse.runtime.rectilinear import rectilinear_for
from framefuse.runtime.requested_sinks import SinkFactory, needs_frames, outputs_of, sinks_for
from framefuse.runtime.stages import begun, decode, infer, sized, warm_up, watched, write
from framefuse.runtime.threads import quick_handover
from framefuse.runtime.tracking import Tracks, events_for, rate_of
from framefuse.runtime.utilisation import Gauge
from framefuse.runtime.views import Choose, viewer_for
from framefuse.sinks import SinkSet
from framefuse.sinks.run_folder import MANIFEST, FolderLock, make_run_folder
from framefuse.sinks.show import load_opencv
from framefuse.sources import Source, SourceInfo
from framefuse.sources.source import check_timeout

_open: "WeakSet[Pipeline]" = WeakSet()
"""Pipelines to close before the interpreter ends: their threads would run into code that is gone."""
NOT_TAKEN = "not taken"
"""Cause of a drop: the outputs have the result, but the caller was too slow to take it from a live source."""
HAS_RUN, RUNS_ONCE = "this Pipeline has already run, or was closed", "make a new one for each run"
HAS_ENDED = "the run has ended"


class Pipeline:
    """Detect objects in every frame of a source.

        for result in Pipeline("video.mp4", "yolov8n.onnx", conf=0.4):
            print(result.frame.seconds, result.detections.xyxy)

    The constructor opens the source, the model and the engine, so it raises whatever is wrong with them; nothing runs
    before the first result is requested. A Pipeline runs once. Leaving the loop early closes everything in flight.

    Args:
        source: anything `open_source` takes. A list of cameras or live addresses is read in parallel; on CUDA, so are
            the videos of a list, folder or glob (see `readers`).
        model: path of an ONNX file, the name of a shipped model, or a `Model`, which stays open.
        settings: all options as one object; `options` then override single fields of it.
        sinks: names of sinks, or functions that make one, called once for each source (`["csv", JsonlSink, lambda:
            CallbackSink(print)]`), in addition to the sinks of the save_* options.
        engine: name of an engine, or an engine that is already open, which is not closed.
        views: what the model sees of each frame: a function (frame, latest results of its source, oldest first) -> list
            of `View`, instead of the settings tiles, roi and stereo. An empty list: the frame has no objects.
        observe: sees what other values of `iou` would give; on the CPU only.
        options: fields of `Settings`, and `preset`.

    Attributes:
        report: what has been measured and decided so far; final once the run has ended.
        folder: where the sinks write; None before the run starts, or if no sink writes there.
        inputs: files besides the sources that no output overwrites; add yours, such as a configuration.

    Raises:
        UsageError, CapabilityError, SourceError, ModelError, EngineError, SinkError: see errors.py.
    """

    def __init__(
        self,
        source: Any,
        model: str | Path | Model | None = None,
        *,
        settings: Settings | None = None,
        sinks: Sequence[SinkFactory] = (),
        engine: str | Engine = "auto",
        views: Choose | None = None,
        observe: Observer | None = None,
        **options: Any,
    ) -> None:
        if isinstance(model, Model):
            model.check_open()
            if engine != "auto" or settings is not None:
                raise UsageError("the model is open, with an engine and settings of its own", remedy="leave them out")
            engine, settings = model.engine, model.given
        opens = isinstance(engine, str)
        if opens:
            options |= {} if engine == "auto" else {"engine": engine}
        elif not isinstance(engine, Engine):
            raise UsageError(f"engine is {brief(engine)}", remedy="pass the name of an engine, or an open engine")
        settings = settings_from(options, base=settings)
        self.folder: Path | None = None
        self._folder_lock: FolderLock | None = None
        self._recorder = Recorder()
        self._last: Threaded[Any] | None = None
        self._sink_set: SinkSet | None = None
        self._counts: Counter[int] = Counter()
        self._error: ErrorFacts | None = None
        self._begun = self._closed = False
        self._handover = ExitStack()
        self._frames: Threaded[Frame] | None = None
        self._answers: Threaded[Result] | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        if settings.show:
            load_opencv()
        rung, lower = list[str](), None
        if isinstance(model, Model):
            self.card = model.card
        else:
            path, settings, rung, lower = choose_rung(model, settings)
            self.card = read_card(find_model(path))
        self._warnings = without_effect(settings)
        self.inputs = [self.card.path, self.card.path.with_suffix(".yaml")]
        self.inputs += [settings.zones] if settings.zones else []
        job = plan_job(source, settings, self.card)
        whole = views is not None or needs_frames(job.settings, sinks)
        plan = plan_run(self.card, job.settings, job.source, None if opens else cast("Engine", engine), whole=whole)
        self._manifest, self._complete = job.manifest, job.stems
        with gpus.current(plan.gpu, "open the source and the model"), ExitStack() as opened:
            # A live source is opened last, or anew: its frames would be lost while the model loads.
            live = is_live(plan.source)
            info = SourceInfo("", "live", *LIKELY) if live else self._open(plan, opened)
            plan = plan.for_input(info, views=views is not None)
            asked = plan.engine_options() if opens else None
            if asked:
                engine = open_engine(plan.engine, self.card.path, asked)
            self.engine = cast("Engine", engine)
            plan = plan.for_output(info)
            turned = rectilinear_for(plan.settings, info)
            self._viewer = viewer_for(plan.settings, plan.card, plan.preprocess, views, turned)
            if self._viewer:
                plan = plan.for_views(self._viewer, info)
            plan = plan.for_memory(info)
            if self._viewer:
                plan = plan.fitted(self._viewer)
            self._adapter = adapter_for(plan.settings, info, views=self._viewer is not None, gpu=plan.gpu)
            self._batcher: FrameBatcher[Frame] = FrameBatcher(plan.batch, settings.batch_timeout)
            self._tracks = Tracks(plan.settings, self._info_of, job.numbers) if plan.settings.track else None
            self._events = events_for(plan.settings, plan.card, self._info_of)
            self._matting = Matting(plan.settings, self._info_of, turned) if plan.settings.save_matte else None
            own, places = (self._events.sink, self._events.outlines) if self._events else (None, [])
            self._make_sinks = partial(sinks_for, plan.settings, sinks, events=own, places=places)
            needing = [sink for sink in self._make_sinks(info) if sink.needs_frame]
            composes = self.card.task == "semantic" and all(getattr(sink, "composes_on_gpu", False) for sink in needing)
            given: dict[str, Any] = {
                "keep_frames": bool(needing),
                "frames_on_gpu": bool(needing) and composes and plan.gpu is not None,
                "recorder": self._recorder,
                "observe": observe,
            }
            self._program = plan.make_program(self.engine, closes_engine=opens, **given)
            opened.callback(self._program.close)
            if self._adapter and self._adapter.guards:
                lower = rungs_below(self.card, plan) if lower is None else lower
                self._program = with_rungs(self._program, plan, lower, info, **given)
                opened.callback(self._program.close)
            self._keep_up(plan.settings, [info])
            self._prepare(info)
            if live:
                ready = self._input_size(plan, *LIKELY)
                found = self._open(plan, opened)
                self._keep_up(plan.settings, [source.info for source in self.sources])
                width, height = found.width or LIKELY[0], found.height or LIKELY[1]
                if self._input_size(plan, width, height) != ready:
                    self._inputs.close()
                    self._prepare(found)
                    self._open(plan, opened)
            trim_heap()
            opened.pop_all()
        self._gpu, self.settings = plan.gpu, plan.settings
        self._check: OutputCheck | None = None
        if asked and plan.settings.check_outputs and not self.card.states and self.engine.precision != "none":
            size = plan.batch, *self._program.largest_input[::-1]
            subject = Subject(self.card, plan.engine, asked, self.engine.precision, *size, plan.gpu)
            self._check = OutputCheck(self.engine, subject)
        self._choices = [*rung, *job.notes, *plan.choices(self.engine.reasons)]
        self._results: Callable[[], Generator[Result] | None] = lambda: None
        # Registered anew, so that it runs before the handlers of an engine that this pipeline was the first to import.
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        _open.add(self)

    def _open(self, plan: RunPlan, opened: ExitStack) -> SourceInfo:
        """Open the sources; the facts of the first."""
        self._inputs = Inputs(open_sources(plan.source, plan.settings, plan.batch))
        opened.callback(self._inputs.close)
        return self.sources[0].info

    @property
    def sources(self) -> list[Source]:
        """The sources: those of the start, then those that were added."""
        return self._inputs.sources

    def __iter__(self) -> Generator[Result]:
        return self._known(self._run())

    def _known(self, results: Generator[Result]) -> Generator[Result]:
        """The results of the run, which `_close_all` ends."""
        if self._results() is None:
            self._results = ref(results)
        return results

    def _run(self, *, started: bool = False) -> Generator[Result]:
        """The run; `started`: that of `start`, beside which there is no other."""
        with self._lock:
            if self._begun or self._closed or (self._answers is not None and not started):
                raise UsageError(HAS_RUN, remedy=RUNS_ONCE)
            self._begun = True
        try:
            with self._lock, gpus.current(self._gpu, "start the run"):
                results = iter(()) if self._closed else self._start()
            caller = self._recorder.stage("caller", thread="caller")
            for result in results:
                with caller.timed(items=1):
                    yield result
        except BaseException as error:
            known = self._explained(error)
            # A live source has no other end than these.
            expected = GeneratorExit if not self._live else (GeneratorExit, KeyboardInterrupt)
            self._error = None if isinstance(error, expected) else ErrorFacts.of(known)
            if known is error:
                raise
            raise known from error
        finally:
            self._recorder.stop()
            self._stop()
            self._save_report()
            self._ended.set()

    def run(self, *, progress: bool = False) -> Report:
        """Run to the end without keeping results; only sinks and callbacks receive them.

        Args:
            progress: show on stderr, or in a notebook, how far the run is.
        """
        with Bar([source.info for source in self.sources], shown=progress) as bar:
            for _ in self:
                bar.advance()
        return self.report

    def start(self) -> Self:
        """Run in a thread of its own; `get_result` then delivers the results. Those of a caller who does not take them
        wait, and the pipeline with them, unless the source is live. UsageError: it was started before, or closed."""
        with self._lock:
            if self._answers is not None or self._begun or self._closed:
                raise UsageError(HAS_RUN, remedy=RUNS_ONCE)
            results = self._known(self._run(started=True))
            self._answers = Threaded([results], name="run", capacity=self.settings.queue)
        return self

    def get_result(self, timeout: float | None = None) -> Result | None:
        """The next result after `start`; None: the run has ended.

        Raises:
            TimeoutError: there is none after `timeout` seconds.
            UsageError: the pipeline was not started, or `timeout` is no number of seconds.
            FramefuseError: what has ended the run.
        """
        if self._answers is None:
            raise UsageError("this Pipeline was not started", remedy="call start(), or iterate over it")
        check_timeout(timeout)
        if (result := self._answers.get(timeout)) is EMPTY:
            raise TimeoutError(f"no result within {timeout:g} s")
        return result

    def add_source(self, source: Any) -> str:
        """Read one more source from now on, and return its name, which is the `source_id` of its results. An error ends
        this source, not the run. Callable from any thread, before and during the run.

        Args:
            source: as for the constructor, but one only.

        Raises:
            SourceError, UsageError: it cannot be opened, or one of its name is being read, or the run has ended.
        """
        opened = open_sources(source, self.settings, self._batcher.size)[0]
        with self._lock:
            try:
                if self._closed:
                    raise UsageError(HAS_ENDED, remedy=RUNS_ONCE)
                number = self._inputs.add(opened)
                policy: Policy = "latest" if opened.info.live else "block"
                if self._frames is not None and not self._frames.add(self._read(number, opened), policy):
                    self._inputs.take_back(number)
                    raise UsageError(HAS_ENDED, remedy=RUNS_ONCE)
            except BaseException:
                if opened is not source:  # that of the caller may be the one that is being read
                    opened.close()
                raise
        return opened.info.uri

    def remove_source(self, name: Any) -> None:
        """Stop reading a source. Its frames that are on their way get their results, then its tracks end and its
        outputs are complete. UsageError: no source of this name is being read."""
        self._inputs.remove(name)

    def close(self) -> None:
        """Stop now: cancel what waits, complete the outputs, free the engine. Call it from any thread, repeatedly."""
        self._stop()
        if self._answers is not None:
            self._answers.close()

    def _stop(self) -> None:
        with self._lock:  # if another thread is just starting the run, wait until all of its stages exist
            self._closed = True
            self._handover.close()
        if self._last is not None:
            self._last.close()
        self._inputs.close()
        if self._check is not None:
            self._check.close()
        self._program.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def ended(self) -> list[Event]:
        """With the setting `events`: the ends of tracks that were there when their source ended, which no result
        carries. Complete once the run has ended."""
        return self._events.ended if self._events else []

    @property
    def report(self) -> Report:
        sinks = self._sink_set
        width, height = self._program.largest_input
        viewer = self._viewer
        deciders: tuple[Any, ...] = viewer, self._program, self._adapter, self._check
        infos, ledger = self._inputs.infos(), self._program.ledger
        copied = ledger.totals()
        if decoded := sum(info.copied for info in infos):
            copied[Copy("decode", "d2d", "pixels")] = decoded
        return build_report(
            self._recorder.snapshot(),
            sources=infos,
            model=ModelFacts(
                self.card.path.stem,
                self.card.layout,
                f"{width}x{height}",
                self.engine.name,
                self.engine.precision,
                str(self.card.about.get("licence", "")),
            ),
            looked=viewer.looked if viewer else None,
            choices=dict.fromkeys(chain(self._choices, *(decider.reasons for decider in deciders if decider))),
            copies=[CopyFacts(*copy, size / max(1, ledger.frames)) for copy, size in copied.items()],
            tracks=self._tracks.count if self._tracks else None,
            events=self._events.tally.facts() if self._events else None,
            detections={self.card.names.get(number, str(number)): n for number, n in dict(self._counts).items()},
            outputs=sinks.paths if sinks else (),
            unreadable=sum(
                info.drops.get("unreadable", 0)
                for info in (*(source.info for source in self.sources), self._inputs.others)
            ),
            warnings=[
                *self._warnings,
                *self._strange(),
                *(viewer.notes if viewer else ()),
                *self._program.checked.warnings,
                *(self._check.warnings if self._check else ()),
                *(self._events.notes if self._events else ()),
                *(sinks.notes if sinks else ()),
            ],
            error=self._error,
        )

    def _start(self) -> Iterator[Result]:
        """Connect the stages: decode | infer | write, each in a thread that runs ahead of the next."""
        self._handover.enter_context(quick_handover(self.settings.on_gpu and self._matting is not None))
        self._open_sinks()
        streams = self._inputs.streams()
        if self.settings.on_gpu and not self.sources[0].info.awaited:
            streams[0] = 0, warm_up(streams[0][1], self._program, self._viewer)
        self._recorder.start(Meter(find_counters(self._gpu)), Gauge(self._gpu))
        return self._write(self._infer(self._decode(streams)))

    def _decode(self, streams: Sequence[tuple[int, Iterable[Frame]]]) -> Threaded[Frame]:
        settings, count = self.settings, len(streams)
        # Its decoders have the threads.
        ahead = [source for source in self.sources if isinstance(source, (Ahead, DecoderProcess))]
        copies = sum(source.readers for source in ahead) or count
        decode_clock = self._recorder.stage("decode", parallel=settings.decode_threads * copies, copies=copies)

        def decoded(busy: float, blocked: float, cpu: float) -> None:
            decode_clock.add(busy, wait_out=blocked, cpu=cpu)

        for source in ahead:
            source.on_step = decoded
        self._recorder.elsewhere = lambda: sum(source.cpu_seconds for source in ahead)
        next_clock = self._recorder.stage("preprocess")
        self._last = self._frames = frames = Threaded(
            [self._read(number, stream) for number, stream in streams],
            name="decode",
            cancel=self._inputs.close,
            capacity=1 if self._live else settings.queue,
            **self._young(lambda frame: frame.arrival),
            on_drop=lambda frame, cause: self._drop(frame, frame.source_id, cause),
            on_step=decoded if not ahead else lambda busy, blocked, cpu: None,
            on_wait=lambda waited: next_clock.add(0, items=0, wait_in=waited),
            on_end=self._adapter.end if self._adapter else lambda number: None,
        )
        return frames

    def _read(self, number: int, source: Iterable[Frame]) -> Iterator[Frame]:
        return self._inputs.followed(number, gpus.on(self._gpu, decode(source), "decode"))

    def _infer(self, frames: Threaded[Frame]) -> Threaded[FrameResult]:
        self._recorder.stage("inference", parallel=self.engine.streams)
        last_clock = self._recorder.stage("postprocess")
        write_clock = self._recorder.stage("write", parallel=available_cores()) if self._sink_set else None
        results = infer(frames, self._program, self._batcher, self._adapter or self._viewer)
        results = sized(self._inputs.in_order(results), self.settings.min_area)
        if self._tracks:
            results = (self._tracks.follow(found) for found in results)
        composes = self._sink_set if self._program.frames_on_gpu else None
        if composes and self._matting:
            groups = self._matting.groups(results, self._inputs.reader_of, self._inputs.left, last_clock)
            results = begun(groups, composes, self._info_of, last_clock)
        self._last = found = Threaded(
            [gpus.on(self._gpu, results, "run a batch", own_stream=composes is not None)],
            name="program",
            cancel=frames.close,
            capacity=max(self._burst, 2 * frames_of(self.settings, self._batcher.size, live=self._live)),
            **self._young(lambda found: found.result.arrival),
            keep_newest=True,
            on_drop=lambda found, cause: self._drop(found.frame, found.result.frame.source_id, cause),
            on_step=lambda busy, blocked, cpu: last_clock.add(0, items=0, wait_out=blocked),
            on_wait=lambda waited: write_clock.add(0, items=0, wait_in=waited) if write_clock else None,
        )
        return found

    def _write(self, found: Threaded[FrameResult]) -> Iterator[Result]:
        results: Iterator[FrameResult] = watched(found, self._program, self.settings.request_timeout)
        if self._events is not None:
            results = self._events.follow(results, self._inputs.completed, stopped=lambda: self._closed)
        if not self._program.frames_on_gpu:
            results = self._steadied(results, self._recorder.stage("write") if self._sink_set else None)
        written: Iterator[Result] = (frame_result.result for frame_result in results)
        if self._sink_set is not None:
            clock, inputs = self._recorder.stage("write"), self._inputs
            written = write(
                results, self._sink_set, inputs.info_of, clock, completed=inputs.completed, stopped=lambda: self._closed
            )
        written = self._counted(written)
        if self._sink_set is None or self.settings.show:
            return written  # runs in the caller's thread, which owns the windows
        self._last = Threaded(
            [gpus.on(self._gpu if self._matting else None, written, "compose a frame", own_stream=True)],
            name="write",
            cancel=found.close,
            capacity=self._burst,
            **self._young(lambda result: result.arrival),
            keep_newest=True,
            on_drop=lambda result, cause: self._inputs.drop(None, result.frame.source_id, NOT_TAKEN),
        )
        return iter(self._last)

    def _steadied(self, results: Iterator[FrameResult], clock: StageClock | None) -> Iterator[FrameResult]:
        if self._matting is None:
            return results
        return self._matting.follow(results, self._inputs.reader_of, self._inputs.left, clock)

    def _info_of(self, source_id: str) -> SourceInfo:
        return self._inputs.info_of(source_id)

    def _leave(self, info: SourceInfo, unit: str) -> None:
        """A source has ended: end its tracks and complete its outputs."""
        if self._tracks:
            self._tracks.leave(info)
        if self._events:
            self._events.leave(unit)
        if self._sink_set:
            self._sink_set.end(unit)

    def _counted(self, results: Iterator[Result]) -> Iterator[Result]:
        """Count each result where it is written: in a thread of its own no signal comes between, so that the report has
        what the outputs have. Sources leave with their last result."""
        with closing(cast("Generator[Result]", results)):
            for result in results:
                for left in self._inputs.passed(result.frame.source_id, stopped=self._closed):
                    self._leave(*left)
                self._recorder.frame(None if result.arrival is None else monotonic() - result.arrival)
                self._counts.update(result.detections.class_id.tolist())
                if self._check is not None:
                    self._check.begin(*self._program.largest_input)
                yield result

    def _keep_up(self, settings: Settings, infos: Sequence[SourceInfo]) -> None:
        rate = sum(rate_of(info) for info in infos if info.live) / settings.vid_stride
        if chooser := self._adapter or self._viewer:
            chooser.keep_up(self._program, settings.target_fps or rate or None)

    def _view(self, width: int, height: int) -> View | None:
        return self._viewer.expected(width, height) if self._viewer else None

    def _input_size(self, plan: RunPlan, width: int, height: int) -> tuple[int, int]:
        return plan.preprocess.place_view(width, height, self._view(width, height)).size

    def _prepare(self, info: SourceInfo) -> None:
        if info.width and info.height:
            try:
                self._program.prepare(info.width, info.height, self._view(info.width, info.height))
            except MemoryError as error:
                raise self._explained(error) from error

    def _open_sinks(self) -> None:
        settings = self.settings
        if not self._make_sinks(self.sources[0].info):
            return
        folder = make_run_folder(settings.project, settings.name, settings.exist_ok) if outputs_of(settings) else None
        if self._manifest is not None and folder is not None:
            self._manifest.folder = folder
        self._sink_set = SinkSet(
            self._make_sinks,
            folder or Path(),
            self.card.names,
            inputs=[*self.inputs, *(file for source in self.sources for file in source.info.files)],
            beside=(*FILES, MANIFEST) if folder else (),
            manifest=self._manifest if folder else None,
            stems=self._complete,
            run={"model": self.card.path.stem, "options": options_of(settings)},
            copied=partial(self._program.ledger.add, "write", "d2h", "pixels"),
        )
        if folder is not None:
            self._folder_lock = FolderLock(folder)
            self.folder = folder

    def _explained(self, error: BaseException) -> BaseException:
        """The error; a HostMemoryError in its place if the host ran out of memory and the error does not say so."""
        why = lacks_memory(error)
        if why is None or (isinstance(error, FramefuseError) and type(error) is not EngineError):
            return error
        width, height = self._program.largest_input
        message = f"not enough memory at batch {self._batcher.size} of {width}x{height}: {why}"
        known = HostMemoryError(message, remedy="use a smaller --batch or --imgsz")
        known.stage = getattr(error, "stage", None)
        return known

    def _save_report(self) -> None:
        if self.folder is None:
            return
        try:
            report = self.report
            nothing_left = self._complete and not (report.frames or report.error)
            if not nothing_left or not (self.folder / FILES[0]).exists():  # that of the run that did the work stays
                report.save(self.folder)
        except SinkError:
            if self._error is None:  # otherwise it would hide the first error
                raise
        finally:
            if self._folder_lock is not None:
                self._folder_lock.release()

    def _strange(self) -> list[str]:
        """Warns of a source that the model was not trained for."""
        if not self.card.synthetic or all(info.synthetic for info in self._inputs.infos()):
            return []
        if limits := self.card.about.get("limits"):
            return [f"{self.card.path.stem} is trained on synthetic images: {limits}"]
        return [
            f"{self.card.path.stem} knows only framefuse's synthetic world, so what it finds in other images means "
            "nothing: export a detector of your own (guide: Your own model)"
        ]

    @property
    def _burst(self) -> int:
        """Results that wait between two stages: fewer would drop those of a live source that come at once."""
        at_once = self._adapter.limits.ahead if self._adapter else 1
        return max(self.settings.queue, len(self.sources) * at_once)

    @property
    def _live(self) -> bool:
        return self.sources[0].info.live

    def _young(self, arrival_of: Callable[[Any], float | None]) -> dict[str, Any]:
        """Options of a channel after a live source, which drops what is late; none after others, whose readers wait."""

        def too_old(item: Any) -> bool:
            arrival = arrival_of(item)
            return arrival is not None and monotonic() - arrival > self.settings.max_age

        return {"policy": "latest", "too_old": too_old} if self._live else {}

    def _drop(self, frame: Frame | None, source_id: str, cause: str) -> None:
        self._inputs.drop(frame, source_id, cause)
        self._inputs.done(source_id)


def _close_all() -> None:
    for pipeline in list(_open):
        pipeline.close()
        results = pipeline._results()
        if results is not None:
            try:
                results.close()
            except ValueError:  # it runs in another thread, which `close` has woken
                pipeline._ended.wait(JOIN_SECONDS)
