// Holes in mattes on the GPU: `holes.py`.

constexpr int THREADS = 256, SIDE = 32, MIDDLE = SIDE / 2;
constexpr unsigned ALL = ~0u;

// The samples of a set, and those beside, above and below them, also diagonally. A lane has a row of the window.
static __device__ unsigned neighbours(unsigned row, int lane) {
  const unsigned wide = row | row << 1 | row >> 1;
  const unsigned above = __shfl_sync(ALL, wide, max(lane - 1, 0)), below = __shfl_sync(ALL, wide, min(lane + 1, 31));
  return wide | above | below;
}

// The samples of a set, and those that background in the same row joins with them.
static __device__ unsigned along(unsigned row, unsigned background) {
  unsigned left = row, right = row, up = background, down = background;
#pragma unroll
  for (int by = 1; by < SIDE; by *= 2) {
    left |= up & left << by;
    right |= down & right >> by;
    up &= up << by;
    down &= down >> by;
  }
  return left | right;
}

// Fills the holes of a matte in place. A warp takes, one after the other, those of its 32 samples that may be the first of
// a hole. Another warp may be filling the same hole: what is left of it is a hole, too.
// launch: grid ((columns + 255) / 256, rows), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) matte_holes(float* alpha_address, int rows, int columns,
                                                                  int most) {
  wait_for_previous();
  const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y, lane = threadIdx.x % 32;
  const auto background = [=](int row, int column) {
    const bool inside = row >= 0 && row < rows && column >= 0 && column < columns;
    return !inside || alpha_address[row * columns + column] < 0.5f;
  };
  const bool first = x < columns && background(y, x) && !background(y, x - 1) && !background(y - 1, x - 1) &&
                     !background(y - 1, x) && !background(y - 1, x + 1);
  const unsigned firsts = __ballot_sync(ALL, first);
  for (int at = 0; at < 32; ++at) {
    if (!(firsts >> at & 1)) continue;
    const int top = y - 1, left = x - lane + at - MIDDLE;
    unsigned open = 0;
    for (int k = 0; k < SIDE; ++k) open |= (unsigned)background(top + lane, left + k) << k;
    const unsigned end = lane == 0 || lane == 31 ? ALL : 1u << 31 | 1u;
    unsigned hole = lane == 1 ? 1u << MIDDLE : 0;
    for (bool grows = true; grows;) {
      const unsigned grown = along(neighbours(hole, lane) & open, open);
      int samples = __popc(grown);
      for (int half = 16; half; half /= 2) samples += __shfl_xor_sync(ALL, samples, half);
      const bool none = __any_sync(ALL, grown & end) || samples > most;
      grows = !none && __any_sync(ALL, grown != hole);
      hole = none ? 0 : grown;
    }
    const unsigned around = neighbours(hole, lane);
    for (int k = 0; k < SIDE; ++k)
      if (around >> k & 1) alpha_address[(top + lane) * columns + left + k] = 1;
  }
}
