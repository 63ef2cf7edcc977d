// What a network needs between its convolutions; common.cuh says how images lie.
//
//   network_pack      float32 or float16 NCHW -> NHWC of either type, the further channels 0
//   network_unpack    NHWC -> float32 NCHW
//   network_upsample  each pixel `scale` times along both axes; scale 1 copies
//   network_smallest  places of the smallest keys of each row
//   network_pool      maxima of windows, of those, and of those again: one launch for a pyramid

#include "common.cuh"

// A thread makes the `groups` times 8 channels of a pixel.
// kernels: network_pack_f32 <float, half>, network_pack_f16 <half, half>
// kernels: network_pack_f32_f32 <float, float>, network_pack_f16_f32 <half, float>
// launch: grid ((pixels + 255) / 256, batch), block 256, waits
template <class Sample, class Result>
__global__ void __launch_bounds__(THREADS) network_pack(
    const Sample* __restrict__ x_, Eight<Result>* __restrict__ y_, int pixels, int channels, int groups) {
  wait_for_previous();
  const int pixel = blockIdx.x * THREADS + threadIdx.x;
  if (pixel >= pixels) return;
  const Sample* x = x_ + (int64_t)blockIdx.y * channels * pixels + pixel;
  Eight<Result>* y = y_ + ((int64_t)blockIdx.y * pixels + pixel) * groups;
  for (int group = 0; group < groups; ++group) {
    Eight<Result> values;
#pragma unroll
    for (int c = 0; c < 8; ++c)
      values.set(c, group * 8 + c < channels ? (float)x[(int64_t)(group * 8 + c) * pixels] : 0.0f);
    y[group] = values;
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

// A thread counts the keys of its row that come before its own.
// launch: grid ((columns + 255) / 256, rows), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) network_smallest(
    const float* keys_, int64_t* places_, int columns, int count) {
  wait_for_previous();
  __shared__ float seen[THREADS];
  const int column = blockIdx.x * THREADS + threadIdx.x;
  const float* keys = keys_ + (int64_t)blockIdx.y * columns;
  const float infinity = __uint_as_float(0x7f800000u);
  const auto key_at = [=](int at) { return keys[at] == keys[at] ? keys[at] : infinity; };
  const float key = column < columns ? key_at(column) : infinity;
  int before = 0;
  for (int start = 0; start < columns; start += THREADS) {
    const int size = min(THREADS, columns - start);
    __syncthreads();
    if ((int)threadIdx.x < size) seen[threadIdx.x] = key_at(start + threadIdx.x);
    __syncthreads();
    for (int other = 0; other < size; ++other)
      before += seen[other] < key || (seen[other] == key && start + other < column);
  }
  if (column < columns && before < count) places_[(int64_t)blockIdx.y * count + before] = column;
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
