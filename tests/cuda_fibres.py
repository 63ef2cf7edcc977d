"""Generated CUDA kernels whose threads talk to each other, on the CPU: one fibre for each thread of a block.

A fibre runs until it has to wait for others: at a barrier, a ballot or a shuffle. All lanes of a warp must take part.
"""

from __future__ import annotations

import ctypes
import subprocess
from typing import Any

from cuda_on_cpu import CALL, SHIM, Compiled
from framefuse.kernels import cuda

FIBRES = r"""
#include <ucontext.h>
#include <vector>
#define __shared__ static
struct Fibre { ucontext_t context; bool done; std::vector<char> stack; };
struct Barrier { int size, arrived, turn; };
static std::vector<Fibre> fibres;
static ucontext_t scheduler;
static int current;
static Barrier block;
static std::vector<Barrier> warps;
static uint64_t lanes[32][32];
static void wait(Barrier& barrier) {
  int turn = barrier.turn;
  if (++barrier.arrived == barrier.size) { barrier.arrived = 0; barrier.turn++; return; }
  while (barrier.turn == turn) {
    int me = current;
    swapcontext(&fibres[me].context, &scheduler);
    current = me; threadIdx = {me, 0, 0};
  }
}
static void __syncthreads() { wait(block); }
static int __syncthreads_or(int value) {
  static int gathered, result;
  wait(block); gathered = 0; wait(block); gathered |= value != 0; wait(block); result = gathered; wait(block);
  return result;
}
// Every lane shows a value; then `read` may look at all of them.
template <class T, class Read> T exchange(T value, Read read) {
  auto& shown = lanes[threadIdx.x / 32];
  memcpy(&shown[threadIdx.x % 32], &value, sizeof value);
  wait(warps[threadIdx.x / 32]);
  value = read(shown);
  wait(warps[threadIdx.x / 32]);
  return value;
}
template <class T> T __shfl_sync(unsigned, T value, int from, int = 32) {
  return exchange(value, [=](uint64_t* shown) { T other; memcpy(&other, &shown[from], sizeof other); return other; });
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int by, int = 32) {
  return __shfl_sync(mask, value, threadIdx.x % 32 ^ by);
}
static unsigned __ballot_sync(unsigned, int value) {
  return exchange(unsigned(value != 0), [](uint64_t* shown) {
    unsigned bits = 0;
    for (int lane = 0; lane < 32; ++lane) bits |= unsigned(shown[lane] & 1) << lane;
    return bits;
  });
}
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
static int atomicAdd(int* address, int value) { int old = *address; *address += value; return old; }
static unsigned atomicOr(unsigned* address, unsigned value) { unsigned old = *address; *address |= value; return old; }
"""

# `alignas` may not follow `static`.
RUN = """
static char* parameters;
static void start() {{
  call({entry}, parameters);
  fibres[current].done = true;
  swapcontext(&fibres[current].context, &scheduler);
}}
extern "C" void run(char* p, int gx, int gy, int gz, int bx, int by, int bz) {{
  parameters = p;
  fibres.resize(bx);
  for (blockIdx.z = 0; blockIdx.z < gz; ++blockIdx.z) for (blockIdx.y = 0; blockIdx.y < gy; ++blockIdx.y)
  for (blockIdx.x = 0; blockIdx.x < gx; ++blockIdx.x) {{
    block = {{bx, 0, 0}};
    warps.assign(bx / 32, {{32, 0, 0}});
    for (auto& fibre : fibres) {{
      fibre.done = false;
      fibre.stack.resize(65536);
      getcontext(&fibre.context);
      fibre.context.uc_stack.ss_sp = fibre.stack.data();
      fibre.context.uc_stack.ss_size = fibre.stack.size();
      makecontext(&fibre.context, start, 0);
    }}
    for (int left = bx; left;) {{
      left = 0;
      for (int thread = 0; thread < bx; ++thread) {{
        if (fibres[thread].done) continue;
        current = thread; threadIdx = {{thread, 0, 0}};
        swapcontext(&scheduler, &fibres[thread].context);
        left += !fibres[thread].done;
      }}
    }}
  }}
}}
"""


class Fibres(Compiled):
    """As `Compiled`, for kernels with blocks of one dimension."""

    def _compile(self, symbol: str) -> Any:
        description = cuda.describe(symbol)
        source = self.folder / f"{symbol}.cpp"
        code = description.source.replace("__shared__ alignas(64)", "__shared__")
        text = SHIM + FIBRES + "#include <utility>\n" + code + CALL + RUN.format(entry=description.entry)
        source.write_text(text, encoding="utf-8")
        flags = ["-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-shared", "-fPIC"]
        subprocess.run(["g++", *flags, str(source), "-o", str(source.with_suffix(".so"))], check=True)
        return ctypes.CDLL(str(source.with_suffix(".so")))
