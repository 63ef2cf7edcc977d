// Overlay of label maps and outlines of boxes in Y, U and V planes, with the arithmetic of `tir_cpu.py`.

// A thread takes a sample of chroma and the pixels that it covers.
// launch: grid (((width + 1) / 2 + 31) / 32, ((height + 1) / 2 + 7) / 8), block 32 * 8, waits
extern "C" __global__ void __launch_bounds__(256) draw_overlay(
    uint8_t* y_address, uint8_t* u_address, uint8_t* v_address, int y_pitch, int u_pitch, int v_pitch,
    int chroma_step, const uint8_t* __restrict__ label_address, int label_pitch, int height, int width,
    const uchar4* __restrict__ inks_address) {
  wait_for_previous();
  const int cell_x = blockIdx.x * 32 + threadIdx.x, cell_y = blockIdx.y * 8 + threadIdx.y;
  if (2 * cell_x >= width || 2 * cell_y >= height) return;
  int sum = 0, sum_u = 0, sum_v = 0;
#pragma unroll
  for (int corner = 0; corner < 4; ++corner) {
    const int right = 2 * cell_x + corner % 2, down = 2 * cell_y + corner / 2;
    const int x = min(right, width - 1), y = min(down, height - 1);
    const uchar4 ink = inks_address[label_address[(int64_t)y * label_pitch + x]];  // y, u, v, opacity
    if (ink.w == 0) continue;
    sum += ink.w;
    sum_u += ink.w * ink.y;
    sum_v += ink.w * ink.z;
    if (x == right && y == down) {  // an odd edge repeats its pixel, which is drawn once
      uint8_t& luma = y_address[(int64_t)y * y_pitch + x];
      luma = (luma * (255 - ink.w) + ink.x * ink.w + 127) / 255;
    }
  }
  if (sum == 0) return;
  uint8_t& u = u_address[(int64_t)cell_y * u_pitch + cell_x * chroma_step];
  uint8_t& v = v_address[(int64_t)cell_y * v_pitch + cell_x * chroma_step];
  u = (u * (1020 - sum) + sum_u + 510) / 1020;
  v = (v * (1020 - sum) + sum_v + 510) / 1020;
}

// Boxes (n, 4), inks (n, 3), the first on top. `count_address` (or 0): how many of the n are valid.
// launch: grid ((width + 31) / 32, (height + 7) / 8), block 32 * 8, waits
extern "C" __global__ void __launch_bounds__(256) draw_boxes(
    uint8_t* y_address, uint8_t* u_address, uint8_t* v_address, int y_pitch, int u_pitch, int v_pitch,
    int chroma_step, int height, int width, int line, int n, const int* __restrict__ count_address,
    const int* __restrict__ boxes_address, const uint8_t* __restrict__ inks_address) {
  wait_for_previous();
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
  if (x >= width || y >= height) return;
  const int valid = count_address ? min(n, *count_address) : n;
  for (int i = 0; i < valid; ++i) {
    const int *box = boxes_address + 4 * i, x1 = box[0], y1 = box[1], x2 = box[2], y2 = box[3];
    if (x < x1 || x >= x2 || y < y1 || y >= y2) continue;
    if (x >= x1 + line && x < x2 - line && y >= y1 + line && y < y2 - line) continue;
    y_address[(int64_t)y * y_pitch + x] = inks_address[3 * i];
    if (x % 2 == 0 && y % 2 == 0) {
      u_address[(int64_t)(y / 2) * u_pitch + x / 2 * chroma_step] = inks_address[3 * i + 1];
      v_address[(int64_t)(y / 2) * v_pitch + x / 2 * chroma_step] = inks_address[3 * i + 2];
    }
    return;
  }
}
