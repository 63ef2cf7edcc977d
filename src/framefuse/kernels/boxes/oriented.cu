// Oriented boxes of sorted candidates, cx cy w h in units of the model and the angle, the last value of an anchor.
//
// A candidate is dropped if any better one of its class overlaps it, kept or not, so each decides by itself:
// reference.py, `detections`, states the rule, and tir_cpu_oriented.py the arithmetic.

#include "common.cuh"

// The moments of an even spread over a box; a label below 0: its angle is broken.
struct __align__(16) Spread {
  float cx, cy, x, y, xy;
  int label, spare[2];
};
constexpr float EPSILON = 1e-7f;

static __device__ int kept_candidates(const int* counters, int room) { return min(counters[2 * blockIdx.y], room); }

// A value lies at image * image_pitch + anchor * pitch + number * step; that of the angle `last` after the first.
// kernels: spread_oriented_f32 <float>, spread_oriented_f16 <half>, spread_oriented_bf16 <bfloat16>
// launch: grid ((room + 127) / 128, batch), block 128, waits
template <class Sample>
__global__ void __launch_bounds__(128) spread_oriented(
    const Sample* values, int64_t image_pitch, int pitch, int step, int last, const uint64_t* keys, const int* labels,
    int* counters, int room, Spread* spreads, float* turned) {
  wait_for_previous();
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= kept_candidates(counters, room)) return;
  const int64_t at = (int64_t)blockIdx.y * room + i;
  values += blockIdx.y * image_pitch + (int64_t)index_of(keys[at]) * pitch;
  float box[5];
  for (int k = 0; k < 5; ++k) turned[at * 5 + k] = box[k] = (float)values[(int64_t)(k < 4 ? k : last) * step];
  const bool bad = broken(box[4]);
  if (bad) count_broken(counters);
  const float cosine = cosf(box[4]), sine = sinf(box[4]), wide = box[2] * box[2] / 12, high = box[3] * box[3] / 12;
  spreads[at] = {box[0], box[1], wide * cosine * cosine + high * sine * sine,
                 wide * sine * sine + high * cosine * cosine, (wide - high) * cosine * sine, bad ? -1 : labels[at]};
}

static __device__ bool hides(const Spread& a, const Spread& b, float limit, bool agnostic) {
  const float x = a.cx - b.cx, y = a.cy - b.cy, sx = a.x + b.x, sy = a.y + b.y, sc = a.xy + b.xy;
  if (a.label < 0 || (!agnostic && a.label != b.label) || !(x * x + y * y <= 4 * limit * (sx + sy + EPSILON)))
    return false;
  const float area = sx * sy - sc * sc;
  const float far = (sx * y * y + sy * x * x - 2 * sc * x * y) / (area + EPSILON) * 0.25f;
  const float product = max(a.x * a.y - a.xy * a.xy, 0.0f) * max(b.x * b.y - b.xy * b.xy, 0.0f);
  return area / (4 * sqrtf(product) + EPSILON) + EPSILON < expf(2 * (limit - far));
}

// A warp decides about a candidate: dropped[i] is 1 where a better one hides it, or its angle is broken.
// launch: grid ((room + 7) / 8, batch), block 256, waits
extern "C" __global__ void __launch_bounds__(256) drop_oriented(
    const Spread* spreads, const int* counters, int room, float limit, bool agnostic, int* dropped) {
  wait_for_previous();
  const int i = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (i >= kept_candidates(counters, room)) return;
  spreads += (int64_t)blockIdx.y * room;
  const Spread own = spreads[i];
  bool gone = own.label < 0;
  for (int from = 0; from < i && limit > 0 && !gone; from += 32) {
    const int other = from + lane;
    gone = __any_sync(ALL, other < i && hides(spreads[min(other, i)], own, limit, agnostic));
  }
  if (lane == 0) dropped[(int64_t)blockIdx.y * room + i] = gone;
}

// The rows of the result: boxes (batch, detections, 5) as the model gave them. The counters are 0 afterwards.
// launch: grid (1, batch), block 1024, waits
extern "C" __global__ void __launch_bounds__(CHUNK) place_oriented(
    const uint64_t* keys, const int* labels, const float* turned, const int* dropped, int* counters, int room,
    int detections, float* out_boxes, float* out_scores, int* out_classes, int* out_anchors, int* out_counts,
    int* out_non_finite) {
  wait_for_previous();
  __shared__ int sums[WARPS];
  const int image = blockIdx.y, thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int count = kept_candidates(counters, room);
  const int64_t start = (int64_t)image * room;
  int found = 0;
  for (int from = 0; from < count && found < detections; from += CHUNK) {
    const int i = from + thread;
    const bool kept = i < count && !dropped[start + min(i, count - 1)];
    const unsigned bits = __ballot_sync(ALL, kept);
    if (lane == 0) sums[warp] = __popc(bits);
    __syncthreads();
    const int own = sums[lane], total = warp_sum(own);
    const int row = found + warp_sum(lane < warp ? own : 0) + __popc(bits & ((1u << lane) - 1));
    if (kept && row < detections) {
      const int64_t to = (int64_t)image * detections + row;
      const uint64_t key = keys[start + i];
      out_scores[to] = score_of(key);
      out_anchors[to] = index_of(key);
      out_classes[to] = labels[start + i];
      for (int k = 0; k < 5; ++k) out_boxes[to * 5 + k] = turned[(start + i) * 5 + k];
    }
    found = min(found + total, detections);
    __syncthreads();
  }
  __syncthreads();
  if (thread == 0) {
    out_counts[image] = found;
    out_non_finite[image] = counters[2 * image + 1];
    counters[2 * image] = counters[2 * image + 1] = 0;
  }
}
