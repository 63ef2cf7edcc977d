"""The plan of each layer: in memory, from the plan cache, or autotuned now.

Worker processes build kernels: one takes up to a second, and the bindings hold the GIL. They run this file:
python -m framefuse.engines.cudnn.plans WORKSPACE_BYTES
stdin:  pickled (Layer, engine, knobs), until end of file
stdout: pickled (kernel, error): bytes for `Builder.load` and an empty string, or empty bytes and an error message

The cache on disk is one JSON file per combination of GPU, driver, library versions and kernels of ours, with an entry
per layer. Models, batches and sizes share the entry of a layer that they have in common. A file of another combination
is never used; `note` says how the most similar one differs. A damaged file counts as empty, and `note` says so. A lock
serialises writers. Serialised kernels lie in a folder of the same name; each is named by the SHA-256 in its entry.

A layer that was measured before on such a GPU (`choices`) is built and timed with what was the fastest there alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from framefuse.common.files import user_cache, write_atomically
from framefuse.common.machine import python_path
from framefuse.cuda import device
from framefuse.cuda.cubins import describe
from framefuse.engines import cache
from framefuse.engines.backend import NetworkMemory
from framefuse.engines.cudnn.arrays import memory_of
from framefuse.engines.cudnn.choices import Choice, choices_for
from framefuse.engines.cudnn.compiled import Compiled, compile_network
from framefuse.engines.cudnn.convolutions import OWN, TENSOR, Builder, Layer, Plan, faster, frontend
from framefuse.engines.cudnn.network import AnchorHead, Conv, Type
from framefuse.engines.requests import CHANNELS
from framefuse.errors import EngineError
from framefuse.kernels.network.call import TILES

_logger = logging.getLogger(__name__)
FORMAT = 3
WORKSPACE = "workspace"
"""Bytes that the kernel of an entry needs beside its tensors."""
BUILD_TIMEOUT = 60.0
"""Seconds."""
MAX_WORKERS, WORKER_BYTES = 16, 700 << 20
"""Processes at most, and the GPU memory that is counted for each."""
WORKER_MODULE = "framefuse.engines.cudnn.plans"


class Workers:
    """A pool of worker processes, which start on demand.

    Args:
        max_workspace: as for `Builder`.
        count: of processes; 0: one per available core, at most MAX_WORKERS.
    """

    def __init__(self, max_workspace: int, count: int = 0) -> None:
        self.count = count or min(MAX_WORKERS, len(os.sched_getaffinity(0)))
        self._max_workspace, self._local = max_workspace, threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPoolExecutor(self.count, "cudnn")

    def build(self, layer: Layer, engine: int, knobs: dict[str, int]) -> Future[bytes]:
        """The serialised kernel of a layer. The future raises EngineError if cuDNN cannot build it."""
        return self._threads.submit(self._build, layer, engine, knobs)

    def close(self) -> None:
        """Cancel what has not started, and kill the processes. Callable from any thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._threads.shutdown()
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):  # it did not read the last request
                process.__exit__(None, None, None)

    def _build(self, layer: Layer, engine: int, knobs: dict[str, int]) -> bytes:
        process: subprocess.Popen[bytes] | None = getattr(self._local, "process", None)
        if process is None or process.poll() is not None:
            command = [sys.executable, "-m", WORKER_MODULE, str(self._max_workspace)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       env={**os.environ, "PYTHONPATH": python_path()})  # fmt: skip
            self._local.process = process
            self._processes.append(process)
        assert process.stdin and process.stdout
        try:
            pickle.dump((layer, engine, knobs), process.stdin)
            process.stdin.flush()
            kernel, message = pickle.load(process.stdout)
        except (OSError, EOFError) as error:
            process.wait()
            raise EngineError(f"the worker that built {layer.text} exited with code {process.returncode}") from error
        if message:
            raise EngineError(message)
        return bytes(kernel)


def plan_folder() -> Path:
    """Where plans are cached."""
    return user_cache() / "cudnn"


