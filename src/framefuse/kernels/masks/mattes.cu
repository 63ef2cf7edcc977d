// Mattes on the GPU, with the arithmetic of `mattes.py` and `guided.py`: from scores to shares, steadied over frames,
// fitted to the luma that guides them, and composed at the resolution of the frame. A launch takes all views of a frame,
// or of up to four frames with views alike, whose samples lie one after the other. Pitches are in elements.

constexpr int THREADS = 256, AROUND = 9, CENTRE = 4, AHEAD = 8;

// A view: its place in the frame, its rows and columns of samples, and the numbers of its first sample and its first tap.
struct Grid {
  int x, y, width, height, rows, columns, sample, tap;
};

static __device__ float lerp(float a, float b, float weight) { return a + (b - a) * weight; }
static __device__ int within(int at, int count) { return min(max(at, 0), count - 1); }
// Where a cell of an axis begins; exact for sides of up to 65,535 pixels.
static __device__ int border(unsigned cell, unsigned cells, unsigned side) { return cell * side / cells; }
// A sample with `shift` bits more, as 8 bits.
static __device__ int narrowed(int value, int shift) {
  return shift ? min((value + (1 << (shift - 1))) >> shift, 255) : value;
}

// What is that of one of the frames.
template <class T>
static __device__ T of(int frame, T a, T b, T c, T d) { return frame == 0 ? a : frame == 1 ? b : frame == 2 ? c : d; }

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

// target[n, pixel] = the share of the classes that are wanted, of one class its value or the sigmoid of its logit. A
// thread takes a pixel, and reads AHEAD classes of it at once: what takes long is to wait for them. So which of the first
// ones are wanted comes as bits, and of the others from a table.
// launch: grid ((pixels + 255) / 256, n), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) matte_share(
    const float* __restrict__ scores_address, int64_t score_item, int64_t class_pitch, int classes, int pixels,
    int first_wanted, const int* __restrict__ wanted_address, const float* __restrict__ ranges_address, float overshoot,
    float* __restrict__ target_address) {
  wait_for_previous();
  let_next_begin();
  const int pixel = blockIdx.x * THREADS + threadIdx.x;
  if (pixel >= pixels) return;
  const float* scores = scores_address + blockIdx.y * score_item + pixel;
  float share;
  if (classes == 1) {
    const float* range = ranges_address + 2 * blockIdx.y;
    const bool logits = range[0] < -overshoot || range[1] > 1 + overshoot;
    const float value = *scores;
    share = logits ? 1 / (1 + expf(-min(max(value, -80.0f), 80.0f))) : min(max(value, 0.0f), 1.0f);
  } else {
    float most = 0, all = 0, some = 0;
    for (int from = 0; from < classes; from += AHEAD) {
      float ahead[AHEAD];  // past the end, the last class is read again, and counts nothing
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) ahead[a] = scores[min(from + a, classes - 1) * class_pitch];
      const float before = from ? most : ahead[0];
      most = before;
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) most = max(most, ahead[a]);
      const float again = from ? expf(before - most) : 1;
      all *= again;
      some *= again;
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        const float power = from + a < classes ? __expf(ahead[a] - most) : 0;
        all += power;
        some += (from ? wanted_address[min(from + a, classes - 1)] : first_wanted >> a & 1) ? power : 0;
      }
    }
    share = some / all;
  }
  target_address[(int64_t)blockIdx.y * pixels + pixel] = share;
}

// target[r, c] = white / 255 times the mean of the pixels of a cell, whose borders are rounded down. A thread adds the
// pixels of its column that are in a row of cells, a block those of CELLS cells. Each frame has `views` of all the grids.
// kernels: matte_shrink_u8 <uint8_t>, matte_shrink_u16 <uint16_t>
// launch: grid ((most_columns + 24) / 25, most_rows, frames * views), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(THREADS) matte_shrink(
    const Sample* __restrict__ source_0_address, const Sample* __restrict__ source_1_address,
    const Sample* __restrict__ source_2_address, const Sample* __restrict__ source_3_address, int views,
    int source_pitch, int shift, const Grid* __restrict__ grids_address, float white,
    float* __restrict__ target_address) {
  wait_for_previous();
  const Sample* source_address =
      of(blockIdx.z / views, source_0_address, source_1_address, source_2_address, source_3_address);
  constexpr int CELLS = 25;
  __shared__ unsigned sums[CELLS];
  const Grid grid = grids_address[blockIdx.z];
  const int row = blockIdx.y, first = blockIdx.x * CELLS, count = min(CELLS, grid.columns - first);
  if (row >= grid.rows || count <= 0) return;
  if (threadIdx.x < count) sums[threadIdx.x] = 0;
  __syncthreads();
  const int top = border(row, grid.rows, grid.height), bottom = border(row + 1, grid.rows, grid.height);
  const int left = border(first, grid.columns, grid.width), right = border(first + count, grid.columns, grid.width);
  const Sample* source = source_address + (int64_t)grid.y * source_pitch + grid.x;
  for (int x = left + threadIdx.x; x < right; x += THREADS) {
    unsigned sum = 0;
#pragma unroll 8
    for (int y = top; y < bottom; ++y) sum += narrowed(source[(int64_t)y * source_pitch + x], shift);
    const int cell = ((unsigned)(x + 1) * grid.columns - 1) / grid.width;
    atomicAdd(sums + cell - first, sum);
  }
  __syncthreads();
  if (threadIdx.x >= count) return;
  const int cell = first + threadIdx.x;
  const int wide = border(cell + 1, grid.columns, grid.width) - border(cell, grid.columns, grid.width);
  target_address[grid.sample + row * grid.columns + cell] =
      (float)sums[threadIdx.x] / ((float)(bottom - top) * wide * 255) * white;
}

