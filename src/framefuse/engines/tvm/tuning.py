"""Autotuning in time slices: measures schedules for the heaviest functions of a network.

Every measured schedule goes to the database at once, so the next slice continues where the last one ended. Functions
take turns, the heaviest first, with a few candidates each, so that a short slice helps all of them.

The database on disk is one folder per target, with TVM's two files:

database_workload.json        one function per line
database_tuning_record.json   one schedule per line, with the line number of its function and its run times in seconds
target.json                   what it was tuned for

Tuners append lines, so only the last line can be torn: readers skip it, the next tuner removes it, and `note` says so.
Any other damage is refused. Readers work on a copy, because a tuner may be writing and the folder may be read-only.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from framefuse.common.files import user_cache, write_atomically
from framefuse.common.text import lines_of
from framefuse.engines import cache
from framefuse.engines.cache import EngineCache
from framefuse.engines.tvm import compiling
from framefuse.engines.tvm.package import load_cuda, tvm, versions
from framefuse.engines.tvm.targets import Target
from framefuse.errors import EngineError

WORKLOADS, RECORDS, TARGET = "database_workload.json", "database_tuning_record.json", "target.json"


def default_folder(target: Target) -> Path:
    """The engine's database of a target."""
    return user_cache() / "tvm" / "tuning" / target.name


