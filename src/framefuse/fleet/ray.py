"""RayFleet: the files of a job on all machines of a Ray cluster. Paths and ranges travel, never frames.

    files -> units (a file, or a range of a long one) -> Ray Data -> actors, some a GPU or one a CPU machine: Pipeline
          -> parts/KEY -> merged in order: <stem>.jsonl, <stem>.parquet

A unit is done once its folder has its final name, which happens at once. So a unit that runs twice, because its machine
was thought dead, counts once, and a job that was stopped goes on where it was. All machines must see the same files.
"""

import json
import logging
import shutil
import signal
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from framefuse import errors
from framefuse.common.redact import brief, redact_source
from framefuse.config import Settings, settings_from
from framefuse.errors import CapabilityError, FramefuseError, SourceError, UsageError
from framefuse.fleet.fleet import PROCESSES, inputs_of
from framefuse.fleet.ranges import MERGED, Piece, can_be_cut, merge, ranges, seconds_of
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.pipeline import Pipeline
from framefuse.report.facts import few
from framefuse.runtime.job import manifest_of, of_shard, share
from framefuse.runtime.model import Model
from framefuse.runtime.readers import READERS
from framefuse.runtime.requested_sinks import outputs_of
from framefuse.sinks import clean_stem
from framefuse.sinks.run_folder import MANIFEST, FolderLock, UniqueNames, make_run_folder, place_of, save, sink_errors
from framefuse.sources import find, is_image_path

LOCAL = "local"
"""Address for a cluster of this machine alone."""
RANGE_SECONDS = 120.0
"""Of a long file that one machine reads."""
ATTEMPTS = 3
"""How often a unit may end the process that runs it."""
REACH_SECONDS = 10.0
"""For the first connection to a cluster."""
RESULT, PARTS, DONE, TRIES = "ray.json", "parts", "done.json", ".tries"


@dataclass(frozen=True)
class Unit:
    """What one actor does at a time."""

    file: str
    key: str
    """Name of its folder in PARTS; changes with the file, the model and the options."""
    start: float | None = None
    end: float | None = None
    """Seconds."""


@dataclass(frozen=True)
class RayReport:
    """The result of a job on a cluster."""

    files: int
    """That were processed now, or in an earlier run that this one resumes."""
    frames: int
    """Of this run."""
    seconds: float
    """With the start of the actors."""
    machines: dict[str, int]
    """Frames by the name of the machine."""
    failed: dict[str, str]
    """File -> why it is not complete."""

    @property
    def unreadable(self) -> int:
        """Files that could not be read, or not to their end."""
        return len(self.failed)

    def table(self) -> str:
        """Plain text: one line in total, and one per machine."""
        rate = self.frames / self.seconds if self.seconds else 0.0
        lines = [f"{self.frames:,} frames of {self.files:,} files in {self.seconds:.1f} s, {rate:,.1f} fps"]
        lines += [f"  {name:<24}{frames:>10,} frames" for name, frames in sorted(self.machines.items())]
        return "\n".join([*lines, *(f"warning  {file}: {why}" for file, why in self.failed.items())])

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)


