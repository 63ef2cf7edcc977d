// counts[image] += values of the image that are NaN or infinite: a model failed whose outputs never reach the host.

#include "common.cuh"

// launch: grid (64, n), block 256, waits
extern "C" __global__ void __launch_bounds__(256) count_non_finite_f32(
    const float* values, int64_t image_pitch, int size, int* counts) {
  wait_for_previous();
  int found = 0;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < size; i += 64 * 256)
    found += broken(values[blockIdx.y * image_pitch + i]);
  if (found > 0) atomicAdd(&counts[blockIdx.y], found);
}
