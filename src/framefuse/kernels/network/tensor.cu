// The convolution of convolve.cu on tensor cores, for float16: a product of matrices whose rows are the pixels of y and
// whose columns are its channels, summed over the channels of x under each place of the filter.
//
// A block makes ROWS pixels of COLUMNS channels. It copies DEPTH numbers of each into a ring of STAGES in shared memory,
// ahead of the products. Each of its four warps has a quarter of the sums: the larger that is, the less a product reads of
// the ring, and the larger the block, the less it reads of L2; these two decide how fast large layers are. Where few blocks
// would have much to sum, a cluster of SPLIT blocks shares the sums of each: every block sums a part, and then adds up the
// parts for some of the rows. Where there is little to sum, blocks mostly wait for their first copies and for the end, and
// a small ring lets more of them run side by side. Large layers are made by eight warps, four of which multiply together
// from the ring, in products of 64 x 128, where the GPU can. Weights are read before the previous kernel has ended. The shapes are few at batch 1, and the
// kernels short: what counts is how soon the first product can begin, and the end.

#include "common.cuh"
#include "tensor.cuh"

constexpr int PITCH_MORE = 8;  // floats after each row of sums, so that rows begin in other banks

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <int ROWS, int COLUMNS, int SPLIT, int RING, int LANES>
static __device__ __forceinline__ void convolve_on_tensor_cores(
    unsigned char* memory, const Eight<half>* x_, int64_t x_image, int x_row, int x_column, const Eight<half>* weight_,
    const Eight<half>* bias_, const Eight<half>* residual_, int64_t residual_image, int residual_row, int residual_column,
    Eight<half>* y_, int64_t y_image, int y_row, int y_column, int depth_groups, int groups, int batch, int in_height,
    int in_width, int height, int width, int rows, int columns, int stride_y, int stride_x, int top, int left, int dilation_y,
    int dilation_x, int activation, int last) {
  constexpr bool FOURS = LANES > 128;  // four warps multiply together, half of the rows; else two by two, a quarter each
  constexpr int DEPTH = ROWS > 64 && !FOURS ? 32 : 64, CHUNKS = DEPTH / 8;  // of 16 bytes: eight channels
  constexpr int STAGE = (ROWS + COLUMNS) * CHUNKS;                // chunks
  constexpr int STAGES = RING / 16 / STAGE, AHEAD = FOURS ? STAGES - 2 : STAGES - 1;  // in flight
  constexpr int APART = LANES / CHUNKS;  // rows between those that a thread copies
  constexpr int MINE = ROWS / APART, THEIRS = COLUMNS / APART;
  constexpr int HEIGHT = FOURS ? 64 : 16, WIDTH = FOURS ? 128 : 8;  // of a product
  constexpr int HIGH = ROWS / 2 / HEIGHT, WIDE = COLUMNS / (FOURS ? 1 : 2) / WIDTH;
  constexpr int PITCH = COLUMNS + PITCH_MORE;
  constexpr int FEW = RING > 65536 ? 132 : 264;  // blocks beside which the next kernel finds room on every multiprocessor
  static_assert(AHEAD > 0 && ROWS * PITCH * 4 <= RING && (FOURS || WIDE % 2 == 0) && CHUNKS % 4 == 0, "");
  Eight<half>* ring = (Eight<half>*)memory;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int pixels = batch * height * width, first_pixel = blockIdx.x * ROWS, first_channel = blockIdx.y * COLUMNS;
  const int part = SPLIT > 1 ? blockIdx.z : 0;

  // Where a chunk lies in a stage: eight rows of one chunk are in different banks.
  const auto place = [](int row, int chunk) {
    return row * CHUNKS + (CHUNKS == 8 ? chunk ^ row % 8 : chunk ^ row / 2 % 4);
  };

  // The chunk that this thread copies of its rows, under a place of the filter. It moves on by a stage at a time.
  struct Chunk {
    int depth, tap_x, tap_y;
  };
  // Rows of the filter that show nothing but padding to all pixels of this block, before `top_row` and from `end_row` on.
  int top_row = 0, end_row = rows;
  const int last_pixel = min(first_pixel + ROWS, pixels) - 1, image_pixels = height * width;
  if (first_pixel / image_pixels == last_pixel / image_pixels) {
    const int low = first_pixel % image_pixels / width * stride_y - top, high = last_pixel % image_pixels / width * stride_y - top;
    while (top_row < end_row && high + top_row * dilation_y < 0) ++top_row;
    while (top_row < end_row && low + (end_row - 1) * dilation_y >= in_height) --end_row;
  }
  const int chunks = rows * columns * depth_groups;
  const int steps = ((end_row - top_row) * columns * depth_groups + CHUNKS - 1) / CHUNKS;
  const int begin = steps * part / SPLIT, count = steps * (part + 1) / SPLIT - begin;
  const int first_row = thread / CHUNKS, first_place = place(first_row, thread % CHUNKS);
  const int first = begin * CHUNKS + thread % CHUNKS;
  Chunk at = {first % depth_groups, first / depth_groups % columns, first / depth_groups / columns + top_row};
  const auto move_on = [&](Chunk& chunk) {
    for (chunk.depth += CHUNKS; chunk.depth >= depth_groups; chunk.depth -= depth_groups)
      if (++chunk.tap_x == columns) chunk.tap_x = 0, ++chunk.tap_y;
  };
  int corner_y[MINE], corner_x[MINE], from[MINE];  // of the window of each pixel; the first far outside if there is no pixel
#pragma unroll
  for (int k = 0; k < MINE; ++k) {
    const int pixel = first_pixel + first_row + k * APART, image = pixel / (height * width), rest = pixel % (height * width);
    const int y = rest / width * stride_y - top, x = rest % width * stride_x - left;
    corner_y[k] = pixel < pixels ? y : -(1 << 28);
    corner_x[k] = x;
    from[k] = (int)(image * (x_image / 8)) + y * (x_row / 8) + x * (x_column / 8);
  }
  const Eight<half>* weights = weight_ + (int64_t)(first_channel + first_row) * chunks;
  const auto copy_weights = [&](int stage, const Chunk& chunk) {
    const int offset = (chunk.tap_y * columns + chunk.tap_x) * depth_groups + chunk.depth;
#pragma unroll
    for (int k = 0; k < THEIRS; ++k) {
      const bool valid = chunk.tap_y < end_row && first_channel + first_row + k * APART < groups * 8;
      copy_async(ring + stage * STAGE + first_place + (ROWS + k * APART) * CHUNKS, weights + offset + k * APART * chunks, valid);
    }
  };
  const bool near = depth_groups < CHUNKS;  // a stage holds several places of the filter, which show mostly the same pixels
  const auto copy_pixels = [&](int stage, const Chunk& chunk) {
    const int moved_y = chunk.tap_y * dilation_y, moved_x = chunk.tap_x * dilation_x;
    const int offset = moved_y * (x_row / 8) + moved_x * (x_column / 8) + chunk.depth;
#pragma unroll
    for (int k = 0; k < MINE; ++k) {
      const int y = corner_y[k] + moved_y, x = corner_x[k] + moved_x;
      const bool valid = chunk.tap_y < end_row && (unsigned)y < (unsigned)in_height && (unsigned)x < (unsigned)in_width;
      copy_async(ring + stage * STAGE + first_place + k * APART * CHUNKS, x_ + (from[k] + offset), valid, near);
    }
  };

  Chunk ahead = at;
#pragma unroll
  for (int stage = 0; stage < AHEAD; ++stage, move_on(ahead))
    if (stage < count) copy_weights(stage, ahead);
  wait_for_previous();
  const bool few = gridDim.x * gridDim.y * gridDim.z <= FEW;
  if (few) let_next_begin();
#pragma unroll
  for (int stage = 0; stage < AHEAD; ++stage, move_on(at)) {
    if (stage < count) copy_pixels(stage, at);
    close_group();
  }

  float sums[HIGH][WIDE][WIDTH / 2] = {};
  const int warp_row = FOURS ? warp / 4 * (ROWS / 2) + warp % 4 * 16 : warp / 2 * (ROWS / 2);
  const int warp_column = FOURS ? 0 : warp % 2 * (COLUMNS / 2);
  if constexpr (FOURS) {
    // The products of two stages are under way at a time.
    int full = 0, empty = AHEAD;
    for (int step = 0; step < count; ++step) {
      wait_for_groups<AHEAD - 1>();
      show_copies();
      __syncthreads();
      const Eight<half>* rows_of = ring + full * STAGE + warp / 4 * (ROWS / 2) * CHUNKS;
      const Eight<half>* columns_of = ring + full * STAGE + ROWS * CHUNKS;
      begin_products();
#pragma unroll
      for (int deep = 0; deep < CHUNKS; deep += 2)
#pragma unroll
        for (int i = 0; i < HIGH; ++i)
#pragma unroll
          for (int j = 0; j < WIDE; ++j)
            multiply_add_wide(sums[i][j], rows_at(rows_of + i * HEIGHT * CHUNKS + deep),
                              rows_at(columns_of + j * WIDTH * CHUNKS + deep));
      close_products();
      wait_for_products<1>();
      if (step + AHEAD < count) {
        copy_weights(empty, at);
        copy_pixels(empty, at);
        move_on(at);
      }
      close_group();
      full = full + 1 < STAGES ? full + 1 : 0;
      empty = empty + 1 < STAGES ? empty + 1 : 0;
    }
    wait_for_products<0>();
  } else {
    // What a warp multiplies next is loaded during the products before, also of the next stage.
    unsigned a[2][HIGH][4], b[2][WIDE / 2][4];
    const int first_a = place(warp_row + lane % 16, lane / 16);
    const int first_b = place(ROWS + warp_column + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const auto load = [&](int buffer, int stage, int deep) {
#pragma unroll
      for (int i = 0; i < HIGH; ++i) load_matrices(a[buffer][i], ring + stage * STAGE + (first_a ^ deep) + i * 16 * CHUNKS);
#pragma unroll
      for (int j = 0; j < WIDE / 2; ++j) load_matrices(b[buffer][j], ring + stage * STAGE + (first_b ^ deep) + j * 16 * CHUNKS);
    };
    const auto next_stage = [&] {  // the copies of all threads have arrived, and nobody needs what the next ones overwrite
      wait_for_groups<AHEAD - 1>();
      __syncthreads();
    };
    int full = 0, empty = AHEAD;
    next_stage();
    load(0, full, 0);
    for (int step = 0; step < count; ++step) {
      if (step + AHEAD < count) {
        copy_weights(empty, at);
        copy_pixels(empty, at);
        move_on(at);
      }
      close_group();
      empty = full;
#pragma unroll
      for (int deep = 0; deep < CHUNKS; deep += 2) {
        const int now = deep / 2 % 2;
        if (deep + 2 < CHUNKS) {
          load(1 - now, full, deep + 2);
        } else {
          full = full + 1 < STAGES ? full + 1 : 0;
          next_stage();
          load(0, full, 0);
        }
#pragma unroll
        for (int i = 0; i < HIGH; ++i)
#pragma unroll
          for (int j = 0; j < WIDE; ++j)
            multiply_add(sums[i][j], a[now][i], b[now][j / 2][j % 2 * 2], b[now][j / 2][j % 2 * 2 + 1]);
      }
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
      for (int e = 0; e < WIDTH / 2; e += 2) {
        const int row = warp_row + i * HEIGHT + lane / 4 + e / 2 % 2 * 8, column = warp_column + j * WIDTH + e / 4 * 8;
        *(float2*)(found + row * PITCH + column + lane % 4 * 2) = float2{sums[i][j][e], sums[i][j][e + 1]};
      }
  if (SPLIT > 1) sync_cluster();
  else __syncthreads();
  constexpr int GROUPS = COLUMNS / 8, WRITTEN = ROWS / SPLIT, AT_ONCE = LANES / GROUPS;  // of each row, rows, and these
  constexpr int TURNS = (WRITTEN + AT_ONCE - 1) / AT_ONCE, TOGETHER = TURNS < 4 ? TURNS : 4;
  const int group = thread % GROUPS, channels = first_channel / 8 + group;
  const Eight<half> bias = channels < groups ? bias_[channels] : Eight<half>{};
  const int rows_left = channels < groups ? min(pixels - first_pixel, (part + 1) * WRITTEN) : 0;
  const auto address = [=](int row, int64_t of_image, int of_row, int of_column) {
    const int pixel = first_pixel + row, image = pixel / (height * width);
    const int line = pixel % (height * width) / width, column = pixel % width;
    return image * (of_image / 8) + (int64_t)line * (of_row / 8) + (int64_t)column * (of_column / 8) + channels;
  };
#pragma unroll 1
  for (int turn = 0; turn < TURNS; turn += TOGETHER) {
    const int written = part * WRITTEN + turn * AT_ONCE + thread / GROUPS;
    Eight<half> residual[TOGETHER] = {}, result;
    float values[TOGETHER * 8] = {};
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
      const int row = written + k * AT_ONCE;
      if (residual_ && row < rows_left) residual[k] = residual_[address(row, residual_image, residual_row, residual_column)];
    }
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k)
#pragma unroll
      for (int other = 0; other < SPLIT; ++other)
#pragma unroll
        for (int c = 0; c < 8; c += 4) {
          const float* mine = found + (written + k * AT_ONCE) * PITCH + group * 8 + c;
          const float4 read = SPLIT > 1 ? load_from_block(mine, other) : *(const float4*)mine;
          float* to = values + k * 8 + c;
          to[0] += read.x, to[1] += read.y, to[2] += read.z, to[3] += read.w;
        }
#pragma unroll
    for (int i = 0; i < TOGETHER * 8; ++i) values[i] += bias[i % 8];
    activate(values, activation);
#pragma unroll
    for (int i = 0; i < TOGETHER * 8; ++i) values[i] += residual[i / 8][i % 8];
    activate(values, last);
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
#pragma unroll
      for (int c = 0; c < 8; ++c) result.set(c, values[k * 8 + c]);
      const int row = written + k * AT_ONCE;
      if (row < rows_left) y_[address(row, y_image, y_row, y_column)] = result;
    }
  }
  __syncwarp();
  if (SPLIT > 1) sync_cluster();  // others may still read what this block has summed
}
#endif

