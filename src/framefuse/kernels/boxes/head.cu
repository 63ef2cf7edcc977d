// Candidates from the raw logits of a YOLOv8 head: nothing is decoded but what exceeds the threshold. `logit` is at most
// that of `confidence`. A side is the mean of its bins, weighted with their softmax.
//
// `cells` (4, anchors): centre of the cell in cells, x and y, and its width and height in units of the boxes.

#include "common.cuh"
#include "levels.cuh"

// A warp reads an anchor.
// launch: grid ((anchors + 7) / 8, batch), block 256, waits
extern "C" __global__ void __launch_bounds__(256) filter_head_f16(
    const Level* table, int levels, const float* cells, int anchors, int bins, int classes, float confidence,
    float logit, const uint8_t* wanted, int capacity, int* counters, uint64_t* keys, Box* boxes, int* labels) {
  wait_for_previous();
  const int lane = threadIdx.x % 32, image = blockIdx.y, anchor = blockIdx.x * 8 + threadIdx.x / 32;
  if (anchor >= anchors) return;
  const Level& level = level_of(table, levels, anchor);
  const half* scores = level.scores_of(image, anchor);
  float best = -INFINITY;
  int label = LAST;
  bool bad = false;
  for (int c = lane; c < classes; c += 32) {
    const float value = scores[c];
    bad |= broken(value);
    if (value > best) {
      best = value;
      label = c;
    }
  }
  const float top = warp_max(best);
  const int first = first_of_best(best, top, label);
  bad = __any_sync(ALL, bad);
  if (!bad && top > logit) {
    const half* sides = level.sides_of(image, anchor);
    float distance[4];
#pragma unroll
    for (int side = 0; side < 4; ++side, sides += bins) {
      float highest = -INFINITY, total = 0, weighted = 0;
      for (int bin = lane; bin < bins; bin += 32) {
        bad |= broken(sides[bin]);
        highest = max(highest, (float)sides[bin]);
      }
      highest = warp_max(highest);
      for (int bin = lane; bin < bins; bin += 32) {
        const float weight = expf((float)sides[bin] - highest);
        total += weight;
        weighted += weight * bin;
      }
      distance[side] = warp_sum(weighted) / warp_sum(total);
    }
    bad = __any_sync(ALL, bad);
    const float x = cells[anchor], y = cells[anchors + anchor];
    const float width = cells[(int64_t)2 * anchors + anchor], height = cells[(int64_t)3 * anchors + anchor];
    const float score = 1 / (1 + expf(-top));
    const Box box = {
        (x - distance[0]) * width, (y - distance[1]) * height, (x + distance[2]) * width, (y + distance[3]) * height};
    const bool keep = lane == 0 && !bad && score > confidence && wanted[first];
    append(counters, keys, boxes, labels, capacity, keep, score, first, anchor, box);
  }
  if (lane == 0 && bad) count_broken(counters);
}
