// Mattes of both eyes that support each other, on the GPU: `eyes.py`.

constexpr int THREADS = 256, RADIUS = 2;

static __device__ int within(int at, int first, int last) { return min(max(at, first), last); }

// target[eye, y, x] = (own + weight other) / (1 + weight), other the matte of the other eye where it sees the same.
// launch: grid ((columns + 255) / 256, rows, 2), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) matte_eyes(
    const float* __restrict__ left_alpha_address, const float* __restrict__ right_alpha_address,
    const float* __restrict__ left_guide_address, const float* __restrict__ right_guide_address, int rows, int columns,
    int first, int last, float most, float weight, float* __restrict__ target_address) {
  wait_for_previous();
  const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y, eye = blockIdx.z;
  if (x >= columns) return;
  int least = 65535, found = 0;
  for (int shift = first; shift <= last; ++shift) {
    const int own = eye ? x + shift : x;  // where the left eye sees it
    const int begin = max(shift, 0), end = columns - 1 + min(shift, 0);
    if (own < begin || own > end) continue;
    int sum = 0;
    for (int j = -RADIUS; j <= RADIUS; ++j) {
      const int row = within(y + j, 0, rows - 1) * columns;
      for (int i = -RADIUS; i <= RADIUS; ++i) {
        const int at = row + within(own + i, begin, end);
        sum += abs((int)rintf(left_guide_address[at] * 255) - (int)rintf(right_guide_address[at - shift] * 255));
      }
    }
    if (sum < least) {
      least = sum;
      found = shift;
    }
  }
  const int at = y * columns + x;
  const float own = (eye ? right_alpha_address : left_alpha_address)[at];
  const float other = (eye ? left_alpha_address : right_alpha_address)[eye ? at + found : at - found];
  const float part = max(1 - least / most, 0.0f) * weight;
  target_address[eye * rows * columns + at] = (own + part * other) / (1 + part);
}
