// What a network needs between its convolutions; common.cuh says how images lie.
//
//   network_pack      float32 or float16 NCHW -> NHWC of either type, the further channels 0
//   network_unpack    NHWC -> float32 NCHW
//   network_upsample  each pixel `scale` times along both axes; scale 1 copies
//   network_smallest  places of the smallest keys of each row
//   network_pool      maxima of windows, of those, and of those again: one launch for a pyramid

#include "common.cuh"

template <class Sample>
struct __align__(4 * sizeof(Sample)) Four {
  Sample values[4];
};

// A thread makes the `groups` times 4 channels of a pixel.
// kernels: network_pack_f32 <float, half>, network_pack_f16 <half, half>
// kernels: network_pack_f32_f32 <float, float>, network_pack_f16_f32 <half, float>
// launch: grid ((pixels + 255) / 256, batch), block 256, waits
template <class Sample, class Result>
__global__ void __launch_bounds__(THREADS) network_pack(
    const Sample* __restrict__ x_, Four<Result>* __restrict__ y_, int pixels, int channels, int groups) {
  wait_for_previous();
  const int pixel = blockIdx.x * THREADS + threadIdx.x;
  if (pixel >= pixels) return;
  const Sample* x = x_ + (int64_t)blockIdx.y * channels * pixels + pixel;
  Four<Result>* y = y_ + ((int64_t)blockIdx.y * pixels + pixel) * groups;
  for (int group = 0; group < groups; ++group) {
    Four<Result> made;
#pragma unroll
    for (int c = 0; c < 4; ++c)
      made.values[c] = group * 4 + c < channels ? (float)x[(int64_t)(group * 4 + c) * pixels] : 0.0f;
    y[group] = made;
  }
}

// A thread makes a pixel of a channel.
// kernels: network_unpack_f16 <half>, network_unpack_f32 <float>
// launch: grid ((height * width + 255) / 256, channels, batch), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(THREADS) network_unpack(
    const Sample* __restrict__ x_, int64_t x_image, int x_row, int x_column, float* __restrict__ y_, int channels,
    int height, int width) {
  wait_for_previous();
  const int pixel = blockIdx.x * THREADS + threadIdx.x, channel = blockIdx.y, image = blockIdx.z;
  if (pixel >= height * width) return;
  const int64_t at = (int64_t)(pixel / width) * x_row + (int64_t)(pixel % width) * x_column + channel;
  y_[((int64_t)image * channels + channel) * (height * width) + pixel] = x_[image * x_image + at];
}

// A thread makes 8 channels of a pixel of the result, which has `height` rows of `width`.
// launch: grid ((height * width * groups + 255) / 256, batch), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) network_upsample(
    const half* x_, int64_t x_image, int x_row, int x_column, half* y_, int64_t y_image, int y_row, int y_column,
    int height, int width, int groups, int scale) {
  wait_for_previous();
  const int item = blockIdx.x * THREADS + threadIdx.x;
  if (item >= height * width * groups) return;
  const int group = item % groups, pixel = item / groups, row = pixel / width, column = pixel % width;
  const half* from = x_ + blockIdx.y * x_image + (int64_t)(row / scale) * x_row + column / scale * x_column + group * 8;
  half* to = y_ + blockIdx.y * y_image + (int64_t)row * y_row + column * y_column + group * 8;
  *(uint4*)to = __ldg((const uint4*)from);
}

// A key and its place as a number below 2^63 that rises in the order of the result; NaN comes last.
static __device__ uint64_t order_of(float key, int place) {
  const unsigned bits = __float_as_uint(key + 0.0f);  // -0 becomes 0
  const unsigned rising = key != key ? ~0u : bits >> 31 ? ~bits : bits | 1u << 31;
  return (uint64_t)rising << 31 | place;
}

