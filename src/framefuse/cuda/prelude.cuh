// Types and functions for CUDA source in place of the toolkit's headers, so that NVRTC alone can compile it.
// A compiler other than NVRTC may define FRAMEFUSE_HALF_FROM_FLOAT and FRAMEFUSE_HALF_TO_FLOAT (bits <-> float).

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INFINITY __int_as_float(0x7f800000)
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#endif

#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short

// Every kernel begins with this. On Hopper and later a kernel may be launched before the previous one on its stream has
// ended, which hides most of the launch overhead; it waits here until the results of its predecessors are visible. Small
// kernels then let the next one start (`let_next_begin`). Kernels that fill the GPU do not: the blocks of the next one
// would be spread unevenly over the free multiprocessors.
static inline __device__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static inline __device__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A storage type: arithmetic is done in float. Rounds to nearest, ties to even.
struct half {
  unsigned short bits;
  half() = default;
  __device__ half(float value) {
#ifdef FRAMEFUSE_HALF_FROM_FLOAT
    bits = FRAMEFUSE_HALF_FROM_FLOAT(value);
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#endif
  }
  __device__ operator float() const {
#ifdef FRAMEFUSE_HALF_TO_FLOAT
    return FRAMEFUSE_HALF_TO_FLOAT(bits);
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#endif
  }
};

struct bfloat16 {
  unsigned short bits;
  __device__ operator float() const { return __uint_as_float((uint32_t)bits << 16); }
};

struct __align__(4) half2 {
  half x, y;
};
struct __align__(8) half4 {
  half x, y, z, w;
};
static inline __device__ half __float2half_rn(float value) { return half(value); }
static inline __device__ half4 make_half4(half x, half y, half z, half w) { return half4{x, y, z, w}; }
static inline __device__ half max(half x, half y) { return (float)x > (float)y ? x : y; }
static inline __device__ half min(half x, half y) { return (float)x < (float)y ? x : y; }
static inline __device__ unsigned __pack_half2(const half x, const half y) { return x.bits | (unsigned)y.bits << 16; }

// Loads from an address through the read-only cache, for memory that the kernel does not write.
static inline __device__ float load_u8(int64_t address) { return (float)__ldg((const unsigned char*)address); }
static inline __device__ float load_u16(int64_t address) { return (float)__ldg((const unsigned short*)address); }
static inline __device__ uint32_t load_pair_u8(int64_t address) { return __ldg((const unsigned short*)address); }
static inline __device__ uint32_t load_pair_u16(int64_t address) { return __ldg((const unsigned int*)address); }
static inline __device__ float load_f32(int64_t address) { return __ldg((const float*)address); }

// Byte k of a word as a float.
static inline __device__ float byte_f32(uint32_t word, int32_t k) { return (float)(unsigned char)(word >> 8 * k); }

// a, or b if `sign` is negative, without a branch, which would serialise loads.
static inline __device__ float chosen_f32(float a, float b, int32_t sign) {
#ifdef __CUDACC__
  float value;
  asm("slct.f32.s32 %0, %1, %2, %3;" : "=f"(value) : "f"(a), "f"(b), "r"(sign));
  return value;
#else
  return sign < 0 ? b : a;
#endif
}

// The float whose bits are byte k of a word times 2^16. One instruction.
static inline __device__ float byte_times_2_16(uint32_t word, int32_t k) {
  return __uint_as_float(__byte_perm(word, 0, 0x4044 | k << 8));
}

// The 32 bits of two words, low and high, from bit `shift` modulo 32.
static inline __device__ uint32_t shifted_pair(uint32_t low, uint32_t high, uint32_t shift) {
  return (uint32_t)(((uint64_t)high << 32 | low) >> (shift & 31));
}

// The third bytes of three words, side by side.
static inline __device__ uint32_t third_bytes(uint32_t a, uint32_t b, uint32_t c) {
  return __byte_perm(__byte_perm(a, b, 0x0062), c, 0x7610);
}
