// What the anchors of the objects say after their classes: a row of `extra` values for each object.

#include "common.cuh"

// A value lies at image * image_pitch + anchor * pitch + number * step.
// kernels: gather_extras_f32 <float>, gather_extras_f16 <half>, gather_extras_bf16 <bfloat16>
// launch: grid ((detections * extra + 255) / 256, batch), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(256) gather_extras(
    const Sample* values, int64_t image_pitch, int pitch, int step, int extra, const int* anchors, const int* counts,
    int detections, float* gathered) {
  wait_for_previous();
  const int i = blockIdx.x * 256 + threadIdx.x, row = i / extra, number = i - row * extra;
  if (row >= counts[blockIdx.y]) return;
  const int64_t at = (int64_t)blockIdx.y * detections + row;
  values += blockIdx.y * image_pitch + (int64_t)anchors[at] * pitch + (int64_t)number * step;
  gathered[at * extra + number] = (float)*values;
}
