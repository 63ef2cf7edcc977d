// What `instance_plan` finds for an instance.

struct Range {
  int left, right, top, bottom;

  __device__ bool holds(int x, int y) const { return x >= left && x < right && y >= top && y < bottom; }
};
struct Plan {
  Range samples;  // of the prototypes that are kept
  Range pixels;   // that may be set
};

// The lower of the two samples between which sample k of an axis of `samples` enlarged by `factor` lies, and the weight
// of the upper; 0 at the ends.
struct Place {
  int lower;
  float weight;
};
static __device__ Place place_in(int k, int factor, int samples) {
  const int halves = max(2 * k + 1 - factor, 0), lower = min(halves / (2 * factor), samples - 1);
  return {lower, lower < samples - 1 ? halves % (2 * factor) / (2.0f * factor) : 0.0f};
}
