// Where the raw logits of a level of a detection head lie, as `head_cuda.py` writes it.

template <class Sample>
struct LevelOf {
  int64_t first;  // anchor
  const Sample* sides;
  int64_t sides_image, sides_pitch;  // elements from image to image, and from anchor to anchor
  const Sample* scores;
  int64_t scores_image, scores_pitch, spare;

  __device__ const Sample* sides_of(int image, int anchor) const {
    return sides + image * sides_image + (anchor - first) * sides_pitch;
  }
  __device__ const Sample* scores_of(int image, int anchor) const {
    return scores + image * scores_image + (anchor - first) * scores_pitch;
  }
};

using Level = LevelOf<half>;

template <class Sample>
static __device__ const LevelOf<Sample>& level_of(const LevelOf<Sample>* table, int levels, int anchor) {
  int level = 0;
  for (int other = 1; other < levels; ++other)
    if (table[other].first <= anchor) level = other;
  return table[level];
}
