// A convolution with bias, activation, residual and the activation after it, in any shape and without any preparation;
// common.cuh says how images lie. cuDNN's kernels are faster, but take seconds until they are compiled or loaded.
//
//   y = last(activation(bias + sum of weight[k, j, i, c] * x[row * stride_y - top + j * dilation_y, ..., c]) + residual)
//
// Weights are (channels of y, rows, columns, channels of x). `activation`, `last`: 0 none, 1 SiLU, 2 ReLU. Without
// `residual_` there is none. Sums are float32.

#include "common.cuh"

constexpr int PIXELS = 64, CHANNELS = 64;  // of the result that a block makes
constexpr int DEPTH = 16;                  // channels of x that it holds at a time
constexpr int MINE = 2;                    // pixels that a thread makes, 8 channels of each

// kernels: network_convolve_f16 <half>, network_convolve_f32 <float>
// launch: grid ((height * width + 63) / 64, (groups + 7) / 8, batch), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(THREADS) network_convolve(
    const Eight<Sample>* x_, int64_t x_image, int x_row, int x_column, const Eight<Sample>* weight_, const Eight<Sample>* bias_,
    const Eight<Sample>* residual_, int64_t residual_image, int residual_row, int residual_column, Eight<Sample>* y_, int64_t y_image,
    int y_row, int y_column, int depth_groups, int groups, int in_height, int in_width, int height, int width, int rows,
    int columns, int stride_y, int stride_x, int top, int left, int dilation_y, int dilation_x, int activation, int last) {
  wait_for_previous();
  __shared__ float values[DEPTH][PIXELS], weights[DEPTH][CHANNELS];
  const int thread = threadIdx.x, first_pixel = blockIdx.x * PIXELS, first_group = blockIdx.y * (CHANNELS / 8);
  const auto at = [=](int64_t image, int row_pitch, int column_pitch, int y, int x) {
    return blockIdx.z * (image / 8) + (int64_t)y * (row_pitch / 8) + (int64_t)x * (column_pitch / 8);
  };
  // Half of the threads read x, two a pixel; the others weights, two a channel of y.
  const bool reads_x = thread < THREADS / 2;
  const int item = thread % (THREADS / 2) / 2, part = thread % 2;
  const int pixel = first_pixel + item, row = pixel / width, column = pixel % width, channel = first_group * 8 + item;
  const bool valid = reads_x ? pixel < height * width : channel < groups * 8;
  const int group = first_group + thread % 8, mine = thread / 8 * MINE;
  float sums[MINE][8] = {};
  for (int j = 0; j < rows; ++j) {
    for (int i = 0; i < columns; ++i) {
      const int y = row * stride_y - top + j * dilation_y, x = column * stride_x - left + i * dilation_x;
      const bool inside = valid && (!reads_x || (y >= 0 && y < in_height && x >= 0 && x < in_width));
      const Eight<Sample>* from = reads_x ? x_ + at(x_image, x_row, x_column, inside ? y : 0, inside ? x : 0)
                                  : weight_ + ((int64_t)(inside ? channel : 0) * rows * columns + j * columns + i) * depth_groups;
      for (int depth = 0; depth < depth_groups; depth += DEPTH / 8) {
        Eight<Sample> read = {};
        if (inside && depth + part < depth_groups) read = from[depth + part];
        __syncthreads();  // what was read before is used
        float(*to)[PIXELS] = reads_x ? values : weights;
#pragma unroll
        for (int c = 0; c < 8; ++c) to[part * 8 + c][item] = read[c];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; ++k)
#pragma unroll
          for (int p = 0; p < MINE; ++p)
#pragma unroll
            for (int c = 0; c < 8; ++c) sums[p][c] += values[k][mine + p] * weights[k][thread % 8 * 8 + c];
      }
    }
  }
  if (group >= groups) return;
  const Eight<Sample> bias = bias_[group];
#pragma unroll
  for (int p = 0; p < MINE; ++p) {
    const int pixel = first_pixel + mine + p, row = pixel / width, column = pixel % width;
    if (pixel >= height * width) return;
    Eight<Sample> residual = {}, result;
    if (residual_) residual = residual_[at(residual_image, residual_row, residual_column, row, column) + group];
#pragma unroll
    for (int c = 0; c < 8; ++c)
      result.set(c, activated(activated(sums[p][c] + bias[c], activation) + residual[c], last));
    y_[at(y_image, y_row, y_column, row, column) + group] = result;
  }
}
