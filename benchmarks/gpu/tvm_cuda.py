"""What engine tvm takes on an NVIDIA GPU beside engine cudnn: FP16, with and without convolutions left to cuDNN.

    python -m benchmarks.gpu.tvm_cuda [MODEL.onnx ...] [--out FILE]

Device time between two events around a graph launch, from float32 NCHW images to the decoded float32 output, batch 1,
640x640. All graphs take turns: `us` is the median of `rounds`, each the median of 20 launches.

- `cudnn 1 stream`, `cudnn 4 streams`: engine cudnn
- `tvm + cuDNN`, `tvm alone`: engine tvm; `without convolutions`: the same with nothing started for them, which is what
  TVM's own kernels and the launches between them take
- `tvm tuned`: `tvm alone` with the schedules that were measured before by
  `framefuse tune MODEL.onnx --target cuda --precision fp16 --size 640x640`
- `ratio`: to the faster of engine cudnn
- `error`: the largest difference to ONNX Runtime in float32, of the largest value
- `two slots`: whether two executions that run at once give what one gives alone
- `kernels`: microseconds of each kernel in one launch, as CUPTI recorded it, where cupti-python is installed; measured
  last, since recording slows down what comes after it

Where the GPU's machine has TVM's runtime but not its compiler (bundle.sh, group tvm), programs are compiled elsewhere,
and the folder is carried there:

    python -m benchmarks.gpu.tvm_cuda MODEL.onnx --compile FOLDER --arch sm_90    # without a GPU; nvcc must be there
    python -m benchmarks.gpu.tvm_cuda MODEL.onnx --compiled FOLDER

Written to benchmarks/records/tvm_cuda.json after each part. The last line of the output is JSON. `--docs` measures
nothing and writes the recorded table into docs/internals/tvm.md.
"""

import argparse
import ctypes
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import protocol, source_groups

SIZE = 640
SHAPE = (1, 3, SIZE, SIZE)
GROUPS = ("network kernel", "engine cudnn", "engine tvm")
KINDS = {"tvm + cuDNN": True, "tvm alone": False, "tvm tuned": False}
"""What is engine tvm's, and whether cuDNN runs the convolutions."""
ELSEWHERE = "tvm + cuDNN", "tvm alone"
"""Those that can be compiled on another machine."""
STREAMS = {"cudnn 1 stream": 1, "cudnn 4 streams": 4}
SOURCES = "sources.json"
"""In a folder of compiled programs: what they were compiled by."""
ROUNDS = 7
LAUNCHES = 20
"""Of a graph in a round, and of a traced one."""


def names(model: Path, cudnn: bool) -> str:
    return f"{model.stem}-{'cudnn' if cudnn else 'alone'}"


def compile_elsewhere(model: Path, folder: Path, arch: str) -> None:
    """The program and its machine code, without a GPU."""
    import tvm_ffi

    from framefuse.engines.cache import EngineCache
    from framefuse.engines.tvm import compiling, targets
    from framefuse.engines.tvm.compiling import import_model
    from framefuse.engines.tvm.cuda import COMPILE, register_compiler

    target = targets.Target("cuda", arch)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SOURCES).write_text(json.dumps(source_groups.stamp("engine tvm")))
    np.savez_compressed(folder / f"{model.stem}-expected.npz", *(sample(value) for value in reference(model)))
    for cudnn in (True, False):
        path = folder / f"{names(model, cudnn)}.so"
        lowered = compiling.lower(import_model(model, SHAPE), target, "fp16", cudnn=cudnn)
        compiling.compile_to(path, lowered, target)
        register_compiler(target, EngineCache("tvm", folder / "cubins"))
        code = tvm_ffi.get_global_func(COMPILE)(source(path))
        path.with_suffix(".cubin").write_bytes(bytes(code))
        print(path.name, path.stat().st_size, "bytes,", len(bytes(code)), "of machine code", flush=True)


def image() -> Any:
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    planes = [0.5 + 0.4 * np.sin(9 * x + 3 * y), 0.5 + 0.4 * np.cos(7 * y), x * y]
    return np.stack(planes)[None].astype(np.float32)


