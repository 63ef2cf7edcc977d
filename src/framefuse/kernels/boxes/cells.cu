// Boxes that YOLOX states in cells, as layout yolov5 has them: in pixels of the model input.

#include "common.cuh"

// (batch, anchors, columns) -> the same in float32, dense: x y + cell, exp(w h), each times the stride of the cell; then
// objectness and scores. A row that is no object is 0: its logarithms may mean anything. A warp reads an anchor.
// kernels: place_cells_f32 <float>, place_cells_f16 <half>, place_cells_bf16 <bfloat16>
// launch: grid ((anchors + 7) / 8, batch), block 256, waits, --fmad=false
template <class Sample>
__global__ void __launch_bounds__(256) place_cells(
    const Sample* values, int64_t image_pitch, int pitch, int anchors, int columns, int width, int height,
    float confidence, float* placed) {
  wait_for_previous();
  const int lane = threadIdx.x % 32, anchor = blockIdx.x * 8 + threadIdx.x / 32;
  if (anchor >= anchors) return;
  int cell = anchor, stride = 8, across = (width + 7) / 8, down = (height + 7) / 8;
  while (cell >= across * down) {  // the next level
    cell -= across * down;
    stride *= 2;
    across = (width + stride - 1) / stride;
    down = (height + stride - 1) / stride;
  }
  values += blockIdx.y * image_pitch + (int64_t)anchor * pitch;
  placed += ((int64_t)blockIdx.y * anchors + anchor) * columns;
  const bool asked = !((float)values[4] <= confidence);
  for (int i = lane; i < columns; i += 32) {
    const float value = values[i];
    const float side = i < 2 ? value + (i == 0 ? cell % across : cell / across) : expf(value);
    placed[i] = !asked ? 0 : i < 4 ? side * stride : value;
  }
}
