"""Fleet: several processes, on one or more GPUs of this host, share one list of inputs.

    inputs -> worker on cuda:0: Pipeline(SharedList) -> its sinks
           -> worker on cuda:1: Pipeline(SharedList) -> its sinks

A worker requests the next input whenever one of its readers has finished one, so a faster GPU processes more of them.
If a worker dies, only the inputs it was reading are lost; the others process the rest. Of a single video, the workers
take segments in the same way, if the outputs can be made whole of parts (`ranges.py`); where it cannot be cut at key
frames, or results are large masks, each worker reads a range. If one of them fails, what all have found stays in parts.

The processes exchange lines of JSON: names of inputs, frame counts, reports. `worker.py` is the other end. Each writes
into a folder of its own; at the end, complete outputs are moved into that of the run, where they have the names that
one process would have given them.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from framefuse.common.files import Files
from framefuse.common.redact import brief, redact_source
from framefuse.common.text import counted
from framefuse.config import Settings, settings_from
from framefuse.errors import FramefuseError, SourceError, UsageError
from framefuse.fleet.ranges import Piece, Range, can_be_cut, merge, ranges, seconds_of
from framefuse.fleet.report import FleetReport, WorkerFacts
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.report.facts import ErrorFacts
from framefuse.report.report import Report
from framefuse.runtime import choices
from framefuse.runtime.job import of_shard, share
from framefuse.runtime.readers import READERS, alone, cut_options
from framefuse.runtime.requested_sinks import outputs_of
from framefuse.sinks.run_folder import MANIFEST, encode, make_run_folder, output_path, save
from framefuse.sources import endless, is_image_path, open_source, segments, videos_in
from framefuse.sources.segments import Cutter, worth_cutting
from framefuse.sources.source import FEWER

DECODERS = 16
"""Inputs that all workers of one GPU read at once: enough for its decoders, but few, so that the last inputs finish
sooner. A single worker reads up to READERS of them, or one on a CPU."""
RESULT = "fleet.json"
PROCESSES = 3
"""Of a GPU: with one, its decoders wait for Python (docs/guide/gpu.md)."""
WORTH = 15_000
"""Frames from which on several processes pay: those of a few seconds, which their start takes longer."""
SAMPLED = 16
"""Videos whose lengths tell about how many frames a list has."""


class Fleet:
    """Run a list of inputs on several devices of this host.

        Fleet("clips/*.mp4", "yolov8n.onnx", devices=["cuda:0", "cuda:1"], save_jsonl=True).run()

    Outputs go to `project/name`, as those of a Pipeline, with fleet.json. The reports of the processes, and what one of
    them has not completed, are in `0_cuda_0`, `1_cuda_1`, ... there.

    Args:
        sources: files, folders and globs. Each video is one input; a folder or glob of images is one input.
        model: as for `Pipeline`.
        devices: "cuda:N" counts the GPUs that CUDA_VISIBLE_DEVICES exposes; "cpu" is a process without a GPU. A device
            named twice gets two processes, which helps if the threads of one wait for each other, not for the GPU.
        settings: all options as one object; `options` then override single fields of it. `devices` replaces `device`.
            `readers` applies to each process; by default the processes of a GPU share DECODERS, and none reads more
            than READERS or its share of the inputs.
        why: reason of the choice of the devices, for the report.
        options: fields of `Settings`, and `preset`.

    Attributes:
        folder: folder of the outputs; None before the run, or if nothing is written.
        report: the result, once a run has ended or failed.

    Raises:
        UsageError: no device, no model, a live source among the inputs, or a wrong option.
        SourceError, ModelError: a path does not exist.
    """

    def __init__(
        self,
        sources: Sequence[str | Path] | str | Path,
        model: str | Path | None = None,
        *,
        devices: Sequence[str],
        settings: Settings | None = None,
        why: str = "",
        **options: Any,
    ) -> None:
        if not devices or not isinstance(devices, (list, tuple)):
            given = f", not {brief(devices)}" if devices else ""
            raise UsageError(f"a fleet needs devices{given}", remedy='pass devices=["cuda:0", "cuda:1"]')
        self.settings = settings_from(options, base=settings)
        if self.settings.show:
            raise UsageError("a fleet cannot show windows", remedy="leave show out, or use a Pipeline")
        if self.settings.resume:
            raise UsageError("a fleet cannot resume", remedy="leave resume out, or use a Pipeline for each shard")
        self.inputs = inputs_of(sources)
        if self.settings.shard:
            self.inputs = share(self.inputs, self.settings.shard)
            self.settings = of_shard(self.settings)
        self.folder: Path | None = None
        find_model(model)
        self._model = str(model)
        self._environments = {device: _environment(device) for device in devices}
        self._devices, self._why = tuple(devices), why
        self._shares_segments, self._ranges = self._cut()
        """Whether workers take segments of the only input, or the range of it for each of them."""
        self._segments: Cutter | None = None
        self.report: FleetReport | None = None
        self._workers: list[_Worker] = []

    def run(self, on_count: Callable[[int], None] = lambda frames: None) -> FleetReport:
        """Run to the end.

        Args:
            on_count: called regularly with the number of finished frames.

        Raises:
            FramefuseError: no input produced a frame: the error of the first failed worker, or a SourceError.
            SinkError: the folder, or fleet.json in it, cannot be written, or fleet.json is an input.
            KeyboardInterrupt: after the workers have completed their outputs.
        """
        settings = self.settings
        if outputs_of(settings):
            self.folder = make_run_folder(settings.project, settings.name, settings.exist_ok)
            read = [*self.inputs, self._model, settings.calib]
            output_path(self.folder, RESULT, Files([Path(name) for name in read if name]))
        shared, started = deque(self.inputs), perf_counter()
        self._workers = []
        self._segments = None
        try:
            if self._shares_segments:
                given = cut_options(settings), sum(map(self._decoders, self._devices)), segments.SECONDS
                self._segments = Cutter(Path(self.inputs[0]), *given)
            for number, device in enumerate(self._devices):
                waiting = deque(self.inputs) if self._is_cut else shared
                self._workers.append(
                    _Worker(device, self._environments[device], waiting, self._job(number), self._segments)
                )
            while any(worker.running(0.2) for worker in self._workers):
                on_count(sum(worker.facts.frames for worker in self._workers))
        except BaseException:
            shared.clear()
            for worker in self._workers:
                worker._process.send_signal(signal.SIGINT)  # to complete its outputs and exit
            for worker in self._workers:
                worker.stop()
            raise
        finally:
            if self._segments is not None:
                self._segments.close()
            pieces = self._pieces() if self._is_cut else None
            report = self.report = self._report(started, pieces)
            if self.folder is not None:
                if self._is_cut:
                    self._join(self.folder, pieces)
                else:
                    self._collect(self.folder)
                save(self.folder / RESULT, report.to_json().encode())
        on_count(report.frames)
        if not report.frames:
            if report.errors:
                raise report.failure()
            skipped = "; ".join(text for worker in report.workers for text in worker.warnings)
            reason = f"no input produced a frame ({len(self.inputs)} tried): {skipped or 'all of them are empty'}"
            raise SourceError(reason, remedy="check that they are videos, or run one of them by itself")
        return report

    @property
    def _is_cut(self) -> bool:
        """Whether all workers read the only input."""
        return self._shares_segments or bool(self._ranges)

    def _cut(self) -> tuple[bool, list[Range]]:
        """Whether workers take segments of the only input; if not, its ranges of equal length, where it can be cut.
        Segments of which one has to wait for another keep its results, so these must be small."""
        count = len(self._devices)
        if not len(self.inputs) == 1 < count or not can_be_cut(self.settings):
            return False, []
        with suppress(FramefuseError):  # the worker will say what is wrong
            card, path = read_card(find_model(self._model)), alone(self.inputs[0])
            if card.states:
                return False, []
            if card.task != "semantic" and path is not None and worth_cutting(path, cut_options(self.settings)):
                return True, []
            if seconds := seconds_of(self.inputs[0]):
                return False, ranges([seconds * number / count for number in range(1, count)])
        return False, []

    def _join(self, folder: Path, pieces: Sequence[Piece] | None) -> None:
        """Make the outputs of a video from those of its pieces; they stay as they are if one is missing."""
        files = [file for piece in pieces or () for file in piece.files]
        if pieces and files:
            merge(folder, files[0].stem, pieces)
            for file in dict.fromkeys(files):
                file.unlink()

    def _pieces(self) -> list[Piece] | None:
        """Where the results of the only input are, in order; None: some are missing."""
        if len(self._workers) < len(self._devices) or any(worker.failed for worker in self._workers):
            return None
        if self._segments is None:
            return [Piece(worker.outputs, 0, worker.facts.frames) for worker in self._workers]
        found = list[tuple[int, Piece]]()
        for worker in self._workers:
            first = 0
            for number, frames in worker.counts:
                found.append((number, Piece(worker.outputs, first, frames)))
                first += frames
        found.sort()
        whole = self._segments.over and self._segments.taken == [number for number, _ in found]
        return [piece for _, piece in found] if whole else None

    def _collect(self, folder: Path) -> None:
        """Move the outputs of complete inputs into the folder of the run, and make one manifest of all. What has the
        name of another output stays, as where files of several folders have one name."""
        entries: list[dict[str, Any]] = []
        for number, device in enumerate(self._devices):
            own = folder / _folder_of(number, device)
            with suppress(OSError):
                for line in (own / MANIFEST).read_bytes().splitlines():  # as text, it also ends at U+2028
                    entry = json.loads(line)
                    moved = {
                        name: str(_move(own / name, folder / name).relative_to(folder)) for name in entry["outputs"]
                    }
                    sizes = {moved[name]: size for name, size in entry["sizes"].items()}
                    entries.append({**entry, "outputs": [*moved.values()], "sizes": sizes})
                (own / MANIFEST).unlink()
        if entries:
            places = {given: number for number, given in enumerate(self.inputs)}  # a folder of images has another name
            entries.sort(key=lambda entry: places.get(entry["input"], len(places)))
            text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
            save(folder / MANIFEST, encode(text))

    def _job(self, number: int) -> dict[str, Any]:
        device = self._devices[number]
        on_cpu = device == "cpu"
        values = self.settings.model_dump(mode="json", exclude_unset=True) | {"device": "cpu" if on_cpu else "cuda"}
        if self.folder is not None:
            values |= {"project": str(self.folder), "name": _folder_of(number, device)}
        if self._is_cut:
            readers = values["readers"] = self._decoders(device)
        else:
            share = -(-len(self.inputs) // len(self._devices))
            readers = self.settings.readers or min(self._decoders(device), share)
        if self._ranges:
            start, end = self._ranges[number]
            values |= {"start": start, "end": end}
        source = "segments" if self._shares_segments else "list" if len(self.inputs) > 1 else "whole"
        return {"model": self._model, "settings": values, "readers": readers, "source": source}

    def _decoders(self, device: str) -> int:
        """Most inputs, or parts of the only one, that a worker of a device reads at once."""
        if self.settings.readers:
            return self.settings.readers
        return 1 if device == "cpu" else min(READERS, -(-DECODERS // self._devices.count(device)))

    def _report(self, started: float, pieces: Sequence[Piece] | None) -> FleetReport:
        workers = [worker.facts for worker in self._workers]
        spans = [worker.span for worker in self._workers if worker.span]
        return FleetReport(
            frames=sum(facts.frames for facts in workers),
            seconds=max(last for _, last in spans) - min(first for first, _ in spans) if spans else 0.0,
            start_seconds=max(first for first, _ in spans) - started if spans else 0.0,
            workers=[replace(facts, inputs=[redact_source(item) for item in facts.inputs]) for facts in workers],
            choices=[self._why] if self._why else [],
            notes=self._notes(pieces) if self._is_cut else [],
        )

    def _notes(self, pieces: Sequence[Piece] | None) -> list[str]:
        """What is unusual about the only input."""
        name = redact_source(self.inputs[0])
        if self.folder is not None and pieces is None:
            return [f"{name}: results are missing, so those of each process stay in its folder in {self.folder}"]
        if self._segments is not None and sum(worker.read for worker in self._workers) < self._segments.frames:
            count = sum(frames for worker in self._workers for _, frames in worker.counts)
            return [f"{name}: {FEWER.format(self._segments.frames, count)}"]
        return []


class _Worker:
    """The fleet's side of one worker process: a thread that answers its messages."""

    def __init__(
        self,
        device: str,
        environment: dict[str, str],
        waiting: deque[str],
        job: dict[str, Any],
        segments: Cutter | None,
    ) -> None:
        self.facts = WorkerFacts(device)
        self.span: tuple[float, float] | None = None
        """Time of its first and its last frame (`perf_counter`)."""
        self.counts: list[tuple[int, int]] = []
        """Numbers of the segments that it has read to their end, in order, and their frames."""
        self.read = 0
        """Frames in them, with those that are not to be shown."""
        self._waiting, self._segments, self._taken = waiting, segments, 0
        reading, writing = os.pipe()  # not stdout, on which libraries print
        self._messages = os.fdopen(reading, encoding="utf-8")
        try:
            # -P: do not import modules, such as an av.py, from the working directory
            command = [sys.executable, "-P", "-m", "framefuse.fleet.worker", str(writing)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": 2, "pass_fds": (writing,), "text": True}
            # A session of its own: Ctrl-C reaches it only once, through the fleet
            self._process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
        finally:
            os.close(writing)
        self._send(job)
        self._thread = threading.Thread(target=self._listen, name=f"fleet {device}", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether results of its part of the only input are missing. One that has taken no segment misses none."""
        if self._segments is None:
            return self.facts.error is not None
        return self._taken > 0 and (self.facts.error is not None or bool(self.facts.skipped))

    @property
    def outputs(self) -> list[Path]:
        return [Path(path) for path in self.facts.report.outputs] if self.facts.report else []

    def running(self, seconds: float) -> bool:
        """Whether it still runs after waiting up to `seconds` for its end."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def stop(self) -> None:
        """Wait for it to exit; kill it after 30 s."""
        if self.running(30):
            self._process.kill()
            self._thread.join()

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        facts = self.facts
        with self._process as process, self._messages as messages:
            for line in messages:
                message = json.loads(line)
                if message["kind"] == "next":
                    try:
                        facts.inputs.append(self._waiting.popleft())
                    except IndexError:
                        self._send(None)
                    else:
                        self._send(facts.inputs[-1])
                elif message["kind"] == "segment":
                    found = self._segments and self._segments.take()
                    self._taken += found is not None
                    self._send(found and (found.number, str(found.begin), found.end and str(found.end)))
                elif message["kind"] == "segments":
                    self.counts, self.read = message["counts"], message["read"]
                elif message["kind"] == "frames":
                    facts.frames, self.span = message["frames"], (message["first"], message["last"])
                elif message["kind"] == "report":
                    facts.report = Report.from_json(json.dumps(message["report"]))
                elif message["kind"] == "skipped":
                    facts.skipped += message["texts"]
                else:
                    facts.error = ErrorFacts(**message["error"])
                    if not facts.frames:  # its device or engine failed; other workers may succeed
                        self._waiting.extendleft(reversed(facts.inputs))
                        facts.inputs.clear()
        code = process.returncode
        if code and facts.error is None:
            last = ", ".join(map(redact_source, facts.inputs[-READERS:])) or "no inputs yet"
            reason = f"the worker ended with exit code {code}; it had taken {last}"
            facts.error = ErrorFacts("EngineError", reason, remedy="run these inputs on one device to find the cause")


def _folder_of(number: int, device: str) -> str:
    return f"{number}_{device.replace(':', '_')}"


def _move(source: Path, target: Path) -> Path:
    """Move a file, or the files of a folder, unless there is one of that name; where it is now."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        for inner in list(source.iterdir()):
            _move(inner, target / inner.name)
        with suppress(OSError):  # something stayed
            source.rmdir()
    elif source.exists() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
    return target if target.exists() and not source.is_file() else source


def several_pay(sources: Any, settings: Settings) -> tuple[list[str], str] | None:
    """The devices of a fleet that reads these sources faster than one process, and why; None: there are none.

    Only videos count, on GPUs, in a run that writes files and that nothing keeps in one process.
    """
    single = settings.show or settings.resume or settings.readers or not outputs_of(settings)
    if single or settings.gpu is not None or settings.device == "cpu":
        return None
    try:
        choices.check_cuda()
        inputs = inputs_of(sources)
    except FramefuseError:  # a Pipeline says what is wrong with them
        return None
    stems = {Path(path).stem.lower() for path in inputs}
    cut = len(inputs) == 1 and can_be_cut(settings)
    several = cut or len(stems) == len(inputs) >= 2 * PROCESSES  # of two with one name, one process renames the outputs
    if not several or any(is_image_path(path) or "://" in path for path in inputs):
        return None
    frames = about(inputs)
    if frames < WORTH:
        return None
    gpus = parse_devices("all")
    why = f"{counted(PROCESSES, 'process', 'processes')} on each of {counted(len(gpus), 'GPU')}: "
    what = "they share the video, which has" if cut else f"{counted(len(inputs), 'video')} with"
    why += f"{what} about {frames:,} frames; --gpus 0 runs one process"
    return gpus * PROCESSES, why


def about(inputs: Sequence[str]) -> int:
    """About how many frames videos have, by the headers of SAMPLED of them."""
    lengths = []
    for path in inputs[:: -(-len(inputs) // SAMPLED)]:
        with suppress(FramefuseError), closing(open_source(path)) as source:
            lengths.append(source.info.frames or 0)
    return round(sum(lengths) / len(lengths) * len(inputs)) if lengths else 0


def parse_devices(text: str) -> list[str]:
    """ "0,1" -> ["cuda:0", "cuda:1"]; "all" -> every visible GPU; UsageError: neither numbers nor all."""
    if text.strip() == "all":
        from framefuse.cuda.device import cupy

        return [f"cuda:{number}" for number in range(cupy().cuda.runtime.getDeviceCount())]
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--gpus is {text!r}", remedy="use numbers such as 0,1, or all")
    return [f"cuda:{int(part)}" for part in parts]


def inputs_of(sources: Any) -> list[str]:
    """The inputs that files, folders and globs stand for: each video is one, and so is a folder or glob of images.

    Raises:
        UsageError: one never ends, or there is none.
        SourceError: a path does not exist.
    """
    inputs: list[str] = []
    for source in [sources] if isinstance(sources, str) or not isinstance(sources, Iterable) else sources:
        if not isinstance(source, (str, Path)):
            raise UsageError(f"{brief(source)} is not an input for a fleet", remedy="use files, folders or globs")
        text = str(source)
        if endless(text):
            raise UsageError(f"a fleet cannot read {redact_source(text)}, which never ends", remedy="use a Pipeline")
        inputs += [text] if "://" in text else videos_in(text)
    if not inputs:
        raise UsageError("a fleet needs inputs", remedy="use files, folders or globs")
    return inputs


def _environment(device: object) -> dict[str, str]:
    """Environment of the worker of a device: only that GPU is visible. UsageError: there is no such device."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device == "cpu":
        return dict(os.environ)
    kind, _, number = str(device).partition(":")
    if kind != "cuda" or not number.isdecimal():
        raise UsageError(f"{device!r} is not a device for a fleet", remedy='use "cuda:0", "cuda:1", ... or "cpu"')
    chosen = str(int(number))
    if visible is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
        if int(number) >= len(names):
            reason = f"but CUDA_VISIBLE_DEVICES={visible} exposes {counted(len(names), 'GPU')}"
            remedy = "use fewer devices, or change CUDA_VISIBLE_DEVICES"
            raise UsageError(f"{device} was asked for, {reason}", remedy=remedy)
        chosen = names[int(number)]
    return {**os.environ, "CUDA_VISIBLE_DEVICES": chosen}
