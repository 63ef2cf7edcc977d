// What the kernels that kernel_text.py writes have in common. NumPy's functions: NaN wins, and integers are divided downwards.

#define THREADS 256

// A thread makes an element.
#define EACH(size)                                               \
  wait_for_previous();                                           \
  if (size <= 65536) let_next_begin();                           \
  const unsigned i = blockIdx.x * THREADS + threadIdx.x;         \
  if (i >= size) return;

// LANES threads, which are a warp or a block, make a row. If several rows side by side share a block, threads side by side
// are of different rows. Threads beyond the last row make it, too.
#define ROW(rows, LANES, NEAR)                                                           \
  wait_for_previous();                                                                   \
  if (rows <= 65536 / LANES) let_next_begin();                                           \
  const unsigned thread = blockIdx.x * THREADS + threadIdx.x;                            \
  const unsigned row = least(thread / (LANES * NEAR) * NEAR + thread % NEAR, rows - 1u); \
  const unsigned lane = threadIdx.x / NEAR % LANES;

// What lies side by side, and is read or written at once.
template <class T, int COUNT> struct __align__(sizeof(T) * COUNT < 16 ? sizeof(T) * COUNT : 16) Pack {
  T all[COUNT];
  __device__ T& operator[](unsigned at) { return all[at]; }
  __device__ const T& operator[](unsigned at) const { return all[at]; }
};

template <class T> __device__ T least(T a, T b) { return a < b || a != a ? a : b; }
template <class T> __device__ T most(T a, T b) { return a > b || a != a ? a : b; }
template <class T> __device__ T magnitude(T a) { return a > 0 ? a : 0 - a; }
template <class T> __device__ T sign_of(T a) { return a != a ? a : (T)((a > 0) - (a < 0)); }

static __device__ float power(float a, float b) { return b == 2.0f ? a * a : powf(a, b); }
static __device__ double power(double a, double b) { return pow(a, b); }
static __device__ int64_t power(int64_t a, int64_t b) {
  int64_t found = 1;
  for (; b > 0; --b) found *= a;
  return found;
}

static __device__ float floored(float a, float b) { return floorf(a / b); }
static __device__ double floored(double a, double b) { return floor(a / b); }
static __device__ int64_t floored(int64_t a, int64_t b) { return b ? a / b - (a % b && (a < 0) != (b < 0)) : 0; }

static __device__ float modulo(float a, float b) {
  const float rest = fmodf(a, b);
  return rest && (rest < 0) != (b < 0) ? rest + b : rest;
}
static __device__ double modulo(double a, double b) {
  const double rest = fmod(a, b);
  return rest && (rest < 0) != (b < 0) ? rest + b : rest;
}
static __device__ int64_t modulo(int64_t a, int64_t b) { return b ? a - floored(a, b) * b : 0; }

// A place along an axis. Negative ones count from its end, and none leads out of the array.
static __device__ unsigned place(int64_t at, int size) {
  at = at < 0 ? at + size : at;
  return at < 0 ? 0 : at < size ? at : size - 1;
}

struct Sum { template <class T> __device__ T operator()(T a, T b) const { return a + b; } };
struct Prod { template <class T> __device__ T operator()(T a, T b) const { return a * b; } };
struct Max { template <class T> __device__ T operator()(T a, T b) const { return most(a, b); } };
struct Min { template <class T> __device__ T operator()(T a, T b) const { return least(a, b); } };

// What the lanes of a row have, put together; every lane gets it.
template <int LANES, int NEAR, class Function, class T> __device__ T across(T value) {
  const Function function{};
  if (NEAR == 1)
    for (int by = 16; by; by /= 2) value = function(value, (T)__shfl_xor_sync(~0u, value, by));
  if (LANES * NEAR > 32) {
    constexpr int PARTS = NEAR > 1 ? THREADS : THREADS / 32;
    __shared__ T parts[PARTS];
    __syncthreads();
    if (NEAR > 1 || threadIdx.x % 32 == 0) parts[NEAR > 1 ? threadIdx.x : threadIdx.x / 32] = value;
    for (unsigned left = PARTS / 2; left >= NEAR; left /= 2) {
      __syncthreads();
      if (threadIdx.x < left) parts[threadIdx.x] = function(parts[threadIdx.x], parts[threadIdx.x + left]);
    }
    __syncthreads();
    value = parts[threadIdx.x % NEAR];
  }
  return value;
}
