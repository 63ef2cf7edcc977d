"""preprocess for CPUs that permute 128 bytes at once (AVX-512 VBMI), with the loops of `_tir_window.py`.

A block has 16 pixels, a window 128 bytes. If the pixels of a block of a packed image are too far apart for one window,
each half of the block has its own.
"""

from tvm import tirx

from ._tir_window import Form, load, variant

LEVEL = "x86-64-v4"
"""The only level for which these kernels are built."""

LAYOUTS = ("planar", "semiplanar", "packed3", "packed4", "gray")


def permute(plane, starts, picks):
    picked = []
    for start in starts:
        low, high = load(plane, start, 64), load(plane, start + 64, 64)
        picked.append(tirx.call_llvm_pure_intrin("uint8x64", "llvm.x86.avx512.vpermi2var.qi.512", low, picks, high))
    if len(picked) == 2:
        picked = [tirx.Shuffle(picked, [tirx.const(i + 64 * (i // 32), "int32") for i in range(64)])]
    return tirx.bitwise_and(tirx.reinterpret("int16x32", picked[0]), tirx.const(255, "int16"))


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    form = Form("wide", 16, (1, 2), permute, "llvm.x86.avx512.pmaddw.d.512")
    return {f"preprocess_wide_{layout}": variant(form, layout) for layout in LAYOUTS}
