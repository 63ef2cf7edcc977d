// Logits of instances (n, samples_y, samples_x): coefficients times prototypes where the plan of a box keeps a sample, 0
// where only its pixels need one; others are not written.

#include "plan.cuh"

constexpr int BLOCKS = 8;

// kernels: instance_logits_f32 <float>, instance_logits_f16 <half>
// launch: grid (8, n), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(256) instance_logits(
    const Sample* __restrict__ prototypes_address, int channels, int plane_pitch, int row_pitch,
    const float* __restrict__ coefficients_address, const Plan* __restrict__ plan_address,
    const int* __restrict__ across_index, const int* __restrict__ down_index, int samples_x, int samples_y,
    int factor, float* __restrict__ logits_address) {
  wait_for_previous();
  const int i = blockIdx.y;
  const Plan plan = plan_address[i];
  const Range pixels = plan.pixels;
  if (pixels.left >= pixels.right || pixels.top >= pixels.bottom) return;
  const int upper = factor > 1 ? 1 : 0;  // an enlarged sample lies between two
  const int left = place_in(across_index[pixels.left], factor, samples_x).lower;
  const int right = min(place_in(across_index[pixels.right - 1] + upper, factor, samples_x).lower + 1, samples_x - 1);
  const int top = place_in(down_index[pixels.top], factor, samples_y).lower;
  const int bottom = min(place_in(down_index[pixels.bottom - 1] + upper, factor, samples_y).lower + 1, samples_y - 1);
  const int wide = right - left + 1, count = wide * (bottom - top + 1);
  for (int sample = blockIdx.x * 256 + threadIdx.x; sample < count; sample += BLOCKS * 256) {
    const int x = left + sample % wide, y = top + sample / wide;
    float total = 0;
    if (plan.samples.holds(x, y))
      for (int c = 0; c < channels; ++c)
        total += coefficients_address[i * channels + c] * (float)prototypes_address[c * plane_pitch + y * row_pitch + x];
    logits_address[((int64_t)i * samples_y + y) * samples_x + x] = total;
  }
}
