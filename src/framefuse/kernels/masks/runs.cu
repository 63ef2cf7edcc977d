// COCO run lengths of masks: the positions at which runs end in columns, their lengths, their compressed text.

#include "runs.cuh"

// Positions (n, capacity) and their number from row-major masks: a thread walks a column, so a warp reads along the rows.
// launch: grid (n), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) mask_positions(
    const uint8_t* __restrict__ masks_address, int64_t item_pitch, int64_t row_pitch, int width, int height,
    int* __restrict__ positions_address, int capacity, int* __restrict__ ends_address) {
  wait_for_previous();
  const uint8_t* mask = masks_address + blockIdx.x * item_pitch;
  int* positions = positions_address + (int64_t)blockIdx.x * capacity;
  int total = 0;
  for (int first = 0; first < width; first += THREADS) {
    const int x = first + threadIdx.x;
    add_columns(positions, capacity, total, [=](Writer& writer) {
      if (x >= width) return;
      bool value = x > 0 && mask[(height - 1) * row_pitch + x - 1];
      for (int y = 0; y < height; ++y)
        if ((mask[y * row_pitch + x] != 0) != value) {
          value = !value;
          writer.put(x * height + y);
        }
    });
  }
  close(positions, ends_address + blockIdx.x, capacity, total, width * height);
}

static __device__ int length_of(const int* positions, int run) {
  return positions[run] - (run > 0 ? positions[run - 1] : 0);
}

// Lengths (n, capacity) from positions.
// launch: grid ((capacity + 255) / 256, n), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) run_lengths(
    const int* __restrict__ positions_address, int capacity, const int* __restrict__ ends_address,
    int* __restrict__ lengths_address) {
  wait_for_previous();
  const int run = blockIdx.x * THREADS + threadIdx.x;
  const int64_t begin = (int64_t)blockIdx.y * capacity;
  if (run < min(ends_address[blockIdx.y], capacity))
    lengths_address[begin + run] = length_of(positions_address + begin, run);
}

// COCO's compressed strings (n, room) from positions, and their lengths; a thread takes a run.
// launch: grid (n), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) run_text(
    const int* __restrict__ positions_address, int capacity, const int* __restrict__ ends_address,
    uint8_t* __restrict__ text_address, int room, int* __restrict__ text_ends_address) {
  wait_for_previous();
  const int* positions = positions_address + (int64_t)blockIdx.x * capacity;
  uint8_t* text = text_address + (int64_t)blockIdx.x * room;
  const int count = min(ends_address[blockIdx.x], capacity);
  int total = 0;
  for (int first = 0; first < count; first += THREADS) {
    const int run = first + threadIdx.x;
    int code = 0, size = 0;
    if (run < count) {
      code = length_of(positions, run) - (run > 2 ? length_of(positions, run - 2) : 0);
      // 5 bits a character, the last with room for the sign: -16..15 take one.
      int rest = code, bits;
      do {
        bits = rest & 31;
        rest >>= 5;
        ++size;
      } while (rest != (bits & 16 ? -1 : 0));
    }
    const int at = place_of(size, total);
    for (int digit = 0; digit < size && at + digit < room; ++digit)
      text[at + digit] = (code >> 5 * digit & 31) + (digit < size - 1 ? 32 : 0) + 48;
  }
  if (threadIdx.x == 0) text_ends_address[blockIdx.x] = total;
}

// The lengths of the runs of the first `valid` masks one after the other: `room` of them, and `more` in the rest. And the
// runs of each mask: 0 for the others. Runs beyond the capacity, and those for which there is no room, are counted only,
// which tells that something is missing.
// launch: grid (n), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) pack_runs(
    const int* __restrict__ positions_address, int capacity, const int* __restrict__ ends_address,
    const int* __restrict__ valid_address, int room, int* __restrict__ packed_address, int more,
    int* __restrict__ rest_address, int* __restrict__ runs_address) {
  wait_for_previous();
  __shared__ int start;
  const int mask = blockIdx.x, valid = *valid_address, count = mask < valid ? ends_address[mask] : 0;
  const int* positions = positions_address + (int64_t)mask * capacity;
  if (threadIdx.x == 0) {
    start = 0;
    runs_address[mask] = count;
  }
  __syncthreads();
  int before = 0;
  for (int other = threadIdx.x; other < min(mask, valid); other += THREADS) before += min(ends_address[other], capacity);
  if (before > 0) atomicAdd(&start, before);
  __syncthreads();
  for (int run = threadIdx.x; run < min(count, capacity) && start + run - room < more; run += THREADS) {
    const int at = start + run;
    (at < room ? packed_address[at] : rest_address[at - room]) = length_of(positions, run);
  }
}