def reference(model: Path) -> list[Any]:
    """What ONNX Runtime gives in float32."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return list(session.run(None, {session.get_inputs()[0].name: image()}))


def sample(value: Any) -> Any:
    """Every 16th along the longest axis: enough to compare."""
    return np.ascontiguousarray(value.take(range(0, max(value.shape), 16), int(np.argmax(value.shape))))


def source(library: Path) -> str:
    """The CUDA source in a compiled program."""
    import re

    content = library.read_bytes()
    found = re.match(rb"[\x20-\x7e\n\t]*", content[content.index(b"#ifdef __CUDACC_RTC__") :])
    assert found is not None
    return found.group().decode()


def execution(model: Path, name: str, folder: Path | None, candidates: int | None) -> tuple[Any, Any, int]:
    """Engine tvm's execution, what calls cuDNN for it, and how many schedules it was tuned with."""
    from framefuse.engines.tvm.cuda import register_convolutions

    cudnn, schedules = KINDS[name], 0
    runner = register_convolutions() if cudnn else None
    if runner is not None and candidates:
        runner.builder.candidates = candidates
    if folder is None:
        from framefuse.engines import EngineOptions
        from framefuse.engines.tvm.engine import TvmEngine

        engine = TvmEngine(model, EngineOptions("cuda", precision="fp16"), cudnn=cudnn)
        if name != "tvm tuned":
            engine._records = None
        elif not (schedules := engine._records.written):
            raise LookupError("nothing was tuned")
        made = engine.execution(1, SIZE, SIZE)
        print(*engine.reasons, sep="\n", flush=True)
        return made, runner, schedules
    import tvm
    import tvm_ffi
    from tvm.runtime.vm import VirtualMachine

    from framefuse.engines.tvm.cuda import COMPILE, TvmExecution

    library = folder / f"{names(model, cudnn)}.so"
    code = library.with_suffix(".cubin").read_bytes()
    tvm_ffi.register_global_func(COMPILE, lambda _: code, override=True)
    machine = VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cuda(0))
    made = TvmExecution(machine, SHAPE, np.dtype(np.float32), runner)
    if runner is not None:
        runner.plans.save()
    return made, runner, schedules


def runtime_alone() -> None:
    """TVM without its compiler does not load its own part for CUDA."""
    from framefuse.engines.tvm.package import load_cuda

    load_cuda()
    import tvm

    ctypes.CDLL(str(Path(next(iter(tvm.__path__)), "lib", "libtvm_runtime_cuda.so")), ctypes.RTLD_GLOBAL)
    if not tvm.cuda(0).exist:
        raise SystemExit("TVM's runtime finds no CUDA device")


def check(models: list[Path], folder: Path) -> None:
    """Whether a folder has what is to be run, compiled by these sources."""
    wanted = [f"{names(model, cudnn)}{end}" for model in models for cudnn in (True, False) for end in (".so", ".cubin")]
    wanted += [SOURCES, *(f"{model.stem}-expected.npz" for model in models)]
    missing = [name for name in wanted if not (folder / name).exists()]
    missing += [str(model) for model in models if not model.exists()]
    if missing:
        raise SystemExit(f"{folder} lacks {', '.join(missing)}: run --compile {folder} on a machine with TVM")
    then, now = json.loads((folder / SOURCES).read_text()), source_groups.stamp("engine tvm")
    if then != now:
        raise SystemExit(f"{folder} was compiled by sources {then}, these are {now}: run --compile again")


class Nothing:
    """In a plan's place: starts nothing."""

    def __init__(self, plan: Any) -> None:
        self.workspace = plan.workspace

    def run(self, *_: Any) -> None:
        pass


