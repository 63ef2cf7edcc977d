// The objects of a frame from those of its views, as postprocess/merge.py joins them. A frame's views are neighbouring rows
// of a batch; it becomes one image of the candidates.
//
//   gather_views    boxes that each view kept and no larger view contradicts -> candidates of their frame
//   rank_views      the place of a candidate: whole boxes before those that an inner edge cuts, each by descending score
//   suppress_views  indices of the candidates that no other hides
//   grow_views      these, grown around what continues them
//   order_views     by descending score

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

// Whether a view is larger than another and has all of it.
static __device__ bool contains(const Look& outer, const Look& inner) {
  const bool all = outer.left <= inner.left && outer.top <= inner.top && outer.right >= inner.right &&
                   outer.bottom >= inner.bottom;
  return all && (outer.right - outer.left > inner.right - inner.left || outer.bottom - outer.top > inner.bottom - inner.top);
}

constexpr float SURE = 0.5f;
enum { OUT, IN, DOUBTFUL };

// What the larger views say about a box: contradicted (OUT), cut and not shown (DOUBTFUL), or nothing (IN). The rules
// and the numbers of postprocess/merge.py.
static __device__ int verdict(
    const Look* looks, Rows rows, const Look& look, const ViewBox& box, float score, int label, const float* found_boxes,
    const float* found_scores, const int* found_classes, const int* found_counts, int detections, bool agnostic) {
  constexpr float DUPLICATE = 0.5f, PART = 0.6f, WITHIN = 0.8f, LARGER = 2, SEEN = 24, CLEAR = 16;
  const float own = area(box), longest = max(box.x2 - box.x1, box.y2 - box.y1);
  int said = IN;
  for (int row = rows.first; row < rows.first + rows.count; ++row) {
    const Look outer = looks[row];
    if (!contains(outer, look)) continue;
    bool shown = false, covered = false, part = false;
    for (int k = 0; k < found_counts[row]; ++k) {
      const int64_t at = (int64_t)row * detections + k;
      const ViewBox other = view_box(outer, found_boxes + at * 4);
      const float shared = shared_area(box, other), theirs = area(other);
      if (shared <= 0) continue;
      if (agnostic || found_classes[at] == label) {
        shown |= shared > DUPLICATE * (own + theirs - shared);
        covered |= shared > PART * own;
      }
      part |= found_scores[at] > SURE * score && shared > WITHIN * own && theirs > LARGER * own;
    }
    const int side = max(outer.right - outer.left, outer.bottom - outer.top);
    if (!shown && (longest >= side / CLEAR || part && longest >= side / SEEN)) return OUT;
    if (box.cut && !covered && !shown) said = DOUBTFUL;
  }
  return said;
}

// `found_*`: (batch, detections), the rows of each view. `verdicts` (batch, detections).
// launch: grid ((detections + 127) / 128, batch), block 128, waits, --fmad=false
extern "C" __global__ void __launch_bounds__(128) gather_views(
    const Look* looks, const float* found_boxes, const float* found_scores, const int* found_classes,
    const int* found_counts, int batch, int detections, int capacity, bool agnostic, int* verdicts, int* counters,
    uint64_t* keys, ViewBox* boxes, int* labels) {
  wait_for_previous();
  const Look look = looks[blockIdx.y];
  if (look.image < 0) return;
  const int number = blockIdx.x * 128 + threadIdx.x, count = found_counts[blockIdx.y];
  const int64_t at = (int64_t)blockIdx.y * detections + min(number, detections - 1);
  const ViewBox box = view_box(look, found_boxes + at * 4);
  const float score = found_scores[at];
  const int label = found_classes[at], index = look.view * detections + number;
  int said = OUT;
  if (number < count && box.x2 > box.x1 && box.y2 > box.y1)
    said = verdict(
        looks, rows_of(looks, batch, look.image), look, box, score, label, found_boxes, found_scores, found_classes,
        found_counts, detections, agnostic);
  if (number < detections) verdicts[at] = said;
  const int slot = reserve(&counters[2 * look.image], said != OUT);
  if (said == OUT) return;
  const int64_t to = (int64_t)look.image * capacity + slot;
  keys[to] = view_key(box, score, index);
  labels[to] = label;
  boxes[to] = box;
}

