// Candidates from rotated boxes (rows, 5) cx cy w h angle, with scores and classes as `filter_listed` takes them.

#include "common.cuh"

// launch: grid ((anchors + 127) / 128), block 128, waits, --fmad=false
extern "C" __global__ void __launch_bounds__(128) filter_rotated(
    const float* values, int pitch, const float* scores, const int* class_ids, int label_words, int anchors,
    int capacity, int* counters, uint64_t* keys, RotatedBox* boxes, int* labels) {
  wait_for_previous();
  const int number = blockIdx.x * 128 + threadIdx.x, row = min(number, anchors - 1);
  values += (int64_t)row * pitch;
  bool bad = broken(scores[row]);
  for (int k = 0; k < 5; ++k) bad |= broken(values[k]);
  const double angle = values[4];
  append(
      counters, keys, boxes, labels, capacity, number < anchors && !bad, scores[row],
      class_ids ? class_ids[(int64_t)row * label_words] : 0, row,
      RotatedBox{values[0], values[1], values[2] * 0.5f, values[3] * 0.5f, (float)cos(angle), (float)sin(angle)});
}
