// Greedy suppression of sorted candidates: a box is kept unless a better one that is kept overlaps it (overlap.cuh).
//
// A launch treats a window of the candidates, `begin` to `end`, in two parts. All blocks compare boxes and leave bits.
// The last block of an image to be done then decides who is kept, chunk after chunk. Within a chunk it looks for the
// fixed point of
//
//   kept(i) = no j < i that overlaps i is kept
//
// A candidate decides as soon as all that it depends on have decided, so there are as many rounds as boxes in the
// longest chain, each of which depends on the one before: few in practice. The result is that of the greedy loop.

#include "common.cuh"
#include "overlap.cuh"

// Of a tile: candidates, and words of 32 candidates. Small: few boxes, many warps. Clipping polygons takes so long that
// a warp has one row and one word of it.
template <class B>
struct Tile {
  static constexpr int ROWS = 4, WORDS = 2;
};
template <>
struct Tile<RotatedBox> {
  static constexpr int ROWS = 1, WORDS = 1;
};

static __device__ void merge(unsigned* word, unsigned bits) {
  if (bits) atomicOr(word, bits);
}

// Whether this block is the last of an image's to come here. It then sees what all of them wrote.
static __device__ bool last_of_image(int* ticket) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(ticket, 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

// The bits of one tile: of ROWS boxes against WORDS * 32 candidates from number `column` on. Lane r * WORDS + w gets
// row r, word w. `first` says that the candidates come before the boxes.
template <class B>
static __device__ unsigned compare(
    const B* boxes, const int* labels, const int (&rows)[Tile<B>::ROWS], int column, int size, bool first,
    float threshold, bool agnostic) {
  constexpr int ROWS = Tile<B>::ROWS, WORDS = Tile<B>::WORDS;
  const int lane = threadIdx.x % 32;
  B box[ROWS];
  float areas[ROWS];
  int classes[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    box[r] = boxes[rows[r]];
    areas[r] = area(box[r]);
    classes[r] = agnostic ? 0 : labels[rows[r]];
  }
  unsigned mine = 0;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    const int i = column + w * 32 + lane, at = min(i, size - 1);
    const B other = boxes[at];
    const int label = agnostic ? 0 : labels[at];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      bool rivals = i < size && classes[r] == label;
      if (sizeof(B) > sizeof(Box) && first) rivals &= i < rows[r];  // nobody reads the bits of others
      const float part = rivals ? intersection(box[r], other, first) : 0;
      const float whole = areas[r] + area(other) - part, bound = threshold * whole;
      // A division is slow, and mostly not needed to know on which side of the threshold it falls.
      const bool sure = whole > 0 && part > bound * 1.0001f, open = part > 0 && part >= bound && !sure;
      unsigned bits = __ballot_sync(ALL, sure);
      if (__ballot_sync(ALL, open)) bits |= __ballot_sync(ALL, open && part / whole > threshold);
      if (r * WORDS + w == lane) mine = bits;
    }
  }
  return mine;
}

