"""What FP8 and INT8 would bring engine cudnn: every convolution of YOLOv8n in each precision, as one fused kernel.

    python -m benchmarks.cudnn_precision [MODEL.onnx] [--batches 1 32] [--seconds 120]

For each distinct layer: microseconds in FP16 as the engine runs it, and in FP8 (E4M3) and INT8 with a factor for each
channel, bias, activation, residual and rounding to 8 bits in the same kernel; the fastest of the first plans that cuDNN
lists. `best` is the sum over the network if every layer took the fastest, which is a bound: a layer in 8 bits needs its
input in 8 bits, and what reads it in FP16 needs it twice; a layer without a measurement counts as FP16, and
`measured_part` says how much of the time the others are. Only time is measured; values are random.
The last line of the output is JSON, recorded as benchmarks/results/cudnn_precision.json.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.gpu_sources import stamp
from benchmarks.protocol import save
from framefuse.engines.cudnn.compiled import compile_network
from framefuse.engines.cudnn.convolutions import REPEATS, Builder, Layer
from framefuse.engines.cudnn.network import Conv
from framefuse.kernels import cuda

X, WEIGHT, FACTOR, BIAS, RESIDUAL, SHARE, OUT, Y = range(2001, 2009)
CANDIDATES = 3
KINDS = ("fp16", "fp8", "int8")


def room(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements that a view spans."""
    return 1 + sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))


