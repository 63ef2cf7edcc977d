// Signals of scene complexity, from the luma plane of a frame. The same arithmetic as `signals/reference.py`:
//
//   small[y, x]     = mean of the step x step samples of luma at (y * step, x * step), each >> shift, rounded half up
//   counts[0..255]  = pixels of `small` at each grey level
//   counts[EDGES]   = inner pixels of `small` whose Sobel magnitude exceeds `threshold`
//   counts[CHANGES] = sum of |small - previous|; 0 without `previous`

constexpr int THREADS = 256, EDGES = 256, CHANGES = 257, COUNTS = 258;

// Shrinks the luma, and clears the counts for `signal_count`, which follows on the same stream. `pitch` is in samples.
// kernels: signal_shrink_u8 <uint8_t>, signal_shrink_u16 <uint16_t>
// launch: grid ((height * width + 255) / 256), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(THREADS) signal_shrink(
    const Sample* __restrict__ luma, int pitch, int step, int shift, int height, int width, uint8_t* __restrict__ small,
    int* __restrict__ counts) {
  wait_for_previous();
  if (blockIdx.x == 0)
    for (int k = threadIdx.x; k < COUNTS; k += THREADS) counts[k] = 0;
  const int pixel = blockIdx.x * THREADS + threadIdx.x;
  if (pixel >= height * width) return;
  const Sample* row = luma + (int64_t)(pixel / width * step) * pitch + pixel % width * step;
  int sum = step * step / 2;
  for (int j = 0; j < step; ++j, row += pitch)
    for (int i = 0; i < step; ++i) sum += row[i] >> shift;
  small[pixel] = sum / (step * step);
}

// Each block counts in shared memory first, then adds its share.
// launch: grid ((height * width + 255) / 256), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) signal_count(
    const uint8_t* __restrict__ small, const uint8_t* __restrict__ previous, int height, int width, int threshold,
    int* __restrict__ counts) {
  wait_for_previous();
  __shared__ int share[COUNTS];
  for (int k = threadIdx.x; k < COUNTS; k += THREADS) share[k] = 0;
  __syncthreads();
  const int pixel = blockIdx.x * THREADS + threadIdx.x;
  if (pixel < height * width) {
    const int y = pixel / width, x = pixel % width, value = small[pixel];
    atomicAdd(&share[value], 1);
    if (previous) atomicAdd(&share[CHANGES], abs(value - previous[pixel]));
    if (x > 0 && x < width - 1 && y > 0 && y < height - 1) {
      const uint8_t *here = small + pixel, *above = here - width, *below = here + width;
      const int across = above[1] - above[-1] + 2 * (here[1] - here[-1]) + below[1] - below[-1];
      const int down = below[-1] - above[-1] + 2 * (below[0] - above[0]) + below[1] - above[1];
      if (across * across + down * down > threshold * threshold) atomicAdd(&share[EDGES], 1);
    }
  }
  __syncthreads();
  for (int k = threadIdx.x; k < COUNTS; k += THREADS)
    if (share[k] != 0) atomicAdd(&counts[k], share[k]);
}
