// The objects of a frame from those of its views, as postprocess/merge.py joins them. A frame's views are neighbouring rows
// of a batch; it becomes one image of the candidates.
//
//   gather_views    boxes that each view kept -> candidates of their frame
//   rank_views      the place of a candidate: whole boxes before those that an inner edge cuts, each by descending score
//   suppress_views  indices of the candidates that no other hides
//   merge_views     these, grown around what continues them, by descending score

#include "common.cuh"
#include "overlap.cuh"

// A view that a row of the batch shows: its sides in pixels; which of them lie inside the frame, as the bits of
// ViewBox::cut; the frame (-1: the row is not merged), and the number of the view in it.
struct Look {
  int left, top, right, bottom, inner, image, view, spare;
};

// Rows of the batch that show the views of a frame.
struct Rows {
  int first, count;
};
static __device__ Rows rows_of(const Look* looks, int batch, int image) {
  Rows rows = {0, 0};
  for (int row = 0; row < batch; ++row)
    if (looks[row].image == image && rows.count++ == 0) rows.first = row;
  return rows;
}

static __device__ ViewBox view_box(const Look& look, const float* box) {
  constexpr float EDGE = 0.01f;
  const float edges[4] = {(float)look.left, (float)look.top, (float)look.right, (float)look.bottom};
  float sides[4];
  int cut = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float low = edges[k % 2], high = edges[2 + k % 2];
    sides[k] = min(max(box[k], low), high);
    cut |= (fabsf(sides[k] - edges[k]) <= EDGE * (high - low)) << k;
  }
  return {sides[0], sides[1], sides[2], sides[3], look.view, cut & look.inner, {0, 0}};
}

// Scores lie in 0..1, and a power of two keeps their order.
static __device__ uint64_t view_key(const ViewBox& box, float score, int index) {
  return key_of(box.cut ? score * 0x1p-32f : score, index);
}

// `found_*`: (batch, detections), the rows of each view.
// launch: grid ((detections + 127) / 128, batch), block 128, waits, --fmad=false
extern "C" __global__ void __launch_bounds__(128) gather_views(
    const Look* looks, const float* found_boxes, const float* found_scores, const int* found_classes,
    const int* found_counts, int detections, int capacity, int* counters, uint64_t* keys, ViewBox* boxes,
    int* labels) {
  wait_for_previous();
  const Look look = looks[blockIdx.y];
  if (look.image < 0) return;
  const int number = blockIdx.x * 128 + threadIdx.x, count = found_counts[blockIdx.y];
  const int64_t at = (int64_t)blockIdx.y * detections + min(number, detections - 1);
  const ViewBox box = view_box(look, found_boxes + at * 4);
  const bool keep = number < count && box.x2 > box.x1 && box.y2 > box.y1;
  const int index = look.view * detections + number;
  const int slot = reserve(&counters[2 * look.image], keep);
  if (!keep) return;
  const int64_t to = (int64_t)look.image * capacity + slot;
  keys[to] = view_key(box, found_scores[at], index);
  labels[to] = found_classes[at];
  boxes[to] = box;
}

// A warp for each box that is left. `kept` (images, room): its indices, in the order of the ranks.
// launch: grid (blocks, images), block 256, waits, --fmad=false
extern "C" __global__ void __launch_bounds__(256) merge_views(
    const Look* looks, const float* found_boxes, const float* found_scores, const int* found_classes,
    const int* found_counts, int batch, int detections, int room, bool agnostic, const int* kept,
    const int* kept_counts, float* out_boxes, float* out_scores, int* out_classes, int* out_views, int* out_counts) {
  wait_for_previous();
  const int image = blockIdx.y, lane = threadIdx.x % 32, left = kept_counts[image];
  const Rows rows = rows_of(looks, batch, image);
  kept += (int64_t)image * room;
  const int64_t first = (int64_t)rows.first * detections;
  const int64_t to = (int64_t)image * detections;
  for (int place = blockIdx.x * 8 + threadIdx.x / 32; place < left; place += gridDim.x * 8) {
    const int index = kept[place];
    const float score = found_scores[first + index];
    const int label = found_classes[first + index];
    const ViewBox box = view_box(looks[rows.first + index / detections], found_boxes + (first + index) * 4);
    float sides[4] = {-box.x1, -box.y1, box.x2, box.y2};
    if (box.cut) {
      const uint64_t key = view_key(box, score, index);
      for (int row = 0; row < rows.count; ++row) {
        const int64_t start = first + (int64_t)row * detections;
        for (int k = lane; k < found_counts[rows.first + row]; k += 32) {
          const ViewBox other = view_box(looks[rows.first + row], found_boxes + (start + k) * 4);
          const bool later = view_key(other, found_scores[start + k], row * detections + k) > key;
          if (!other.cut || !later || !(agnostic || found_classes[start + k] == label) || !hides(box, other)) continue;
          sides[0] = max(sides[0], -other.x1);
          sides[1] = max(sides[1], -other.y1);
          sides[2] = max(sides[2], other.x2);
          sides[3] = max(sides[3], other.y2);
        }
      }
    }
    int better = 0;
    for (int k = lane; k < left; k += 32) {
      const float other = found_scores[first + kept[k]];
      better += other > score || (other == score && k < place);
    }
    better = warp_sum(better);
#pragma unroll
    for (int k = 0; k < 4; ++k) sides[k] = warp_max(sides[k]);
    if (lane > 0 || better >= detections) continue;
    out_scores[to + better] = score;
    out_classes[to + better] = label;
    out_views[to + better] = index / detections;
#pragma unroll
    for (int k = 0; k < 4; ++k) out_boxes[(to + better) * 4 + k] = k < 2 ? -sides[k] : sides[k];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) out_counts[image] = min(left, detections);
}
