"""Fleet: several processes, on one or several GPUs of this host, over one list of inputs.

    inputs -> worker on cuda:0: Pipeline(SharedList) -> its sinks
           -> worker on cuda:1: Pipeline(SharedList) -> its sinks

A worker asks for the next input whenever one of its readers has finished one, so a faster GPU takes more of them. One
that dies takes with it only what it was reading; the others go on with the rest. Between the processes travel lines of
JSON: names of inputs, counts, reports. `fleet_worker.py` is the other end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from framefuse import errors
from framefuse.common.redact import brief, redact_source
from framefuse.config import Settings, settings_from
from framefuse.errors import EngineError, FramefuseError, SinkError, SourceError, UsageError
from framefuse.report.facts import ErrorFacts
from framefuse.report.report import Report
from framefuse.runtime.readers import READERS
from framefuse.sinks.run_folder import make_run_folder
from framefuse.sources.paths import videos_in
from framefuse.sources.source import SCHEMES, is_camera

DECODERS = 16
"""Inputs that the workers of one GPU read at once, together: enough for its decoders, and few, so that each of the last
ones goes faster. Alone a worker reads READERS of them, on a CPU one."""


@dataclass(frozen=True)
class WorkerFacts:
    """One process of a fleet."""

    device: str
    """"cuda:0", or "cpu"."""
    inputs: list[str] = field(default_factory=list)
    """What it took, in that order."""
    frames: int = 0
    report: Report | None = None
    """None: it had nothing to do, or it ended before it had one."""
    skipped: list[str] = field(default_factory=list)
    """Why inputs could not be read."""
    error: ErrorFacts | None = None
    """What ended it early."""


@dataclass(frozen=True)
class FleetReport:
    """What the workers did together."""

    frames: int
    seconds: float
    """From the first frame of any worker to the last of any. The start of processes and engines is not in it."""
    start_seconds: float
    """Until the last worker that found work had its first frame."""
    workers: list[WorkerFacts]

    @property
    def fps(self) -> float:
        return self.frames / self.seconds if self.seconds else 0.0

    @property
    def errors(self) -> list[ErrorFacts]:
        return [worker.error for worker in self.workers if worker.error]

    def failure(self) -> FramefuseError:
        """What ended the first of the workers that ended early, as an error of its kind."""
        device, facts = next((worker.device, worker.error) for worker in self.workers if worker.error)
        kind = getattr(errors, facts.kind, EngineError)
        others = f"; {len(self.errors)} of {len(self.workers)} workers ended early" if len(self.workers) > 1 else ""
        failure: FramefuseError = kind(f"{device}: {facts.message}{others}", remedy=facts.remedy)
        return failure

    def table(self) -> str:
        """As plain text: a line for all, and one for each worker."""
        count, devices = sum(len(worker.inputs) for worker in self.workers), len(self.workers)
        lines = [
            f"{self.frames:,} frames of {count} input{'' if count == 1 else 's'} in {self.seconds:.1f} s,"
            f" {self.fps:,.1f} fps on {devices} device{'' if devices == 1 else 's'}, after {self.start_seconds:.1f} s"
            " of starting",
            "",
            f"{'device':<10}{'inputs':>7}{'frames':>10}{'fps':>10}  limited by",
        ]
        warnings = []
        for worker in self.workers:
            report = worker.report
            fps, limiter = (report.fps, report.limiter) if report else (0.0, None)
            counted = f"{len(worker.inputs):>7}{worker.frames:>10,}"
            lines.append(f"{worker.device:<10}{counted}{fps:>10,.1f}  {limiter or '-'}")
            warnings += [*worker.skipped, *(report.warnings if report else [])]
        lines += ["", *(f"warning  {text}" for text in warnings)] if warnings else []
        for worker in self.workers:
            if worker.error:
                lines.append(f"error    {worker.device}: {worker.error.message}")
                lines += [f"         -> {worker.error.remedy}"] if worker.error.remedy else []
        return "\n".join(lines)

    def to_json(self) -> str:
        return json.dumps({"fps": self.fps, **asdict(self)}, indent=2)


class Fleet:
    """Run a list of inputs on several devices of this host.

        Fleet("clips/*.mp4", "yolov8n.onnx", devices=["cuda:0", "cuda:1"], save_jsonl=True).run()

    Outputs go to `project/name/0_cuda_0`, `project/name/1_cuda_1`, ...; beside them lies fleet.json.

    Args:
        sources: files, folders and globs. Each video is one input; a folder or glob with images in it is one.
        model: as for `Pipeline`.
        devices: "cuda:N" counts the GPUs that CUDA_VISIBLE_DEVICES leaves; "cpu" is a process without one. A device
            named twice gets two processes: that pays where the threads of one wait for each other, not for the GPU.
        settings: all options as one object; `options` then change single fields of it. `devices` stands for `device`,
            and `readers` are those of each process: by default those of a GPU share DECODERS, but none reads more than
            READERS, or than its share of the inputs.
        options: fields of `Settings`, and `preset`.

    Attributes:
        folder: where the outputs are; None while, or because, there are none.
        report: what was done, once a run has ended in whatever way.

    Raises:
        UsageError: no device, a camera or a stream among the sources, or a wrong option.
        SourceError: a path is not there.
    """

    def __init__(
        self,
        sources: Sequence[str | Path] | str | Path,
        model: str | Path | None = None,
        *,
        devices: Sequence[str],
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        if not devices or not isinstance(devices, (list, tuple)):
            given = f", not {brief(devices)}" if devices else ""
            raise UsageError(f"a fleet needs devices{given}", remedy='name them: devices=["cuda:0", "cuda:1"]')
        self.settings = settings_from(options, base=settings)
        if self.settings.show:
            raise UsageError("a fleet shows no windows", remedy="leave show out, or use a Pipeline")
        self.inputs = _inputs([sources] if isinstance(sources, str | Path) else sources)
        self.folder: Path | None = None
        self._model = None if model is None else str(model)
        self._environments = {device: _environment(device) for device in devices}
        self._devices = tuple(devices)
        self.report: FleetReport | None = None
        self._workers: list[_Worker] = []

    def run(self, on_count: Callable[[int], None] = lambda frames: None) -> FleetReport:
        """Run to the end.

        Args:
            on_count: called now and then with the number of frames done.

        Raises:
            FramefuseError: no frame came out of any input; of the kind that ended the first worker, or a SourceError.
            SinkError: the folder, or fleet.json in it, cannot be written.
            KeyboardInterrupt: after the workers have completed what they wrote.
        """
        settings = self.settings
        if any(getattr(settings, name) for name in Settings.model_fields if name.startswith("save")):
            self.folder = make_run_folder(settings.project, settings.name, settings.exist_ok)
        waiting = deque(self.inputs)
        started = perf_counter()
        self._workers = []
        try:
            for number, device in enumerate(self._devices):
                self._workers.append(_Worker(device, self._environments[device], waiting, self._job(number)))
            while any(worker.running(0.2) for worker in self._workers):
                on_count(sum(worker.frames for worker in self._workers))
        except BaseException:
            waiting.clear()
            for worker in self._workers:
                worker.interrupt()
            for worker in self._workers:
                worker.stop()
            raise
        finally:
            report = self.report = self._report(started)
            if self.folder is not None:
                self._save(report, self.folder)
        on_count(report.frames)
        if not report.frames:
            if report.errors:
                raise report.failure()
            skipped = "; ".join(text for worker in report.workers for text in worker.skipped)
            raise SourceError(
                f"no frame came out of {len(self.inputs)} inputs: {skipped or 'each of them is empty'}",
                remedy="check that they are videos, or run one of them alone",
            )
        return report

    def _job(self, number: int) -> dict[str, Any]:
        device = self._devices[number]
        on_cpu = device == "cpu"
        values = self.settings.model_dump(mode="json", exclude_unset=True) | {"device": "cpu" if on_cpu else "cuda"}
        if self.folder is not None:
            values |= {"project": str(self.folder), "name": f"{number}_{device.replace(':', '_')}"}
        share = -(-len(self.inputs) // len(self._devices))
        decoders = -(-DECODERS // self._devices.count(device))
        readers = self.settings.readers or (1 if on_cpu else min(READERS, decoders, share))
        return {"model": self._model, "settings": values, "readers": readers}

    def _report(self, started: float) -> FleetReport:
        spans = [worker.span for worker in self._workers if worker.span]
        return FleetReport(
            frames=sum(worker.frames for worker in self._workers),
            seconds=max(last for _, last in spans) - min(first for first, _ in spans) if spans else 0.0,
            start_seconds=max(first for first, _ in spans) - started if spans else 0.0,
            workers=[worker.facts() for worker in self._workers],
        )

    @staticmethod
    def _save(report: FleetReport, folder: Path) -> None:
        path = folder / "fleet.json"
        try:
            path.write_text(report.to_json(), encoding="utf-8")
        except OSError as error:
            raise SinkError(f"cannot write {path}: {error.strerror}", remedy="choose another --project") from error


class _Worker:
    """This side of one process: a thread that answers what comes from it."""

    def __init__(self, device: str, environment: dict[str, str], waiting: deque[str], job: dict[str, Any]) -> None:
        self.device = device
        self.frames = 0
        self.span: tuple[float, float] | None = None
        """When its first and its last frame were done, by the clock of this machine."""
        self._waiting = waiting
        self._inputs: list[str] = []
        self._skipped: list[str] = []
        self._report: Report | None = None
        self._error: ErrorFacts | None = None
        reading, writing = os.pipe()  # of its own: libraries print on stdout
        self._messages = os.fdopen(reading, encoding="utf-8")
        try:
            self._process = subprocess.Popen(
                # -P: av.py in this folder is no av
                [sys.executable, "-P", "-m", "framefuse.fleet.worker", str(writing)],
                stdin=subprocess.PIPE,
                stdout=2,
                pass_fds=(writing,),
                env=environment,
                text=True,
                start_new_session=True,  # an interruption at the terminal reaches it once, through `interrupt`
            )
        finally:
            os.close(writing)
        self._say(job)
        self._thread = threading.Thread(target=self._listen, name=f"fleet {device}", daemon=True)
        self._thread.start()

    def running(self, seconds: float) -> bool:
        """Whether it still runs after waiting so long for its end."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def interrupt(self) -> None:
        """Have it complete what it writes, and end."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """Wait for its end, within reason."""
        if self.running(30):
            self._process.kill()
            self._thread.join()

    def facts(self) -> WorkerFacts:
        inputs = [redact_source(item) for item in self._inputs]
        return WorkerFacts(self.device, inputs, self.frames, self._report, self._skipped, self._error)

    def _say(self, message: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        with self._process as process, self._messages as messages:
            for line in messages:
                message = json.loads(line)
                if message["kind"] == "next":
                    self._hand_out()
                elif message["kind"] == "frames":
                    self.frames, self.span = message["frames"], (message["first"], message["last"])
                elif message["kind"] == "report":
                    self._report = Report.from_json(json.dumps(message["report"]))
                elif message["kind"] == "skipped":
                    self._skipped += message["texts"]
                else:
                    self._error = ErrorFacts(**message["error"])
                    if not self.frames:  # its device or engine failed: others may be luckier
                        self._waiting.extendleft(reversed(self._inputs))
                        self._inputs.clear()
        code = process.returncode
        if code and self._error is None:
            last = ", ".join(map(redact_source, self._inputs[-READERS:])) or "nothing yet"
            self._error = ErrorFacts(
                "EngineError",
                f"the process ended with exit code {code}; it had taken {last}",
                remedy="run these inputs alone, on one device, to see why",
            )

    def _hand_out(self) -> None:
        try:
            item = self._waiting.popleft()
        except IndexError:
            self._say(None)
            return
        self._inputs.append(item)
        self._say(item)


def parse_devices(text: str) -> list[str]:
    """ "0,1" -> ["cuda:0", "cuda:1"]; "all" -> every GPU that is visible.

    Raises:
        UsageError: neither numbers nor all, or there is no GPU.
    """
    if text.strip() == "all":
        from framefuse.cuda.device import cupy

        count = cupy().cuda.runtime.getDeviceCount()
        return [f"cuda:{number}" for number in range(count)]
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--gpus is {text!r}", remedy="--gpus takes numbers as in 0,1, or all")
    return [f"cuda:{int(part)}" for part in parts]


def _inputs(sources: Any) -> list[str]:
    inputs: list[str] = []
    for source in sources if isinstance(sources, Iterable) else [sources]:
        if not isinstance(source, (str, Path)):
            raise UsageError(f"{brief(source)} is no input of a fleet", remedy="name files, folders or globs")
        text = str(source)
        if is_camera(text) or text.partition("://")[0].lower() in SCHEMES:
            raise UsageError(
                f"{redact_source(text)} never ends, and a fleet works off a list",
                remedy="give it a Pipeline of its own",
            )
        inputs += [text] if "://" in text else videos_in(text)
    if not inputs:
        raise UsageError("a fleet needs inputs", remedy="name files, folders or globs")
    return inputs


def _environment(device: object) -> dict[str, str]:
    """Environment of the worker of a device: it sees that GPU only.

    Raises:
        UsageError: no such device.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device == "cpu":
        return dict(os.environ)
    kind, _, number = str(device).partition(":")
    if kind != "cuda" or not number.isdecimal():
        raise UsageError(f"{device!r} is no device of a fleet", remedy='name "cuda:0", "cuda:1", ... or "cpu"')
    chosen = str(int(number))
    if visible is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
        if int(number) >= len(names):
            raise UsageError(
                f"{device} was asked for, but CUDA_VISIBLE_DEVICES={visible} leaves {len(names)} GPUs",
                remedy="name fewer devices, or change CUDA_VISIBLE_DEVICES",
            )
        chosen = names[int(number)]
    return {**os.environ, "CUDA_VISIBLE_DEVICES": chosen}
