"""Nine networks of many kinds on a GPU: framefuse's engine beside ONNX Runtime and PyTorch.

    python -m benchmarks.network_graphs NAME FOLDER/NAME.onnx --any-batch    # each of them, where peers/env.sh was run
    python -m benchmarks.gpu.networks --models FOLDER [--only NAME...] [--batches 1 8] [--surface] [--precision int8]

Sides, in FP16 unless --precision says otherwise. Each has its input in place, in the format that it takes, and leaves
its outputs on the GPU:

- `framefuse`: engine cudnn, in a CUDA graph; in FP32, for which its kernels are exact rather than fast, the engine that
  is chosen then, onnxruntime
- `ONNX Runtime`: provider CUDA, IO binding, in a CUDA graph where that is possible
- `PyTorch`: eager, channels last, with the kernels that cuDNN measures as fastest
- `torch.compile`: mode max-autotune, which captures CUDA graphs, too

PyTorch runs the ONNX file as well (engine torch's importer, torch.export): its batch normalisation is folded, which a
module's is not. Peers multiply in FP16 where ours does in INT8: they have no INT8 for these files.

Sides take turns in every round. `us`: microseconds of a call among CALLS in a row; `wait_us`: of one that is waited
for; both by the wall clock between synchronisations, medians of the rounds. `apart`: the distance of framefuse's
outputs from those of PyTorch, as a share of their spread; `not finite`: sides whose outputs are not. `built_s` includes
everything that is compiled or measured before the first call; `ahead_s` is what compile_ahead.py took, where it filled
the caches that torch.compile then read. A side that fails, or is not built in time, has `failed`
instead.

--surface: a call begins with NV12 surfaces of 1080p on the GPU and ends with objects, masks or labels. framefuse's are
on the host then; it has as many batches in flight as it takes, and runs as it does without options, in FP16, whatever
--precision says of the peers. They prepare and finish with PyTorch's operators (torch_surface.py), and leave the
results on the GPU. The weights are random, so the confidence threshold is one that CANDIDATES anchors of the first
image pass.

`ratio` to framefuse's `us` in the same rounds. The record networks_gpu is written after each network and batch. It
keeps what earlier calls have measured, side by side.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch._inductor import select_algorithm
from torch._inductor.async_compile import AsyncCompile

from benchmarks import protocol
from benchmarks.gpu.torch_surface import CANDIDATES, IOU, TASKS, TorchSurface, card_text, threshold
from benchmarks.network_graphs import SIZES, pictures
from framefuse.cuda import device
from framefuse.engines import EngineOptions, open_engine
from framefuse.engines.onnx_shapes import at_shape, folded
from framefuse.engines.requests import launcher
from framefuse.engines.torch.importer import OnnxNetwork
from framefuse.errors import EngineError
from framefuse.models.fp16 import ONLY_FP32, to_fp16
from framefuse.models.onnx_file import load_onnx

RECORD, GROUPS = "networks_gpu", ("network kernel", "engine cudnn", "engine onnxruntime", "engine torch")
NAMES = ("resnet50", "yolo11s", "yolov8n-seg", "rtdetr-r18", "deeplabv3plus", "yolo26n", "yolov8n-pose", "yolox-s",
         "resnet18")  # fmt: skip
"""In the order in which they are measured."""
OURS = {"fp32": "onnxruntime", "fp16": "cudnn", "int8": "cudnn"}
MODES = "max-autotune", "reduce-overhead"
"""Of torch.compile. The second has graphs, too, but measures no kernels."""
TRANSPOSED = "ConvTranspose"
CALLS = 10
CALIBRATION = 8
"""Images."""
AHEAD = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir())
Shape = tuple[int, int, int, int]


@dataclass
class Side:
    """A network on the GPU, and how it was built."""

    call: Callable[[], Any]
    input: Any
    """Of PyTorch: (batch, 3, height, width), in any format."""
    outputs: Callable[[], list[Any]]
    """What the last call has put out."""
    about: dict[str, Any] = field(default_factory=dict)
    kept: Any = None
    """What must stay alive."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--only", choices=NAMES, nargs="*", default=NAMES)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--precision", choices=tuple(OURS), nargs="+", default=["fp16"])
    parser.add_argument("--sides", nargs="*", default=tuple(SIDES), choices=tuple(SIDES), type=named,
                        help="with underscores for spaces")  # fmt: skip
    parser.add_argument("--surface", action="store_true", help="also from surface to result")
    parser.add_argument("--mode", choices=MODES, default=MODES[0], help="of torch.compile")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=int, default=150, help="seconds in which a side must be built")
    parser.add_argument("--budget", type=float, default=540, help="seconds in which the last row must have ended")
    args = parser.parse_args()
    begun, slowest = time.monotonic(), 0.0
    prepare_torch()
    stream = device.cupy().cuda.Stream(non_blocking=True)
    torch.cuda.set_stream(torch.cuda.ExternalStream(stream.ptr))
    for name in args.only:
        for precision in args.precision:
            for batch in args.batches:
                started = time.monotonic()
                if started - begun + slowest > args.budget:
                    print(f"out of time before {name}, {precision}, batch {batch}", flush=True)
                    return
                path, size = args.models / f"{name}.onnx", SIZES.get(name, 640)
                row: dict[str, Any] = {"network": name, "precision": precision, "batch": batch, "size": size}
                made = measure(path, (batch, 3, size, size), row, args, stream)
                keep(row)
                if args.surface and precision != "int8" and name in TASKS and made.keys() - {"framefuse"}:
                    try:
                        row["surface"] = surface(path, (batch, 3, size, size), made, args.rounds)
                    except Exception as error:  # the next network is measured none the less
                        row["surface"] = {"framefuse": {"failed": said(error)}}
                    keep(row)
                made.clear()
                release()
                slowest = max(slowest, time.monotonic() - started)


