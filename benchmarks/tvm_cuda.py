"""What engine tvm takes on an NVIDIA GPU beside engine cudnn: FP16, with and without convolutions left to cuDNN.

    python -m benchmarks.tvm_cuda [MODEL.onnx ...] [--out FILE]

Device time between two events around a graph launch (median of 50 launches), from float32 NCHW pictures to the decoded
float32 output, batch 1, 640x640:

- `cudnn`: engine cudnn, on one stream and on four
- `tvm + cuDNN`, `tvm alone`: engine tvm; `without convolutions`: the same with nothing started for them, which is what
  TVM's own kernels and the launches between them take
- `kernels`: microseconds of each kernel in one launch, as CUPTI recorded it, where cupti-python is installed
- `two slots`: whether two executions that run at once give what one gives alone
- `error`: the largest difference to ONNX Runtime in float32, of the largest value

Where the GPU's machine has TVM's runtime but not its compiler (61 MB), the programs can be compiled elsewhere:

    python -m benchmarks.tvm_cuda MODEL.onnx --compile FOLDER --arch sm_90    # without a GPU; nvcc must be there
    python -m benchmarks.tvm_cuda MODEL.onnx --compiled FOLDER    # without the model: all but engine cudnn

The last line of the output is JSON.
"""

import argparse
import ctypes
import importlib.util
import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 640
SHAPE = (1, 3, SIZE, SIZE)
KINDS = {"tvm + cuDNN": True, "tvm alone": False}
LAUNCHES_TRACED = 20


def names(model: Path, cudnn: bool) -> str:
    return f"{model.stem}-{'cudnn' if cudnn else 'alone'}"


def compile_elsewhere(model: Path, folder: Path, arch: str) -> None:
    """The program and its machine code, without a GPU."""
    import tvm_ffi

    from framefuse.engines.cache import EngineCache
    from framefuse.engines.tvm import compiling, jit, reading, targets

    target = targets.Target("cuda", arch)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{model.stem}-expected.npz", *(sample(value) for value in reference(model)))
    for cudnn in KINDS.values():
        path = folder / f"{names(model, cudnn)}.so"
        lowered = compiling.lower(reading.read(model, SHAPE), target, "fp16", cudnn=cudnn)
        compiling.compile_to(path, lowered, target)
        jit.register(target, EngineCache("tvm", folder / "cubins"))
        code = tvm_ffi.get_global_func(jit.FUNCTION)(source(path))
        path.with_suffix(".cubin").write_bytes(bytes(code))
        print(path.name, path.stat().st_size, "bytes,", len(bytes(code)), "of machine code", flush=True)


def picture() -> Any:
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    planes = [0.5 + 0.4 * np.sin(9 * x + 3 * y), 0.5 + 0.4 * np.cos(7 * y), x * y]
    return np.stack(planes)[None].astype(np.float32)


def reference(model: Path) -> list[Any]:
    """What ONNX Runtime gives in float32."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return list(session.run(None, {session.get_inputs()[0].name: picture()}))


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


def execution(model: Path, cudnn: bool, folder: Path | None, candidates: int | None) -> tuple[Any, Any]:
    """Engine tvm's execution, and what calls cuDNN for it."""
    from framefuse.engines.tvm import convolve

    convolver = convolve.register() if cudnn else None
    if convolver is not None and candidates:
        convolver.builder.candidates = candidates
    if folder is None:
        from framefuse.engines import EngineOptions
        from framefuse.engines.tvm.engine import TvmEngine

        engine = TvmEngine(model, EngineOptions("cuda", precision="fp16"), cudnn=cudnn)
        made = engine.execution(1, SIZE, SIZE)
        print(*engine.reasons, sep="\n", flush=True)
        return made, convolver
    import tvm
    import tvm_ffi
    from tvm.runtime.vm import VirtualMachine

    from framefuse.engines.tvm.jit import FUNCTION
    from framefuse.engines.tvm.on_gpu import TvmExecution

    library = folder / f"{names(model, cudnn)}.so"
    code = library.with_suffix(".cubin").read_bytes()
    tvm_ffi.register_global_func(FUNCTION, lambda _: code, override=True)
    machine = VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cuda(0))
    return TvmExecution(machine, SHAPE, np.dtype(np.float32), convolver), convolver


