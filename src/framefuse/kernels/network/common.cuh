// What kernels between convolutions share. Images are float16 or float32 in NHWC, slices of wider ones: element (c, y, x)
// of image b lies at b * image + y * row + x * column + c elements from an address. Channels come in eights; addresses are
// multiples of 16 bytes, pitches and slices of eights.

constexpr int THREADS = 256;

static __device__ float half_of(unsigned words, int odd) {
  half value;
  value.bits = words >> 16 * odd;
  return value;
}

template <class Sample>
struct Eight;

template <>
struct __align__(16) Eight<half> {
  unsigned words[4];

  __device__ float operator[](int c) const { return half_of(words[c / 2], c % 2); }
  __device__ void set(int c, float value) {  // in order
    const unsigned bits = half(value).bits;
    words[c / 2] = c % 2 ? words[c / 2] | bits << 16 : bits;
  }
};

template <>
struct __align__(16) Eight<float> {
  float values[8];

  __device__ float operator[](int c) const { return values[c]; }
  __device__ void set(int c, float value) { values[c] = value; }
};

static __device__ float sigmoid(float value) { return 1 / (1 + expf(-value)); }

// `activation`: 0 none, 1 SiLU, 2 ReLU.
static __device__ float activated(float value, int activation) {
  if (activation == 1) return value / (1 + expf(-value));
  return activation == 2 ? max(value, 0.0f) : value;
}

// As `activated`, with one branch for all, and a division that is exact enough for float16.
template <int count>
static __device__ __forceinline__ void activate(float (&values)[count], int activation) {
  if (activation == 1) {
#pragma unroll
    for (float& value : values) value = __fdividef(value, 1 + expf(-value));
  } else if (activation == 2) {
#pragma unroll
    for (float& value : values) value = activated(value, 2);
  }
}