// change[view][part]: their sum over the parts is the mean of |guide - before|. Each block takes a part of the samples.
// launch: grid (parts, views), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) matte_change(
    const float* __restrict__ guide_address, const float* __restrict__ before_address,
    const Grid* __restrict__ grids_address, float* __restrict__ change_address, int parts) {
  wait_for_previous();
  constexpr int SPAN = 12;
  __shared__ float sums[THREADS / 32];
  const Grid grid = grids_address[blockIdx.y];
  const int samples = grid.rows * grid.columns, stride = parts * THREADS;
  const float *guide = guide_address + grid.sample, *before = before_address + grid.sample;
  float sum = 0;
  for (int from = blockIdx.x * THREADS + threadIdx.x; from < samples; from += stride * SPAN) {
    float now[SPAN], then[SPAN];  // read at once; past the end, the last sample is read again, and counts nothing
#pragma unroll
    for (int k = 0; k < SPAN; ++k) {
      const int at = min(from + k * stride, samples - 1);
      now[k] = guide[at];
      then[k] = before[at];
    }
#pragma unroll
    for (int k = 0; k < SPAN; ++k) sum += from + k * stride < samples ? fabsf(now[k] - then[k]) : 0;
  }
  for (int half = 16; half; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int warp = 1; warp < THREADS / 32; ++warp) sum += sums[warp];
  change_address[blockIdx.y * parts + blockIdx.x] = sum / samples;
}