def runtime_alone() -> None:
    """TVM without its compiler does not load its own part for CUDA."""
    import tvm

    folder = Path(next(iter(tvm.__path__)), "lib")
    spec = importlib.util.find_spec("nvidia")
    near = (
        [path for base in (spec.submodule_search_locations or ()) for path in Path(base).glob("*/lib")] if spec else []
    )
    for place in [*near, Path("/usr/local/cuda/lib64")]:
        if (place / "libcudart.so.13").exists():
            ctypes.CDLL(str(place / "libcudart.so.13"), ctypes.RTLD_GLOBAL)
            break
    ctypes.CDLL(str(folder / "libtvm_runtime_cuda.so"), ctypes.RTLD_GLOBAL)


class Nothing:
    """In a plan's place: starts nothing."""

    def __init__(self, plan: Any) -> None:
        self.workspace = plan.workspace

    def run(self, *_: Any) -> None:
        pass


def measure(
    model: Path, folder: Path | None, candidates: int | None, row: dict[str, Any], save: Callable[[], None]
) -> None:
    """Fill `row`, and `save` after each part: a lease may end in the middle."""
    from benchmarks.cudnn_network import device_us
    from framefuse.engines.device_lane import capture
    from framefuse.kernels import cuda

    cp = cuda.cupy()
    stream = cp.cuda.Stream(non_blocking=True)
    given = picture()
    kept = folder / f"{model.stem}-expected.npz" if folder else None
    if kept and kept.exists():
        with np.load(kept) as file:
            expected = [file[name] for name in file.files]
    else:
        expected = [sample(value) for value in reference(model)]

    def error(results: Any) -> float:
        pairs = zip(results, expected, strict=True)
        return max(float(np.abs(sample(result.get()) - want).max() / np.abs(want).max()) for result, want in pairs)

    for kind, cudnn in KINDS.items():
        try:
            made, convolver = execution(model, cudnn, folder, candidates)
            row[kind] = tvm_engine(made, given, error, stream, capture, device_us)
            save()
            if convolver is not None:
                row["two slots"] = two_slots(execution(model, cudnn, folder, candidates)[0], made, given, capture)
                known = dict(convolver._known)
                convolver._known.update({key: (told, Nothing(plan)) for key, (told, plan) in known.items()})
                graph = capture(stream, partial(made.start, stream))
                row[kind]["without convolutions us"] = device_us(graph, stream)
                convolver._known.update(known)
        except Exception as failed:  # the other kind is measured none the less
            row.setdefault(kind, {})["failed"] = f"{type(failed).__name__}: {failed}"[:600]
        print(kind, {name: value for name, value in row[kind].items() if name != "kernels"}, flush=True)
        save()
    if not model.exists():
        return
    row["cudnn"] = cudnn_engine(model, given, error, stream)
    best = min(value for name, value in row["cudnn"].items() if name.endswith("us"))
    row["ratio"] = {kind: round(row[kind]["us"] / best, 3) for kind in KINDS if "us" in row[kind]}
    save()


def cudnn_engine(model: Path, picture: Any, error: Callable[[Any], float], stream: Any) -> dict[str, Any]:
    """Engine cudnn from packing to decoding; convolutions of one input merged."""
    from benchmarks.cudnn_network import device_us
    from framefuse.engines.cudnn.compiled import plan
    from framefuse.engines.cudnn.convolutions import Builder
    from framefuse.engines.cudnn.execution import Execution, Weights, capture
    from framefuse.engines.cudnn.network import Conv
    from framefuse.engines.cudnn.plans import Plans
    from framefuse.engines.cudnn.reading import read
    from framefuse.engines.cudnn.rewriting import prepare
    from framefuse.kernels import cuda

    plans, row = Plans(Builder()), {}
    pictures = cuda.cupy().asarray(picture)
    for streams in (1, 4):
        compiled = plan(prepare(read(model, SIZE, SIZE), merge=True), 1, SIZE, SIZE, streams)
        weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)])
        made = Execution(compiled, plans.builder, weights, plans)

        def whole(made: Any = made) -> None:
            made.pack(pictures, stream)
            made.start(stream)
            made.finish(stream)

        row[f"{streams} stream us"] = device_us(capture(stream, whole), stream)
        row["error"] = error(made.results)
    plans.save()
    print("cudnn", row, flush=True)
    return row