@dataclass
class PlanCache:
    """Plans by layer.

    Args:
        environment: everything that decides whether a cached plan is valid, by name.
        folder: of the cache files.
    """

    environment: dict[str, str]
    folder: Path = field(default_factory=plan_folder)

    def __post_init__(self) -> None:
        text = json.dumps({"format": FORMAT, **self.environment}, sort_keys=True)
        self._kernels = self.folder / hashlib.sha256(text.encode()).hexdigest()[:32]
        self.path = self._kernels.with_suffix(".json")
        self.note = ""
        """What is wrong with the cache, if anything."""
        self.entries: dict[str, dict[str, Any]] = self._read()

    def get(self, layer: str) -> dict[str, Any] | None:
        return self.entries.get(layer)

    def kernel(self, entry: Mapping[str, Any]) -> bytes:
        """The serialised kernel of an entry; empty if it is missing or damaged."""
        name = str(entry.get("kernel", ""))
        try:
            content = (self._kernels / name).read_bytes() if name else b""
        except (OSError, ValueError):
            return b""
        return content if hashlib.sha256(content).hexdigest() == name else b""

    def update(self, entries: dict[str, dict[str, Any]], kernels: Mapping[str, bytes] = {}) -> None:
        """Merge entries into the file, which is replaced atomically.

        Args:
            kernels: serialised kernels by layer.
        """
        for layer, content in kernels.items():
            entries[layer]["kernel"] = hashlib.sha256(content).hexdigest()
        self.entries = {**self.entries, **entries}
        try:
            (self._kernels if kernels else self.folder).mkdir(parents=True, exist_ok=True)
            with cache.locked(self.path.with_suffix(".lock")):
                for layer, content in kernels.items():
                    write_atomically(self._kernels / entries[layer]["kernel"], content)
                self.read_again()
                index = json.dumps({"environment": self.environment, "plans": self.entries}, indent=0)
                write_atomically(self.path, index.encode())
        except OSError as error:
            self.note = f"plans are measured again next time: {self.folder}: {error.strerror or error}"
            _logger.warning(self.note)

    @contextlib.contextmanager
    def measuring(self, stopped: Callable[[], bool]) -> Iterator[None]:
        """One process at a time is in such a block, so that none measures what another is about to write. `stopped`
        ends the wait for it."""
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):  # of a folder that cannot be written
                self.folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(cache.locked(self.path.with_suffix(".measuring"), stopped))
            yield

    def read_again(self) -> None:
        """Take the entries that others have written since."""
        self.entries = {**self._read(), **self.entries}

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            plans = dict(content["plans"])
            if content["environment"] != self.environment or not all(
                isinstance(plan["engine"], int) and isinstance(plan["knobs"], dict) for plan in plans.values()
            ):
                raise ValueError("it has another format")
            return plans
        except FileNotFoundError:
            changed = cache.difference(self.folder, "environment", self.environment)
            self.note = f"cached kernels are stale ({changed}): measured again" if changed else ""
        except cache.DAMAGED as error:
            self.note = f"{self.path} cannot be used and is rebuilt: {error}"
            _logger.warning(self.note)
        return {}


def kernel_text() -> str:
    """The source of our kernels on tensor cores: that for tiles of kind PATCH, and that for all others."""
    return "".join(describe(tile.symbol).source for tile in (TILES[0], TILES[-1]))


def environment(builder: Builder) -> dict[str, str]:
    """What decides whether a cached plan is valid."""
    runtime = device.cupy().cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    return {
        "gpu": properties["name"].decode(),
        "capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": str(properties["multiProcessorCount"]),
        "driver": str(runtime.driverGetVersion()),
        "cudnn": str(frontend().backend_version()),
        "frontend": str(frontend().__version__),
        # Our kernels were compared with cuDNN's.
        "ours": hashlib.sha256(kernel_text().encode()).hexdigest()[:16],
        "precision": "fp16",
        "max_workspace": str(builder.max_workspace),
    }


