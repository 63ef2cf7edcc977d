"""CUDA kernels whose threads talk to each other, on the CPU: one fibre for each thread of a block.

A fibre runs until it has to wait for others: at a barrier, a ballot or a shuffle. All lanes of a warp must take part.
The blocks of a cluster run together; each has its own dynamic shared memory. Tensor cores and copies into
shared memory (kernels/network/tensor.cuh) are functions here.
"""

from __future__ import annotations

import re

from cuda_on_cpu import CALL, SHIM, Compiled, source
from framefuse.cuda import cubins

TALK = re.compile("__(syncthreads|syncwarp|shfl|ballot|any)")

FIBRES = r"""
#include <setjmp.h>
#include <ucontext.h>
#include <vector>
#define __shared__ static
struct Fibre { ucontext_t context; jmp_buf place; bool begun, done; std::vector<char> stack; };
struct Barrier { int size, arrived, turn; };
static std::vector<Fibre> fibres;
static jmp_buf scheduler;
static int current;
static dim shape, gridDim;
static int first_z, threads;  // of the cluster's first block, and in a block
static void become(int number) {
  current = number;
  blockIdx.z = first_z + number / threads;
  int thread = number % threads;
  threadIdx = {thread % shape.x, thread / shape.x % shape.y, thread / (shape.x * shape.y)};
}
// Unlike swapcontext, these leave the mask of signals alone, so that a switch is no system call.
static __attribute__((noinline)) void pause() {
  if (!_setjmp(fibres[current].place)) _longjmp(scheduler, 1);
}
static __attribute__((noinline)) void resume() {
  Fibre& fibre = fibres[current];
  if (_setjmp(scheduler)) return;
  if (fibre.begun) _longjmp(fibre.place, 1);
  fibre.begun = true;
  setcontext(&fibre.context);
}
static Barrier cluster;
static std::vector<Barrier> blocks, warps;
static uint64_t lanes[32][32];
static void wait(Barrier& barrier) {
  int turn = barrier.turn;
  if (++barrier.arrived == barrier.size) { barrier.arrived = 0; barrier.turn++; return; }
  while (barrier.turn == turn) {
    int me = current;
    pause();
    become(me);
  }
}
static void __syncthreads() { wait(blocks[current / threads]); }
static void sync_cluster() { wait(cluster); }
static void __syncwarp(unsigned = ~0u) { wait(warps[current / 32]); }
static void __threadfence() {}
static int __syncthreads_or(int value) {
  static int gathered, result;
  auto& block = blocks[0];
  wait(block); gathered = 0; wait(block); gathered |= value != 0; wait(block); result = gathered; wait(block);
  return result;
}
// Every lane shows a value; then `read` may look at all of them.
template <class T, class Read> T exchange(T value, Read read) {
  int warp = current / 32;
  auto& shown = lanes[warp];
  memcpy(&shown[current % 32], &value, sizeof value);
  wait(warps[warp]);
  value = read(shown);
  wait(warps[warp]);
  return value;
}
template <class T> T __shfl_sync(unsigned, T value, int from, int = 32) {
  return exchange(value, [=](uint64_t* shown) { T other; memcpy(&other, &shown[from], sizeof other); return other; });
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int by, int = 32) {
  return __shfl_sync(mask, value, current % 32 ^ by);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, int by, int = 32) {
  int lane = current % 32;
  return __shfl_sync(mask, value, lane + by < 32 ? lane + by : lane);
}
static unsigned __ballot_sync(unsigned, bool value) {
  return exchange(unsigned(value), [](uint64_t* shown) {
    unsigned bits = 0;
    for (int lane = 0; lane < 32; ++lane) bits |= unsigned(shown[lane] & 1) << lane;
    return bits;
  });
}
static bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
static int atomicAdd(int* address, int value) { int old = *address; *address += value; return old; }
static unsigned atomicAdd(unsigned* address, unsigned value) { unsigned old = *address; *address += value; return old; }
static unsigned atomicOr(unsigned* address, unsigned value) { unsigned old = *address; *address |= value; return old; }

#define CLUSTER(blocks)
static size_t shared_size;
static float4 load_from_block(const float* own, int block) {
  return *(const float4*)((char*)own + (block - current / threads) * (int64_t)shared_size);
}
static void copy_async(void* to, const void* from, bool valid, bool = false) {
  valid ? memcpy(to, from, 16) : memset(to, 0, 16);
}
static void close_group() {}
template <int groups> void wait_for_groups() {}
static void load_matrices(unsigned (&found)[4], const void* row) {
  exchange(uint64_t(row), [&](uint64_t* shown) {
    int lane = current % 32;
    for (int k = 0; k < 4; ++k) memcpy(&found[k], (char*)shown[k * 8 + lane / 4] + lane % 4 * 4, 4);
    return uint64_t(0);
  });
}
static void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Operands { unsigned short a[8], b[4]; };
  static Operands shown[32][32];
  int warp = current / 32, lane = current % 32;
  auto& mine = shown[warp];
  memcpy(mine[lane].a, a, 16);
  memcpy(mine[lane].b, &b0, 4);
  memcpy(mine[lane].b + 2, &b1, 4);
  wait(warps[warp]);
  for (int n = 0; n < 4; ++n)
    for (int k = 0; k < 16; ++k) {
      const auto& left = mine[lane / 4 * 4 + k % 8 / 2].a;
      const auto& right = mine[(lane % 4 * 2 + n % 2) * 4 + k % 8 / 2].b;
      sums[n] += half_value(left[(n / 2 + k / 8 * 2) * 2 + k % 2]) * half_value(right[k / 8 * 2 + k % 2]);
    }
  wait(warps[warp]);
}
static uint64_t rows_at(const void* first) { return uint64_t(first); }
static void begin_products() {}
static void close_products() {}
template <int groups> void wait_for_products() {}
static void show_copies() {}
static void multiply_add_wide(float (&sums)[64], uint64_t a, uint64_t b) {
  int warp = current / 32 % 4, lane = current % 32;
  auto number = [](uint64_t first, int row, int k) {  // bits 4 to 6 of an address are those that bits 7 to 9 change
    uint64_t at = first + row * 128 + k * 2;
    return half_value(*(unsigned short*)(at ^ (at >> 7 & 7) << 4));
  };
  for (int n = 0; n < 64; ++n) {
    int row = warp * 16 + lane / 4 + n / 2 % 2 * 8, column = n / 4 * 8 + lane % 4 * 2 + n % 2;
    for (int k = 0; k < 16; ++k) sums[n] += number(a, row, k) * number(b, column, k);
  }
}
"""