// Results of comparisons within a window, as bits of words of 32 candidates:
//   local[chunk, word, i]  of candidate i with those before it in its chunk
//   dense[i, word]         of candidate i with those of later chunks
//   removed[word]          of boxes that earlier windows kept with the window; 0 before and after the launch
// `progress` (batch, 2): blocks of the image that are done, boxes kept so far; 0 at first and after the last window.
// `maps` (batch, 8), for x and y each: model pixels per unit, left or top, 1 / scale, size of the image.
// With `indices`, the result is the indices of the boxes, in `out_classes`, and the counts.
//
// kernels: suppress <Box>, suppress_rotated <RotatedBox>, suppress_views <ViewBox>
// launch: grid (blocks, batch), block 1024, waits, --fmad=false
template <class B>
__global__ void __launch_bounds__(CHUNK, 1) suppress(
    const uint64_t* keys, const B* boxes, const int* labels, int* counters, int room, int begin, int end, int words,
    int detections, bool suppressing, bool indices, float threshold, bool agnostic, const float* maps, int* progress,
    unsigned* local, unsigned* dense, unsigned* removed, int* kept, float* out_boxes, float* out_scores,
    int* out_classes, int* out_anchors, int* out_counts, int* out_non_finite) {
  wait_for_previous();
  let_next_begin();
  const int image = blockIdx.y, thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  counters += 2 * image;
  progress += 2 * image;
  const int count = min(counters[0], room), known = progress[1], size = min(count, end) - begin;
  if (begin > 0 && size <= 0) return;  // the image is finished (the first window gives a result of none, too)
  const int64_t start = (int64_t)image * room + begin;
  keys += start;
  boxes += start;
  labels += start;
  local += (int64_t)image * ((words + 31) / 32) * (CHUNK * WARPS);
  dense += (int64_t)image * words * words * 32;
  removed += image * (WINDOW / 32);
  kept += (int64_t)image * detections;

  if (suppressing) {
    constexpr int ROWS = Tile<B>::ROWS, WORDS = Tile<B>::WORDS;
    const int across = (size + WORDS * 32 - 1) / (WORDS * 32), down = (size + ROWS - 1) / ROWS;
    const int tiles = across * (down + (known + ROWS - 1) / ROWS);
    for (int tile = warp * gridDim.x + blockIdx.x; tile < tiles; tile += gridDim.x * WARPS) {
      const int line = tile / across, word = (tile - line * across) * WORDS;
      const bool past = line >= down;  // rows are boxes that earlier windows kept
      const int row = (past ? line - down : line) * ROWS, row_chunk = row / CHUNK, chunk = word / WARPS;
      const bool inside = !past && chunk == row_chunk && word * 32 < row + ROWS;
      if (!past && !inside && chunk <= row_chunk) continue;
      int rows[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        rows[r] = past ? kept[min(row + r, known - 1)] - begin : min(row + r, size - 1);
      const unsigned bits = compare(boxes, labels, rows, word * 32, size, inside, threshold, agnostic);
      const int i = row + lane / WORDS, w = word + lane % WORDS;
      if (lane >= ROWS * WORDS || w >= words || i >= (past ? known : size)) continue;
      if (past) merge(&removed[w], bits);
      else if (inside) local[(i / CHUNK * WARPS + w % WARPS) * CHUNK + i % CHUNK] = bits;
      else dense[i * words + w] = bits;
    }
  }
  if (!last_of_image(progress)) return;

  enum { UNDECIDED, KEPT, GONE };
  __align__(16) __shared__ unsigned taken[2][WARPS], gone[2][WARPS];
  __shared__ unsigned hidden[WINDOW / 32];
  if (thread < WINDOW / 32) {
    hidden[thread] = known > 0 ? removed[thread] : 0;
    if (known > 0) removed[thread] = 0;
  }
  __syncthreads();
  const unsigned own = 1u << lane, earlier = own - 1;
  int found = known;
  for (int chunk = 0, turn = 0; chunk * CHUNK < size && found < detections; ++chunk) {
    const int i = chunk * CHUNK + thread, at = min(i, size - 1);
    int state = i >= size ? GONE : suppressing ? UNDECIDED : KEPT;
    unsigned before[WARPS];
    if (suppressing) {
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        before[w] = 0;
        if (w <= warp && i < size)
          before[w] = local[(chunk * WARPS + w) * CHUNK + thread] & (w == warp ? earlier : ALL);
      }
      if (hidden[chunk * WARPS + warp] & own) state = GONE;
    }
    const float4 box = *(const float4*)&boxes[at];
    const int label = labels[at];
    const uint64_t key = keys[at];
    int deciding;
    do {
      turn = 1 - turn;  // others may still read the words of the other turn
      const unsigned taken_bits = __ballot_sync(ALL, state == KEPT), gone_bits = __ballot_sync(ALL, state == GONE);
      if (lane == 0) {
        taken[turn][warp] = taken_bits;
        gone[turn][warp] = gone_bits;
      }
      deciding = __syncthreads_or(state == UNDECIDED);
      if (state == UNDECIDED) {
        unsigned hit = 0, open = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w += 4) {
          if (w > warp) continue;
          const uint4 t = *(const uint4*)&taken[turn][w], g = *(const uint4*)&gone[turn][w];
          hit |= before[w] & t.x | before[w + 1] & t.y | before[w + 2] & t.z | before[w + 3] & t.w;
          open |= before[w] & ~g.x | before[w + 1] & ~g.y | before[w + 2] & ~g.z | before[w + 3] & ~g.w;
        }
        state = hit ? GONE : open ? UNDECIDED : KEPT;
      }
    } while (deciding);
    const int bits = __popc(taken[turn][lane]), total = warp_sum(bits);
    const int row = found + warp_sum(lane < warp ? bits : 0) + __popc(taken[turn][warp] & earlier);
    if (state == KEPT && row < detections) {
      const int64_t to = (int64_t)image * detections + row;
      kept[row] = begin + i;
      out_classes[to] = indices ? index_of(key) : label;
      if (!indices) {
        const float sides[4] = {box.x, box.y, box.z, box.w}, *map = maps + image * 8;
        out_scores[to] = score_of(key);
        out_anchors[to] = index_of(key);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int axis = k % 2;
          const float pixels = (sides[k] * map[axis] - map[2 + axis]) * map[4 + axis];
          out_boxes[to * 4 + k] = min(max(pixels, 0.0f), map[6 + axis]);
        }
      }
    }
    __syncthreads();
    const int enough = min(found + total, detections);
    if (suppressing && enough < detections && (chunk + 1) * CHUNK < size) {
      for (int k = found + warp; k < enough; k += WARPS) {
        const unsigned* hides = dense + (kept[k] - begin) * words;
        for (int w = (chunk + 1) * WARPS + lane; w < (size + 31) / 32; w += 32) merge(&hidden[w], hides[w]);
      }
      __syncthreads();
    }
    found = enough;
  }
  if (thread == 0) {
    const bool finished = count <= end || found == detections;
    progress[0] = 0;
    progress[1] = finished ? 0 : found;
    if (finished) {
      out_counts[image] = found;
      if (!indices) out_non_finite[image] = counters[1];
      counters[0] = counters[1] = 0;
    }
  }
}
