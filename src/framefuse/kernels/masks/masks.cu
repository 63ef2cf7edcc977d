// Class arg-max, smoothing, temporal average, stretching and composition, with the arithmetic of `tir_cpu.py`. Planes of
// a batch lie `..._item` elements apart; pitches are in elements.

constexpr int THREADS = 256;

static __device__ float lerp(float a, float b, float weight) { return a + (b - a) * weight; }
static __device__ void store(float& to, float value) { to = value; }
static __device__ void store(uint8_t& to, float value) { to = (int)(value + 0.5f); }  // halves up: none is negative

// The element of this thread's plane and row in column x.
static __device__ int64_t place(int64_t item, int pitch, int x) {
  return blockIdx.z * item + (int64_t)blockIdx.y * pitch + x;
}

// A thread takes SPAN pixels, a block apart, so that each warp reads whole lines, and reads AHEAD classes at once.
// kernels: mask_argmax_f32 <float>, mask_argmax_f16 <half>
// launch: grid ((pixels + 511) / 512, n), block 256, waits
template <class Score>
__global__ void __launch_bounds__(THREADS) mask_argmax(
    const Score* __restrict__ scores_address, int64_t score_item, int64_t class_pitch,
    uint8_t* __restrict__ target_address, int64_t target_item, int classes, int pixels, int foreground) {
  wait_for_previous();
  constexpr int SPAN = 2, AHEAD = 11;
  const Score* scores = scores_address + blockIdx.y * score_item;
  const int first = blockIdx.x * (THREADS * SPAN) + threadIdx.x;
  float best[SPAN];
  int label[SPAN] = {};
#pragma unroll
  for (int k = 0; k < SPAN; ++k) best[k] = -INFINITY;
  for (int from = 0; from < classes; from += AHEAD) {
    float ahead[AHEAD][SPAN];
    // Past the end, the last class or pixel is read again: it wins nothing, or is not written.
#pragma unroll
    for (int a = 0; a < AHEAD; ++a)
#pragma unroll
      for (int k = 0; k < SPAN; ++k)
        ahead[a][k] = scores[min(from + a, classes - 1) * class_pitch + min(first + k * THREADS, pixels - 1)];
#pragma unroll
    for (int a = 0; a < AHEAD; ++a)
#pragma unroll
      for (int k = 0; k < SPAN; ++k)
        if (ahead[a][k] > best[k]) {
          best[k] = ahead[a][k];
          label[k] = from + a;
        }
  }
#pragma unroll
  for (int k = 0; k < SPAN; ++k)
    if (first + k * THREADS < pixels)
      target_address[blockIdx.y * target_item + first + k * THREADS] =
          foreground < 0 ? label[k] : label[k] == foreground ? 255 : 0;
}

// A block makes a tile: down into shared memory, with the radius on both sides, then across. Edges are repeated.
// kernels: mask_smooth_u8_u8 <uint8_t, uint8_t>, mask_smooth_u8_f32 <uint8_t, float>, mask_smooth_f32_f32 <float, float>
// launch: grid ((width + 63) / 64, (height + 3) / 4, n), block 256, waits
template <class Source, class Target>
__global__ void __launch_bounds__(THREADS) mask_smooth(
    const Source* __restrict__ source_address, int64_t source_item, int source_pitch,
    Target* __restrict__ target_address, int64_t target_item, int target_pitch, int height, int width, float scale,
    int radius, const float* __restrict__ weights_address) {
  wait_for_previous();
  constexpr int TILE_X = 64, TILE_Y = 4, REACH = 64;  // REACH: the largest radius
  __shared__ float rows[TILE_Y * (TILE_X + 2 * REACH)];
  const Source* source = source_address + blockIdx.z * source_item;
  const int left = blockIdx.x * TILE_X, top = blockIdx.y * TILE_Y, wide = TILE_X + 2 * radius;
  for (int cell = threadIdx.x; cell < TILE_Y * wide; cell += THREADS) {
    const int row = cell / wide, x = min(max(left + cell - row * wide - radius, 0), width - 1);
    float total = 0;
    for (int k = 0; k <= 2 * radius; ++k) {
      const int y = min(max(top + row + k - radius, 0), height - 1);
      total += weights_address[k] * (float)source[(int64_t)y * source_pitch + x];
    }
    rows[cell] = total;
  }
  __syncthreads();
  const int column = threadIdx.x % TILE_X, row = threadIdx.x / TILE_X, x = left + column, y = top + row;
  if (x >= width || y >= height) return;
  float total = 0;
  for (int k = 0; k <= 2 * radius; ++k) total += weights_address[k] * rows[row * wide + column + k];
  store(target_address[blockIdx.z * target_item + (int64_t)y * target_pitch + x], total * scale);
}