// What the threads of a block do with each key of a row; several are read at once.
template <int BLOCK, class Use>
static __device__ __forceinline__ void for_each_order(const float* keys, int columns, Use use) {
  constexpr int AT_ONCE = 8;
  for (int start = threadIdx.x; start < columns; start += AT_ONCE * BLOCK) {
    float some[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) some[k] = start + k * BLOCK < columns ? keys[start + k * BLOCK] : 0;
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k)
      if (start + k * BLOCK < columns) use(order_of(some[k], start + k * BLOCK));
  }
}

// A block makes a row, up to a place for each thread in a turn. Histograms of ten bits of the order, the highest first,
// narrow down an end before which lie as many keys as are wanted, or some more that the block can still sort.
// launch: grid (rows), block 1024, waits
extern "C" __global__ void __launch_bounds__(1024) network_smallest(
    const float* __restrict__ keys_, int64_t* __restrict__ places_, int columns, int count) {
  wait_for_previous();
  let_next_begin();
  constexpr int BLOCK = 1024, BITS = 10;
  __shared__ int bins[BLOCK], sums[32], chosen[3], taken;
  __shared__ uint64_t list[BLOCK];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const float* keys = keys_ + (int64_t)blockIdx.x * columns;
  int64_t* places = places_ + (int64_t)blockIdx.x * count;
  bins[thread] = 0;
  uint64_t first = 0;  // what is below is written already
  for (int done = 0; done < count; done += BLOCK) {
    const int wanted = min(count - done, BLOCK);
    uint64_t low = first;
    int shift = 63, before = 0, through;  // how many are below `low`, and below `low` + 2^shift
    if (thread == 0) taken = 0;
    __syncthreads();
    do {
      shift = max(shift - BITS, 0);
      for_each_order<BLOCK>(keys, columns, [=](uint64_t order) {
        const uint64_t digit = (order - low) >> shift;  // 2^10 or more for those before `low`, too
        if (digit < BLOCK) atomicAdd(&bins[digit], 1);
      });
      __syncthreads();
      const int own = bins[thread];
      bins[thread] = 0;
      int sum = own;
      for (int by = 1; by < 32; by *= 2) {
        const int other = __shfl_sync(~0u, sum, max(lane - by, 0));
        if (lane >= by) sum += other;
      }
      if (lane == 31) sums[warp] = sum;
      __syncthreads();
      int others = lane < warp ? sums[lane] : 0;
      for (int by = 16; by; by /= 2) others += __shfl_xor_sync(~0u, others, by);
      through = before + others + sum;
      if (through >= wanted && through - own < wanted) {
        chosen[0] = thread;
        chosen[1] = through - own;
        chosen[2] = through;
      }
      __syncthreads();
      low += (uint64_t)chosen[0] << shift;
      before = chosen[1];
      through = chosen[2];
    } while (through > BLOCK);
    const uint64_t end = low + (1ull << shift);
    for_each_order<BLOCK>(keys, columns, [=](uint64_t order) {
      if (order >= first && order < end) list[atomicAdd(&taken, 1)] = order;
    });
    if (thread >= through) list[thread] = ~0ull;
    __syncthreads();
    for (int size = 2; size < 2 * through; size *= 2)  // a bitonic sort
      for (int stride = size / 2; stride; stride /= 2) {
        const int a = 2 * thread - thread % stride, b = a + stride;
        if (thread < min(through, BLOCK / 2) && (list[a] > list[b]) == !(a & size)) {
          const uint64_t other = list[a];
          list[a] = list[b];
          list[b] = other;
        }
        if ((stride > 1 ? stride : size) > 32) __syncthreads();  // up to there, 64 of the list are a warp's own
        else __syncwarp();
      }
    if (thread < wanted) places[done + thread] = (int64_t)(list[thread] & 0x7fffffff);
    first = end;
  }
}

// What `network_pool` compares at once: a pair of float16, or a float32.
template <class Sample>
struct Word;

template <>
struct Word<half> {
  static constexpr int COUNT = 4;  // in 8 channels
  using Type = unsigned;
  static __device__ unsigned lowest() { return 0xfc00fc00; }  // two of minus infinity
};

