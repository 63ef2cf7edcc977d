// The convolution of convolve.cu on tensor cores, for float16: a product of matrices whose rows are the pixels of y and
// whose columns are its channels, summed over the channels of x under each place of the filter.
//
// A block makes ROWS pixels of COLUMNS channels. It copies DEPTH numbers of each into a ring of STAGES in shared memory,
// ahead of the products. Where few blocks would have much to sum, a cluster of SPLIT blocks shares the sums of each: every
// block sums a part, and then adds up the parts for some of the rows. Weights are read before the previous kernel has ended.
// The shapes are few at batch 1, and the kernels short: what counts is how soon the first product can begin, and the end.

#include "common.cuh"
#include "tensor.cuh"

constexpr int LANES = 128;           // threads of a block: four warps, two by two
constexpr int RING = 64 * 1024;      // bytes: three blocks a multiprocessor, and each has copies under way for three stages
constexpr int PITCH_MORE = 8;        // floats after each row of sums, so that rows begin in other banks
constexpr int FEW = 264;             // blocks beside which the next kernel finds room on every multiprocessor

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <int ROWS, int COLUMNS, int SPLIT>
static __device__ __forceinline__ void convolve_on_tensor_cores(
    unsigned char* memory, const Eight<half>* x_, int64_t x_image, int x_row, int x_column, const Eight<half>* weight_,
    const Eight<half>* bias_, const Eight<half>* residual_, int64_t residual_image, int residual_row, int residual_column,
    Eight<half>* y_, int64_t y_image, int y_row, int y_column, int depth_groups, int groups, int batch, int in_height,
    int in_width, int height, int width, int rows, int columns, int stride_y, int stride_x, int top, int left, int dilation_y,
    int dilation_x, int activation, int last) {
  constexpr int DEPTH = ROWS > 64 ? 32 : 64, CHUNKS = DEPTH / 8;  // of 16 bytes: eight channels
  constexpr int STAGE = (ROWS + COLUMNS) * CHUNKS;                // chunks
  constexpr int STAGES = RING / 16 / STAGE;
  constexpr int APART = LANES / CHUNKS;  // rows between those that a thread copies
  constexpr int MINE = ROWS / APART, THEIRS = COLUMNS / APART;
  constexpr int HIGH = ROWS / 32, WIDE = COLUMNS / 16;  // products of 16 x 8 of a warp
  constexpr int PITCH = COLUMNS + PITCH_MORE;
  static_assert(STAGES > 1 && ROWS * PITCH * 4 <= RING && WIDE % 2 == 0, "");
  Eight<half>* ring = (Eight<half>*)memory;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int pixels = batch * height * width, first_pixel = blockIdx.x * ROWS, first_channel = blockIdx.y * COLUMNS;
  const int part = SPLIT > 1 ? blockIdx.z : 0;

  // Where a chunk lies in a stage: eight rows of one chunk are in different banks.
  const auto place = [](int row, int chunk) {
    return row * CHUNKS + (CHUNKS == 8 ? chunk ^ row % 8 : chunk ^ row / 2 % 4);
  };

  // The chunk that this thread copies of its rows, which moves on by a stage at a time.
  const int taps = rows * columns, chunks = taps * depth_groups, steps = (chunks + CHUNKS - 1) / CHUNKS;
  const int begin = steps * part / SPLIT, count = steps * (part + 1) / SPLIT - begin;
  const int chunk = thread % CHUNKS, first_row = thread / CHUNKS;
  int at = begin * CHUNKS + chunk, depth = at % depth_groups, tap_x = at / depth_groups % columns, tap_y = at / depth_groups / columns;
  int corner_y[MINE], corner_x[MINE], from[MINE];  // of the window of each pixel; the first far outside if there is no pixel
#pragma unroll
  for (int k = 0; k < MINE; ++k) {
    const int pixel = first_pixel + first_row + k * APART, image = pixel / (height * width), rest = pixel % (height * width);
    corner_y[k] = pixel < pixels ? rest / width * stride_y - top : -(1 << 28);
    corner_x[k] = rest % width * stride_x - left;
    from[k] = (int)(image * (x_image / 8)) + (pixel < pixels ? corner_y[k] * (x_row / 8) + corner_x[k] * (x_column / 8) : 0);
  }
  const auto copy_weights = [&](int stage, int chunk_at) {
#pragma unroll
    for (int k = 0; k < THEIRS; ++k) {
      const int row = first_row + k * APART, channel = first_channel + row;
      const bool valid = channel < groups * 8 && chunk_at < chunks;
      copy_async(ring + stage * STAGE + place(ROWS + row, chunk), weight_ + (valid ? (int64_t)channel * chunks + chunk_at : 0), valid);
    }
  };
  const auto copy_pixels = [&](int stage) {
    const int moved_y = tap_y * dilation_y, moved_x = tap_x * dilation_x;
    const int offset = moved_y * (x_row / 8) + moved_x * (x_column / 8) + depth;
#pragma unroll
    for (int k = 0; k < MINE; ++k) {
      const int y = corner_y[k] + moved_y, x = corner_x[k] + moved_x;
      const bool valid = tap_y < rows && (unsigned)y < (unsigned)in_height && (unsigned)x < (unsigned)in_width;
      copy_async(ring + stage * STAGE + place(first_row + k * APART, chunk), x_ + (valid ? from[k] + offset : 0), valid);
    }
    at += CHUNKS;
    for (depth += CHUNKS; depth >= depth_groups; depth -= depth_groups)
      if (++tap_x == columns) tap_x = 0, ++tap_y;
  };

#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage)
    if (stage < count) copy_weights(stage, at + stage * CHUNKS);
  wait_for_previous();
  const bool few = gridDim.x * gridDim.y * gridDim.z <= FEW;
  if (few) let_next_begin();
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < count) copy_pixels(stage);
    close_group();
  }

  float sums[HIGH][WIDE][4] = {};
  const int warp_row = warp / 2 * (ROWS / 2), warp_column = warp % 2 * (COLUMNS / 2);
  for (int step = 0; step < count; ++step) {
    wait_for_groups<STAGES - 2>();
    __syncthreads();  // the copies of all threads have arrived, and nobody needs what the next ones overwrite
    if (step + STAGES - 1 < count) {
      const int stage = (step + STAGES - 1) % STAGES;
      copy_weights(stage, at);
      copy_pixels(stage);
    }
    close_group();
    const Eight<half>* stage = ring + step % STAGES * STAGE;
#pragma unroll
    for (int deep = 0; deep < CHUNKS; deep += 2) {
      unsigned a[HIGH][4], b[WIDE / 2][4];
#pragma unroll
      for (int i = 0; i < HIGH; ++i) load_matrices(a[i], stage + place(warp_row + i * 16 + lane % 16, deep + lane / 16));
#pragma unroll
      for (int j = 0; j < WIDE / 2; ++j)
        load_matrices(b[j], stage + place(ROWS + warp_column + j * 16 + lane % 8 + lane / 16 * 8, deep + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < HIGH; ++i)
#pragma unroll
        for (int j = 0; j < WIDE; ++j) multiply_add(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
  if (!few) let_next_begin();

  // Through shared memory, so that a thread has eight channels of a pixel.
  wait_for_groups<0>();
  __syncthreads();
  float* found = (float*)memory;
#pragma unroll
  for (int i = 0; i < HIGH; ++i)
#pragma unroll
    for (int j = 0; j < WIDE; ++j)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        float* to = found + (warp_row + i * 16 + lane / 4 + lower * 8) * PITCH + warp_column + j * 8 + lane % 4 * 2;
        *(float2*)to = float2{sums[i][j][lower * 2], sums[i][j][lower * 2 + 1]};
      }
  if (SPLIT > 1) sync_cluster();
  else __syncthreads();
  constexpr int WRITTEN = ROWS / SPLIT * COLUMNS / 8;
#pragma unroll
  for (int item = thread; item < WRITTEN; item += LANES) {
    const int row = part * (ROWS / SPLIT) + item / (COLUMNS / 8), group = item % (COLUMNS / 8);
    const int pixel = first_pixel + row, channels = first_channel / 8 + group;
    if (pixel >= pixels || channels >= groups) continue;
    const float* mine = found + row * PITCH + group * 8;
    float values[8] = {};
#pragma unroll
    for (int other = 0; other < SPLIT; ++other)
#pragma unroll
      for (int c = 0; c < 8; c += 4) {
        const float4 read = SPLIT > 1 ? load_from_block(mine + c, other) : *(const float4*)(mine + c);
        values[c] += read.x, values[c + 1] += read.y, values[c + 2] += read.z, values[c + 3] += read.w;
      }
    const int image = pixel / (height * width), line = pixel % (height * width) / width, column = pixel % width;
    const auto address = [=](int64_t of_image, int of_row, int of_column) {
      return image * (of_image / 8) + (int64_t)line * (of_row / 8) + (int64_t)column * (of_column / 8) + channels;
    };
    const Eight<half> bias = bias_[channels];
    Eight<half> residual = {}, result;
    if (residual_) residual = residual_[address(residual_image, residual_row, residual_column)];
#pragma unroll
    for (int c = 0; c < 8; ++c) result.set(c, activated(activated(values[c] + bias[c], activation) + residual[c], last));
    y_[address(y_image, y_row, y_column)] = result;
  }
  __syncwarp();
  if (SPLIT > 1) sync_cluster();  // others may still read what this block has summed
}
#endif

// kernels: network_tensor_64x64x1 <64, 64, 1>, network_tensor_64x64x2 <64, 64, 2>, network_tensor_64x64x4 <64, 64, 4>
// kernels: network_tensor_64x64x8 <64, 64, 8>, network_tensor_64x32x1 <64, 32, 1>, network_tensor_64x32x2 <64, 32, 2>
// kernels: network_tensor_64x32x4 <64, 32, 4>, network_tensor_128x64x1 <128, 64, 1>, network_tensor_128x64x2 <128, 64, 2>
// kernels: network_tensor_128x32x1 <128, 32, 1>
// launch: grid (row_blocks, column_blocks, parts), block 128, shared 65536, waits
template <int ROWS, int COLUMNS, int SPLIT>
__global__ void __launch_bounds__(LANES) CLUSTER(SPLIT) network_tensor(
    const Eight<half>* x_, int64_t x_image, int x_row, int x_column, const Eight<half>* weight_, const Eight<half>* bias_,
    const Eight<half>* residual_, int64_t residual_image, int residual_row, int residual_column, Eight<half>* y_, int64_t y_image,
    int y_row, int y_column, int depth_groups, int groups, int batch, int in_height, int in_width, int height, int width, int rows,
    int columns, int stride_y, int stride_x, int top, int left, int dilation_y, int dilation_x, int activation, int last) {
  extern __shared__ __align__(128) unsigned char memory[];
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  convolve_on_tensor_cores<ROWS, COLUMNS, SPLIT>(
      memory, x_, x_image, x_row, x_column, weight_, bias_, residual_, residual_image, residual_row, residual_column, y_, y_image,
      y_row, y_column, depth_groups, groups, batch, in_height, in_width, height, width, rows, columns, stride_y, stride_x, top,
      left, dilation_y, dilation_x, activation, last);
#endif
}