// kernels: network_tensor_64x64x1 <64, 64, 1, 65536, 1>, network_tensor_64x64x2 <64, 64, 2, 65536, 1>
// kernels: network_tensor_64x64x4 <64, 64, 4, 65536, 1>, network_tensor_64x64x8 <64, 64, 8, 65536, 1>
// kernels: network_tensor_64x32x1 <64, 32, 1, 65536, 1>, network_tensor_64x32x2 <64, 32, 2, 65536, 1>
// kernels: network_tensor_64x32x4 <64, 32, 4, 65536, 1>, network_tensor_128x64x1 <128, 64, 1, 65536, 1>
// kernels: network_tensor_128x64x2 <128, 64, 2, 65536, 1>, network_tensor_128x32x1 <128, 32, 1, 65536, 1>
// kernels: network_tensor_128x128x1 <128, 128, 1, 98304, 1>, network_tensor_128x128x2 <128, 128, 2, 98304, 1>
// kernels: network_tensor_128x128x4 <128, 128, 4, 98304, 1>, network_tensor_128x128x8 <128, 128, 8, 98304, 1>
// kernels: network_tensor_64x64x1_small <64, 64, 1, 32768, 5>, network_tensor_64x32x1_small <64, 32, 1, 24576, 7>
// launch: grid (row_blocks, column_blocks, parts), block 128, shared RING, waits
template <int ROWS, int COLUMNS, int SPLIT, int RING, int BLOCKS>
__global__ void __launch_bounds__(128, BLOCKS) CLUSTER(SPLIT) network_tensor(
    const Eight<half>* x_, int64_t x_image, int x_row, int x_column, const Eight<half>* weight_, const Eight<half>* bias_,
    const Eight<half>* residual_, int64_t residual_image, int residual_row, int residual_column, Eight<half>* y_, int64_t y_image,
    int y_row, int y_column, int depth_groups, int groups, int batch, int in_height, int in_width, int height, int width, int rows,
    int columns, int stride_y, int stride_x, int top, int left, int dilation_y, int dilation_x, int activation, int last) {
  extern __shared__ __align__(1024) unsigned char memory[];
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  convolve_on_tensor_cores<ROWS, COLUMNS, SPLIT, RING, 128>(
      memory, x_, x_image, x_row, x_column, weight_, bias_, residual_, residual_image, residual_row, residual_column, y_, y_image,
      y_row, y_column, depth_groups, groups, batch, in_height, in_width, height, width, rows, columns, stride_y, stride_x, top,
      left, dilation_y, dilation_x, activation, last);
#endif
}

