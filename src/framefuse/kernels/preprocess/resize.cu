// Filters of more than two taps for whole batches: every plane of a frame is resized to the size of its content, into a
// scratch (frames, 3, height, rows of width rounded up to 8) in float32, which the kernel of tir_cuda.py reads. A block
// makes a tile: first down the image, whole words at a time, into shared memory; from there along its lines.

// Where a row of frame_row.py has what is read here, in addresses or words; a test compares these numbers.
constexpr int ROW_WORDS = 92, ALONG_TABLE = 4, ACROSS_TABLE = 6, SCRATCH = 45;
constexpr int ALONG_BEGIN = 16, ALONG_END = 17, ACROSS_BEGIN = 18, ACROSS_END = 19, COLUMNS = 89, MODE = 31;
constexpr int ALONG_PITCH = 23, ALONG_FILTER = 30, ACROSS_PITCH = 47, ACROSS_FILTER = 54, FACTS = 12;
constexpr int RESIZED = 3;

// The largest tile, and floats of shared memory; cuda.py chooses fewer columns where that is too little.
constexpr int TILE = 32, LINES = 8, WEIGHTS = 1536, SAMPLES = 5696;

// A plane's samples are multiplied as floats whose bits are the sample times a power of two: tiny numbers that need no
// conversion. What the factors for both directions take from the exponent, they give back together.
template <class Sample>
struct Scale {
  static constexpr float DOWN = 0x1p120f, ALONG = sizeof(Sample) == 1 ? 0x1p13f : 0x1p29f;
};

template <class Sample>
static inline __device__ float tiny(uint32_t word, int number) {
  if (sizeof(Sample) == 1) return byte_times_2_16(word, number);
  return __uint_as_float(number == 0 ? word & 0xffff : word >> 16);
}

// The word at any address whose first byte may be read; its bytes after the aligned word `last` are anything.
static inline __device__ uint32_t word_at(int64_t address, int64_t last) {
  const int64_t low = address & ~(int64_t)3, high = low + 4 < last ? low + 4 : last;
  return shifted_pair(__ldg((const uint32_t*)low), __ldg((const uint32_t*)high), (uint32_t)(address & 3) * 8);
}

// Columns first .. last - 1 and a few lines of the content, of a plane with STRIDE interleaved components; tables begin
// at the tile's lines. `out` is where column 0 of the tile's first line goes.
template <class Sample, int STRIDE>
static inline __device__ void resize_plane(
    const int* facts, int64_t plane, const int* along, const int* across, int first, int last, int lines, float* out,
    int out_pitch, int64_t out_plane, float* samples, float* weights) {
  constexpr int SIZE = sizeof(Sample), PER = 4 / SIZE, COUNT = STRIDE < 4 ? STRIDE : 3;
  // Pixels of a line: 4 more than a multiple of 32, so that the lines begin in different banks.
  constexpr int PIXELS = COUNT == 1 ? 676 : COUNT == 2 ? 356 : 228;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int along_entries = facts[ALONG_FILTER], across_entries = facts[ACROSS_FILTER], pitch = facts[ACROSS_PITCH];
  const int room = (along_entries + 4) & ~3;  // weights of a column, with zeros around them
  const int *one = along + first * along_entries, *other = along + (last - 1) * along_entries;
  int low = min(one[0], other[0]);  // a mirrored image has them the other way round
  const int high = max(one[0] + one[1], other[0] + other[1]);

  // Where all lines begin at the same byte of a word, words are read as they lie, and `skew` samples too many. Before
  // 3 or 4 interleaved components that need not be a whole pixel.
  const int64_t begin = plane + (int64_t)low * (STRIDE * SIZE);
  const bool even = pitch % 4 == 0;
  const int skew = even ? (int)(begin & 3) / SIZE : 0, hidden = STRIDE > 2 ? skew : 0;
  if (STRIDE <= 2) low -= skew / STRIDE;
  const int extent = (high - low + 3) & ~3;
  const int words = (hidden + (high - low) * STRIDE + PER - 1) / PER;
  const int needed = (hidden + extent * STRIDE + PER - 1) / PER;  // all of `extent` must be numbers
  const int64_t start = even ? begin & ~(int64_t)3 : begin;

#pragma unroll 1
  for (int column = warp; column < last - first; column += LINES) {  // weights begin at a multiple of 4 samples
    const int* entry = along + (first + column) * along_entries;
    const int before = (entry[0] - low) & 3, count = entry[1];
#pragma unroll 1
    for (int k = lane; k < room; k += 32) {
      const int tap = k - before;
      const bool there = tap >= 0 && tap < count;
      weights[column * room + k] = there ? __ldg((const float*)entry + 2 + tap) * Scale<Sample>::ALONG : 0.0f;
    }
  }

  if (warp < lines) {
    const int* entry = across + warp * across_entries;
    const float* shares = (const float*)entry + 2;
    const int count = entry[1];
    const int64_t line = start + (int64_t)entry[0] * pitch;
    float* target = samples + warp * PIXELS;
    const auto down = [&](int from, auto& sums) {  // words from, from + 32, ... at once
      constexpr int WORDS = sizeof sums / sizeof sums[0];
      int at[WORDS];
#pragma unroll
      for (int k = 0; k < WORDS; ++k) at[k] = 4 * min(from + 32 * k, words - 1);
      const auto add = [&](int k, uint32_t word, float share) {
#pragma unroll
        for (int j = 0; j < PER; ++j) sums[k][j] += tiny<Sample>(word, j) * share;
      };
      int64_t address = line;
      if (even) {
#pragma unroll 4
        for (int v = 0; v < count; ++v, address += pitch) {
          const float share = __ldg(shares + v) * Scale<Sample>::DOWN;
#pragma unroll
          for (int k = 0; k < WORDS; ++k) add(k, __ldg((const uint32_t*)(address + at[k])), share);
        }
      } else {
#pragma unroll 1
        for (int v = 0; v < count; ++v, address += pitch) {
          const int64_t end = (address + (high - low) * (STRIDE * SIZE) - 1) & ~(int64_t)3;
          const float share = __ldg(shares + v) * Scale<Sample>::DOWN;
#pragma unroll
          for (int k = 0; k < WORDS; ++k) add(k, word_at(address + at[k], end), share);
        }
      }
#pragma unroll
      for (int k = 0; k < WORDS; ++k) {
        const int word = from + 32 * k;
        if (word >= needed) break;
        float* to = target + word * PER / STRIDE;
        if (STRIDE == 1 && PER == 4) {
          *(float4*)to = float4{sums[k][0], sums[k][1], sums[k][PER - 2], sums[k][PER - 1]};
        } else if (STRIDE == 1) {
          *(float2*)to = float2{sums[k][0], sums[k][1]};
        } else if (STRIDE == 2 && PER == 4) {
          *(float2*)to = float2{sums[k][0], sums[k][PER - 2]};
          *(float2*)(to + LINES * PIXELS) = float2{sums[k][1], sums[k][PER - 1]};
        } else if (STRIDE == 2) {
          to[0] = sums[k][0];
          to[LINES * PIXELS] = sums[k][1];
        } else {
#pragma unroll
          for (int j = 0; j < PER; ++j) {
            const int sample = word * PER + j - hidden, pixel = sample / STRIDE, component = sample % STRIDE;
            if (sample >= 0 && pixel < extent && component < COUNT)
              target[component * LINES * PIXELS + pixel] = sums[k][j];
          }
        }
      }
    };
    for (int from = lane; from < needed + lane; from += 64) {  // the same number of turns for every lane
      if (from - lane + 32 < needed) {
        float sums[2][PER] = {};
        down(from, sums);
      } else {
        float sums[1][PER] = {};
        down(from, sums);
      }
    }
  }
  __syncthreads();

  // Lanes of 8 lines and 4 columns: lines lie in different banks, and all lines of a column read the same weights.
  const int line = thread % LINES, column = thread / LINES;
  if (line < lines && column < last - first) {
    const int* entry = along + (first + column) * along_entries;
    const int left = entry[0] - low, groups = ((left & 3) + entry[1] + 3) / 4;
    const float4* factors = (const float4*)(weights + column * room);
    const float4* values = (const float4*)(samples + line * PIXELS + (left & ~3));
    float sums[COUNT] = {};
#pragma unroll 2
    for (int g = 0; g < groups; ++g) {
      const float4 factor = factors[g];
#pragma unroll
      for (int c = 0; c < COUNT; ++c) {
        const float4 value = values[c * (LINES * PIXELS / 4) + g];
        sums[c] += value.x * factor.x + value.y * factor.y + value.z * factor.z + value.w * factor.w;
      }
    }
#pragma unroll
    for (int c = 0; c < COUNT; ++c) out[c * out_plane + line * out_pitch + first + column] = sums[c];
  }
  __syncthreads();
}

