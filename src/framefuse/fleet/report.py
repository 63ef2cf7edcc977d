"""What a fleet says at its end: the facts of its workers, and of all together."""

import json
from dataclasses import asdict, dataclass, field

from framefuse import errors
from framefuse.common.text import counted
from framefuse.errors import EngineError, FramefuseError
from framefuse.report.facts import ErrorFacts, few
from framefuse.report.report import Report


@dataclass
class WorkerFacts:
    """One process of a fleet; complete when it has ended."""

    device: str
    """"cuda:0", or "cpu"."""
    inputs: list[str] = field(default_factory=list)
    """The inputs it took, in order."""
    frames: int = 0
    report: Report | None = None
    """None: it had no input, or it ended before it could report."""
    skipped: list[str] = field(default_factory=list)
    """The reasons why inputs could not be read."""
    error: ErrorFacts | None = None
    """The error that ended it early."""

    @property
    def warnings(self) -> list[str]:
        return [*self.skipped, *(self.report.warnings if self.report else [])]


@dataclass(frozen=True)
class FleetReport:
    """The combined result of all workers."""

    frames: int
    seconds: float
    """From the first frame of any worker to the last frame of any. Startup of processes and engines is excluded."""
    start_seconds: float
    """Until every worker with inputs had its first frame."""
    workers: list[WorkerFacts]
    choices: list[str] = field(default_factory=list)
    """Automatic choices, each with its reason."""
    notes: list[str] = field(default_factory=list)
    """What is unusual about an input that workers share."""

    @property
    def fps(self) -> float:
        return self.frames / self.seconds if self.seconds else 0.0

    @property
    def unreadable(self) -> int:
        """Inputs that could not be read, or not to their end."""
        return sum(len(worker.skipped) + (worker.report.unreadable if worker.report else 0) for worker in self.workers)

    @property
    def errors(self) -> list[ErrorFacts]:
        return [worker.error for worker in self.workers if worker.error]

    @property
    def warnings(self) -> list[str]:
        """Those of all workers, each once."""
        return [*self.notes, *dict.fromkeys(text for worker in self.workers for text in worker.warnings)]

    def failure(self) -> FramefuseError:
        """The error of the first worker that ended early, with its original type."""
        device, facts = next((worker.device, worker.error) for worker in self.workers if worker.error)
        kind: type[FramefuseError] = getattr(errors, facts.kind, EngineError)
        others = f"; {len(self.errors)} of {len(self.workers)} workers ended early" if len(self.workers) > 1 else ""
        return kind(f"{device}: {facts.message}{others}", remedy=facts.remedy)

    def table(self) -> str:
        """Plain text: one line in total, and one per worker."""
        count, devices = len({name for worker in self.workers for name in worker.inputs}), len(self.workers)
        lines = [
            f"{counted(self.frames, 'frame')} of {counted(count, 'input')} in {self.seconds:.1f} s, {self.fps:,.1f} fps"
            f" on {counted(devices, 'device')}; startup took {self.start_seconds:.1f} s",
            "",
            f"{'device':<10}{'inputs':>7}{'frames':>10}{'fps':>10}  limited by",
        ]
        for worker in self.workers:
            report = worker.report
            fps, limiter = (report.fps, report.limiter) if report else (0.0, None)
            numbers = f"{len(worker.inputs):>7}{worker.frames:>10,}"
            lines.append(f"{worker.device:<10}{numbers}{fps:>10,.1f}  {limiter or '-'}")
        busy = {report.utilisation.device: report.utilisation for worker in self.workers
                if (report := worker.report) and report.utilisation}  # fmt: skip
        lines += ["", *(f"busy     {one.line()}" for one in busy.values())] if busy else []
        lines += ["", *(f"choice   {text}" for text in self.choices)] if self.choices else []
        lines += ["", *(f"warning  {text}" for text in few(self.warnings))] if self.warnings else []
        for worker in self.workers:
            if worker.error:
                lines.append(f"error    {worker.device}: {worker.error.message}")
                lines += [f"         -> {worker.error.remedy}"] if worker.error.remedy else []
        return "\n".join(lines)

    def to_json(self) -> str:
        return json.dumps({"fps": self.fps, **asdict(self)}, indent=2)
