// A filter for each channel, bias, activation, residual; common.cuh says how images lie.
//
//   y = activation(bias + sum of weight[j, i] * x[row * stride_y - top + j * dilation_y, ...]) + residual
//
// Weights are (rows, columns, channels). `activation`: 0 none, 1 SiLU, 2 ReLU. Without `residual_` there is none.

#include "common.cuh"

// A thread makes 8 channels of a pixel.
// kernels: network_depthwise_f16 <half>, network_depthwise_f32 <float>
// launch: grid ((height * width * groups + 255) / 256, batch), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(THREADS) network_depthwise(
    const Eight<Sample>* x_, int64_t x_image, int x_row, int x_column, const Eight<Sample>* weight_, const Eight<Sample>* bias_,
    const Eight<Sample>* residual_, int64_t residual_image, int residual_row, int residual_column, Eight<Sample>* y_, int64_t y_image,
    int y_row, int y_column, int groups, int in_height, int in_width, int height, int width, int rows, int columns,
    int stride_y, int stride_x, int top, int left, int dilation_y, int dilation_x, int activation) {
  wait_for_previous();
  const int item = blockIdx.x * THREADS + threadIdx.x;
  if (item >= height * width * groups) return;
  const int group = item % groups, pixel = item / groups, row = pixel / width, column = pixel % width;
  const auto at = [=](int64_t image, int row_pitch, int column_pitch, int y, int x) {
    return blockIdx.y * (image / 8) + (int64_t)y * (row_pitch / 8) + (int64_t)x * (column_pitch / 8) + group;
  };
  float sums[8];
  const Eight<Sample> bias = bias_[group];
#pragma unroll
  for (int c = 0; c < 8; ++c) sums[c] = bias[c];
  for (int j = 0; j < rows; ++j) {
    const int y = row * stride_y - top + j * dilation_y;
    if (y < 0 || y >= in_height) continue;
    for (int i = 0; i < columns; ++i) {
      const int x = column * stride_x - left + i * dilation_x;
      if (x < 0 || x >= in_width) continue;
      const Eight<Sample> values = x_[at(x_image, x_row, x_column, y, x)], weights = weight_[(j * columns + i) * groups + group];
#pragma unroll
      for (int c = 0; c < 8; ++c) sums[c] += values[c] * weights[c];
    }
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    sums[c] = activated(sums[c], activation);
  }
  if (residual_) {
    const Eight<Sample> residual = residual_[at(residual_image, residual_row, residual_column, row, column)];
#pragma unroll
    for (int c = 0; c < 8; ++c) sums[c] += residual[c];
  }
  Eight<Sample> result;
#pragma unroll
  for (int c = 0; c < 8; ++c) result.set(c, sums[c]);
  y_[at(y_image, y_row, y_column, row, column)] = result;
}
