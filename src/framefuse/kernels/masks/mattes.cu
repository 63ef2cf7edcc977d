// Mattes on the GPU, with the arithmetic of `mattes.py` and `guided.py`: from scores to shares, steadied over frames,
// fitted to the luma that guides them, and stretched to the resolution of the frame. Pitches are in elements.

constexpr int THREADS = 256, AROUND = 9, CENTRE = 4;

static __device__ float lerp(float a, float b, float weight) { return a + (b - a) * weight; }
static __device__ int within(int at, int count) { return min(max(at, 0), count - 1); }

// ranges[n] = the least and the greatest score of an image of one class.
// launch: grid (n), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) matte_range(
    const float* __restrict__ scores_address, int64_t score_item, int pixels, float* __restrict__ ranges_address) {
  wait_for_previous();
  __shared__ float least[THREADS], most[THREADS];
  const float* scores = scores_address + blockIdx.x * score_item;
  float low = INFINITY, high = -INFINITY;
  for (int at = threadIdx.x; at < pixels; at += THREADS) {
    low = min(low, scores[at]);
    high = max(high, scores[at]);
  }
  least[threadIdx.x] = low;
  most[threadIdx.x] = high;
  for (int half = THREADS / 2; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      least[threadIdx.x] = min(least[threadIdx.x], least[threadIdx.x + half]);
      most[threadIdx.x] = max(most[threadIdx.x], most[threadIdx.x + half]);
    }
  }
  if (threadIdx.x) return;
  ranges_address[2 * blockIdx.x] = least[0];
  ranges_address[2 * blockIdx.x + 1] = most[0];
}

// target[n, pixel] = the share of the classes that are wanted, of one class its value or the sigmoid of its logit.
// launch: grid ((pixels + 255) / 256, n), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) matte_share(
    const float* __restrict__ scores_address, int64_t score_item, int64_t class_pitch, int classes, int pixels,
    const int* __restrict__ wanted_address, const float* __restrict__ ranges_address, float overshoot,
    float* __restrict__ target_address) {
  wait_for_previous();
  const int at = blockIdx.x * THREADS + threadIdx.x;
  if (at >= pixels) return;
  const float* scores = scores_address + blockIdx.y * score_item + at;
  float share;
  if (classes == 1) {
    const float* range = ranges_address + 2 * blockIdx.y;
    const bool logits = range[0] < -overshoot || range[1] > 1 + overshoot;
    const float value = scores[0];
    share = logits ? 1 / (1 + expf(-min(max(value, -80.0f), 80.0f))) : min(max(value, 0.0f), 1.0f);
  } else {
    float most = scores[0], all = 0, some = 0;
    for (int c = 1; c < classes; ++c) most = max(most, scores[c * class_pitch]);
    for (int c = 0; c < classes; ++c) {
      const float power = expf(scores[c * class_pitch] - most);
      all += power;
      some += wanted_address[c] ? power : 0;
    }
    share = some / all;
  }
  target_address[(int64_t)blockIdx.y * pixels + at] = share;
}