def eight_bits(builder: Builder, layer: Layer, kind: str) -> tuple[Any, dict[int, Any]]:
    """The cuDNN graph of a layer whose pictures and weights have 8 bits, and its arrays by unique id."""
    cp, cudnn = cuda.cupy(), builder.cudnn
    types = cudnn.data_type
    byte = types.FP8_E4M3 if kind == "fp8" else types.INT8
    graph = cudnn.pygraph(io_data_type=byte, intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT,
                          handle=builder.handle)  # fmt: skip
    arrays: dict[int, Any] = {}

    def tensor(uid: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        if dtype == byte:  # small numbers: no NaN of FP8 among them
            arrays[uid] = cp.random.randint(0, 0x30, room(shape, strides), dtype=cp.uint8)
        else:
            arrays[uid] = cp.full(room(shape, strides), 0.01, cp.float32)
        return graph.tensor(name=f"t{uid}", dim=list(shape), stride=list(strides), data_type=dtype, uid=uid)

    out, inner, rows, columns = layer.weight
    one, each = (1, 1, 1, 1), (1, out, 1, 1)
    along = (out, 1, out, out)
    top, left, bottom, right = layer.pads
    value = graph.conv_fprop(
        image=tensor(X, layer.x, layer.x_strides, byte),
        weight=tensor(WEIGHT, layer.weight, (rows * columns * inner, 1, columns * inner, inner), byte),
        pre_padding=[top, left], post_padding=[bottom, right], stride=list(layer.stride), dilation=list(layer.dilation),
        compute_data_type=types.INT32 if kind == "int8" else types.FLOAT,
    )  # fmt: skip
    value.set_data_type(types.INT32 if kind == "int8" else types.FLOAT)
    value = graph.mul(a=value, b=tensor(FACTOR, each, along, types.FLOAT))
    value = graph.add(a=value, b=tensor(BIAS, each, along, types.FLOAT))
    if layer.activation == "silu":
        value = graph.swish(input=value)
    elif layer.activation == "relu":
        value = graph.relu(input=value)
    if layer.residual_strides is not None:
        beside = graph.mul(a=tensor(RESIDUAL, layer.y, layer.residual_strides, byte),
                           b=tensor(SHARE, one, one, types.FLOAT))  # fmt: skip
        value = graph.add(a=value, b=beside)
    value = graph.mul(a=value, b=tensor(OUT, one, one, types.FLOAT))
    value.set_output(True).set_data_type(byte).set_dim(list(layer.y)).set_stride(list(layer.y_strides)).set_uid(Y)
    arrays[Y] = cp.empty(room(layer.y, layer.y_strides), cp.uint8)
    graph.validate()
    graph.build_operation_graph()
    return graph, arrays


def fastest(builder: Builder, layer: Layer, kind: str) -> tuple[float | None, str]:
    """Microseconds of the fastest of the first plans; or why there is none."""
    cp = cuda.cupy()
    try:
        graph, arrays = eight_bits(builder, layer, kind)
        modes = builder.cudnn.heur_mode
        graph.create_execution_plans([modes.A, modes.B])
        graph.check_support()
    except Exception as error:  # the bindings raise their own classes and RuntimeError
        return None, str(error)[:160]
    pointers = {uid: int(array.data.ptr) for uid, array in arrays.items()}
    start, stop = cp.cuda.Event(), cp.cuda.Event()
    best, reason = None, "no plan"
    builder.rest()
    for index in range(min(CANDIDATES, graph.get_execution_plan_count())):
        try:
            graph.build_plan_at_index(index)
            scratch = cp.empty(max(1, graph.get_workspace_size_plan_at_index(index)), cp.uint8)

            def again(index: int = index, scratch: Any = scratch) -> None:
                graph.execute_plan_at_index(pointers, int(scratch.data.ptr), index, handle=builder.handle)

            again()
            builder.stream.synchronize()
            builder.stream.begin_capture()
            try:
                for _ in range(REPEATS):
                    again()
            finally:
                captured = builder.stream.end_capture()
            times = []
            for _ in range(4):
                start.record(builder.stream)
                captured.launch(builder.stream)
                stop.record(builder.stream)
                stop.synchronize()
                times.append(cp.cuda.get_elapsed_time(start, stop) * 1e3 / REPEATS)
            best = min(times) if best is None else min(best, *times)
        except Exception as error:  # a plan that cannot be built or run: the next may
            reason = str(error)[:160]
    return best, "" if best is not None else reason


def measure(model: Path, batch: int, builder: Builder, deadline: float) -> dict[str, Any]:
    """All layers of a model at one batch."""
    compiled = compile_network(model, batch, 640, 640)
    steps = [step for step in compiled.placement.steps if isinstance(step, Conv) and not step.depthwise]
    count = Counter(Layer.of(compiled, step) for step in steps)
    rows: list[dict[str, Any]] = []
    # The dearest first: cuDNN takes a second to build kernels of 8 bits, and the time may run out.
    for layer, times in sorted(count.items(), key=lambda item: -item[0].operations * item[1]):
        row: dict[str, Any] = {"weight": layer.weight, "y": layer.y, "stride": layer.stride, "times": times,
                               "residual": layer.residual_strides is not None}  # fmt: skip
        row["fp16"] = builder.choose(layer).microseconds
        for kind in KINDS[1:]:
            row[kind], why = fastest(builder, layer, kind) if time.monotonic() < deadline else (None, "out of time")
            if why:
                row[f"{kind}_why"] = why
        rows.append(row)
    sums = {kind: sum(row["times"] * (row[kind] or row["fp16"]) for row in rows) for kind in KINDS}
    best = sum(row["times"] * min(row[kind] for kind in KINDS if row[kind]) for row in rows)
    wins = Counter(min((kind for kind in KINDS if row[kind]), key=lambda kind: row[kind]) for row in rows)
    done = [row for row in rows if any(row[kind] for kind in KINDS[1:])]
    part = sum(row["times"] * row["fp16"] for row in done) / sums["fp16"]
    none = {kind: sum(row[kind] is None for row in rows) for kind in KINDS[1:]}
    return {"batch": batch, "sums_us": sums, "best_us": best, "gain": sums["fp16"] / best, "fastest": dict(wins),
            "layers": len(rows), "measured_layers": len(done), "measured_part": part, "no_kernel": none,
            "rows": rows}  # fmt: skip


def main() -> None:
    """Measure, record, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--seconds", type=float, default=120)
    options = parser.parse_args()
    if options.model is None:
        from benchmarks.models import model

        options.model = model("yolov8n")
    builder, found = Builder(), []
    started = time.monotonic()
    for number, batch in enumerate(options.batches, 1):
        deadline = started + options.seconds * number / len(options.batches)
        found.append(measure(options.model, batch, builder, deadline))
        print({key: value for key, value in found[-1].items() if key != "rows"}, flush=True)
    save("cudnn_precision", {"model": options.model.name, "cudnn": builder.cudnn.backend_version(), "batches": found,
                             "sources": stamp("engine")})  # fmt: skip


if __name__ == "__main__":
    main()