// A warp for each box that is left. `kept` (images, room): its indices, in the order of the ranks. One that the larger
// view does not show must be continued by another, or its score becomes -1.
// launch: grid (blocks, images), block 256, waits, --fmad=false
extern "C" __global__ void __launch_bounds__(256) grow_views(
    const Look* looks, const float* found_boxes, const float* found_scores, const int* found_classes,
    const int* found_counts, int batch, int detections, int room, bool agnostic, const int* verdicts, const int* kept,
    const int* kept_counts, float4* grown, float* grown_scores) {
  wait_for_previous();
  const int image = blockIdx.y, lane = threadIdx.x % 32, left = kept_counts[image];
  const Rows rows = rows_of(looks, batch, image);
  const int64_t first = (int64_t)rows.first * detections, base = (int64_t)image * room;
  for (int place = blockIdx.x * 8 + threadIdx.x / 32; place < left; place += gridDim.x * 8) {
    const int index = kept[base + place], label = found_classes[first + index];
    const float score = found_scores[first + index];
    const ViewBox box = view_box(looks[rows.first + index / detections], found_boxes + (first + index) * 4);
    float sides[4] = {-box.x1, -box.y1, box.x2, box.y2};
    bool sure = verdicts[first + index] != DOUBTFUL;
    for (int row = 0; row < rows.count && box.cut; ++row) {
      const int64_t start = first + (int64_t)row * detections;
      for (int k = lane; k < found_counts[rows.first + row]; k += 32) {
        const ViewBox other = view_box(looks[rows.first + row], found_boxes + (start + k) * 4);
        const float part = found_scores[start + k];
        const bool later = view_key(other, part, row * detections + k) > view_key(box, score, index);
        if (!other.cut || !later || verdicts[start + k] == OUT) continue;
        if (!(agnostic || found_classes[start + k] == label) || !hides(box, other)) continue;
        sure |= part > SURE * score;
        sides[0] = max(sides[0], -other.x1);
        sides[1] = max(sides[1], -other.y1);
        sides[2] = max(sides[2], other.x2);
        sides[3] = max(sides[3], other.y2);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) sides[k] = warp_max(sides[k]);
    sure = __any_sync(ALL, sure);
    if (lane > 0) continue;
    grown[base + place] = {-sides[0], -sides[1], sides[2], sides[3]};
    grown_scores[base + place] = sure ? score : -1.0f;
  }
}

// launch: grid (blocks, images), block 256, waits, --fmad=false
extern "C" __global__ void __launch_bounds__(256) order_views(
    const Look* looks, const int* found_classes, int batch, int detections, int room, const int* kept,
    const int* kept_counts, const float4* grown, const float* grown_scores, float4* out_boxes, float* out_scores,
    int* out_classes, int* out_views, int* out_counts) {
  wait_for_previous();
  const int image = blockIdx.y, lane = threadIdx.x % 32, left = kept_counts[image];
  const int64_t first = (int64_t)rows_of(looks, batch, image).first * detections, to = (int64_t)image * detections;
  kept += (int64_t)image * room;
  grown += (int64_t)image * room;
  grown_scores += (int64_t)image * room;
  for (int place = blockIdx.x * 8 + threadIdx.x / 32; place < max(left, 1); place += gridDim.x * 8) {
    const float score = place < left ? grown_scores[place] : -1.0f;
    int better = 0, all = 0;
    for (int k = lane; k < left; k += 32) {
      const float other = grown_scores[k];
      better += other > score || (other == score && place < left && kept[k] < kept[place]);
      all += other >= 0;
    }
    better = warp_sum(better);
    all = warp_sum(all);
    if (lane > 0) continue;
    if (place == 0) out_counts[image] = min(all, detections);
    if (score < 0 || better >= detections) continue;
    out_boxes[to + better] = grown[place];
    out_scores[to + better] = score;
    out_classes[to + better] = found_classes[first + kept[place]];
    out_views[to + better] = kept[place] / detections;
  }
}
