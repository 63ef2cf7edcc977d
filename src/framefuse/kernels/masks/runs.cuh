// How the kernels that find where runs end put the positions of all threads in order. A block takes a mask, a thread a
// column. A walk down a column counts its changes and keeps the first of them, to be written behind those of the columns
// before it; a column with more is walked again. What lies beyond the capacity is counted only.

constexpr int THREADS = 256;
constexpr int KEPT = 8;

// The sum of the values of the threads before this one; `total` grows by those of all. Every thread comes here.
static __device__ int place_of(int value, int& total) {
  __shared__ int sums[2][THREADS];
  const int thread = threadIdx.x;
  sums[0][thread] = value;
  __syncthreads();
#pragma unroll
  for (int bit = 0; bit < 8; ++bit) {
    const int *from = sums[bit % 2], before = 1 << bit;
    sums[1 - bit % 2][thread] = from[thread] + (thread >= before ? from[thread - before] : 0);
    __syncthreads();
  }
  const int place = total + sums[0][thread] - value;
  total += sums[0][THREADS - 1];
  __syncthreads();
  return place;
}

struct Writer {
  int *positions;  // null: changes are counted, and the first of them kept
  int capacity, place, kept[KEPT];

  __device__ void put(int position) {
    if (positions) {
      if (place < capacity) positions[place] = position;
    } else if (place < KEPT) {
      kept[place] = position;
    }
    ++place;
  }
};

// `walk(writer)` puts the changes of a thread's column. Adds those of all threads to the positions.
template <class Walk>
static __device__ void add_columns(int* positions, int capacity, int& total, Walk walk) {
  Writer counting, writing;
  counting.positions = nullptr;
  counting.place = 0;
  walk(counting);
  writing.positions = positions;
  writing.capacity = capacity;
  writing.place = place_of(counting.place, total);
  if (counting.place > KEPT) {
    walk(writing);
  } else {
#pragma unroll
    for (int k = 0; k < KEPT; ++k)
      if (k < counting.place) writing.put(counting.kept[k]);
  }
}

// The last run ends with the image.
static __device__ void close(int* positions, int* ends, int capacity, int total, int pixels) {
  if (threadIdx.x != 0) return;
  if (total < capacity) positions[total] = pixels;
  *ends = total + 1;
}