class RayFleet:
    """Run a list of files on a Ray cluster.

        RayFleet("clips/*.mp4", "yolov8n.onnx", address="auto", save_jsonl=True).run()

    Args:
        sources: files, folders and globs that all machines see under the same paths, as they see `project`.
        model: as for `Pipeline`.
        address: of the cluster; "auto": the one that this machine belongs to; LOCAL: a cluster of this machine alone.
        settings: all options as one object; `options` then override single fields of it. `save_jsonl` and
            `save_parquet` are the outputs. With `resume`, what an earlier run has completed is not done again.
        options: fields of `Settings`, and `preset`.

    Attributes:
        folder: of the outputs; None before the run.
        report: the result, once a run has ended.

    Raises:
        CapabilityError: Ray is not installed.
        UsageError: a live source among the inputs, outputs other than MERGED, or a wrong option.
        SourceError: a path does not exist.
        ModelError: the model cannot be used.
    """

    def __init__(
        self,
        sources: Sequence[str | Path] | str | Path,
        model: str | Path | None = None,
        *,
        address: str = LOCAL,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        self.settings = settings_from(options, base=settings)
        wanted = outputs_of(self.settings)
        others = sorted({*wanted} - {*MERGED} | ({"show"} if self.settings.show else set()))
        if others or not wanted:
            given = f"{', '.join(others)} cannot be merged" if others else "a job on a cluster needs outputs"
            raise UsageError(given, remedy=f"ask for {' or '.join(MERGED)}")
        inputs = inputs_of(sources)
        if self.settings.shard:
            inputs, self.settings = share(inputs, self.settings.shard), of_shard(self.settings)
        load()
        self._inputs, self._missing = dict[str, list[Path]](), dict[str, str]()
        for file in dict.fromkeys(inputs):
            if "://" in file:
                raise UsageError(f"{brief(file)} is not a file", remedy="name files that all machines see")
            try:
                self._inputs[file] = [Path(path) for path in find(file)]
            except SourceError as error:
                self._missing[redact_source(file)] = error.message
        if not self._inputs and self._missing:
            raise _none_read(self._missing)
        for file, paths in self._inputs.items():
            if len({is_image_path(str(path)) for path in paths}) > 1:
                raise UsageError(f"{brief(file)} has images and videos", remedy="name them apart, such as '*.mp4'")
        self._address, self._model = address, str(find_model(model).resolve())
        self._card = read_card(Path(self._model))
        self.folder: Path | None = None
        self.report: RayReport | None = None

    def run(self, on_count: Callable[[int], None] = lambda frames: None) -> RayReport:
        """Run to the end, and merge what the machines have found.

        Args:
            on_count: called with the number of frames whenever a unit is done.

        Raises:
            CapabilityError: the cluster cannot be reached or has another version.
            SourceError: no file could be read.
            SinkError: an output cannot be written.
        """
        settings, may_exist = self.settings, self.settings.exist_ok or self.settings.resume
        folder = make_run_folder(settings.project, settings.name, may_exist)
        self.folder, lock = folder, FolderLock(folder)
        try:
            report = self.report = self._process(folder, on_count)
        finally:
            with suppress(OSError):  # they are empty where the cluster could not be reached
                (folder / PARTS).rmdir()
                if not may_exist:
                    folder.rmdir()
            lock.release()
        if report.failed and not report.files:
            raise _none_read(report.failed)
        return report

    def _process(self, folder: Path, on_count: Callable[[int], None]) -> RayReport:
        started, manifest = perf_counter(), manifest_of(self.settings, self._card, folder)
        names, left, failed = UniqueNames(), dict[str, list[Unit]](), dict(self._missing)
        complete = {file: stem for file, paths in self._inputs.items() if (stem := manifest.stem(paths)) is not None}
        for stem in (*complete.values(), *manifest.of_others(self._inputs.values())):
            names.take(stem)
        stems = dict(complete)
        for file, paths in self._inputs.items():
            if file not in complete:
                is_image = is_image_path(str(paths[0]))
                try:
                    left[file] = self._units(file, manifest.key(paths))
                except OSError as error:  # it was there when the job was made
                    failed[redact_source(file)] = f"cannot read it: {error.strerror}"
                    continue
                stems[file] = names.take("images" if is_image else clean_stem(paths[0].stem) or "file")
        machines, frames = dict[str, int](), 0
        done = {unit.key for units in left.values() for unit in units if (folder / PARTS / unit.key / DONE).is_file()}
        waiting = {file: {unit.key for unit in units} for file, units in left.items()}
        owners = {key: file for file, keys in waiting.items() for key in keys}
        for row in (*({"key": key} for key in done), *self._results(left, done)):
            file = owners[row["key"]]
            frames += row.get("frames", 0)
            if "machine" in row:
                machines[row["machine"]] = machines.get(row["machine"], 0) + row["frames"]
            if row.get("error"):
                failed[redact_source(file)] = row["error"]
                continue
            waiting[file].discard(row["key"])
            on_count(frames)
            if not waiting[file]:
                outputs = self._merge(stems[file], left[file])
                paths = self._inputs[file]
                manifest.add(file, place_of(paths), manifest.key(paths), stems[file], outputs)
        manifest.close()
        seconds = perf_counter() - started
        count = len(self._inputs) + len(self._missing) - len(failed)
        report = RayReport(count, frames, seconds, machines, failed)
        save(folder / RESULT, report.to_json().encode())
        if not failed:
            shutil.rmtree(folder / PARTS, ignore_errors=True)
        return report

    def _units(self, file: str, key: str) -> list[Unit]:
        """Ranges of a file. Their bounds are the same for both that meet there, so each frame is in one of them."""
        bounds: list[float] = []
        if can_be_cut(self.settings):
            try:
                bounds = [RANGE_SECONDS * number for number in range(1, int(seconds_of(file) / RANGE_SECONDS))]
            except FramefuseError:  # its actor will say what is wrong
                return [Unit(file, key[:24])]
        found = ranges(bounds)
        return [Unit(file, f"{key[:24]}-{number}of{len(found)}", *ends) for number, ends in enumerate(found, start=1)]

    def _results(self, left: dict[str, list[Unit]], done: set[str]) -> Iterator[dict[str, Any]]:
        """What the actors say of the units that are not done, as they end."""
        assert self.folder is not None
        todo = [unit for units in left.values() for unit in units if unit.key not in done]
        units = [{"unit": json.dumps(asdict(unit))} for unit in todo]
        if not units:
            return
        parts = (self.folder / PARTS).resolve()
        with sink_errors(parts):
            parts.mkdir(exist_ok=True)
        with connected(self._address) as ray:
            count, needs = _actors(ray, self.settings)
            settings = self.settings
            if "num_cpus" in needs and not settings.threads:
                settings = settings_from({"threads": needs["num_cpus"]}, base=settings)
            of_job = {"project", "name", "exist_ok", "resume", "shard"}
            given = settings.model_dump(mode="json", exclude_unset=True, exclude=of_job)
            # One unit a block, so that each goes to whichever actor is free, and is all that is done again.
            rows = ray.data.from_items(units, override_num_blocks=len(units)).map_batches(
                Worker,
                fn_constructor_args=(self._model, given, str(parts)),
                batch_size=READERS if "num_gpus" in needs else 1,  # as many as keep the decoders busy
                compute=ray.data.ActorPoolStrategy(size=min(count, len(units))),
                **needs,
            )
            for row in rows.iter_rows():
                said = json.loads(row["said"])
                if stopped := said.get("stopped"):
                    name, message, remedy = stopped
                    raise getattr(errors, name)(message, remedy=remedy)
                yield said

    def _merge(self, stem: str, units: Sequence[Unit]) -> list[Path]:
        """Make the outputs of a file of its parts, in order."""
        assert self.folder is not None
        pieces = list[Piece]()
        for unit in units:
            part = self.folder / PARTS / unit.key
            files = sorted(path for path in part.iterdir() if path.name != MANIFEST)
            pieces.append(Piece(files, 0, json.loads((part / DONE).read_bytes())["frames"]))
        return merge(self.folder, stem, pieces)


class Worker:
    """One actor: a model that stays open, and a run for each unit."""

    def __init__(self, model: str, values: dict[str, Any], parts: str) -> None:
        self._parts, self._error = Path(parts), list[str | None]()
        try:
            self._model = Model(model, settings=settings_from(values))
        except FramefuseError as error:  # an actor that does not start says nothing
            self._error = [type(error).__name__, error.message, error.remedy]

    def __call__(self, batch: dict[str, Sequence[str]]) -> dict[str, list[str]]:
        """What became of each unit, as JSON. Whole files of one batch are read at the same time."""
        units = [Unit(**json.loads(text)) for text in batch["unit"]]
        if self._error:
            return {"said": [json.dumps({"key": unit.key, "stopped": self._error}) for unit in units]}
        whole = [unit for unit in units if not (unit.start or unit.end)]
        said = self._together(whole) if len(whole) > 1 else {}
        return {"said": [json.dumps(said.get(unit.key) or self._alone(unit)) for unit in units]}

    def _together(self, units: Sequence[Unit]) -> dict[str, dict[str, Any]]:
        """What became of each file that was read to its end; `_alone` finds out what is wrong with the others."""
        files, frames, own = [unit.file for unit in units], Counter[str](), self._new("together")
        try:
            for result in Pipeline(files, self._model, project=own.parent, name=own.name, readers=len(files)):
                frames[result.frame.source_id] += 1
            entries = [json.loads(line) for line in (own / MANIFEST).read_bytes().splitlines()]
        except (FramefuseError, OSError):
            entries = []
        said = {}
        outputs = {entry["input"]: entry["outputs"] for entry in entries}
        for unit in units:
            if unit.file in outputs:
                part = self._new(unit.key)
                part.mkdir()
                for name in outputs[unit.file]:
                    (own / name).rename(part / Path(name).name)
                said[unit.key] = self._finished(unit, part, frames[unit.file])
        shutil.rmtree(own, ignore_errors=True)
        return said

    def _alone(self, unit: Unit) -> dict[str, Any]:
        tries, frames, own = self._parts / f"{unit.key}{TRIES}", 0, self._new(unit.key)
        with tries.open("a") as file:
            file.write("started\n")
        if len(tries.read_text().splitlines()) > ATTEMPTS:
            return _said(unit, error=f"it has ended the process that read it {ATTEMPTS} times")
        try:
            bounds: dict[str, Any] = {"start": unit.start, "end": unit.end} if unit.end or unit.start else {}
            for _ in Pipeline(unit.file, self._model, project=own.parent, name=own.name, **bounds):
                frames += 1
        except FramefuseError as error:
            shutil.rmtree(own, ignore_errors=True)
            return _said(unit, error=error.message)
        tries.unlink(missing_ok=True)
        return self._finished(unit, own, frames)

    def _new(self, key: str) -> Path:
        """A name that no other folder has."""
        return self._parts / f"{key}.{uuid.uuid4().hex}"

    def _finished(self, unit: Unit, part: Path, frames: int) -> dict[str, Any]:
        """Give the part of a unit its final name, at once."""
        save(part / DONE, json.dumps({"frames": frames}).encode())
        try:
            part.rename(self._parts / unit.key)
        except OSError:  # it was done by another one meanwhile
            shutil.rmtree(part, ignore_errors=True)
            frames = 0
        return _said(unit, frames)


def _none_read(failed: dict[str, str]) -> SourceError:
    return SourceError(f"no file could be read: {'; '.join(few(list(failed.values())))}")


def _said(unit: Unit, frames: int = 0, error: str = "") -> dict[str, Any]:
    return {"key": unit.key, "machine": socket.gethostname(), "frames": frames, "error": error}


def _actors(ray: Any, settings: Settings) -> tuple[int, dict[str, float]]:
    """How many actors, and what each needs: a share of a GPU, or the cores of the smallest machine."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if settings.device == "cuda" or (settings.device == "auto" and gpus):
        if not gpus:
            raise CapabilityError("the cluster has no GPU", remedy="leave out --device cuda")
        return gpus * PROCESSES, {"num_gpus": 1 / PROCESSES}
    cores = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    if not cores:
        raise CapabilityError("no machine of the cluster has a core to spare", remedy="start nodes with CPUs")
    return sum(count // min(cores) for count in cores), {"num_cpus": min(cores)}


def load() -> Any:
    """The package ray, with its module data. CapabilityError: it is not installed."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise CapabilityError("Ray is not installed", remedy="pip install 'framefuse[ray]'") from error
    return ray


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray takes signals in the main thread, and ends the process; those who had them stop the job and say so."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The package ray, connected to a cluster. CapabilityError: there is no such cluster, or it cannot be used."""
    ray = load()
    ours = not ray.is_initialized()
    if ours:
        # Without an address, Ray would join a cluster that happens to run on this machine.
        options: dict[str, Any] = {"address": address} | ({"include_dashboard": False} if address == LOCAL else {})
        host, _, port = address.rpartition("/")[2].rpartition(":")
        try:
            if port.isdecimal():  # Ray itself tries for many minutes
                socket.create_connection((host, int(port)), REACH_SECONDS).close()
            with _handlers_kept():
                ray.init(configure_logging=False, log_to_driver=False, **options)
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            remedy = "check the address, and that all machines have the same versions of Ray and Python"
            if address == "auto" and isinstance(error, ConnectionError):
                reason = "this machine belongs to none"
                remedy = "start one with `ray start --head`, or name its address: --ray HOST:PORT"
            raise CapabilityError(f"the Ray cluster {address} cannot be used: {reason}", remedy=remedy) from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()