// target[r, c] = white / 255 times the mean of the pixels of a cell, whose borders are rounded down. A warp sums a cell.
// launch: grid ((columns + 7) / 8, rows), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) matte_shrink(
    const uint8_t* __restrict__ source_address, int source_pitch, int height, int width,
    float* __restrict__ target_address, int rows, int columns, float white) {
  wait_for_previous();
  const int row = blockIdx.y, column = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int cell = min(column, columns - 1);  // all lanes of a warp take part
  const int top = (int64_t)row * height / rows, bottom = (int64_t)(row + 1) * height / rows;
  const int left = (int64_t)cell * width / columns, wide = (int64_t)(cell + 1) * width / columns - left;
  const int count = (bottom - top) * wide;
  unsigned sum = 0;
  for (int at = lane; at < count; at += 32)
    sum += source_address[(int64_t)(top + at / wide) * source_pitch + left + at % wide];
  for (int half = 16; half; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
  if (lane == 0 && column < columns)
    target_address[row * columns + column] = (float)sum / ((float)count * 255) * white;
}

// change[0] = the mean of |guide - before|.
// launch: grid (1), block 1024, waits
extern "C" __global__ void __launch_bounds__(1024) matte_change(
    const float* __restrict__ guide_address, const float* __restrict__ before_address, int samples,
    float* __restrict__ change_address) {
  wait_for_previous();
  __shared__ float sums[1024];
  float sum = 0;
  for (int at = threadIdx.x; at < samples; at += 1024) sum += fabsf(guide_address[at] - before_address[at]);
  sums[threadIdx.x] = sum;
  for (int half = 512; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) change_address[0] = sums[0] / samples;
}

// The matte of one view of a frame, given those of up to four frames on each side: `mattes.steadied`. Of each frame there
// are the matte, the guide, and the changes of all views since the frame before; addresses are 0 where there is none.
// launch: grid ((columns + 255) / 256, rows), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) matte_steady(
    const float* alpha_0, const float* alpha_1, const float* alpha_2, const float* alpha_3, const float* alpha_4,
    const float* alpha_5, const float* alpha_6, const float* alpha_7, const float* alpha_8, const float* guide_1,
    const float* guide_2, const float* guide_3, const float* guide_4, const float* guide_5, const float* guide_6,
    const float* guide_7, const float* change_1, const float* change_2, const float* change_3, const float* change_4,
    const float* change_5, const float* change_6, const float* change_7, const float* change_8, int views, float cut,
    float moves, float steady, bool medians, float* __restrict__ target_address, int rows, int columns) {
  wait_for_previous();
  const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y;
  if (x >= columns) return;
  const float* alphas[AROUND] = {alpha_0, alpha_1, alpha_2, alpha_3, alpha_4, alpha_5, alpha_6, alpha_7, alpha_8};
  const float* guides[AROUND] = {nullptr, guide_1, guide_2, guide_3, guide_4, guide_5, guide_6, guide_7, nullptr};
  const float* changes[AROUND] = {nullptr,  change_1, change_2, change_3, change_4,
                                  change_5, change_6, change_7, change_8};
  // Whether a frame shows the scene of the one before it; a change that is not a number ends it.
  bool follows[AROUND + 1] = {};
#pragma unroll
  for (int n = 1; n < AROUND; ++n) {
    follows[n] = alphas[n - 1] && alphas[n];
    for (int view = 0; follows[n] && view < views; ++view) follows[n] = changes[n][view] <= cut;
  }
  const int at = y * columns + x;
  float values[AROUND];
#pragma unroll
  for (int n = 0; n < AROUND; ++n) values[n] = alphas[n] ? alphas[n][at] : 0;
  float total = 0, weights = 0;
#pragma unroll
  for (int n = 1; n < AROUND - 1; ++n) {
    bool same = true;  // as the frame in the middle
#pragma unroll
    for (int k = min(n, CENTRE) + 1; k <= max(n, CENTRE); ++k) same = same && follows[k];
    if (!same) continue;
    float most = 0;
    if (n != CENTRE)
      for (int j = -1; j <= 1; ++j)
        for (int i = -1; i <= 1; ++i) {
          const int beside = within(y + j, rows) * columns + within(x + i, columns);
          most = max(most, fabsf(guides[n][beside] - guides[CENTRE][beside]));
        }
    const float weight = n == CENTRE ? 1 : min(max(1 - most / moves, 0.0f), 1.0f) * steady;
    const float a = values[n - 1], b = values[n], c = values[n + 1];
    const bool between = medians && follows[n] && follows[n + 1];
    total += weight * (between ? max(min(a, c), min(max(a, c), b)) : b);
    weights += weight;
  }
  target_address[at] = total / weights;
}