template <int N>
struct Interleaved {
  static constexpr int COUNT = N;
};

// kernels: resize_u8 <uint8_t>, resize_u16 <uint16_t>
// launch: grid (planes * ((width + 31) / 32), (height + 7) / 8, frames), block 256, waits, --device-as-default-execution-space
template <class Sample>
__global__ void __launch_bounds__(256, 5) resize(const int* table, int width, int height) {
  wait_for_previous();
  __shared__ float4 samples[SAMPLES / 4], weights[WEIGHTS / 4];
  const int* row = table + (int64_t)blockIdx.z * ROW_WORDS;
  if (row[MODE] != RESIZED) return;
  const int64_t* addresses = (const int64_t*)row;
  const int tiles = (width + TILE - 1) / TILE, number = blockIdx.x / tiles, kind = number > 0;
  const int left = row[ALONG_BEGIN], top = row[ACROSS_BEGIN], step = row[COLUMNS];
  const int x = blockIdx.x % tiles * TILE, y = blockIdx.y * LINES;  // from the content's corner
  const int columns = min(row[ALONG_END] - left - x, TILE), lines = min(row[ACROSS_END] - top - y, LINES);
  if (columns <= 0 || lines <= 0) return;
  const int* facts = row + kind * FACTS;
  const int* along = (const int*)addresses[ALONG_TABLE + kind] + x * facts[ALONG_FILTER];
  const int* across = (const int*)addresses[ACROSS_TABLE + kind] + y * facts[ACROSS_FILTER];
  const int out_pitch = (width + 7) & ~7;
  const int64_t out_plane = (int64_t)height * out_pitch;
  float* out = (float*)addresses[SCRATCH] + number * out_plane + (int64_t)(top + y) * out_pitch + left + x;
  const int stride = facts[ALONG_PITCH] / (int)sizeof(Sample);
  const auto part = [&](auto interleaved, int first) {
    resize_plane<Sample, decltype(interleaved)::COUNT>(
        facts, addresses[number], along, across, first, min(first + step, columns), lines, out, out_pitch, out_plane,
        (float*)samples, (float*)weights);
  };
  for (int first = 0; first < columns; first += step) {
    if (stride == 1)
      part(Interleaved<1>(), first);
    else if (stride == 2)
      part(Interleaved<2>(), first);
    else if (stride == 3)
      part(Interleaved<3>(), first);
    else
      part(Interleaved<4>(), first);
  }
}