def prepare_torch() -> None:
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    select_algorithm.PRINT_AUTOTUNE = False


def ahead(name: str, precision: str, batch: int) -> Path:
    """Where compile_ahead.py leaves how long it took."""
    return AHEAD / f"{name}-{precision}-{batch}.json"


def named(side: str) -> str:
    return side.replace("_", " ")


def measure(path: Path, shape: Shape, row: dict[str, Any], args: Any, stream: Any) -> dict[str, Side]:
    """Build the sides, and measure them into the row."""
    made: dict[str, Side] = {}
    row["sides"] = {}
    image = pictures(shape[0], shape[2]).cuda()
    for name in args.sides:
        begun = time.perf_counter()
        try:
            with at_most(args.limit):
                build = partial(compiled, mode=args.mode) if name == "torch.compile" else SIDES[name]
                side = build(path, shape, row["precision"], stream)
                side.input.copy_(image)
                for _ in range(3):
                    side.call()
                torch.cuda.synchronize()
        except Exception as error:  # whatever it is, the others are measured
            row["sides"][name] = {"failed": said(error)}
            print(path.stem, name, said(error), flush=True)
            continue
        made[name] = side
        row["sides"][name] = side.about | {"built_s": round(time.perf_counter() - begun, 1)}
    for name, times in in_turns({name: side.call for name, side in made.items()}, args.rounds).items():
        row["sides"][name] |= times
    strange = [name for name, side in made.items() if not all(bool(one.isfinite().all()) for one in side.outputs())]
    if strange:
        row["not finite"] = strange
    for name, key in {"framefuse": "apart", "ONNX Runtime": "ONNX Runtime apart"}.items():
        if {name, "PyTorch"} <= made.keys():
            try:
                row[key] = apart(made[name].outputs(), made["PyTorch"].outputs())
            except Exception as error:  # outputs of other shapes: the times are worth keeping
                row[key], row["why"] = None, said(error)
    return made


def in_turns(
    calls: dict[str, Callable[[], Any]], rounds: int, ends: dict[str, Callable[[], Any]] | None = None
) -> dict[str, dict[str, float]]:
    """Microseconds of a call among many, and of one that is waited for.

    Args:
        ends: what takes the results that the calls have left, before the synchronisation.
    """
    times: dict[str, dict[str, list[float]]] = {name: {"us": [], "wait_us": []} for name in calls}
    for number in range(rounds):
        for name, call in random.Random(number).sample(list(calls.items()), len(calls)):
            call()
            end = (ends or {}).get(name, torch.cuda.synchronize)
            for kind, count in (("us", CALLS), ("wait_us", 1)):
                end()
                torch.cuda.synchronize()
                begun = time.perf_counter()
                for _ in range(count):
                    call()
                end()
                torch.cuda.synchronize()
                times[name][kind].append((time.perf_counter() - begun) / count * 1e6)
    found = {name: {kind: round(median(all), 1) for kind, all in one.items()} for name, one in times.items()}
    for one in found.values() if "framefuse" in found else ():
        one["ratio"] = round(one["us"] / found["framefuse"]["us"], 3)
    return found


