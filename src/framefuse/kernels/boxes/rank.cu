// sorted[place] = candidate, where the place is the number of candidates of the image with a smaller key.
//
// A block ranks those of its own range of scores: it reads every key, counts those before its range, and compares the
// others in it with each other. The ranges share out what lies between 1 and `confidence` on a logarithmic scale.

#include "common.cuh"

// kernels: rank <Box>, rank_rotated <RotatedBox>, rank_views <ViewBox>
// launch: grid (blocks, batch), block 512, waits, --fmad=false
template <class B>
__global__ void __launch_bounds__(512) rank(
    const int* counters, const uint64_t* keys, const B* boxes, const int* labels, int capacity, int room,
    float confidence, uint64_t* sorted_keys, B* sorted_boxes, int* sorted_labels) {
  wait_for_previous();
  let_next_begin();
  constexpr int LISTED = 1024, AHEAD = 4;  // candidates kept at hand, keys that a thread reads at once
  __shared__ uint64_t listed[LISTED];
  __shared__ int listed_at[LISTED], size, smaller;
  const int image = blockIdx.y, thread = threadIdx.x, count = counters[2 * image];
  keys += (int64_t)image * capacity;
  boxes += (int64_t)image * capacity;
  labels += (int64_t)image * capacity;
  sorted_keys += (int64_t)image * room;
  sorted_boxes += (int64_t)image * room;
  sorted_labels += (int64_t)image * room;

  // Of the upper half of a key, the range starts at `low` and ends at `low + span`.
  const int64_t one = 0x7fffffff - 0x3f800000, least = ordered(max(confidence, 0.0f)), block = blockIdx.x;
  const int64_t width = max(least - one, (int64_t)0) / gridDim.x + 1;
  const int64_t start = block == 0 ? 0 : one + block * width;
  const int64_t end = block == gridDim.x - 1 ? (int64_t)1 << 32 : one + (block + 1) * width;
  const unsigned low = start, span = end - start - 1;
  const auto in_range = [=](uint64_t key) { return (unsigned)(key >> 32) - low <= span; };

  if (thread == 0) size = smaller = 0;
  __syncthreads();
  int before = 0;
  for (int from = 0; from < count; from += AHEAD * 512) {
    uint64_t others[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) others[a] = keys[min(from + a * 512 + thread, count - 1)];
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {
      const int at = from + a * 512 + thread;
      before += at < count && (unsigned)(others[a] >> 32) < low;
      const bool mine = at < count && in_range(others[a]);
      const int slot = reserve(&size, mine);
      if (mine && slot < LISTED) {
        listed[slot] = others[a];
        listed_at[slot] = at;
      }
    }
  }
  before = warp_sum(before);
  if (thread % 32 == 0) atomicAdd(&smaller, before);
  __syncthreads();
  const bool crowded = size > LISTED;
  for (int member = thread; member < (crowded ? count : size); member += 512) {
    const uint64_t key = crowded ? keys[member] : listed[member];
    const int at = crowded ? member : listed_at[member];
    int place = crowded ? 0 : smaller;
    if (crowded && !in_range(key)) continue;
    if (crowded)
      for (int other = 0; other < count; ++other) place += keys[other] < key;
    else
      for (int other = 0; other < size; ++other) place += listed[other] < key;
    if (place >= room) continue;
    sorted_keys[place] = key;
    sorted_labels[place] = labels[at];
    sorted_boxes[place] = boxes[at];
  }
}
