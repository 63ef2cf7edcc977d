"""What the detection kernels for CUDA share: the candidates, the rank and the suppression.

Launches whose shapes do not depend on the data; counts stay on the device.

    filter_*    raw outputs -> candidates of each image in any order, each with a unique key (score, anchor)
    rank        a candidate's place is the number of smaller keys; each is copied to its place
    suppress    greedy suppression in a window of the candidates; rows of the result in source pixels

`suppress` runs for the first CHUNK candidates, which mostly hold enough, and again for each WINDOW of the others; where
an image is finished, it finds no candidates. Boxes are x1 y1 x2 y2; those of the kernels `..._rotated` are cx cy, half
width, half height, cos and sin, and two spare numbers.

blockIdx.y is the image. `counters` (batch, 2) are the candidates and the anchors left out for a NaN or an infinity.
They must be 0 at first, and `suppress` sets them back.
"""

from tvm.script import tirx as T

from ._tir_iou import ordered

SAMPLES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}

CHUNK = 1024
"""Candidates that decide together: the threads of a block."""

WINDOW = 8192
"""Candidates of a launch of `suppress` at most: it keeps a bit for each pair of them."""

LARGE = 1 << 40
"""Elements of a buffer whose size nobody needs."""

LAST = 1 << 30
"""After every class."""

RESERVE = """
// A place for each lane of the warp that wants one, counted in `counter`.
static __device__ __forceinline__ int reserve(int* counter, int wanted) {
  unsigned lanes = __ballot_sync(0xffffffffu, wanted), lane = threadIdx.x & 31u;
  if (lanes == 0u) return 0;
  int first = 0;
  if (lane == 0u) first = atomicAdd(counter, __popc(lanes));
  return __shfl_sync(0xffffffffu, first, 0) + __popc(lanes & ((1u << lane) - 1u));
}
"""


def buffer(address, dtype, align):
    return T.decl_buffer((LARGE,), dtype, data=T.reinterpret("handle", address), align=align)


def read(values, index):
    return values[index].astype("float32")


def wide(value):
    return value.astype("int64")


def key_of(score, index):
    """Unique, ascending by descending score, then by index."""
    return (ordered(score).astype("uint64") << T.uint64(32)) | index.astype("uint64")


@T.inline
def append(counters, keys, labels, places, image, capacity, keep, score, label, index):
    """places[0] = where the box of a candidate goes, which is added where `keep`. Every lane of the warp comes here."""
    slot = T.cuda.func_call("reserve", counters.ptr_to([image * 2]), keep, source_code=RESERVE, return_type="int32")
    if keep != 0:
        at: T.let = wide(image) * wide(capacity) + wide(slot)
        keys[at] = key_of(score, index)
        labels[at] = label
        places[0] = at


@T.inline
def append_box(counters, keys, boxes, labels, image, capacity, keep, score, label, index, x1, y1, x2, y2):
    """Add a candidate where `keep`. Every lane of the warp comes here."""
    places = T.alloc_local((1,), "int64")
    append(counters, keys, labels, places, image, capacity, keep, score, label, index)
    if keep != 0:
        boxes[places[0] * 4] = x1
        boxes[places[0] * 4 + 1] = y1
        boxes[places[0] * 4 + 2] = x2
        boxes[places[0] * 4 + 3] = y2
