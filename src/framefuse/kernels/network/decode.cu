// Raw detection heads -> boxes and scores, as exporters write them. levels.cuh says where the logits of a head lie.

#include "common.cuh"
#include "../boxes/levels.cuh"

// YOLOv8: (batch, 4 + classes, anchors). A side is the mean of its bins, weighted with their softmax. A block turns the
// rows of 32 anchors into columns; a warp reads a row, and its lanes then each take an anchor.
// `cells` (4, anchors): centre of the cell in cells, x and y, and its width and height in units of the boxes.
// kernels: network_decode_f16 <half>, network_decode_f32 <float>
// launch: grid ((anchors + 31) / 32, batch), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(THREADS) network_decode(
    const LevelOf<Sample>* levels_, int levels, const float* cells_, float* y_, int anchors, int bins, int classes) {
  wait_for_previous();
  constexpr int ROWS = 32, WIDEST = 256;  // anchors of a block, channels of a row that are read at once
  __shared__ float tile[ROWS][WIDEST + 1], distances[4][ROWS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, image = blockIdx.y, first = blockIdx.x * ROWS;
  for (int row = warp; row < ROWS; row += 8) {  // 4 * bins are at most WIDEST
    const int anchor = min(first + row, anchors - 1);
    const Sample* sides = level_of(levels_, levels, anchor).sides_of(image, anchor);
    for (int column = lane; column < 4 * bins; column += 32) tile[row][column] = sides[column];
  }
  __syncthreads();
  if (warp < 4) {
    const float* logits = &tile[lane][warp * bins];
    float highest = logits[0], total = 0, weighted = 0;
    for (int bin = 0; bin < bins; ++bin) highest = max(highest, logits[bin]);
    for (int bin = 0; bin < bins; ++bin) {
      const float weight = expf(logits[bin] - highest);
      total += weight;
      weighted += weight * bin;
    }
    distances[warp][lane] = weighted / total;
  }
  __syncthreads();
  const int mine = min(first + lane, anchors - 1);
  const bool inside = first + lane < anchors;
  float* y = y_ + (int64_t)image * (4 + classes) * anchors + mine;
  if (warp < 2 && inside) {
    const float near = distances[warp][lane], far = distances[warp + 2][lane];
    const float centre = cells_[(int64_t)warp * anchors + mine], size = cells_[(int64_t)(2 + warp) * anchors + mine];
    y[(int64_t)warp * anchors] = (centre + (far - near) * 0.5f) * size;
    y[(int64_t)(2 + warp) * anchors] = (near + far) * size;
  }
  for (int chunk = 0; chunk < classes; chunk += WIDEST) {
    const int columns = min(classes - chunk, WIDEST);
    __syncthreads();
    for (int row = warp; row < ROWS; row += 8) {
      const int anchor = min(first + row, anchors - 1);
      const Sample* scores = level_of(levels_, levels, anchor).scores_of(image, anchor) + chunk;
      for (int column = lane; column < columns; column += 32) tile[row][column] = sigmoid(scores[column]);
    }
    __syncthreads();
    if (inside)
      for (int column = warp; column < columns; column += 8)
        y[(int64_t)(4 + chunk + column) * anchors] = tile[lane][column];
  }
}

// One level of YOLOv5: a thread makes one number. `table_`: width and height of each anchor in model pixels.
// kernels: network_anchors_f16 <half>, network_anchors_f32 <float>
// launch: grid ((height * width * per_cell * fields + 255) / 256, batch), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(THREADS) network_anchors(
    const Sample* x_, int64_t x_image, int x_column, const float* table_, float* y_, int per_cell, int fields,
    int height, int width, int first, int anchors, float stride_x, float stride_y) {
  wait_for_previous();
  const int item = blockIdx.x * THREADS + threadIdx.x;
  if (item >= height * width * per_cell * fields) return;
  const int channel = item % (per_cell * fields), pixel = item / (per_cell * fields);
  const int anchor = channel / fields, kind = channel % fields;
  const float share = sigmoid(x_[blockIdx.y * x_image + (int64_t)pixel * x_column + channel]);
  float result = share;
  if (kind == 0) result = (2 * share - 0.5f + pixel % width) * stride_x;
  if (kind == 1) result = (2 * share - 0.5f + pixel / width) * stride_y;
  if (kind == 2 || kind == 3) result = 4 * share * share * table_[anchor * 2 + kind - 2];
  const int64_t to = (int64_t)blockIdx.y * anchors + first + anchor * height * width + pixel;
  y_[to * fields + kind] = result;
}