// Sums over the 3x3 samples around one: alpha, low, low low, alpha low.
static __device__ void fit(const float* alpha, const float* low, int rows, int columns, int y, int x, float variance,
                           float& slope, float& level) {
  float sums[4] = {};
  for (int j = -1; j <= 1; ++j)
    for (int i = -1; i <= 1; ++i) {
      const int at = within(y + j, rows) * columns + within(x + i, columns);
      const float a = alpha[at], l = low[at];
      sums[0] += a;
      sums[1] += l;
      sums[2] += l * l;
      sums[3] += a * l;
    }
  const float a = sums[0] / 9, l = sums[1] / 9;
  slope = (sums[3] / 9 - a * l) / (max(sums[2] / 9 - l * l, 0.0f) + variance);
  level = a - slope * l;
}

// target[y, x] = slope and level of 255 (gain (slope guide / 255 + level - 1/2) + 1/2) + 1/2, each the mean of the fits of
// the windows around a sample.
// launch: grid ((columns + 255) / 256, rows), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) matte_fit(
    const float* __restrict__ alpha_address, const float* __restrict__ low_address, int rows, int columns,
    float variance, float gain, float2* __restrict__ target_address) {
  wait_for_previous();
  const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y;
  if (x >= columns) return;
  float2 mean = {0, 0};
  for (int j = -1; j <= 1; ++j)
    for (int i = -1; i <= 1; ++i) {
      float slope, level;
      fit(alpha_address, low_address, rows, columns, within(y + j, rows), within(x + i, columns), variance, slope,
          level);
      mean.x += slope;
      mean.y += level;
    }
  target_address[y * columns + x] = {mean.x / 9 * gain, (mean.y / 9 - 0.5f) * (255 * gain) + 128};
}

// target = slope guide + level, between samples, in 0..255.
// launch: grid ((width + 255) / 256, height), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) matte_stretch(
    const float2* __restrict__ fit_address, int rows, int columns, const uint8_t* __restrict__ guide_address,
    int guide_pitch, uint8_t* __restrict__ target_address, int target_pitch, int width,
    const int* __restrict__ across_index, const float* __restrict__ across_weight, const int* __restrict__ down_index,
    const float* __restrict__ down_weight) {
  wait_for_previous();
  const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y;
  if (x >= width) return;
  const int left = across_index[x], right = min(left + 1, columns - 1);
  const float2* upper = fit_address + (int64_t)down_index[y] * columns;
  const float2* lower = fit_address + (int64_t)min(down_index[y] + 1, rows - 1) * columns;
  const float across = across_weight[x], down = down_weight[y];
  const float2 a = upper[left], b = upper[right], c = lower[left], d = lower[right];
  const float slope = lerp(lerp(a.x, b.x, across), lerp(c.x, d.x, across), down);
  const float level = lerp(lerp(a.y, b.y, across), lerp(c.y, d.y, across), down);
  const float value = slope * guide_address[(int64_t)y * guide_pitch + x] + level;
  target_address[(int64_t)y * target_pitch + x] = (uint8_t)min(max(value, 0.0f), 255.0f);
}

// A plane as 8 bits, of samples that lie `step` apart and have `shift` bits more; what is missing at the right and below
// is repeated.
// kernels: matte_plane_u8 <uint8_t>, matte_plane_u16 <uint16_t>
// launch: grid ((target_width + 255) / 256, target_height), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(THREADS) matte_plane(
    const Sample* __restrict__ source_address, int source_pitch, int step, int shift, int height, int width,
    uint8_t* __restrict__ target_address, int target_pitch, int target_width) {
  wait_for_previous();
  const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y;
  if (x >= target_width) return;
  const int value = source_address[(int64_t)min(y, height - 1) * source_pitch + (int64_t)min(x, width - 1) * step];
  target_address[(int64_t)y * target_pitch + x] = shift ? min((value + (1 << (shift - 1))) >> shift, 255) : value;
}