// The mattes of frames, given those of up to four frames on each side: `mattes.steadied`. Of each frame there are the
// mattes, the guides, and the changes since the frame before; addresses are 0 where there is none. The frames follow each
// other, and all have the same grids, with so many samples together.
// launch: grid ((most_columns + 255) / 256, most_rows, frames * views), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) matte_steady(
    const float* alpha_0, const float* alpha_1, const float* alpha_2, const float* alpha_3, const float* alpha_4,
    const float* alpha_5, const float* alpha_6, const float* alpha_7, const float* alpha_8, const float* alpha_9,
    const float* alpha_10, const float* alpha_11, const float* guide_1, const float* guide_2, const float* guide_3,
    const float* guide_4, const float* guide_5, const float* guide_6, const float* guide_7, const float* guide_8,
    const float* guide_9, const float* guide_10, const float* change_1, const float* change_2, const float* change_3,
    const float* change_4, const float* change_5, const float* change_6, const float* change_7, const float* change_8,
    const float* change_9, const float* change_10, const float* change_11, int views, int samples, int parts,
    float cut, float moves, float steady, bool medians, const Grid* __restrict__ grids_address,
    float* __restrict__ target_address) {
  wait_for_previous();
  const int frame = blockIdx.z / views;
  const Grid grid = grids_address[blockIdx.z % views];
  const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y, rows = grid.rows, columns = grid.columns;
  const float* every_alpha[] = {alpha_0, alpha_1, alpha_2, alpha_3, alpha_4, alpha_5, alpha_6, alpha_7, alpha_8,
                                alpha_9, alpha_10, alpha_11};
  const float* every_guide[] = {nullptr, guide_1, guide_2, guide_3, guide_4, guide_5, guide_6, guide_7, guide_8,
                                guide_9, guide_10, nullptr};
  const float* every_change[] = {nullptr, change_1, change_2, change_3, change_4, change_5, change_6, change_7,
                                 change_8, change_9, change_10, change_11};
  const float *alphas[AROUND], *guides[AROUND], *changes[AROUND];
#pragma unroll
  for (int n = 0; n < AROUND; ++n) {
    alphas[n] = of(frame, every_alpha[n], every_alpha[n + 1], every_alpha[n + 2], every_alpha[n + 3]);
    guides[n] = of(frame, every_guide[n], every_guide[n + 1], every_guide[n + 2], every_guide[n + 3]);
    changes[n] = of(frame, every_change[n], every_change[n + 1], every_change[n + 2], every_change[n + 3]);
  }
  // Whether a frame shows the scene of the one before it; a change that is not a number ends it.
  __shared__ bool follows[AROUND];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 1; n < AROUND; ++n)
    if (warp == n - 1) {
      bool same = alphas[n - 1] && alphas[n];
      for (int view = 0; same && view < views; ++view) {
        float change = 0;
        for (int part = lane; part < parts; part += 32) change += changes[n][view * parts + part];
        for (int half = 16; half; half /= 2) change += __shfl_xor_sync(~0u, change, half);
        same = change <= cut;
      }
      if (lane == 0) follows[n] = same;
    }
  __syncthreads();
  if (x >= columns || y >= rows) return;
  const int at = grid.sample + y * columns + x;
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
          const int beside = grid.sample + within(y + j, rows) * columns + within(x + i, columns);
          most = max(most, fabsf(guides[n][beside] - guides[CENTRE][beside]));
        }
    const float weight = n == CENTRE ? 1 : min(max(1 - most / moves, 0.0f), 1.0f) * steady;
    const float a = values[n - 1], b = values[n], c = values[n + 1];
    const bool between = medians && follows[n] && follows[n + 1];
    total += weight * (between ? max(min(a, c), min(max(a, c), b)) : b);
    weights += weight;
  }
  target_address[(int64_t)frame * samples + at] = total / weights;
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
// the windows around a sample. The gain makes the soft edge `feather` pixels wide. A block shares the fits of a tile.
// launch: grid ((most_columns + 31) / 32, (most_rows + 7) / 8, views), block 256, waits
extern "C" __global__ void __launch_bounds__(THREADS) matte_fit(
    const float* __restrict__ alpha_address, const float* __restrict__ low_address,
    const Grid* __restrict__ grids_address, float variance, float feather, float2* __restrict__ target_address) {
  wait_for_previous();
  constexpr int WIDE = 32, HIGH = THREADS / WIDE, ACROSS = WIDE + 2;
  __shared__ float slopes[(HIGH + 2) * ACROSS], levels[(HIGH + 2) * ACROSS];
  const Grid grid = grids_address[blockIdx.z];
  const int rows = grid.rows, columns = grid.columns, left = blockIdx.x * WIDE, top = blockIdx.y * HIGH;
  for (int at = threadIdx.x; at < (HIGH + 2) * ACROSS; at += THREADS)
    fit(alpha_address + grid.sample, low_address + grid.sample, rows, columns, within(top - 1 + at / ACROSS, rows),
        within(left - 1 + at % ACROSS, columns), variance, slopes[at], levels[at]);
  __syncthreads();
  const int x = left + threadIdx.x % WIDE, y = top + threadIdx.x / WIDE;
  if (x >= columns || y >= rows) return;
  const float gain = max(1.0f, (float)grid.width / columns / feather);
  float2 mean = {0, 0};
  for (int j = 0; j < 3; ++j)
    for (int i = 0; i < 3; ++i) {
      const int at = (threadIdx.x / WIDE + j) * ACROSS + threadIdx.x % WIDE + i;
      mean.x += slopes[at];
      mean.y += levels[at];
    }
  target_address[grid.sample + y * columns + x] = {mean.x / 9 * gain, (mean.y / 9 - 0.5f) * (255 * gain) + 128};
}

// What a thread knows about a column of pixels: the view there, and the fits around the row where it is.
struct Column {
  const Grid* grid;
  int left, top;
  float across;
  float2 a, b, c, d;
};

// slope luma + level, between samples, in 0..255; 0 where no view is.
static __device__ int alpha_at(Column& column, int x, int y, int luma, const Grid* grids, int views,
                               const float2* fits, const int* lower, const float* weights) {
  int view = views;  // the last of several, as on the host
  while (--view >= 0)
    if ((unsigned)(x - grids[view].x) < grids[view].width && (unsigned)(y - grids[view].y) < grids[view].height) break;
  if (view < 0) return 0;
  const Grid& grid = grids[view];
  if (column.grid != &grid) {
    column.grid = &grid;
    column.left = lower[grid.tap + x - grid.x];
    column.across = weights[grid.tap + x - grid.x];
    column.top = -1;
  }
  const int row = grid.tap + grid.width + y - grid.y, top = lower[row];
  if (top != column.top) {
    const float2* upper = fits + grid.sample + top * grid.columns;
    const float2* below = fits + grid.sample + min(top + 1, grid.rows - 1) * grid.columns;
    const int right = min(column.left + 1, grid.columns - 1);
    column.a = upper[column.left], column.b = upper[right], column.c = below[column.left], column.d = below[right];
    column.top = top;
  }
  const float across = column.across, down = weights[row];
  const float slope = lerp(lerp(column.a.x, column.b.x, across), lerp(column.c.x, column.d.x, across), down);
  const float level = lerp(lerp(column.a.y, column.b.y, across), lerp(column.c.y, column.d.y, across), down);
  return (int)min(max(slope * luma + level, 0.0f), 255.0f);
}

