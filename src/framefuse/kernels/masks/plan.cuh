// What `instance_plan` finds for an instance.

struct Range {
  int left, right, top, bottom;

  __device__ bool holds(int x, int y) const { return x >= left && x < right && y >= top && y < bottom; }
};
struct Plan {
  Range samples;  // of the prototypes that are kept
  Range pixels;   // that may be set
};