// kernels: network_tensor_128x128x1_wide <128, 128, 1, 98304>, network_tensor_128x128x2_wide <128, 128, 2, 98304>
// kernels: network_tensor_128x128x4_wide <128, 128, 4, 98304>, network_tensor_128x128x8_wide <128, 128, 8, 98304>
// kernels: network_tensor_128x256x1_wide <128, 256, 1, 196608>, network_tensor_128x256x2_wide <128, 256, 2, 196608>
// kernels: network_tensor_128x256x4_wide <128, 256, 4, 196608>, network_tensor_128x256x8_wide <128, 256, 8, 196608>
// kernels: network_tensor_256x128x1_wide <256, 128, 1, 196608>, network_tensor_256x128x2_wide <256, 128, 2, 196608>
// launch: grid (row_blocks, column_blocks, parts), block 256, shared RING, waits
template <int ROWS, int COLUMNS, int SPLIT, int RING>
__global__ void __launch_bounds__(256) CLUSTER(SPLIT) network_tensor_wide(
    const Eight<half>* x_, int64_t x_image, int x_row, int x_column, const Eight<half>* weight_, const Eight<half>* bias_,
    const Eight<half>* residual_, int64_t residual_image, int residual_row, int residual_column, Eight<half>* y_, int64_t y_image,
    int y_row, int y_column, int depth_groups, int groups, int batch, int in_height, int in_width, int height, int width, int rows,
    int columns, int stride_y, int stride_x, int top, int left, int dilation_y, int dilation_x, int activation, int last) {
  extern __shared__ __align__(1024) unsigned char memory[];
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  convolve_on_tensor_cores<ROWS, COLUMNS, SPLIT, RING, 256>(
      memory, x_, x_image, x_row, x_column, weight_, bias_, residual_, residual_image, residual_row, residual_column, y_, y_image,
      y_row, y_column, depth_groups, groups, batch, in_height, in_width, height, width, rows, columns, stride_y, stride_x, top,
      left, dilation_y, dilation_x, activation, last);
#endif
}