// A value over another; those below 0 are that of the frame.
static __device__ uint8_t mixed(int over, int under, int own, int alpha) {
  return ((over < 0 ? own : over) * alpha + (under < 0 ? own : under) * (255 - alpha) + 127) / 255;
}

// Planes of 8 bits and of even size, of 4:2:0 frames that are composed with their mattes; what a frame lacks at the right
// and below is repeated. A thread makes two columns of 2 SPAN pixels and their chroma, or no chroma where there is no
// u_target_0_address. Each frame has `views` of all the grids.
// kernels: matte_frame_u8 <uint8_t>, matte_frame_u16 <uint16_t>
// launch: grid ((columns + 255) / 256, (rows + 3) / 4, frames), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(THREADS) matte_frame(
    const Sample* __restrict__ luma_0_address, const Sample* __restrict__ luma_1_address,
    const Sample* __restrict__ luma_2_address, const Sample* __restrict__ luma_3_address,
    const Sample* __restrict__ u_0_address, const Sample* __restrict__ u_1_address,
    const Sample* __restrict__ u_2_address, const Sample* __restrict__ u_3_address,
    const Sample* __restrict__ v_0_address, const Sample* __restrict__ v_1_address,
    const Sample* __restrict__ v_2_address, const Sample* __restrict__ v_3_address, int luma_pitch, int chroma_pitch,
    int chroma_step, int shift, int height, int width, const Grid* __restrict__ grids_address, int views,
    const float2* __restrict__ fits_address, const int* __restrict__ lower_address,
    const float* __restrict__ weight_address, int tint, int y_over, int y_under, int u_over, int u_under, int v_over,
    int v_under, uint8_t* __restrict__ y_target_0_address, uint8_t* __restrict__ y_target_1_address,
    uint8_t* __restrict__ y_target_2_address, uint8_t* __restrict__ y_target_3_address,
    uint8_t* __restrict__ u_target_0_address, uint8_t* __restrict__ u_target_1_address,
    uint8_t* __restrict__ u_target_2_address, uint8_t* __restrict__ u_target_3_address,
    uint8_t* __restrict__ v_target_0_address, uint8_t* __restrict__ v_target_1_address,
    uint8_t* __restrict__ v_target_2_address, uint8_t* __restrict__ v_target_3_address,
    uint8_t* __restrict__ alpha_0_address, uint8_t* __restrict__ alpha_1_address,
    uint8_t* __restrict__ alpha_2_address, uint8_t* __restrict__ alpha_3_address, int rows, int columns) {
  wait_for_previous();
#define OF(name) of(blockIdx.z, name##_0_address, name##_1_address, name##_2_address, name##_3_address)
  const Sample *luma_address = OF(luma), *u_address = OF(u), *v_address = OF(v);
  uint8_t *y_target_address = OF(y_target), *u_target_address = OF(u_target), *v_target_address = OF(v_target);
  uint8_t* alpha_address = OF(alpha);
#undef OF
  grids_address += blockIdx.z * views;
  constexpr int SPAN = 4;
  const int x = blockIdx.x * THREADS + threadIdx.x;
  if (x >= columns) return;
  Column known[2] = {};
  for (int y = blockIdx.y * SPAN; y < min((int)blockIdx.y * SPAN + SPAN, rows); ++y) {
    int sum = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int across = 2 * x + k % 2, down = 2 * y + k / 2;
      const int64_t to = (int64_t)down * 2 * columns + across;
      const int left = min(across, width - 1), top = min(down, height - 1);
      const int luma = narrowed(luma_address[(int64_t)top * luma_pitch + left], shift);
      const int found = alpha_at(known[k % 2], left, top, luma, grids_address, views, fits_address, lower_address,
                                 weight_address);
      const int alpha = (tint * found + 127) / 255;
      if (alpha_address) alpha_address[to] = alpha;
      y_target_address[to] = mixed(y_over, y_under, luma, alpha);
      sum += alpha;
    }
    if (!u_target_address) continue;
    const int alpha = (sum + 2) >> 2;
    const int64_t from = (int64_t)y * chroma_pitch + (int64_t)x * chroma_step, to = (int64_t)y * columns + x;
    u_target_address[to] = mixed(u_over, u_under, narrowed(u_address[from], shift), alpha);
    v_target_address[to] = mixed(v_over, v_under, narrowed(v_address[from], shift), alpha);
  }
}