SHARED = re.compile(r"extern __shared__ __align__\(1024\) unsigned char (\w+)\[\];")
EACH_ITS_OWN = r"""alignas(1024) static unsigned char all[16][{size}];
  unsigned char* \1 = all[current / threads];
  shared_size = sizeof all[0];"""

# `alignas` may not follow `static`.
RUN = """
static char* parameters;
static void start() {{
  call({entry}, parameters);
  fibres[current].done = true;
  _longjmp(scheduler, 1);
}}
extern "C" void run(char* p, int gx, int gy, int gz, int bx, int by, int bz) {{
  threads = bx * by * bz;
  const int together = threads * {cluster};
  parameters = p;
  shape = {{bx, by, bz}};
  gridDim = {{gx, gy, gz}};
  fibres.resize(together);
  for (first_z = 0; first_z < gz; first_z += {cluster}) for (blockIdx.y = 0; blockIdx.y < gy; ++blockIdx.y)
  for (blockIdx.x = 0; blockIdx.x < gx; ++blockIdx.x) {{
    cluster = {{together, 0, 0}};
    blocks.assign({cluster}, {{threads, 0, 0}});
    warps.assign(together / 32, {{32, 0, 0}});
    for (auto& fibre : fibres) {{
      fibre.begun = fibre.done = false;
      fibre.stack.resize(65536);
      getcontext(&fibre.context);
      fibre.context.uc_stack.ss_sp = fibre.stack.data();
      fibre.context.uc_stack.ss_size = fibre.stack.size();
      makecontext(&fibre.context, start, 0);
    }}
    for (int left = together; left;) {{
      left = 0;
      for (int thread = 0; thread < together; ++thread) {{
        if (fibres[thread].done) continue;
        become(thread);
        resume();
        left += !fibres[thread].done;
      }}
    }}
  }}
}}
"""


class Fibres(Compiled):
    """As `Compiled`, and for kernels whose threads talk too."""

    def text(self, description: cubins.Description) -> str:
        code = source(description)
        if not TALK.search(code) or (description.program and " across<" not in code):
            return super().text(description)
        own = EACH_ITS_OWN.format(size=description.shared)
        code = SHARED.sub(own, code.replace("__shared__ alignas(64)", "__shared__"))
        split = re.search(r"constexpr int SPLIT = (\d+);", code)
        run = RUN.format(entry=description.entry, cluster=split[1] if split and "CLUSTER(SPLIT)" in code else 1)
        return SHIM + FIBRES + "#include <utility>\n" + code + CALL + run