def tvm_engine(made: Any, picture: Any, error: Any, stream: Any, capture: Any, device_us: Any) -> dict[str, Any]:
    from framefuse.kernels import cuda

    made.input[...] = cuda.cupy().asarray(picture)
    cuda.cupy().cuda.runtime.deviceSynchronize()

    def whole() -> None:
        made.start(stream)
        made.finish(stream)

    graph = capture(stream, whole)
    row: dict[str, Any] = {"us": device_us(graph, stream), "error": error(made.results)}
    try:
        row["kernels"] = traced(lambda: capture(stream, whole), stream)
        row["launches"] = sum(int(count) for _, count, _ in row["kernels"])
    except Exception as failed:  # without cupti-python, or where CUPTI may not record
        row["kernels not traced"] = f"{type(failed).__name__}: {failed}"[:200]
    return row


def two_slots(first: Any, second: Any, picture: Any, capture: Any) -> str:
    """Two executions beside each other against each alone."""
    from framefuse.kernels import cuda

    cp = cuda.cupy()
    first.input[...], second.input[...] = cp.asarray(picture), cp.asarray(picture[..., ::-1].copy())
    cp.cuda.runtime.deviceSynchronize()
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]

    def whole(made: Any, stream: Any) -> None:
        made.start(stream)
        made.finish(stream)

    pairs = list(zip((first, second), streams, strict=True))
    graphs = [capture(stream, partial(whole, made, stream)) for made, stream in pairs]
    alone = []
    for graph, (made, stream) in zip(graphs, pairs, strict=True):
        graph.launch(stream)
        stream.synchronize()
        alone.append([result.get() for result in made.results])
    for _ in range(50):
        for graph, stream in zip(graphs, streams, strict=True):
            graph.launch(stream)
    cp.cuda.runtime.deviceSynchronize()
    for wanted, (made, _) in zip(alone, pairs, strict=True):
        for want, result in zip(wanted, made.results, strict=True):
            if not np.array_equal(want, result.get()):
                return f"differ by {float(np.abs(want - result.get()).max()):.3g}"
    return "equal"


def traced(make: Callable[[], Any], stream: Any) -> list[list[Any]]:
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
    graph = make()
    cupti.activity_flush_all(1)
    took.clear()
    for _ in range(LAUNCHES_TRACED):
        graph.launch(stream)
    stream.synchronize()
    cupti.activity_flush_all(1)
    cupti.activity_disable(kind)
    rows = [
        [name[:100], round(len(values) / LAUNCHES_TRACED), round(sum(values) / LAUNCHES_TRACED, 2)]
        for name, values in took.items()
    ]
    return sorted(rows, key=lambda row: -row[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, help="ONNX files; default: yolov8n and yolov5s")
    parser.add_argument("--compile", type=Path, metavar="FOLDER")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--candidates", type=int, help="of cuDNN's plans, measured for a layer; default: the engine's")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.models:
        from benchmarks.models import model

        options.models = [model(name) for name in ("yolov8n", "yolov5s")]
    if options.compile:
        for path in options.models:
            compile_elsewhere(path, options.compile, options.arch)
        return
    if options.compiled:
        runtime_alone()
    from benchmarks import gpu_sources
    from framefuse.engines.tvm.package import versions
    from framefuse.kernels import cuda

    properties = cuda.cupy().cuda.runtime.getDeviceProperties(0)
    result: dict[str, Any] = {
        "benchmark": "tvm_cuda",
        "gpu": properties["name"].decode(),
        "versions": versions(),
        "compiled": "elsewhere" if options.compiled else "here",
        "sources": gpu_sources.stamp("engine", "tvm"),
        "models": {},
    }

    def save() -> None:
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")

    for path in options.models:
        row = result["models"][path.stem] = {}
        measure(path, options.compiled, options.candidates, row, save)
        print(path.stem, row.get("ratio"), row.get("two slots"))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
