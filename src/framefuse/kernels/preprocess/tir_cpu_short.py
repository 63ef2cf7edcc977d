"""preprocess for CPUs that permute 16 bytes at once (AVX2), with the loops of `_tir_window.py`.

A block has 8 pixels, and each half of it reads a window of 16 bytes. The pixels of packed images are too far apart for
that; `tir_cpu.py` takes them.
"""

from tvm import tirx

from ._tir_window import Form, load, variant

LEVEL = "x86-64-v3"
"""The only level for which these kernels are built."""

LAYOUTS = ("planar", "semiplanar", "gray")


def permute(plane, starts, picks):
    both = tirx.Shuffle([load(plane, start, 16) for start in starts], [tirx.const(i, "int32") for i in range(32)])
    # An index whose highest bit is set picks a zero.
    return tirx.reinterpret("int16x16", tirx.call_llvm_pure_intrin("uint8x32", "llvm.x86.avx2.pshuf.b", both, picks))


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    form = Form("short", 8, (2,), permute, "llvm.x86.avx2.pmadd.wd")
    return {f"preprocess_short_{layout}": variant(form, layout) for layout in LAYOUTS}
