// What the detection kernels share: the candidates, the rank and the suppression.
//
// The shapes of the launches do not depend on the data; counts stay on the device.
//
//   filter_*  raw outputs -> candidates of each image in any order, each with a unique key (score, anchor)
//   rank      the place of a candidate is the number of smaller keys; each is copied to its place
//   suppress  greedy suppression in a window of the candidates; rows of the result in source pixels
//
// `suppress` runs for the first CHUNK candidates, which mostly hold enough, and again for each WINDOW of the others. For
// an image that is finished it finds no candidates. blockIdx.y is the image. `counters` (batch, 2) are its candidates
// and the anchors left out for a NaN or an infinity; they must be 0 at first, and `suppress` clears them.

constexpr int CHUNK = 1024;   // candidates that decide together: the threads of a block
constexpr int WINDOW = 8192;  // candidates of a launch of `suppress` at most: it keeps a bit for each pair of them
constexpr int WARPS = CHUNK / 32;
constexpr unsigned ALL = 0xffffffff;  // lanes of a warp

struct __align__(16) Box {
  float x1, y1, x2, y2;
};
struct __align__(16) RotatedBox {
  float cx, cy, half_width, half_height, cos, sin, spare[2];
};
struct __align__(16) ViewBox {
  float x1, y1, x2, y2;
  int view, cut, spare[2];  // cut: 1, 2, 4, 8 for left, top, right, bottom
};

constexpr int LAST = 1 << 30;              // after every class
constexpr unsigned INFINITE = 0x7f800000;  // bits of an infinity; those of a NaN are more, without the sign

static __device__ bool broken(float value) { return (__float_as_uint(value) & INFINITE) == INFINITE; }

// A key holds a score and an index: ascending keys are descending scores, then ascending indices. -0 equals 0.
static __device__ unsigned ordered(float score) {
  const unsigned bits = __float_as_uint(score == 0 ? 0.0f : score);
  return bits >> 31 ? bits : bits ^ 0x7fffffff;
}
static __device__ uint64_t key_of(float score, int index) { return (uint64_t)ordered(score) << 32 | (unsigned)index; }
static __device__ float score_of(uint64_t key) {
  const unsigned code = key >> 32;
  return __uint_as_float(code >> 31 ? code : code ^ 0x7fffffff);
}
static __device__ int index_of(uint64_t key) { return (unsigned)key; }

template <class T>
static __device__ T warp_sum(T value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(ALL, value, lanes);
  return value;
}
template <class T>
static __device__ T warp_max(T value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value = max(value, __shfl_xor_sync(ALL, value, lanes));
  return value;
}
// The lowest label of the lanes that have the best score of the warp.
static __device__ int first_of_best(float score, float best, int label) {
  label = score == best ? label : LAST;
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) label = min(label, __shfl_xor_sync(ALL, label, lanes));
  return label;
}

// A place for each lane of the warp that wants one, counted in `counter`. Every lane comes here.
static __device__ int reserve(int* counter, bool wanted) {
  const unsigned lanes = __ballot_sync(ALL, wanted), lane = threadIdx.x % 32;
  if (!lanes) return 0;
  int first = 0;
  if (lane == 0) first = atomicAdd(counter, __popc(lanes));
  return __shfl_sync(ALL, first, 0) + __popc(lanes & ((1u << lane) - 1));
}

// Adds a candidate of the image where `keep`. Every lane of the warp comes here.
template <class B>
static __device__ void append(
    int* counters, uint64_t* keys, B* boxes, int* labels, int capacity, bool keep, float score, int label, int index,
    const B& box) {
  const int slot = reserve(&counters[2 * blockIdx.y], keep);
  if (!keep) return;
  const int64_t at = (int64_t)blockIdx.y * capacity + slot;
  keys[at] = key_of(score, index);
  labels[at] = label;
  boxes[at] = box;
}

static __device__ void count_broken(int* counters) { atomicAdd(&counters[2 * blockIdx.y + 1], 1); }

static __device__ Box centred(float x, float y, float width, float height) {
  const float half_width = width * 0.5f, half_height = height * 0.5f;
  return {x - half_width, y - half_height, x + half_width, y + half_height};
}

// `classes` is the length of `wanted`; with 0, every class is wanted.
static __device__ bool is_wanted(const uint8_t* wanted, int classes, int label) {
  return classes == 0 || (label >= 0 && label < classes && wanted[label]);
}
