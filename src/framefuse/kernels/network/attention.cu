// softmax(scale * q k) v over the pixels of an image, for each head; common.cuh says how images lie.
//
// Channels of x: queries of all heads, then keys, then values; eights of each a head. Every sum is float32.

#include "common.cuh"

constexpr int QUERIES = 8, WARPS = THREADS / 32;
constexpr int KEYS = 64, VALUES = 128;  // channels of a query and of a value, at most
constexpr int PAIRS = VALUES / 64;      // pairs of channels of a value that a lane adds up
constexpr int AHEAD = 8;                // values that a warp asks for before it adds the first of them
constexpr float LOWEST = -3.0e38f;
constexpr unsigned ALL = 0xffffffff;

// Two channels as they lie in memory.
template <class Sample>
struct Pair;

template <>
struct Pair<half> {
  unsigned word;

  __device__ float operator[](int c) const { return half_of(word, c); }
};

template <>
struct __align__(8) Pair<float> {
  float values[2];

  __device__ float operator[](int c) const { return values[c]; }
};

// A block makes QUERIES queries of a head. Its warps share the keys, 32 at a time, each with a softmax of its own: first a
// lane is a key, then two channels of every value. In the end the sums of the warps are put together.
// kernels: network_attention_f16 <half>, network_attention_f32 <float>
// launch: grid ((pixels + 7) / 8, heads, batch), block 256, waits
template <class Sample>
__global__ void __launch_bounds__(THREADS, 2) network_attention(
    const Sample* x_, int64_t x_image, int x_column, Sample* y_, int64_t y_image, int y_column, int heads, int keys,
    int values, int pixels, float scale) {
  wait_for_previous();
  __shared__ float4 query[QUERIES][KEYS / 4], shares[THREADS][QUERIES / 4];
  __shared__ float2 parts[WARPS][QUERIES][VALUES / 2];
  __shared__ float peaks[WARPS][QUERIES], totals[WARPS][QUERIES];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, head = blockIdx.y;
  const int tile = blockIdx.x * QUERIES;
  const Sample* x = x_ + blockIdx.z * x_image;
  const Sample *key_at = x + (heads + head) * keys, *value_at = x + 2 * heads * keys + head * values + lane * 2;
#pragma unroll
  for (int item = thread; item < QUERIES * KEYS; item += THREADS)
    if (item % KEYS < keys) {
      const int pixel = min(tile + item / KEYS, pixels - 1);
      ((float*)query)[item] = (float)x[(int64_t)pixel * x_column + head * keys + item % KEYS] * scale;
    }
  float sums[QUERIES][PAIRS][2] = {}, total[QUERIES] = {}, highest[QUERIES];
#pragma unroll
  for (int q = 0; q < QUERIES; ++q) highest[q] = LOWEST;
  __syncthreads();

  for (int first = warp * 32; first < pixels; first += THREADS) {
    const Eight<Sample>* mine = (const Eight<Sample>*)(key_at + (int64_t)min(first + lane, pixels - 1) * x_column);
    Eight<Sample> key[KEYS / 8];
#pragma unroll
    for (int group = 0; group < KEYS / 8; ++group)
      if (group * 8 < keys) key[group] = mine[group];
    float score[QUERIES] = {}, best[QUERIES];
#pragma unroll
    for (int group = 0; group < KEYS / 8; ++group)
      if (group * 8 < keys)
#pragma unroll
        for (int q = 0; q < QUERIES; ++q)
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            const float4 four = query[q][group * 2 + part];
            score[q] += four.x * key[group][part * 4];
            score[q] += four.y * key[group][part * 4 + 1];
            score[q] += four.z * key[group][part * 4 + 2];
            score[q] += four.w * key[group][part * 4 + 3];
          }
#pragma unroll
    for (int q = 0; q < QUERIES; ++q) best[q] = score[q] = first + lane < pixels ? score[q] : LOWEST;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2)
#pragma unroll
      for (int q = 0; q < QUERIES; ++q) best[q] = max(best[q], __shfl_xor_sync(ALL, best[q], lanes));
#pragma unroll
    for (int q = 0; q < QUERIES; ++q) {
      best[q] = max(best[q], highest[q]);
      const float shrink = expf(highest[q] - best[q]);
      score[q] = expf(score[q] - best[q]);
      total[q] = total[q] * shrink + score[q];
#pragma unroll
      for (int k = 0; k < PAIRS * 2; ++k) sums[q][k / 2][k % 2] *= shrink;
      highest[q] = best[q];
    }
    __syncwarp();
#pragma unroll
    for (int part = 0; part < QUERIES / 4; ++part)
      shares[thread][part] = {score[part * 4], score[part * 4 + 1], score[part * 4 + 2], score[part * 4 + 3]};
    __syncwarp();
    for (int some = 0; some < 32; some += AHEAD) {
      Pair<Sample> value[AHEAD][PAIRS];
#pragma unroll
      for (int j = 0; j < AHEAD; ++j) {
        const Sample* row = value_at + (int64_t)min(first + some + j, pixels - 1) * x_column;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair)
          if (pair * 64 + lane * 2 < values) value[j][pair] = *(const Pair<Sample>*)(row + pair * 64);
      }
#pragma unroll
      for (int j = 0; j < AHEAD; ++j)
#pragma unroll
        for (int part = 0; part < QUERIES / 4; ++part) {
          const float4 four = shares[warp * 32 + some + j][part];
          const float share[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
          for (int pair = 0; pair < PAIRS; ++pair)
            if (pair * 64 < values)
#pragma unroll
              for (int k = 0; k < 8; ++k)
                sums[part * 4 + k / 2][pair][k % 2] += share[k / 2] * value[j][pair][k % 2];
        }
    }
  }

#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2)
#pragma unroll
    for (int q = 0; q < QUERIES; ++q) total[q] += __shfl_xor_sync(ALL, total[q], lanes);
#pragma unroll
  for (int q = 0; q < QUERIES; ++q) {
    if (lane == 0) {
      peaks[warp][q] = highest[q];
      totals[warp][q] = total[q];
    }
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) parts[warp][q][pair * 32 + lane] = {sums[q][pair][0], sums[q][pair][1]};
  }
  __syncthreads();
  for (int item = thread; item < QUERIES * values; item += THREADS) {
    const int q = item / values, c = item % values;
    if (tile + q >= pixels) break;
    float top = LOWEST, whole = 0, result = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) top = max(top, peaks[w][q]);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float weight = expf(peaks[w][q] - top);
      whole += weight * totals[w][q];
      result += weight * ((const float*)parts[w][q])[c];
    }
    y_[blockIdx.z * y_image + (int64_t)(tile + q) * y_column + head * values + c] = Sample(result / whole);
  }
}
