// Instance masks from prototypes: the plan, and from logits (logits.cu) masks, labels or runs. The arithmetic is that of
// `instances.py`. The plan of each box is made on the device, and launches cover the most that may be there.

#include "plan.cuh"
#include "runs.cuh"

static __device__ int edge(float value, int limit) { return (int)min(max(ceilf(value), 0.0f), (float)limit); }

// How many of the ascending table[0..length - 1] are less than value.
static __device__ int count_below(const int* table, int length, int value) {
  int low = 0;
  for (int high = length; low < high;) {
    const int middle = (low + high) / 2;
    if (table[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// `crop`: boxes crop at the prototypes, else in the image. `count_address`: how many of the n are valid; 0: all.
// launch: grid ((n + 63) / 64), block 64, waits, --fmad=false
extern "C" __global__ void __launch_bounds__(64) instance_plan(
    const float* __restrict__ boxes_address, const int* __restrict__ count_address, int n, bool crop, float scale_x,
    float scale_y, float origin_x, float origin_y, int samples_x, int samples_y, const int* __restrict__ across_index,
    const int* __restrict__ down_index, int width, int height, Plan* __restrict__ plan_address) {
  wait_for_previous();
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= n) return;
  const float* box = boxes_address + 4 * i;
  float x1 = box[0], y1 = box[1], x2 = box[2], y2 = box[3];
  if (crop) {
    x1 = x1 * scale_x + origin_x;
    y1 = y1 * scale_y + origin_y;
    x2 = x2 * scale_x + origin_x;
    y2 = y2 * scale_y + origin_y;
  }
  Range kept = {0, 0, 0, 0};
  if (x1 < x2 && y1 < y2 && i < (count_address ? *count_address : n)) {  // comparisons are false with NaN
    const int limit_x = crop ? samples_x : width, limit_y = crop ? samples_y : height;
    kept = {edge(x1, limit_x), edge(x2, limit_x), edge(y1, limit_y), edge(y2, limit_y)};
  }
  if (!crop) {
    plan_address[i] = {{0, samples_x, 0, samples_y}, kept};
    return;
  }
  Range pixels = {0, 0, 0, 0};
  if (kept.left < kept.right) {
    pixels.left = count_below(across_index, width, kept.left - 1);
    pixels.right = count_below(across_index, width, kept.right);
  }
  if (kept.top < kept.bottom) {
    pixels.top = count_below(down_index, height, kept.top - 1);
    pixels.bottom = count_below(down_index, height, kept.bottom);
  }
  plan_address[i] = {kept, pixels};
}

static __device__ float lerp(float a, float b, float weight) { return a + (b - a) * weight; }

// Logits between two samples of a row. The last sample has no neighbour, and weight 0.
static __device__ float between(const float* row, int left, float weight) {
  return lerp(row[left], row[weight > 0 ? left + 1 : left], weight);
}

// Logits of an instance, from which masks are stretched: as they are, or enlarged by `factor` first.
template <bool ENLARGED>
struct Logits {
  const float* samples;
  int samples_x, samples_y, factor;

  __device__ int rows() const { return ENLARGED ? samples_y * factor : samples_y; }

  __device__ float along(const float* row, int left, float weight) const {
    if (!ENLARGED) return between(row, left, weight);
    const Place place = place_in(left, factor, samples_x), next = place_in(left + 1, factor, samples_x);
    const float value = between(row, place.lower, place.weight);
    return weight > 0 ? lerp(value, between(row, next.lower, next.weight), weight) : value;
  }

  __device__ float across(int row, int left, float weight) const {
    if (!ENLARGED) return along(samples + row * samples_x, left, weight);
    const Place place = place_in(row, factor, samples_y);
    const float* upper = samples + place.lower * samples_x;
    const float value = along(upper, left, weight);
    return place.weight > 0 ? lerp(value, along(upper + samples_x, left, weight), place.weight) : value;
  }

  // Whether a pixel of the plan's range is set.
  __device__ bool inside(int left, float right_weight, int upper_row, float lower_weight) const {
    const float upper = across(upper_row, left, right_weight);
    const float lower = lower_weight > 0 ? across(upper_row + 1, left, right_weight) : upper;
    return lerp(upper, lower, lower_weight) > 0;
  }
};

// Four neighbouring pixels a thread: 1 where the mask of the target's instance is set, or the label of the first of n
// instances that is.
// kernels: instance_masks <false, false>, instance_labels <true, false>
// kernels: instance_masks_enlarged <false, true>, instance_labels_enlarged <true, true>
// launch: grid ((width + 127) / 128, (height + 7) / 8, targets), block 32 * 8, waits
template <bool LABELS, bool ENLARGED>
__global__ void __launch_bounds__(256) instance_paint(
    const float* __restrict__ logits_address, const Plan* __restrict__ plan_address,
    const int* __restrict__ across_index, const float* __restrict__ across_weight, const int* __restrict__ down_index,
    const float* __restrict__ down_weight, const uint8_t* __restrict__ labels_address, int n, int samples_x,
    int samples_y, int factor, int width, int height, uint8_t* __restrict__ target_address, int64_t item_pitch,
    int64_t row_pitch, bool vectors) {
  wait_for_previous();
  const int y = blockIdx.y * 8 + threadIdx.y, x = (blockIdx.x * 32 + threadIdx.x) * 4, target = blockIdx.z;
  if (y >= height || x >= width) return;
  const auto value = [=](int x) -> unsigned {
    for (int k = LABELS ? 0 : target; k < (LABELS ? n : target + 1); ++k)
      if (plan_address[k].pixels.holds(x, y)) {
        const float* samples = logits_address + (int64_t)k * samples_x * samples_y;
        const Logits<ENLARGED> logits = {samples, samples_x, samples_y, factor};
        if (logits.inside(across_index[x], across_weight[x], down_index[y], down_weight[y]))
          return LABELS ? labels_address[k] : 1;
      }
    return 0;
  };
  uint8_t* to = target_address + target * item_pitch + y * row_pitch + x;
  if (vectors) {
    unsigned word = 0;
#pragma unroll 1
    for (int p = 0; p < 4; ++p) word |= value(x + p) << 8 * p;
    *(unsigned*)to = word;
  } else {
#pragma unroll 1
    for (int p = 0; p < 4 && x + p < width; ++p) to[p] = value(x + p);
  }
}

constexpr int AHEAD = 4;

// Positions (n, capacity) at which runs end, and the number of runs. `down_start`: the first pixel of each row of samples.
// kernels: instance_runs <false>, instance_runs_enlarged <true>
// launch: grid (n), block 256, waits
template <bool ENLARGED>
__global__ void __launch_bounds__(THREADS) instance_runs(
    const float* __restrict__ logits_address, const Plan* __restrict__ plan_address,
    const int* __restrict__ across_index, const float* __restrict__ across_weight, const int* __restrict__ down_index,
    const float* __restrict__ down_weight, const int* __restrict__ down_start, int samples_x, int samples_y,
    int factor, int width, int height, int* __restrict__ positions_address, int capacity, int* __restrict__ ends_address) {
  wait_for_previous();
  __shared__ bool ended[THREADS + 1];  // set: the column before ends inside the mask
  const int thread = threadIdx.x;
  const Range range = plan_address[blockIdx.x].pixels;
  const float* samples = logits_address + (int64_t)blockIdx.x * samples_x * samples_y;
  const Logits<ENLARGED> logits = {samples, samples_x, samples_y, factor};
  int* positions = positions_address + (int64_t)blockIdx.x * capacity;
  const int columns = range.top < range.bottom ? range.right - range.left : 0;
  const bool whole = range.top == 0 && range.bottom == height;
  int total = 0;
  for (int first = 0; first < columns; first += THREADS) {
    const int x = range.left + first + thread, last_row = range.bottom - 1;
    // Where the box is as high as the image, a column goes on from the end of the one before it.
    const bool set = whole && x < range.right &&
                     logits.inside(across_index[x], across_weight[x], down_index[last_row], down_weight[last_row]);
    if (thread == THREADS - 1) ended[0] = first > 0 && ended[THREADS];
    __syncthreads();
    ended[thread + 1] = set;
    __syncthreads();
    const bool before = ended[thread];
    add_columns(positions, capacity, total, [=](Writer& writer) {
      if (x >= range.right) return;
      bool value = before;
      const int left = across_index[x], first_row = down_index[range.top];
      const float weight = across_weight[x];
      float upper = logits.across(first_row, left, weight);
      const int rows = down_index[last_row] - first_row + 1;
      for (int first = 0; first < rows; first += AHEAD) {
        float below[AHEAD];  // read together: one after the other each would wait for memory
#pragma unroll
        for (int k = 0; k < AHEAD; ++k)
          below[k] = logits.across(min(first_row + first + k + 1, logits.rows() - 1), left, weight);
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
          if (first + k >= rows) break;
          const int row = first_row + first + k;
          const float lower = below[k];
          const bool same = value ? upper > 0 && lower > 0 : upper <= 0 && lower <= 0;  // nothing changes between them
          const int stop = same ? 0 : min(down_start[row + 1], range.bottom);
          for (int y = max(down_start[row], range.top); y < stop; ++y)
            if ((lerp(upper, lower, down_weight[y]) > 0) != value) {
              value = !value;
              writer.put(x * height + y);
            }
          upper = lower;
        }
      }
      const int end = x * height + range.bottom;
      if (value && (!whole || x == range.right - 1) && end < width * height) writer.put(end);
    });
  }
  close(positions, ends_address + blockIdx.x, capacity, total, width * height);
}
