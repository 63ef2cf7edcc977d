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

// A key holds a score, highest first, and an index. `score_of` undoes what makes scores sort as integers.
static __device__ float score_of(uint64_t key) {
  const unsigned code = key >> 32;
  return __uint_as_float(code >> 31 ? code : code ^ 0x7fffffff);
}
static __device__ int index_of(uint64_t key) { return (unsigned)key; }

static __device__ int warp_sum(int value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(ALL, value, lanes);
  return value;
}
