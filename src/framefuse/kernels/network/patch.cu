// The convolution of tensor.cu for images of eight channels, or of pairs of pixels of four: those of a network's first layer.
//
// There, neighbouring windows show mostly the same pixels, and a row of the product of matrices has each of them many times.
// So a block copies the patch that its tile sees, once, and takes the rows from there: under a place of the filter, those of
// neighbouring pixels lie side by side. It makes tile after tile with weights that stay, and copies the next patch meanwhile.

#include "common.cuh"
#include "tensor.cuh"

// kernels: network_tensor_128x64x1_patch <64>, network_tensor_128x32x1_patch <32>, network_tensor_128x16x1_patch <16>
// launch: grid (blocks, column_blocks), block 128, shared 65536, waits
template <int COLUMNS>
__global__ void __launch_bounds__(128, 3) network_tensor_patch(
    const Eight<half>* x_, int64_t x_image, int x_row, int x_column, const Eight<half>* weight_, const Eight<half>* bias_,
    const Eight<half>* residual_, int64_t residual_image, int residual_row, int residual_column, Eight<half>* y_, int64_t y_image,
    int y_row, int y_column, int depth_groups, int groups, int batch, int in_height, int in_width, int height, int width, int rows,
    int columns, int stride_y, int stride_x, int top, int left, int dilation_y, int dilation_x, int activation, int last) {
  extern __shared__ __align__(1024) unsigned char memory[];
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  constexpr int WIDTH = 16, HIGH = 2, HEIGHT = 4 * HIGH;  // of a tile; of each warp, rows
  constexpr int ACROSS = COLUMNS / 8, OF_WARP = WIDTH * HIGH;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int first_channel = blockIdx.y * COLUMNS, taps = rows * columns, pitch = taps + 1 | 1;  // odd, so rows begin in other banks
  const int patch_height = (HEIGHT - 1) * stride_y + rows, patch_width = (WIDTH - 1) * stride_x + columns;
  const int patch = patch_height * patch_width, across = (width + WIDTH - 1) / WIDTH, down = (height + HEIGHT - 1) / HEIGHT;
  const int tiles = batch * down * across;
  Eight<half>* const weights = (Eight<half>*)memory;
  Eight<half>* const result = weights + COLUMNS * pitch + warp * OF_WARP * ACROSS;  // this warp's
  Eight<half>* const patches = weights + COLUMNS * pitch + 4 * OF_WARP * ACROSS;
  for (int k = thread; k < COLUMNS * pitch; k += 128) {
    const int row = k / pitch, tap = k % pitch;
    copy_async(weights + k, weight_ + (int64_t)(first_channel + row) * taps + tap, tap < taps && first_channel + row < groups * 8);
  }
  const auto copy_patch = [&](int number, int tile) {
    const Eight<half>* image = x_ + tile / (down * across) * (x_image / 8);
    const int first_y = tile / across % down * HEIGHT * stride_y - top, first_x = tile % across * WIDTH * stride_x - left;
    for (int k = thread; k < patch; k += 128) {
      const int y = first_y + k / patch_width, x = first_x + k % patch_width;
      const bool valid = (unsigned)y < (unsigned)in_height && (unsigned)x < (unsigned)in_width;
      copy_async(patches + number * patch + k, image + y * (x_row / 8) + x * (x_column / 8), valid);
    }
    close_group();
  };
  wait_for_previous();
  if (blockIdx.x < tiles) copy_patch(0, blockIdx.x);
  for (int tile = blockIdx.x, number = 0; tile < tiles; tile += gridDim.x, number = 1 - number) {
    const int next = tile + gridDim.x;
    if (next < tiles) {
      copy_patch(1 - number, next);
      wait_for_groups<1>();
    } else {
      wait_for_groups<0>();
      let_next_begin();
    }
    __syncthreads();
    float sums[HIGH][ACROSS][4] = {};
    const Eight<half>* of_warp = patches + number * patch + warp * HIGH * stride_y * patch_width + lane % 16 * stride_x;
    const Eight<half>* of_weights = weights + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2;
    int tap_x = lane / 16, tap_y = 0;  // two taps at a time, one for each half of the warp
    unsigned a[HIGH][4], b[ACROSS / 2][4], next_a[HIGH][4], next_b[ACROSS / 2][4];
    const auto load = [&](int tap) {
      for (; tap_x >= columns; tap_x -= columns) ++tap_y;
      const int offset = tap + lane / 16 < taps ? tap_y * patch_width + tap_x : 0;  // its weights are zeros
#pragma unroll
      for (int i = 0; i < HIGH; ++i) load_matrices(next_a[i], of_warp + i * stride_y * patch_width + offset);
#pragma unroll
      for (int j = 0; j < ACROSS / 2; ++j) load_matrices(next_b[j], of_weights + j * 16 * pitch + min(tap, pitch - 3));
      tap_x += 2;
    };
    load(0);
#pragma unroll 2
    for (int tap = 0; tap < taps; tap += 2) {  // what comes next is loaded during the products
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int i = 0; i < HIGH; ++i) a[i][k] = next_a[i][k];
#pragma unroll
        for (int j = 0; j < ACROSS / 2; ++j) b[j][k] = next_b[j][k];
      }
      load(tap + 2);
#pragma unroll
      for (int i = 0; i < HIGH; ++i)
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) multiply_add(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
#pragma unroll
    for (int j = 0; j < ACROSS; ++j) {
      const int channels = first_channel / 8 + j;
      const unsigned bias = channels < groups ? bias_[channels].words[lane % 4] : 0;
#pragma unroll
      for (int i = 0; i < HIGH; ++i) {
        float(&values)[4] = sums[i][j];
#pragma unroll
        for (int e = 0; e < 4; ++e) values[e] += half_of(bias, e % 2);
        activate(values, activation);
        activate(values, last);
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const int pixel = i * WIDTH + lane / 4 + e / 2 * 8;
          result[pixel * ACROSS + (j ^ pixel % ACROSS)].words[lane % 4] =
              (unsigned)half(values[e]).bits | (unsigned)half(values[e + 1]).bits << 16;
        }
      }
    }
    __syncwarp();
    const int first_y = tile / across % down * HEIGHT + warp * HIGH, first_x = tile % across * WIDTH;
    const int column = lane % ACROSS, channels = first_channel / 8 + column;
    Eight<half>* image = y_ + tile / (down * across) * (y_image / 8) + channels;
#pragma unroll
    for (int pixel = lane / ACROSS; pixel < OF_WARP; pixel += 32 / ACROSS) {
      const int y = first_y + pixel / WIDTH, x = first_x + pixel % WIDTH;
      if (y < height && x < width && channels < groups)
        image[(int64_t)y * (y_row / 8) + x * (y_column / 8)] = result[pixel * ACROSS + (column ^ pixel % ACROSS)];
    }
    __syncthreads();  // nobody needs this patch any more
  }
#endif
}