template <>
struct Word<float> {
  static constexpr int COUNT = 8;
  using Type = float;
  static __device__ float lowest() { return __uint_as_float(0xff800000u); }
};

static __device__ float largest(float a, float b) { return max(a, b); }

static __device__ unsigned largest(unsigned a, unsigned b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned both;
  asm("max.f16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
  return both;
#else
  half2 x, y;
  x.x.bits = a; x.y.bits = a >> 16; y.x.bits = b; y.y.bits = b >> 16;
  return max(x.x, y.x).bits | (unsigned)max(x.y, y.y).bits << 16;
#endif
}

// A block makes TILE x TILE pixels of 8 channels: maxima of all windows along x in shared memory, then along y. The
// maximum of windows of maxima is that of one larger window, so pool k sees (k + 1) * radius pixels around.
// kernels: network_pool_f16 <half>, network_pool_f32 <float>
// launch: grid ((width + 9) / 10, (height + 9) / 10, batch * groups), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(THREADS) network_pool(
    const Sample* x_, int64_t x_image, int x_row, int x_column, Sample* y0_, Sample* y1_, Sample* y2_,
    int64_t y_image, int y_row, int y_column, int height, int width, int groups, int pools, int radius) {
  wait_for_previous();
  using Type = typename Word<Sample>::Type;
  constexpr int TILE = 10, REACH = 6, SPAN = TILE + 2 * REACH, POOLS = 3;  // REACH: three windows of 5
  constexpr int COUNT = Word<Sample>::COUNT, EACH = 8 / COUNT;
  __shared__ Type source[SPAN][SPAN][COUNT], rows[POOLS][SPAN][TILE][COUNT];
  const int image = blockIdx.z / groups, group = blockIdx.z - image * groups;
  const int top = (int)blockIdx.y * TILE - REACH, left = (int)blockIdx.x * TILE - REACH;
  const Type* words = (const Type*)x_;
  for (int item = threadIdx.x; item < SPAN * SPAN * COUNT; item += THREADS) {
    const int y = top + item / COUNT / SPAN, x = left + item / COUNT % SPAN;
    Type value = Word<Sample>::lowest();
    if (y >= 0 && y < height && x >= 0 && x < width)
      value = words[(image * x_image + group * 8 + (int64_t)y * x_row + (int64_t)x * x_column) / EACH + item % COUNT];
    ((Type*)source)[item] = value;
  }
  __syncthreads();
  for (int item = threadIdx.x; item < SPAN * TILE * COUNT; item += THREADS) {
    const Type* centre = &source[item / COUNT / TILE][item / COUNT % TILE + REACH][item % COUNT];
    Type best = *centre;
    for (int p = 0; p < pools; ++p) {
      for (int d = p * radius + 1; d <= (p + 1) * radius; ++d)
        best = largest(best, largest(centre[-COUNT * d], centre[COUNT * d]));
      ((Type*)rows[p])[item] = best;
    }
  }
  __syncthreads();
  for (int item = threadIdx.x; item < TILE * TILE * COUNT; item += THREADS) {
    const int line = item / COUNT / TILE, y = top + REACH + line, x = left + REACH + item / COUNT % TILE;
    if (y >= height || x >= width) continue;
    const int64_t to = (image * y_image + (int64_t)y * y_row + x * y_column + group * 8) / EACH + item % COUNT;
    for (int p = 0; p < pools; ++p) {
      const Type* centre = &rows[p][line + REACH][item / COUNT % TILE][item % COUNT];
      Type best = *centre;
      for (int d = 1; d <= (p + 1) * radius; ++d)
        best = largest(best, largest(centre[-d * TILE * COUNT], centre[d * TILE * COUNT]));
      ((Type*)(p == 0 ? y0_ : p == 1 ? y1_ : y2_))[to] = best;
    }
  }
}
