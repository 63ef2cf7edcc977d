// Candidates of detections from queries, and from boxes in arrays of their own. common.cuh explains keys, counters and
// capacity.

#include "common.cuh"

// Boxes (batch, queries, 4) cx cy w h and logits (batch, queries, classes), of which every pair competes.
// A warp reads a query.
// kernels: filter_detr_f32 <float>, filter_detr_f16 <half>, filter_detr_bf16 <bfloat16>
// launch: grid ((anchors + 7) / 8, batch), block 256, waits, --fmad=false
template <class Sample>
__global__ void __launch_bounds__(256) filter_detr(
    const Sample* values, int64_t image_pitch, int pitch, const Sample* sides, int64_t sides_image_pitch,
    int sides_pitch, int anchors, int classes, float confidence, const uint8_t* wanted, int capacity, int* counters,
    uint64_t* keys, Box* boxes, int* labels) {
  wait_for_previous();
  const int lane = threadIdx.x % 32, number = blockIdx.x * 8 + threadIdx.x / 32, query = min(number, anchors - 1);
  values += blockIdx.y * image_pitch + (int64_t)query * pitch;
  sides += blockIdx.y * sides_image_pitch + (int64_t)query * sides_pitch;
  bool bad = broken(sides[lane % 4]);
  for (int c = lane; c < classes; c += 32) bad |= broken(values[c]);
  bad = __any_sync(ALL, bad);
  if (number < anchors && lane == 0 && bad) count_broken(counters);
  const Box box = centred(sides[0], sides[1], sides[2], sides[3]);
  for (int from = 0; from < classes; from += 32) {
    const int label = min(from + lane, classes - 1);
    const float score = 1 / (1 + expf(-(float)values[label]));
    const bool keep = number < anchors && !bad && from + lane < classes && score > confidence && wanted[label];
    append(counters, keys, boxes, labels, capacity, keep, score, label, query * classes + label, box);
  }
}

// As `filter_detr`, with the best class of each query alone, of scores as they are or after a softmax whose last class
// is "no object".
// kernels: filter_queries_f32 <float>, filter_queries_f16 <half>, filter_queries_bf16 <bfloat16>
// launch: grid ((anchors + 7) / 8, batch), block 256, waits, --fmad=false
template <class Sample>
__global__ void __launch_bounds__(256) filter_queries(
    const Sample* values, int64_t image_pitch, int pitch, const Sample* sides, int64_t sides_image_pitch,
    int sides_pitch, int anchors, int classes, bool softmax, float confidence, const uint8_t* wanted, int capacity,
    int* counters, uint64_t* keys, Box* boxes, int* labels) {
  wait_for_previous();
  const int lane = threadIdx.x % 32, number = blockIdx.x * 8 + threadIdx.x / 32, query = min(number, anchors - 1);
  values += blockIdx.y * image_pitch + (int64_t)query * pitch;
  sides += blockIdx.y * sides_image_pitch + (int64_t)query * sides_pitch;
  bool bad = broken(sides[lane % 4]);
  float best = -INFINITY, largest = -INFINITY;
  int label = LAST;
  for (int c = lane; c < classes; c += 32) {
    const float value = values[c];
    bad |= broken(value);
    largest = max(largest, value);
    if ((!softmax || c < classes - 1) && value > best) {
      best = value;
      label = c;
    }
  }
  const float top = warp_max(best);
  const int first = first_of_best(best, top, label);
  bad = __any_sync(ALL, bad);
  float score = top;
  if (softmax) {
    const float most = warp_max(largest);
    float total = 0;
    for (int c = lane; c < classes; c += 32) total += expf((float)values[c] - most);
    total = warp_sum(total);
    score = expf(top - most) / total;
  }
  const bool mine = number < anchors && lane == 0;
  if (mine && bad) count_broken(counters);
  const bool keep = mine && !bad && score > confidence && first < LAST && wanted[first];
  append(
      counters, keys, boxes, labels, capacity, keep, score, first, query,
      centred(sides[0], sides[1], sides[2], sides[3]));
}

// Boxes (batch, rows, 4) x1 y1 x2 y2, scores and classes (batch, rows), each in an array of its own or all in one. Classes
// are samples (`label_words` 0) or integers of so many words; without `class_ids`, all are 0.
// kernels: filter_listed_f32 <float>, filter_listed_f16 <half>, filter_listed_bf16 <bfloat16>
// launch: grid ((anchors + 127) / 128, batch), block 128, waits, --fmad=false
template <class Sample>
__global__ void __launch_bounds__(128) filter_listed(
    const Sample* values, int64_t image_pitch, int pitch, const Sample* scores, int64_t scores_image_pitch,
    int scores_pitch, const void* class_ids, int64_t class_ids_image_pitch, int class_ids_pitch, int label_words,
    int anchors, int classes, float confidence, const uint8_t* wanted, int capacity, int* counters, uint64_t* keys,
    Box* boxes, int* labels) {
  wait_for_previous();
  const int number = blockIdx.x * 128 + threadIdx.x, row = min(number, anchors - 1);
  values += blockIdx.y * image_pitch + (int64_t)row * pitch;
  const float score = scores[blockIdx.y * scores_image_pitch + (int64_t)row * scores_pitch];
  const int64_t at = blockIdx.y * class_ids_image_pitch + (int64_t)row * class_ids_pitch;
  bool bad = broken(score);
  for (int k = 0; k < 4; ++k) bad |= broken(values[k]);
  int label = 0;
  if (class_ids && label_words) {
    label = ((const int*)class_ids)[at * label_words];
  } else if (class_ids) {
    const float value = ((const Sample*)class_ids)[at];
    bad |= broken(value);
    if (!bad) label = floorf(value + 0.5f);
  }
  if (number < anchors && bad) count_broken(counters);
  const bool keep = number < anchors && !bad && score > confidence && is_wanted(wanted, classes, label);
  append(
      counters, keys, boxes, labels, capacity, keep, score, label, row, Box{values[0], values[1], values[2], values[3]});
}
