// Logits of instances (n, samples_y, samples_x): coefficients times prototypes where the plan of a box keeps a sample, 0
// where only its pixels need one; others are not written.

#include "plan.cuh"

// kernels: instance_logits_f32 <float>, instance_logits_f16 <half>
// launch: grid ((samples_x * samples_y + 255) / 256, n), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(256) instance_logits(
    const Sample* __restrict__ prototypes_address, int channels, int plane_pitch, int row_pitch,
    const float* __restrict__ coefficients_address, const Plan* __restrict__ plan_address,
    const int* __restrict__ across_index, const int* __restrict__ down_index, int samples_x, int samples_y,
    float* __restrict__ logits_address) {
  wait_for_previous();
  const int i = blockIdx.y, sample = blockIdx.x * 256 + threadIdx.x, x = sample % samples_x, y = sample / samples_x;
  const Plan plan = plan_address[i];
  const Range pixels = plan.pixels;
  if (y >= samples_y || pixels.left >= pixels.right || pixels.top >= pixels.bottom) return;
  if (x < across_index[pixels.left] || x > across_index[pixels.right - 1] + 1) return;
  if (y < down_index[pixels.top] || y > down_index[pixels.bottom - 1] + 1) return;
  float total = 0;
  if (plan.samples.holds(x, y))
    for (int c = 0; c < channels; ++c)
      total += coefficients_address[i * channels + c] * (float)prototypes_address[c * plane_pitch + y * row_pitch + x];
  logits_address[(int64_t)i * samples_x * samples_y + sample] = total;
}
