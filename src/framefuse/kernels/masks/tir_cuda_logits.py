"""Logits of instances for CUDA: coefficients times prototypes, within what the plan of each box keeps."""

from tvm.script import tirx as T

from ._tir_cuda_instances import PLAN
from ._tir_cuda_scan import LARGE, THREADS


def logits_variant(kind):
    """The PrimFunc `instance_logits_<type of the prototypes>`: (n, samples_y, samples_x), where a box needs them."""
    dtype = {"f32": "float32", "f16": "float16"}[kind]

    @T.prim_func(s_tir=True)
    def kernel(
        prototypes_address: T.int64,
        channels: T.int32,
        plane_pitch: T.int32,
        row_pitch: T.int32,
        coefficients_address: T.int64,
        plan_address: T.int64,
        across_index: T.int64,
        down_index: T.int64,
        n: T.int32,
        samples_x: T.int32,
        samples_y: T.int32,
        logits_address: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"instance_logits_{kind}"})
        prototypes = T.decl_buffer((LARGE,), dtype, data=T.reinterpret("handle", prototypes_address), align=2)
        coefficients = T.decl_buffer((LARGE,), "float32", data=T.reinterpret("handle", coefficients_address), align=4)
        plan = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", plan_address), align=4)
        xi = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", across_index), align=4)
        yi = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", down_index), align=4)
        logits = T.decl_buffer((LARGE,), "float32", data=T.reinterpret("handle", logits_address), align=4)
        for i in T.thread_binding(n, thread="blockIdx.y"):
            for block in T.thread_binding((samples_x * samples_y + THREADS - 1) // THREADS, thread="blockIdx.x"):
                for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                    sample = block * THREADS + thread
                    x = sample % samples_x
                    y = sample // samples_x
                    at = i * PLAN
                    x0 = plan[at + 4]
                    x1 = plan[at + 5]
                    y0 = plan[at + 6]
                    y1 = plan[at + 7]
                    # One condition would read the taps of a plan that has none.
                    if T.And(T.And(x0 < x1, y0 < y1), y < samples_y):  # noqa: SIM102
                        if T.And(
                            T.And(x >= xi[x0], x <= xi[x1 - 1] + 1),
                            T.And(y >= yi[y0], y <= yi[y1 - 1] + 1),
                        ):
                            total = T.float32(0)
                            if T.And(
                                T.And(x >= plan[at], x < plan[at + 1]), T.And(y >= plan[at + 2], y < plan[at + 3])
                            ):
                                for c in T.serial(channels):
                                    total = total + coefficients[i * channels + c] * T.Cast(
                                        "float32", prototypes[c * plane_pitch + y * row_pitch + x]
                                    )
                            logits[T.Cast("int64", i) * samples_x * samples_y + sample] = total

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    return {f"instance_logits_{kind}": logits_variant(kind) for kind in ("f32", "f16")}