def of_engine(engine: str, path: Path, shape: Shape, precision: str, stream: Any) -> Side:
    """An engine of framefuse, in a CUDA graph where it can be captured."""
    options: dict[str, Any] = {"precision": precision}
    if precision == "int8":
        options["calibration"] = [one[None] for one in pictures(CALIBRATION, shape[2]).numpy()]
    opened = open_engine(engine, path, EngineOptions("cuda", **options))
    made = opened.execution(shape[0], *shape[2:])
    call = launcher(made, stream)
    given = torch.as_tensor(made.input, device="cuda")
    if made.memory_format == "nhwc":
        given = given.permute(0, 3, 1, 2)[:, :3]
    results = [torch.as_tensor(result, device="cuda") for result in made.results]
    about = {"engine": engine, "precision": opened.precision, "reasons": opened.reasons[-2:]}
    return Side(call, given, lambda: results, about, (opened, made))


def framefuse(path: Path, shape: Shape, precision: str, stream: Any) -> Side:
    return of_engine(OURS[precision], path, shape, precision, stream)


def onnxruntime(path: Path, shape: Shape, precision: str, stream: Any, transposed: bool = True) -> Side:
    """With an FP16 file that takes FP16, but for the operators that ONNX Runtime lacks in it; and without transposed
    convolutions, where those fail."""
    import onnx

    if precision == "fp32":
        return of_engine("onnxruntime", path, shape, "fp32", stream)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / path.name
        model = halved(path, shape, ONLY_FP32)
        if not transposed:
            shuffle_instead(model)
        model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
        onnx.save(model, file)
        try:
            side = of_engine("onnxruntime", file, shape, "fp16", stream)
            side.call()
        except EngineError as error:
            if not transposed or TRANSPOSED not in str(error):
                raise
            return onnxruntime(path, shape, precision, stream, transposed=False)
    if not transposed:
        side.about["note"] = "convolves and moves channels to pixels where transposed convolutions fail"
    return side


def shuffle_instead(model: Any) -> None:
    """Replace transposed convolutions whose windows do not overlap, by one over single pixels and DepthToSpace."""
    from onnx import helper, numpy_helper

    weights = {one.name: one for one in model.graph.initializer}
    for number, node in reversed(list(enumerate(model.graph.node))):
        if node.op_type != TRANSPOSED:
            continue
        weight, bias = (numpy_helper.to_array(weights[name]) for name in node.input[1:3])
        inner, _, rows, columns = weight.shape
        given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        plain = given.get("group", 1) == 1 and not any((*given.get("pads", ()), *given.get("output_padding", ())))
        assert plain and given["strides"] == [rows, columns] and rows == columns, f"{node.name} overlaps or is padded"
        made = {"weight": weight.transpose(2, 3, 1, 0).reshape(-1, inner, 1, 1), "bias": np.tile(bias, rows * columns)}
        names = [f"{node.output[0]}/{name}" for name in made]
        model.graph.initializer.extend(map(numpy_helper.from_array, made.values(), names))
        between = f"{node.output[0]}/depth"
        shuffled = helper.make_node("DepthToSpace", [between], node.output, f"{node.name}/shuffle", blocksize=rows)
        del model.graph.node[number]
        model.graph.node.insert(number, shuffled)
        model.graph.node.insert(
            number, helper.make_node("Conv", [node.input[0], *names], [between], f"{node.name}/conv")
        )


def halved(path: Path, shape: Shape, but: tuple[str, ...]) -> Any:
    model = folded(at_shape(load_onnx(path), shape))
    return to_fp16(model, {number: "" for number, node in enumerate(model.graph.node) if node.op_type in but})


@lru_cache(maxsize=1)
def module_of(path: Path, shape: Shape, half: bool, place: str) -> tuple[Any, Any]:
    """The ONNX file as a module of PyTorch, all of it in FP16 as by `module.half()`, and its input."""
    network = OnnxNetwork(halved(path, shape, ()) if half else folded(at_shape(load_onnx(path), shape)),
                          torch.device(place))  # fmt: skip

    class Net(torch.nn.Module):
        def forward(self, image: Any) -> tuple[Any, ...]:
            return tuple(network(image))

    image = torch.rand(shape, device=place).to(torch.half if half else torch.float32)
    image = image.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        module = torch.export.export(Net(), (image,)).module(check_guards=False)
    module._forward_pre_hooks.clear()  # they check every input
    for name, value in list(vars(module).items()):
        if isinstance(value, torch.Tensor):  # a weight: as a buffer, compiled code does not copy it for every call
            delattr(module, name)
            module.register_buffer(name, value)
    return module, image


def eager(path: Path, shape: Shape, precision: str, stream: Any, place: str = "cuda") -> Side:
    return of_module(*module_of(path, shape, precision != "fp32", place))