class Records:
    """The database in a folder; a tuner creates it.

    Raises:
        EngineError: it belongs to another target, or is damaged beyond a torn last line.
    """

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder, self.target, self.note = folder, target, ""
        self._check_target()
        self._checked()

    def open(self) -> Any:
        """TVM's database over the files, for the tuner that holds the lock."""
        try:
            for name, content in self._checked().items():
                path = self.folder / name
                if path.exists() and path.read_bytes() != content:
                    write_atomically(path, content)
            if not (self.folder / TARGET).exists():
                target = {"target": self.target.name, "tvm": versions()}
                write_atomically(self.folder / TARGET, json.dumps(target).encode())
        except OSError as error:
            raise self._unwritable(error) from error
        return self._database(self.folder)

    def copy(self) -> Any:
        """TVM's database over a copy of the current files."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in self._checked().items():
                Path(folder, name).write_bytes(content)
            return self._database(Path(folder))  # TVM has read the files when this returns

    @property
    def written(self) -> int:
        """Schedules in the file, including those that failed to run."""
        return self._schedules().count(b"\n")

    @property
    def digest(self) -> str:
        """Of its schedules, for a cache key; empty if there are none."""
        content = self._schedules()
        return hashlib.sha256(content).hexdigest()[:16] if content else ""

    def _schedules(self) -> bytes:
        try:
            return (self.folder / RECORDS).read_bytes()
        except OSError:
            return b""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock for the one tuner that may write.

        Raises:
            EngineError: another tuner holds it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise self._unwritable(error) from error
        with lock as file:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                message = f"another tuner is writing to {self.folder}"
                raise EngineError(message, remedy="wait for it, or name another --database") from error
            yield

    def _check_target(self) -> None:
        try:
            content = json.loads((self.folder / TARGET).read_text(encoding="utf-8"))
            name = str(content["target"])
        except FileNotFoundError:
            if (self.folder / RECORDS).exists():
                raise self._unusable(f"{TARGET} is missing, so its target is unknown") from None
            return
        except cache.DAMAGED as error:
            raise self._unusable(f"{TARGET} cannot be read: {error}") from error
        if name != self.target.name:
            raise self._unusable(f"it was tuned for {name}, not for {self.target.name}")

    def _checked(self) -> dict[str, bytes]:
        """Both files without a torn last line, checked."""
        schedules = self._read(RECORDS)  # first, because a tuner writes a schedule after its function
        functions = self._checked_lines(WORKLOADS, self._read(WORKLOADS), None)
        schedules = self._checked_lines(RECORDS, schedules, len(functions))
        return {WORKLOADS: b"".join(functions), RECORDS: b"".join(schedules)}

    def _read(self, name: str) -> list[bytes]:
        try:
            return (self.folder / name).read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(f"{name} cannot be read: {error.strerror}") from error

    def _checked_lines(self, name: str, lines: list[bytes], functions: int | None) -> list[bytes]:
        for number, line in enumerate(lines):
            try:
                content = json.loads(line)
                if functions is not None and not 0 <= int(content[0]) < functions:
                    raise ValueError(f"it belongs to function {content[0]}, and {WORKLOADS} has {functions}")
            except cache.DAMAGED as error:
                if number != len(lines) - 1:
                    raise self._unusable(f"line {number + 1} of {name}: {error}") from error
                self.note = f"{self.folder / name}: its last line is torn and is skipped"
                return lines[:number]
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        return lines

    def _database(self, folder: Path) -> Any:
        from tvm.s_tir.meta_schedule.database import JSONDatabase

        tvm()
        if self.target.kind == "cuda":  # schedules name the instructions of tensor cores
            importlib.import_module("tvm.s_tir.tensor_intrin")
        try:
            return JSONDatabase(work_dir=str(folder))
        except Exception as error:  # valid JSON that this TVM did not write
            raise self._unusable(f"TVM cannot read it: {lines_of(error)[-1]}") from error

    def _unusable(self, why: str) -> EngineError:
        remedy = "move it away, or tune into another folder (framefuse tune --database)"
        return EngineError(f"tuning database {self.folder} cannot be used: {why}", remedy=remedy)

    def _unwritable(self, error: OSError) -> EngineError:
        remedy = "name another folder with --database, or set XDG_CACHE_HOME"
        return EngineError(f"tuning database {self.folder} cannot be written: {error.strerror}", remedy=remedy)


LONGEST_SLICE = 480.0
"""Seconds."""
LONGEST_NAME = 60
"""Characters to print; TVM names a function after everything that it fuses."""
BATCH = 4
"""Candidates per turn, at least; all are built, then all are run. On CUDA one for each thread that builds them."""
EVOLVE_FROM = 16
"""Measured schedules of a function from which evolutionary search starts; before, candidates are sampled at random.
Evolutionary search takes 1.5 s per candidate and has little to learn from at first; sampling takes 0.03 s, and on a CPU
the best of eight samples gives most of the gain."""


@dataclass
class Task:
    """A function to tune.

    Attributes:
        operations: floating-point operations of all its calls in one run of the network.
        measured: number of schedules in the database that run.
        best: microseconds of a call with the fastest of them; 0: none.
        done: no more trials.
    """

    name: str
    operations: float
    extracted: Any
    measured: int = 0
    best: float = 0.0
    done: bool = False

    def look_up(self, database: Any) -> None:
        """Set `measured` and `best`."""
        workload = database.commit_workload(self.extracted.dispatched[0])
        found = database.get_top_k(workload, 1 << 20)
        self.measured = len(found)
        self.best = min((float(s) for s in found[0].run_secs), default=0.0) * 1e6 if found else 0.0


@dataclass(frozen=True)
class Slice:
    """Result of a slice."""

    seconds: float
    added: int
    """Number of schedules measured."""
    finished: bool
    """Whether every function has had its trials, so that another slice would do nothing."""


def tasks_of(lowered: Any, target: Target, *, heaviest: int | None = None) -> list[Task]:
    """The functions of a lowered network (`compiling.lower`), the heaviest first."""
    from tvm.s_tir import meta_schedule
    from tvm.s_tir.analysis import estimate_tir_flops

    found = [
        Task(str(one.task_name), float(estimate_tir_flops(one.dispatched[0])) * int(one.weight), one)
        for one in meta_schedule.relax_integration.extract_tasks(lowered, target.tvm())
    ]
    return sorted(found, key=lambda task: (-task.operations, task.name))[:heaviest]


def tune(
    tasks: list[Task],
    target: Target,
    records: Records,
    *,
    trials: int,
    seconds: float,
    workers: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> Slice:
    """Tune for about `seconds`, not counting the start; a turn is not interrupted.

    Args:
        trials: schedules to reach in the database for each function.
        workers: threads that build candidates.
        say: called with a line of progress after each turn.

    Raises:
        EngineError: another tuner is writing to the database, it cannot be written, or no candidate runs.
    """
    with records.locked(), _children_find(target), tempfile.TemporaryDirectory() as compiled:
        database = records.open()
        for task in tasks:
            task.look_up(database)
            task.done = task.measured >= trials
        before = sum(task.measured for task in tasks)
        turn = _Turn(records.folder, database, target, workers, Path(compiled))
        batch = max(BATCH, workers) if target.kind == "cuda" else BATCH
        started, longest = time.monotonic(), 0.0
        while waiting := [task for task in tasks if not task.done]:
            turn_started = time.monotonic()
            if turn_started + longest > started + seconds:
                break
            task = min(waiting, key=lambda task: (task.measured // batch, -task.operations))
            had, written = task.measured, records.written
            turn(task, min(batch, trials - had))
            task.look_up(database)
            if records.written - written < task.measured - had:  # TVM ignores failed writes
                raise EngineError(f"schedules cannot be written to {records.folder}", remedy="free space, and continue")
            task.done = task.measured >= trials or task.measured == had
            longest = max(longest, time.monotonic() - turn_started)
            say(f"{task.name[:LONGEST_NAME]}: {task.measured} of {trials} schedules, best {task.best:.0f} us")
        if tasks and all(task.done and not task.measured for task in tasks):
            message = f"no candidate of {len(tasks)} functions runs on {target.name}"
            raise EngineError(message, remedy="tune on a machine with this target, because candidates are measured")
        added = sum(task.measured for task in tasks) - before
    return Slice(time.monotonic() - started, added, all(task.done for task in tasks))


class _Turn:
    """Measures more candidates of one function."""

    def __init__(self, folder: Path, database: Any, target: Target, workers: int, compiled: Path) -> None:
        importlib.import_module("tvm.s_tir.tensor_intrin")  # takes ten seconds once, outside the first turn
        from tvm.s_tir import meta_schedule as ms

        for name in ("tvm.s_tir.meta_schedule", ms.__name__):
            logging.getLogger(name).setLevel(logging.WARNING)
        self.folder, self.database, self.workers = folder, database, workers
        evaluator = ms.runner.EvaluatorConfig(number=1, repeat=2, min_repeat_ms=20)
        compiler, more = None, dict[str, Any]()
        if target.kind == "cuda":
            from framefuse.engines.tvm.cuda import register_compiler

            given = target, EngineCache("tvm", compiled)
            compiler = register_compiler(*given)
            more = {"initializer": partial(register_compiler, *given), "f_run_evaluator": _evaluate}
        self.builder, self.space = _builder(target, workers, compiler), _space(target)
        self.runner = ms.runner.LocalRunner(timeout_sec=15, evaluator_config=evaluator, **more)
        self.model = "xgb" if importlib.util.find_spec("xgboost") is not None else "random"
        self.seed = int(time.time()) & 0xFFFFFF
        """Varies, so that a slice does not repeat the trials of the last one."""

    def __call__(self, task: Task, count: int) -> None:
        from tvm.s_tir import meta_schedule as ms

        self.seed += 1
        search, cost_model = ms.search_strategy.ReplayTrace(), "random"
        if task.measured >= EVOLVE_FROM:
            search = ms.search_strategy.EvolutionarySearch(population_size=64, init_min_unmeasured=16)
            cost_model = self.model
        context = ms.TuneContext(
            mod=task.extracted.dispatched[0],
            target=task.extracted.target,
            space_generator=self.space,
            search_strategy=search,
            task_name=task.name,
            rand_state=self.seed,
            num_threads=self.workers,
        ).clone()
        try:
            ms.tune_tasks(
                tasks=[context],
                task_weights=[1.0],
                work_dir=str(self.folder),
                max_trials_global=count,
                num_trials_per_iter=count,
                builder=self.builder,
                runner=self.runner,
                database=self.database,
                cost_model=cost_model,
                measure_callbacks=[ms.measure_callback.AddToDatabase(), ms.measure_callback.RemoveBuildArtifact()],
            )
        except Exception as error:  # TVM raises unrelated classes
            raise EngineError(f"TVM's tuner failed at {task.name}: {lines_of(error)[-1]}") from error


@contextlib.contextmanager
def _children_find(target: Target) -> Iterator[None]:
    """While the tuner of a GPU runs, its process for candidates finds CUDA's runtime and this package where we do."""
    before = {name: os.environ.get(name) for name in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    if target.kind == "cuda":
        library = load_cuda()
        paths = [str(library.parent)] if library else [], [entry for entry in sys.path if entry]
        for (name, value), first in zip(before.items(), paths, strict=True):
            os.environ[name] = os.pathsep.join(filter(None, [*first, value]))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _evaluate(*given: Any) -> list[float]:
    """Seconds of a candidate on a GPU. The process of one that fails ends: its CUDA would fail all that follow."""
    from tvm.s_tir.meta_schedule.runner.utils import run_evaluator_common

    try:
        return list(run_evaluator_common(*given))
    except Exception:
        os._exit(1)


def _space(target: Target) -> Any:
    """What schedules are looked for: TVM's own for the target; on CUDA those for the tensor cores' WMMA and for plain
    threads. Those that TVM has for MMA fail on most convolutions."""
    if target.kind != "cuda":
        return "post-order-apply"
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.schedule_rule.multi_level_tiling import ReuseType
    from tvm.s_tir.tensor_intrin.cuda import get_wmma_intrin_group

    memory, types = ("shared", "shared"), ("float16", "float32")
    groups = [get_wmma_intrin_group(*memory, *types, transposed) for transposed in (False, True)]
    reuse = ReuseType("must", [4], "shared"), ReuseType("must", [2], "shared")
    tiling = "SSSRRSRS", ["blockIdx.y", "blockIdx.x", "threadIdx.y"], 4, [1, 2, 3, 4, 8, 16]
    custom, *rest = ms.schedule_rule.ScheduleRule.create("cuda")
    return ms.space_generator.PostOrderApply(
        sch_rules=[custom, ms.schedule_rule.MultiLevelTilingTensorCore(groups, *tiling, *reuse), *rest],
        postprocs=ms.postproc.Postproc.create("cuda-tensorcore"),
        mutator_probs=ms.mutator.Mutator.create("cuda-tensorcore"),
    )


def _builder(target: Target, workers: int, compiler: Callable[[Any], bytes] | None) -> Any:
    """A builder that uses threads of this process: a candidate takes 0.2 s to build, but the processes that TVM would
    start take seconds to import TVM.

    Args:
        compiler: of CUDA source. It keeps the machine code for the process that runs the candidates, which would
            otherwise compile one after the other.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
    from tvm.s_tir.meta_schedule.builder.local_builder import default_build

    linker = compiling.linker()

    def build(candidate: Any) -> Any:
        folder = Path(tempfile.mkdtemp())  # TVM's callback removes the file and the folder after the run
        try:
            path = folder / "candidate.so"
            with compiling.building(target):
                built = default_build(candidate.mod, candidate.target, None)
            if compiler is not None:
                compiler(built.imports[0].inspect_source())
            built.export_library(str(path), fcompile=linker)
        except Exception as error:  # a candidate that cannot be built is not chosen
            shutil.rmtree(folder, ignore_errors=True)
            return BuilderResult(None, f"{type(error).__name__}: {error}")
        return BuilderResult(str(path), None)

    @derived_object
    class Builder(PyBuilder):  # type: ignore[misc]
        def build(self, build_inputs: list[Any]) -> list[Any]:
            with ThreadPoolExecutor(workers) as threads:
                return list(threads.map(build, build_inputs))

    return Builder()
