// Candidates of detections from the raw outputs of each layout: the best class of each anchor whose score exceeds
// `confidence`. common.cuh explains keys, counters and capacity.

#include "common.cuh"

// (batch, 4 + classes, anchors). A block reads 64 anchors, and its 8 warps share the classes; a thread reads AHEAD
// classes of SPAN anchors at once.
// kernels: filter_yolov8_f32 <float>, filter_yolov8_f16 <half>, filter_yolov8_bf16 <bfloat16>
// launch: grid ((anchors + 63) / 64, batch), block 256, waits, --fmad=false
template <class Sample>
__global__ void __launch_bounds__(256) filter_yolov8(
    const Sample* values, int64_t image_pitch, int pitch, int anchors, int classes, float confidence,
    const uint8_t* wanted, int capacity, int* counters, uint64_t* keys, Box* boxes, int* labels) {
  wait_for_previous();
  constexpr int AHEAD = 10, SPAN = 2, WIDTH = 32 * SPAN;
  __shared__ float bests[8][WIDTH], sides[4][WIDTH];
  __shared__ int firsts[8][WIDTH];
  __shared__ unsigned worsts[8][WIDTH];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  values += blockIdx.y * image_pitch;
  float best[SPAN], own[SPAN];
  int label[SPAN];
  int64_t at[SPAN];
  unsigned worst[SPAN];  // bits of the largest magnitude, which are in the order of the numbers
  const auto magnitude = [](float value) { return __float_as_uint(value) & 0x7fffffff; };
#pragma unroll
  for (int k = 0; k < SPAN; ++k) {
    at[k] = min((int)blockIdx.x * WIDTH + k * 32 + lane, anchors - 1);
    best[k] = -INFINITY;
    label[k] = warp;
    own[k] = warp < 4 ? (float)values[at[k] + (int64_t)warp * pitch] : 0.0f;
    worst[k] = magnitude(own[k]);
  }
  for (int from = 0; from < classes - warp; from += 8 * AHEAD) {
    float scores[AHEAD][SPAN];
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {  // past the end, the last class of the warp again
      const int64_t row = (int64_t)(4 + warp + min(from + a * 8, (classes - 1 - warp) / 8 * 8)) * pitch;
#pragma unroll
      for (int k = 0; k < SPAN; ++k) scores[a][k] = values[at[k] + row];
    }
    // Two loops: one gets 32 registers for float32 (NVRTC 13), too few for the loads in flight.
#pragma unroll
    for (int a = 0; a < AHEAD; ++a)
#pragma unroll
      for (int k = 0; k < SPAN; ++k) worst[k] = max(worst[k], magnitude(scores[a][k]));
#pragma unroll
    for (int a = 0; a < AHEAD; ++a)
#pragma unroll
      for (int k = 0; k < SPAN; ++k)
        if (scores[a][k] > best[k]) {
          best[k] = scores[a][k];
          label[k] = warp + from + a * 8;
        }
  }
#pragma unroll
  for (int k = 0; k < SPAN; ++k) {
    if (warp < 4) sides[warp][k * 32 + lane] = own[k];
    bests[warp][k * 32 + lane] = best[k];
    firsts[warp][k * 32 + lane] = label[k];
    worsts[warp][k * 32 + lane] = worst[k];
  }
  __syncthreads();
  if (thread >= WIDTH) return;
  float top = bests[0][thread];
  int first = firsts[0][thread];
  unsigned bad = worsts[0][thread];
#pragma unroll
  for (int w = 1; w < 8; ++w) {
    const float value = bests[w][thread];
    bad = max(bad, worsts[w][thread]);
    if (value > top || (value == top && firsts[w][thread] < first)) {
      top = value;
      first = firsts[w][thread];
    }
  }
  const int anchor = blockIdx.x * WIDTH + thread;
  if (anchor < anchors && bad >= INFINITE) count_broken(counters);
  const bool keep = anchor < anchors && bad < INFINITE && top > confidence && wanted[first];
  append(
      counters, keys, boxes, labels, capacity, keep, top, first, anchor,
      centred(sides[0][thread], sides[1][thread], sides[2][thread], sides[3][thread]));
}

// (batch, anchors, 5 + classes). A warp reads an anchor.
// kernels: filter_yolov5_f32 <float>, filter_yolov5_f16 <half>, filter_yolov5_bf16 <bfloat16>
// launch: grid ((anchors + 7) / 8, batch), block 256, waits, --fmad=false
template <class Sample>
__global__ void __launch_bounds__(256) filter_yolov5(
    const Sample* values, int64_t image_pitch, int pitch, int anchors, int classes, float confidence,
    const uint8_t* wanted, int capacity, int* counters, uint64_t* keys, Box* boxes, int* labels) {
  wait_for_previous();
  const int lane = threadIdx.x % 32, anchor = blockIdx.x * 8 + threadIdx.x / 32;
  values += blockIdx.y * image_pitch + (int64_t)min(anchor, anchors - 1) * pitch;
  const float objectness = values[4];
  float best = -INFINITY;
  int label = LAST;
  bool bad = false;
  for (int i = lane; i < classes + 5; i += 32) {
    const float value = values[i];
    bad |= broken(value);
    if (i >= 5 && value * objectness > best) {
      best = value * objectness;
      label = i - 5;
    }
  }
  const float top = warp_max(best);
  const int first = first_of_best(best, top, label);
  bad = __any_sync(ALL, bad);
  const bool mine = anchor < anchors && lane == 0;
  if (mine && bad) count_broken(counters);
  const bool keep = mine && !bad && objectness > confidence && top > confidence && wanted[first];
  append(
      counters, keys, boxes, labels, capacity, keep, top, first, anchor,
      centred(values[0], values[1], values[2], values[3]));
}