class Runs:
    """What is compared: graphs by name, and what each puts out."""

    def __init__(self) -> None:
        from framefuse.cuda import device

        self.cupy = device.cupy()
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.graphs: dict[str, Any] = {}
        self.kept: list[Callable[[Any], None]] = []

    def capture(self, start: Callable[[Any], None]) -> Any:
        """A graph of what `start` launches on a stream; once run before, so that all is loaded and chosen."""
        from framefuse.engines.requests import capture

        self.cupy.cuda.runtime.deviceSynchronize()
        start(self.stream)
        self.stream.synchronize()
        return capture(self.stream, partial(start, self.stream))

    def add(self, name: str, start: Callable[[Any], None]) -> None:
        self.graphs[name] = self.capture(start)
        self.kept.append(start)  # a graph holds addresses, `start` the memory there

    def in_turns(self) -> dict[str, list[float]]:
        """Microseconds of a launch of each graph in each round."""
        from benchmarks.gpu.cudnn_network import device_us

        times: dict[str, list[float]] = {name: [] for name in self.graphs}
        for _ in range(ROUNDS):
            for name, graph in self.graphs.items():
                times[name].append(device_us(graph, self.stream, LAUNCHES))
        return times


def measure(
    model: Path, folder: Path | None, candidates: int | None, row: dict[str, Any], save: Callable[[], None]
) -> None:
    """Fill `row`, and `save` after each part: a lease may end in the middle. What fails is said in its place."""
    runs, given, made = Runs(), image(), dict[str, tuple[Any, Any, int]]()
    if folder:
        with np.load(folder / f"{model.stem}-expected.npz") as file:
            expected = [file[name] for name in file.files]
    else:
        expected = [sample(value) for value in reference(model)]

    def error(results: Any) -> float:
        pairs = zip(results, expected, strict=True)
        return max(float(np.abs(sample(result.get()) - want).max() / np.abs(want).max()) for result, want in pairs)

    @contextmanager
    def part(name: str) -> Iterator[dict[str, Any]]:
        about = row.setdefault(name, {})
        try:
            yield about
        except Exception as failed:  # the others are measured none the less
            about["failed"] = f"{type(failed).__name__}: {failed}"[:600]
        print(name, {key: value for key, value in about.items() if key != "kernels"}, flush=True)
        save()

    for name in ELSEWHERE if folder else KINDS:
        with part(name) as about:
            made[name] = execution(model, name, folder, candidates)
            about["schedules"] = made[name][2]
            made[name][0].input[...] = runs.cupy.asarray(given)
            runs.add(name, partial(whole, made[name][0]))
            about["error"] = error(made[name][0].results)
    for name, streams in STREAMS.items():
        with part(name) as about:
            start, results = cudnn_engine(model, runs.cupy.asarray(given), streams, candidates)
            runs.add(name, start)
            about["error"] = error(results)
    for name, times in runs.in_turns().items():
        with part(name) as about:
            about |= {"us": round(float(np.median(times)), 1), "rounds": times}
    ours = [row[name]["us"] for name in STREAMS if name in runs.graphs]
    row["ratio"] = {name: round(row[name]["us"] / min(ours), 3) for name in KINDS if ours and name in runs.graphs}
    if "tvm + cuDNN" in runs.graphs:
        with part("two slots") as about:
            second, *_ = execution(model, "tvm + cuDNN", folder, candidates)
            about["found"] = two_slots(made["tvm + cuDNN"][0], second, given)
        with part("without convolutions") as about:
            about["us"] = without_convolutions(runs, *made["tvm + cuDNN"][:2])
    for name in KINDS:
        if name in runs.graphs:
            with part(f"{name}, kernels") as about:
                about["kernels"] = traced(runs, partial(whole, made[name][0]))
                about["launches"] = sum(int(count) for _, count, _ in about["kernels"])


def whole(made: Any, stream: Any) -> None:
    made.start(stream)
    made.finish(stream)


def cudnn_engine(model: Path, images: Any, streams: int, candidates: int | None) -> tuple[Callable[[Any], None], Any]:
    """Engine cudnn from packing to decoding, convolutions of one input merged; what starts it, and its results."""
    from framefuse.engines.cudnn.compiled import plan
    from framefuse.engines.cudnn.convolutions import Builder
    from framefuse.engines.cudnn.execution import Execution, Weights
    from framefuse.engines.cudnn.importer import import_network
    from framefuse.engines.cudnn.network import Conv
    from framefuse.engines.cudnn.plans import Plans
    from framefuse.engines.cudnn.rewrites import rewrite

    plans = Plans(Builder(candidates=candidates))
    compiled = plan(rewrite(import_network(model, SIZE, SIZE)), 1, SIZE, SIZE, streams)
    weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)])
    made = Execution(compiled, plans.builder, weights, plans)
    plans.save()

    def start(stream: Any) -> None:
        made.pack(images, stream)
        made.start(stream)
        made.finish(stream)

    return start, made.results