def compiled(path: Path, shape: Shape, precision: str, stream: Any, place: str = "cuda", mode: str = MODES[0]) -> Side:
    module, image = module_of(path, shape, precision != "fp32", place)
    AsyncCompile.wait_pool_ready()  # else it compiles the kernels of convolutions in this process
    torch._dynamo.mark_static_address(image)  # it is in place, so it is not copied, either
    made = of_module(torch.compile(module, mode=mode, dynamic=False), image)
    found = ahead(path.stem, precision, shape[0])
    if mode != MODES[0]:
        made.about["note"] = f"in mode {mode}"
    elif found.exists():
        made.about["ahead_s"] = json.loads(found.read_text())
    return made


def of_module(module: Any, image: Any) -> Side:
    last: list[Any] = []

    @torch.no_grad()
    def call() -> None:
        last.clear()  # a graph overwrites its outputs
        last.extend(module(image))

    return Side(call, image, lambda: last)


SIDES: dict[str, Callable[..., Side]] = {
    "framefuse": framefuse, "ONNX Runtime": onnxruntime, "PyTorch": eager, "torch.compile": compiled,
}  # fmt: skip


def apart(ours: list[Any], theirs: list[Any]) -> float | None:
    """The largest distance of an output, root mean square, as a share of the spread; None: they are not numbers."""
    pairs = [(one.float(), other.float()) for one, other in zip(ours, theirs, strict=True)]
    found = [float((one - other).square().mean().sqrt() / other.std().clamp(min=1e-6)) for one, other in pairs]
    return max(found) if np.isfinite(found).all() else None


def surface(path: Path, shape: Shape, made: dict[str, Side], rounds: int) -> dict[str, Any]:
    """Each side from surfaces to results."""
    from benchmarks.gpu.program import frames, images
    from framefuse.models.card import read_card
    from framefuse.runtime.cuda.program import CudaProgram
    from framefuse.runtime.program import Selection

    cp, found = device.cupy(), dict[str, Any]()
    surfaces = [cp.asarray(one) for one in images(shape[0], noise=False)]
    stacked = torch.stack([torch.as_tensor(one, device="cuda") for one in surfaces])
    if text := card_text(path, SIZES.get(path.stem, 640)):
        path.with_suffix(".yaml").write_text(text)
    card = read_card(path)
    theirs = TorchSurface(path.stem, shape[2], card)
    reference = next(side for name, side in made.items() if name != "framefuse")
    theirs.prepare(stacked, reference.input)
    reference.call()
    theirs.conf = threshold(TASKS[path.stem], reference.outputs(), card.class_count)
    found |= {"confidence": theirs.conf, "calls": CALLS}
    layout = "yolov8" if card.layout == "yolov8" and card.task == "detect" else None
    calls, ends = dict[str, Callable[[], Any]](), dict[str, Callable[[], Any]]()
    for name, side in made.items():
        if name != "framefuse":
            calls[name] = partial(theirs, stacked, side)
    program = None
    try:
        selection = Selection(theirs.conf, IOU, 3 * CANDIDATES)
        engine = open_engine("cudnn", path, EngineOptions("cuda", layout=layout))
        program = CudaProgram(engine, card, theirs.spec, selection, batch=shape[0])
        resident = frames(surfaces)

        def taken(finished: Iterator[Any]) -> list[Any]:
            results = [found.result for found in finished]
            for result in results:
                if result.classification is not None:
                    result.classification.top()  # ranks classes only now
            return results

        calls["framefuse"] = lambda: taken(program.submit(resident))
        ends["framefuse"] = lambda: taken(program.drain())
        calls["framefuse"]()
        found["framefuse"] = {"objects": len(ends["framefuse"]()[0].detections)}
    except Exception as error:  # the peers are measured none the less
        found["framefuse"] = {"failed": said(error)}
        calls.pop("framefuse", None)
    for name in [name for name in calls if name != "framefuse"]:
        try:
            found[name] = {"objects": int(calls[name]()[0])}
        except Exception as error:
            found[name] = {"failed": said(error)}
            del calls[name]
    for name, times in in_turns(calls, rounds, ends).items():
        found[name] |= times
    if program is not None:
        program.close()
    return found


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"not built within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:400]


def release() -> None:
    """Free what a row has built."""
    module_of.cache_clear()
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    device.free_pools()


def keep(row: dict[str, Any]) -> None:
    """Write the record, with this row in the place of an earlier one; another process may do so for another GPU."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    with open(Path(tempfile.gettempdir()) / f"{RECORD}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (protocol.RECORDS / f"{RECORD}.json").exists():
            rows = {key(one): one for one in protocol.read(RECORD)["rows"]}
        old = rows.get(key(row), {})
        parts = {part: old.get(part, {}) | row[part] for part in ("sides", "surface") if part in row}
        rows[key(row)] = old | row | parts
        protocol.save(RECORD, {"torch": torch.__version__, "rows": list(rows.values())}, *GROUPS)


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["network"], row["precision"], row["batch"]


if __name__ == "__main__":
    main()
