// What kernels between convolutions share. Images are float16 in NHWC, slices of wider ones: element (c, y, x) of image b
// lies at b * image + y * row + x * column + c elements from an address. Channels come in eights, 16 bytes; addresses,
// pitches and slices are multiples of that.

constexpr int THREADS = 256;

static __device__ float half_of(unsigned words, int odd) {
  half value;
  value.bits = words >> 16 * odd;
  return value;
}

struct __align__(16) Eight {
  unsigned words[4];

  __device__ float operator[](int c) const { return half_of(words[c / 2], c % 2); }
  __device__ void set(int c, float value) {  // in order
    const unsigned bits = half(value).bits;
    words[c / 2] = c % 2 ? words[c / 2] | bits << 16 : bits;
  }
};

static __device__ float sigmoid(float value) { return 1 / (1 + expf(-value)); }
