// Which boxes suppress which: intersection / (area(a) + area(b) - intersection) > threshold, in float32, every step
// rounded as torchvision.ops.nms does it (compile with --fmad=false).

static __device__ float area(const Box& box) { return (box.x2 - box.x1) * (box.y2 - box.y1); }
static __device__ float area(const RotatedBox& box) { return 4.0f * box.half_width * box.half_height; }

static __device__ float intersection(const Box& a, const Box& b, bool) {
  return max(min(a.x2, b.x2) - max(a.x1, b.x1), 0.0f) * max(min(a.y2, b.y2) - max(a.y1, b.y1), 0.0f);
}

// Convex, but for rounding: where a box is clipped by one like itself, all corners lie on the lines, and a clip may turn
// 4 corners into 6, those into 9, 13 and 19.
struct Polygon {
  float corner[2][20];  // axis, corner in order
  int corners;
};

// to = the part of a polygon where sign * coordinate <= limit (Sutherland and Hodgman).
static __device__ __noinline__ void clip(const Polygon& from, Polygon& to, int axis, float sign, float limit) {
  to.corners = 0;
  for (int v = 0; v < from.corners; ++v) {
    const int w = v + 1 == from.corners ? 0 : v + 1;
    const float room = limit - sign * from.corner[axis][v], next_room = limit - sign * from.corner[axis][w];
    if (room >= 0) {
      for (int k = 0; k < 2; ++k) to.corner[k][to.corners] = from.corner[k][v];
      ++to.corners;
    }
    if (max(room, next_room) >= 0 && min(room, next_room) < 0) {
      const float part = room / (room - next_room);
      for (int k = 0; k < 2; ++k)
        to.corner[k][to.corners] = from.corner[k][v] + part * (from.corner[k][w] - from.corner[k][v]);
      ++to.corners;
    }
  }
}

// The corners of one box, clipped by the sides of the other in the frame of that. The last bit may depend on which is
// which: `b_first` says that b comes first.
static __device__ float intersection(const RotatedBox& a, const RotatedBox& b, bool b_first) {
  const float apart_x = a.cx - b.cx, apart_y = a.cy - b.cy;
  const float reach = sqrtf(a.half_width * a.half_width + a.half_height * a.half_height) +
                      sqrtf(b.half_width * b.half_width + b.half_height * b.half_height);
  if (apart_x * apart_x + apart_y * apart_y > reach * reach) return 0;  // the circles around them do not meet
  const RotatedBox box = b_first ? b : a, frame = b_first ? a : b;
  Polygon polygon, other;
  polygon.corners = 4;
  for (int k = 0; k < 4; ++k) {
    const float across = k == 1 || k == 2 ? box.half_width : -box.half_width;
    const float down = k >= 2 ? box.half_height : -box.half_height;
    const float x = box.cx - frame.cx + across * box.cos - down * box.sin;
    const float y = box.cy - frame.cy + across * box.sin + down * box.cos;
    polygon.corner[0][k] = x * frame.cos + y * frame.sin;
    polygon.corner[1][k] = y * frame.cos - x * frame.sin;
  }
  clip(polygon, other, 0, 1, frame.half_width);
  clip(other, polygon, 0, -1, frame.half_width);
  clip(polygon, other, 1, 1, frame.half_height);
  clip(other, polygon, 1, -1, frame.half_height);
  const float *x = polygon.corner[0], *y = polygon.corner[1];
  float sum = 0;
  for (int v = 0; v < polygon.corners; ++v) {
    const int w = v + 1 == polygon.corners ? 0 : v + 1;
    sum += 0.5f * (x[v] * y[w] - x[w] * y[v]);
  }
  return max(sum, 0.0f);
}

static __device__ float area(const ViewBox& box) { return (box.x2 - box.x1) * (box.y2 - box.y1); }

static __device__ float shared_area(const ViewBox& a, const ViewBox& b) {
  return max(min(a.x2, b.x2) - max(a.x1, b.x1), 0.0f) * max(min(a.y2, b.y2) - max(a.y1, b.y1), 0.0f);
}

// Whether a box hides a later one of another view: the rules and the numbers of postprocess/merge.py.
static __device__ bool hides(const ViewBox& a, const ViewBox& later) {
  constexpr float DUPLICATE = 0.5f, PART = 0.6f, CONTINUES = 0.6f;
  constexpr int LEFT = 1, TOP = 2, RIGHT = 4, BOTTOM = 8;
  const float shared = shared_area(a, later);
  if (a.view == later.view || shared <= 0) return false;
  if (shared > DUPLICATE * (area(a) + area(later) - shared)) return true;
  if (!later.cut) return false;
  if (shared > PART * area(later)) return true;
  const float wide = min(a.x2, later.x2) - max(a.x1, later.x1), high = min(a.y2, later.y2) - max(a.y1, later.y1);
  const bool alike_x = wide > CONTINUES * (max(a.x2, later.x2) - min(a.x1, later.x1));
  const bool alike_y = high > CONTINUES * (max(a.y2, later.y2) - min(a.y1, later.y1));
  const bool across = (a.cut & LEFT && later.cut & RIGHT) || (later.cut & LEFT && a.cut & RIGHT);
  const bool down = (a.cut & TOP && later.cut & BOTTOM) || (later.cut & TOP && a.cut & BOTTOM);
  return (across && alike_y) || (down && alike_x);
}

// For boxes of views, more than any threshold where one hides the other, else nothing.
static __device__ float intersection(const ViewBox& a, const ViewBox& b, bool b_first) {
  return hides(b_first ? b : a, b_first ? a : b) ? 0.75f * (area(a) + area(b)) : 0.0f;
}