class Plans:
    """Plans by layer; `save` writes new ones to the cache. Threads may share it.

    Args:
        later: a layer that is not known gets our kernel at once, if that can run it, and is noted in `unmeasured`.

    Attributes:
        unmeasured: layers for `measure`.
        measured, cached: number of layers autotuned, and taken from the cache.
        rebuilt: number of cached layers whose kernel had to be built again.
        unsupported: layers for which there is no kernel, cuDNN's or ours, each with cuDNN's message.
    """

    def __init__(self, builder: Builder, *, later: bool = False) -> None:
        self.builder, self.later = builder, later
        self.unmeasured: list[Layer] = []
        self.cache = PlanCache(environment(builder))
        self.choices = choices_for(self.cache.environment)
        self.measured = self.cached = self.rebuilt = 0
        self.workers: Workers | None = None
        self.unsupported: dict[Layer, str] = {}
        self._plans: dict[Layer, Plan] = {}
        self._unsaved: dict[str, dict[str, Any]] = {}
        self._unsaved_kernels: dict[str, bytes] = {}
        self._saving = threading.Lock()

    def __call__(self, layer: Layer) -> Plan:
        if layer not in self._plans:
            self._plans[layer] = self._first(layer)
        return self._plans[layer]

    def _first(self, layer: Layer) -> Plan:
        if layer.x_type == "fp32":  # what cuDNN fuses is for tensor cores, which have no float32
            return OWN
        ours = not layer.low_precision and not layer.grouped
        if (plan := self._from_cache(layer)) is not None:
            return plan
        if self.later and ours:
            self.unmeasured.append(layer)
            return self.builder.first(layer)
        try:
            if layer.x_type == "tf32" and layer in self.unsupported:
                raise EngineError(self.unsupported[layer])
            plan = self.builder.autotune(layer)
        except EngineError:
            if layer.x_type != "tf32" or not ours:
                raise
            return OWN
        self._record(layer, plan)
        return plan

    def measure(
        self,
        layers: Iterable[Layer],
        candidates: int,
        *,
        builder: Builder | None = None,
        workers: int = 0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Autotune the layers whose time is unknown; worker processes build the candidates.

        Where there is no kernel, cuDNN's or ours, `microseconds` is infinite from then on.

        Args:
            builder: measures them; one thread at a time may use a builder.
            workers: processes; 0: one per available core, but no more than the GPU has room for.
            stopped: whether to leave out the rest.
        """
        unknown = [layer for layer in dict.fromkeys(layers) if self.microseconds(layer) is None]
        if not unknown:
            return
        builder = builder or self.builder
        if self.workers is None:
            self.workers = Workers(builder.max_workspace, workers or max(1, room_for(MAX_WORKERS, 2)))
        fastest = fastest_plans(builder, self.workers, unknown, candidates=candidates, choices=self.choices)
        for layer, found in fastest:
            if stopped():
                return
            if isinstance(found, Plan):
                self._plans[layer] = found
                self._record(layer, found)
            else:
                self.unsupported[layer] = found

    def take_known(self, layers: Iterable[Layer], builder: Builder) -> None:
        """Take the plans that another process has measured since."""
        self.cache.read_again()
        for layer in layers:
            if plan := self._from_cache(layer, builder):
                self._plans[layer] = plan

    def microseconds(self, layer: Layer) -> float | None:
        """Measured time of the fastest kernel of a layer; infinite if cuDNN has none, None if unknown."""
        if layer in self.unsupported:
            return float("inf")
        if layer in self._plans:
            return self._plans[layer].microseconds or None
        entry = self.cache.get(layer.text)
        return float(entry.get("us", 0)) or None if entry else None

    def stop_workers(self) -> None:
        """Stop the processes that build kernels."""
        workers, self.workers = self.workers, None
        if workers is not None:
            workers.close()

    def save(self) -> None:
        """Write the plans measured since the last call to the cache."""
        with self._saving:
            entries, kernels = self._unsaved, self._unsaved_kernels
            self._unsaved, self._unsaved_kernels = {}, {}
        if entries:
            self.cache.update(entries, kernels)

    def _from_cache(self, layer: Layer, builder: Builder | None = None) -> Plan | None:
        builder = builder or self.builder
        entry = self.cache.get(layer.text)
        if entry is None:
            return None
        engine, knobs, kernel = entry["engine"], entry["knobs"], self.cache.kernel(entry)
        plan = None
        if kernel:
            with contextlib.suppress(EngineError):
                plan = builder.load(kernel, engine, knobs)
        try:
            if plan is None:
                plan = builder.build(layer, engine, knobs)
                self.rebuilt += engine != TENSOR
        except EngineError as error:  # measured again
            self.cache.note = str(error)
            return None
        plan.microseconds = float(entry.get("us", 0))
        self.cached += 1
        if WORKSPACE not in entry:
            self._unsaved[layer.text] = {**entry, WORKSPACE: plan.workspace}
        return plan

    def _record(self, layer: Layer, plan: Plan) -> None:
        self.measured += 1
        if plan.provisional:
            return
        found = {"engine": plan.engine, "knobs": plan.knobs, "us": round(plan.microseconds, 3)}
        with self._saving:
            self._unsaved[layer.text] = {**found, WORKSPACE: plan.workspace}
            if plan.binary:
                self._unsaved_kernels[layer.text] = plan.binary


def room_for(workers: int, share: int) -> int:
    """As many workers as there are cores, and room in 1 / `share` of the memory that is free on the current GPU."""
    return min(workers, len(os.sched_getaffinity(0)), device.memory()[0] // share // WORKER_BYTES)


def fastest_plans(
    builder: Builder,
    workers: Workers,
    layers: Iterable[Layer],
    *,
    candidates: int,
    choices: Mapping[str, Choice] = MappingProxyType({}),
) -> Iterator[tuple[Layer, Plan | str]]:
    """For each layer the fastest of cuDNN's first `candidates` kernels and of ours, or the reason why there is none.

    Worker processes build the candidates in parallel, this process times them in turn.

    Args:
        choices: by layer, what was the fastest before. Nothing else is built and timed, unless it fails here.
    """
    queued: list[tuple[Layer, Choice | None, list[tuple[Future[bytes], int, dict[str, int]]], str]] = []
    for layer in layers:
        choice = choices.get(layer.text)
        try:
            candidate_engines = [choice] if choice else builder.candidate_engines(layer)[:candidates]
        except Exception as error:  # the bindings raise their own classes and RuntimeError
            queued.append((layer, choice, [], f"cuDNN: {str(error)[:160]}"))
            continue
        builds = [(workers.build(layer, *engine), *engine) for engine in candidate_engines if engine[0] != TENSOR]
        queued.append((layer, choice, builds, "cuDNN has no kernel"))
    failed = list[Layer]()
    for layer, choice, futures, reason in queued:
        ours: Plan | None = None
        best: Plan | None = None
        try:
            measure = builder.timer(layer)
            if choice is None:
                ours = builder.fastest_tile(layer, measure)
        except Exception as error:  # such as too little memory
            yield layer, str(error)[:160]
            continue
        if choice is not None and choice[0] == TENSOR:
            with contextlib.suppress(Exception):  # then all are tried
                plan = builder.build(layer, *choice)
                plan.microseconds = measure(plan)
                ours = plan
        for future, engine, knobs in futures:
            try:
                binary = future.result(BUILD_TIMEOUT)
                plan = builder.load(binary, engine, knobs)
                plan.microseconds = measure(plan)
            except TimeoutError:
                reason = "out of time"
            except Exception as error:  # cannot be built or run; the next candidate may
                reason = str(error)[:160]
            else:
                if best is None or plan.microseconds < best.microseconds:
                    best = plan
        found = faster(ours, best, bool(futures))
        if found is None and choice is not None:
            failed.append(layer)
        else:
            yield layer, found or reason
    if failed:
        yield from fastest_plans(builder, workers, failed, candidates=candidates)


def network_memory(path: Path, batch: int, height: int, width: int, precision: str = "auto") -> NetworkMemory:
    """The memory of a network with its float32 outputs, with what nodes without kernels take, and with the workspaces
    of those convolutions that the plan cache knows.

    Args:
        precision: fp32 and tf32 take twice as much for weights and activations as others.

    Raises:
        ModelError: as `import_network`, or the channels cannot be padded, or a node cannot be computed.
    """
    wide: Type = "fp32" if precision == "fp32" else "tf32" if precision == "tf32" else "fp16"
    compiled = replace(compile_network(path, batch, height, width), wide=wide)
    known, layers = known_workspaces(), Layer.all_of(compiled)
    workspaces = compiled.schedule.largest({index: known.get(layer.text, 0) for index, layer in layers.items()})
    convs = [step for step in compiled.placement.steps if isinstance(step, Conv)]
    weights = compiled.itemsize * sum(conv.weight.size + conv.bias.size for conv in convs)
    constants, fused = memory_of(compiled)
    images = 0 if wide == "fp16" else 4 * batch * CHANNELS * height * width
    arena = compiled.itemsize * compiled.memory.size
    activations = arena + images + fused + sum(workspaces) + 4 * batch * _output_size(compiled)
    return NetworkMemory(weights + constants, activations)


def _output_size(compiled: Compiled) -> int:
    """Numbers in the outputs for an image; a head without anchors leaves its float16 logits where they are."""
    network = compiled.network
    if isinstance(network.head, AnchorHead):
        return network.head.anchors * network.head.fields
    if network.head is not None and compiled.wide != "fp16":
        return network.head.anchors * (4 + network.head.classes)
    if network.head is not None or network.tail is not None:
        return 0
    sizes = ((network.channels(name), *network.shapes[name][1:]) for name in network.outputs)
    return sum(math.prod(size) for size in sizes)


def known_workspaces(folder: Path | None = None) -> dict[str, int]:
    """Bytes by layer, from all cache files of a folder; where they differ, from the one written last."""
    found: dict[str, int] = {}
    files = (folder or plan_folder()).glob("*.json")
    for file in sorted(files, key=lambda path: path.stat().st_mtime):
        with contextlib.suppress(*cache.DAMAGED):
            plans = json.loads(file.read_text(encoding="utf-8"))["plans"]
            found |= {layer: int(plan[WORKSPACE]) for layer, plan in plans.items() if WORKSPACE in plan}
    return found


def main() -> None:
    """Build kernels on request until end of file."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the output of libraries out of the answers
    builder = Builder(max_workspace=int(sys.argv[1]))
    while True:
        try:
            layer, engine, knobs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        kernel, error = b"", ""
        try:
            plan = builder.build(layer, engine, knobs)
            if plan.workspace > builder.max_workspace:
                raise EngineError(f"engine {engine} needs a workspace of {plan.workspace} bytes")
            kernel = bytes(plan.graph.serialize(as_bytes=True))
        except Exception as failed:  # of any class, from the bindings too: report it and go on
            error = str(failed)[:300] or type(failed).__name__
        pickle.dump((kernel, error), answers)
        answers.flush()


if __name__ == "__main__":
    main()