// kernels: mask_ema_u8 <uint8_t>, mask_ema_f32 <float>
// launch: grid ((width + 255) / 256, height, n), block 256, waits
template <class Source>
__global__ void __launch_bounds__(THREADS) mask_ema(
    const Source* __restrict__ source_address, int64_t source_item, int source_pitch,
    float* __restrict__ state_address, int64_t state_item, int state_pitch, int width, float weight) {
  wait_for_previous();
  const int x = blockIdx.x * THREADS + threadIdx.x;
  if (x >= width) return;
  float& state = state_address[place(state_item, state_pitch, x)];
  state = lerp(state, source_address[place(source_item, source_pitch, x)], weight);
}

// Where the samples lie between which a pixel of a stretched plane does.
struct Between {
  int64_t first;
  int right, lower;  // steps to the next sample and row; 0 where its weight is 0, as it may not exist
  float across, down;
};

static __device__ Between between(
    int x, int y, int pitch, const int* across_index, const float* across_weight, const int* down_index,
    const float* down_weight) {
  const float across = across_weight[x], down = down_weight[y];
  return {(int64_t)down_index[y] * pitch + across_index[x], across > 0, down > 0 ? pitch : 0, across, down};
}

template <class Sample>
static __device__ float stretched(const Sample* plane, const Between& at) {
  const Sample *upper = plane + at.first, *lower = upper + at.lower;
  return lerp(lerp(upper[0], upper[at.right], at.across), lerp(lower[0], lower[at.right], at.across), at.down);
}

// kernels: mask_upsample_u8 <uint8_t, uint8_t>, mask_upsample_f32 <float, float>, mask_upsample_f32_u8 <float, uint8_t>
// launch: grid ((width + 255) / 256, height, n), block 256, waits
template <class Sample, class Target>
__global__ void __launch_bounds__(THREADS) mask_upsample(
    const Sample* __restrict__ source_address, int64_t source_item, int source_pitch,
    Target* __restrict__ target_address, int64_t target_item, int target_pitch, int width,
    const int* __restrict__ across_index, const float* __restrict__ across_weight, const int* __restrict__ down_index,
    const float* __restrict__ down_weight) {
  wait_for_previous();
  const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y;
  if (x >= width) return;
  const Between at = between(x, y, source_pitch, across_index, across_weight, down_index, down_weight);
  store(target_address[place(target_item, target_pitch, x)], stretched(source_address + blockIdx.z * source_item, at));
}

// The class whose score, stretched as by mask_upsample, is the greatest; of equal ones the first. NaN wins nothing.
// launch: grid ((width + 255) / 256, height, n), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) mask_classes(
    const float* __restrict__ source_address, int64_t source_item, int64_t class_pitch, int source_pitch,
    uint8_t* __restrict__ target_address, int64_t target_item, int target_pitch, int classes, int width,
    const int* __restrict__ across_index, const float* __restrict__ across_weight, const int* __restrict__ down_index,
    const float* __restrict__ down_weight) {
  wait_for_previous();
  const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y;
  if (x >= width) return;
  const Between at = between(x, y, source_pitch, across_index, across_weight, down_index, down_weight);
  const float* source = source_address + blockIdx.z * source_item;
  float best = -INFINITY;
  int label = 0;
#pragma unroll 4
  for (int c = 0; c < classes; ++c) {
    const float score = stretched(source + c * class_pitch, at);
    if (score > best) {
      best = score;
      label = c;
    }
  }
  target_address[place(target_item, target_pitch, x)] = label;
}

// A thread makes one sample of one channel.
// launch: grid ((width * channels + 255) / 256, height), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) mask_composite(
    const uint8_t* foreground_address, int foreground_pitch, const uint8_t* background_address, int background_pitch,
    const uint8_t* alpha_address, int alpha_pitch, uint8_t* target_address, int target_pitch, int width,
    int channels) {
  wait_for_previous();
  const int x = blockIdx.x * THREADS + threadIdx.x;
  if (x >= width * channels) return;
  const int alpha = alpha_address[place(0, alpha_pitch, x / channels)];
  const int foreground = foreground_address[place(0, foreground_pitch, x)];
  const int background = background_address[place(0, background_pitch, x)];
  target_address[place(0, target_pitch, x)] = (foreground * alpha + background * (255 - alpha) + 127) / 255;
}