def without_convolutions(runs: Runs, made: Any, runner: Any) -> float:
    from benchmarks.gpu.cudnn_network import device_us

    known = dict(runner._plans)
    runner._plans.update({key: (attributes, Nothing(plan)) for key, (attributes, plan) in known.items()})
    graph = runs.capture(made.start)
    runner._plans.update(known)
    return device_us(graph, runs.stream)


def two_slots(first: Any, second: Any, image: Any) -> str:
    """Two executions beside each other against each alone."""
    from framefuse.cuda import device
    from framefuse.engines.requests import capture

    cp = device.cupy()
    first.input[...], second.input[...] = cp.asarray(image), cp.asarray(image[..., ::-1].copy())
    cp.cuda.runtime.deviceSynchronize()
    pairs = [(made, cp.cuda.Stream(non_blocking=True)) for made in (first, second)]
    graphs = [capture(stream, partial(whole, made, stream)) for made, stream in pairs]
    alone = []
    for graph, (made, stream) in zip(graphs, pairs, strict=True):
        graph.launch(stream)
        stream.synchronize()
        alone.append([result.get() for result in made.results])
    for _ in range(50):
        for graph, (_, stream) in zip(graphs, pairs, strict=True):
            graph.launch(stream)
    cp.cuda.runtime.deviceSynchronize()
    for wanted, (made, _) in zip(alone, pairs, strict=True):
        for want, result in zip(wanted, made.results, strict=True):
            if not np.array_equal(want, result.get()):
                return f"differ by {float(np.abs(want - result.get()).max()):.3g}"
    return "equal"


def traced(runs: Runs, start: Callable[[Any], None]) -> list[list[Any]]:
    """[kernel, calls in a launch, microseconds of them], the heaviest first."""
    from cupti import cupti

    kind = cupti.ActivityKind.CONCURRENT_KERNEL
    took: dict[str, list[float]] = defaultdict(list)

    def completed(activities: list[Any]) -> None:
        for activity in activities:
            if activity.kind == kind:
                took[str(activity.name)].append((activity.end - activity.start) / 1e3)

    cupti.activity_register_callbacks(lambda: (8 << 20, 0), completed)
    cupti.activity_enable(kind)
    graph = runs.capture(start)
    cupti.activity_flush_all(1)
    took.clear()
    for _ in range(LAUNCHES):
        graph.launch(runs.stream)
    runs.stream.synchronize()
    cupti.activity_flush_all(1)
    cupti.activity_disable(kind)
    rows = [
        [name[:100], round(len(values) / LAUNCHES), round(sum(values) / LAUNCHES, 2)] for name, values in took.items()
    ]
    return sorted(rows, key=lambda row: -row[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, help="ONNX files; default: yolov8n and yolov5s")
    parser.add_argument("--compile", type=Path, metavar="FOLDER")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--candidates", type=int, help="of cuDNN's plans, measured for a layer; default: the engine's")
    options = parser.parse_args()
    if not options.models:
        from benchmarks.models import model

        options.models = [model(name) for name in ("yolov8n", "yolov5s")]
    if options.compile:
        for path in options.models:
            compile_elsewhere(path, options.compile, options.arch)
        return
    if options.compiled:
        check(options.models, options.compiled)
        runtime_alone()
    from framefuse.engines.tvm.package import versions

    result: dict[str, Any] = {
        "versions": versions(),
        "compiled": "elsewhere" if options.compiled else "here",
        "models": {},
    }

    def save() -> None:
        protocol.write({**protocol.header("tvm_cuda", GROUPS), **result})

    for path in options.models:
        measure(path, options.compiled, options.candidates, result["models"].setdefault(path.stem, {}), save)
    save()
    print(json.dumps(result))
    rows = [(f"{model}: {name}", about) for model, row in result["models"].items() for name, about in row.items()]
    if failed := [name for name, about in rows if "failed" in about and "kernels" not in name]:
        raise SystemExit(f"failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
