"""Engine tvm on a CUDA that computes nothing and writes down what it is asked: executions, run as a program.

    python tests/fakes/tvm_on_fake_cuda.py MODEL.onnx FOLDER      # the last line of the output is JSON

TVM's own runtime for CUDA is loaded over libraries that stand for CUDA's runtime and driver. What a capture would
record must be launched on the stream that captures, and nothing may allocate, copy or wait there.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

LIBRARY = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void say(const char *what, const void *stream) {
  FILE *log = fopen(LOG, "a");
  fprintf(log, "%s %lu\n", what, (unsigned long)stream);
  fclose(log);
}
#define NOTHING(name) int name(void) { return 0; }
#define WAITS(name) int name(void) { say(#name, 0); return 0; }
NOTHING(cudaEventCreate) NOTHING(cudaEventDestroy) NOTHING(cudaEventRecord)
NOTHING(cudaGetLastError) NOTHING(cudaPeekAtLastError) NOTHING(cudaGraphDestroy)
NOTHING(cudaGraphExecDestroy) NOTHING(cudaGraphInstantiate) NOTHING(cudaGraphLaunch) NOTHING(cudaMemGetInfo)
NOTHING(cudaSetDevice) NOTHING(cudaStreamBeginCapture) NOTHING(cudaStreamCreate) NOTHING(cudaStreamCreateWithFlags)
NOTHING(cudaStreamDestroy) NOTHING(cudaStreamEndCapture) NOTHING(cudaStreamWaitEvent) NOTHING(cudaGetDeviceProperties)
NOTHING(cuDeviceGetName) NOTHING(cuFuncSetAttribute) NOTHING(cuModuleUnload) NOTHING(cuTensorMapEncodeTiled)
NOTHING(cuGetErrorName) NOTHING(cuGetErrorString)
WAITS(cudaEventSynchronize) WAITS(cudaFree) WAITS(cudaFreeHost) WAITS(cudaMallocHost) WAITS(cudaMemcpyPeerAsync)
WAITS(cudaStreamSynchronize)
const char *cudaGetErrorName(int error) { return "error"; }
const char *cudaGetErrorString(int error) { return "error"; }
int cudaEventElapsedTime(float *milliseconds, void *begin, void *end) { *milliseconds = 50; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 10 ? 32 : 1024;  /* compute capability 9.0, warps */
  return 0;
}
int cudaMalloc(void **memory, size_t size) { say("cudaMalloc", 0); *memory = calloc(1, size); return 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  say("cudaMemcpyAsync", stream);
  memcpy(to, from, size);
  return 0;
}
int cuModuleLoadData(void **module, const void *image) { say("cuModuleLoadData", 0); *module = (void *)1; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = strdup(name); return 0; }
struct config { unsigned grid[3], block[3], shared; void *stream; };
int cuLaunchKernelEx(const struct config *config, const char *function, void **arguments, void **extra) {
  say("launch", config->stream);
  return 0;
}
"""


NVCC = """#!/bin/sh
[ "$1" = --version ] && echo 'Cuda compilation tools, release 13.0, V13.0.88'
while [ $# -gt 0 ]; do
    [ "$1" = -o ] && printf ELF > "$2"
    shift
done
"""
"""Compiles whatever it is given to nothing."""


def libraries(folder: Path, log: Path) -> list[Path]:
    """CUDA's runtime and driver, written to a folder."""
    (folder / "cuda.c").write_text(LIBRARY)
    (folder / "versions").write_text("libcudart.so.13 { global: cuda*; };")
    made = [folder / name for name in ("libcudart.so.13", "libcuda.so.1")]
    for path in made:
        options = [f'-DLOG="{log}"', f"-Wl,-soname,{path.name}", f"-Wl,--version-script={folder / 'versions'}"]
        subprocess.run(["cc", "-w", "-shared", "-fPIC", folder / "cuda.c", "-o", path, *options], check=True)
    return made


def load(folder: Path, log: Path) -> None:
    """Put the libraries where TVM's runtime will look: whoever asks for their names later gets these."""
    for path in libraries(folder, log):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


def toolkit(folder: Path) -> dict[str, str]:
    """A CUDA toolkit with its libraries, and the environment of a process that finds them."""
    for name in ("bin", "lib64"):
        (folder / name).mkdir(parents=True)
    libraries(folder / "lib64", folder / "log")
    (folder / "bin" / "nvcc").write_text(NVCC)
    (folder / "bin" / "nvcc").chmod(0o755)
    paths = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(folder / "lib64")}
    return os.environ | paths | {"CUDA_PATH": str(folder)}


def main() -> None:
    model, folder = Path(sys.argv[1]), Path(sys.argv[2])
    log = folder / "log"
    load(folder, log)
    import tvm_ffi

    from fake_gpu import Array, Gpu
    from framefuse.cuda import device
    from framefuse.engines.tvm import compiling, offload, package, targets
    from framefuse.engines.tvm.compiling import import_model
    from framefuse.engines.tvm.cuda import COMPILE, TvmExecution, address

    tvm, gpu = package.tvm(), Gpu()
    Array.gpu, cupy = gpu, gpu.cupy()
    cupy.cuda.get_current_stream = cupy.cuda.Stream
    device.cupy = lambda: cupy
    tvm_ffi.from_dlpack = lambda array: tvm.runtime.empty(array.shape, str(array.dtype), tvm.cuda(0))
    tvm_ffi.register_global_func(COMPILE, lambda source: b"\x7fELF", override=True)
    convolved: list[int] = []
    tvm_ffi.register_global_func(offload.FUNCTION, lambda *given: convolved.append(gpu.current_stream()), override=True)
    shape, target = (1, 3, 32, 32), targets.this_gpu()
    found: dict[str, Any] = {"target": target.text}
    for name, cudnn in (("cudnn", True), ("alone", False)):
        path = folder / f"{name}.so"
        compiling.compile_to(path, compiling.lower(import_model(model, shape), target, "fp16", cudnn=cudnn), target)
        machine = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cuda(0))
        made = [TvmExecution(machine, shape, np.dtype(np.float32)) for _ in range(2)]
        stream = cupy.cuda.Stream()
        log.write_text("")
        convolved.clear()
        made[0].start(stream)
        asked = [line.split() for line in log.read_text().splitlines()]
        found[name] = {
            "asked": sorted({what for what, _ in asked}),
            "streams": sorted({int(where) == stream.ptr for _, where in asked}),
            "convolutions": len(convolved),
            "on the stream": set(convolved) <= {stream.ptr},
            "own memory": address(made[0]._out[0]) != address(made[1]._out[0]),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
