"""Arithmetic on pixels of bytes in words, which the CUDA warps share."""

from tvm import tirx
from tvm.script import tirx as T

ROUND = 1 << 15
"""Half of a byte's unit in the bits of a float whose bits are that byte times 2^16."""


def fixed(words, first, k):
    """Byte k of the eight in two words, as the float whose bits are byte * 2^16.

    Floats with bits below 2^24 are evenly spaced: sums and `lerp` of them are arithmetic with 16 fractional bits, as
    exact as with 255.0, and no conversion is needed in either direction.
    """
    return T.call_extern("float32", "byte_times_2_16", words[first + k // 4], k % 4)


def rounded(value):
    """The byte nearest to such a float, halves up."""
    return ((tirx.reinterpret("uint32", value) + T.uint32(ROUND)) >> T.uint32(16)).astype("uint8")


@T.inline
def align(words, k, shift):
    """words[k], words[k + 1] = the eight bytes from bit `shift` modulo 32 of three words."""
    words[k] = T.call_extern("uint32", "shifted_pair", words[k], words[k + 1], shift)
    words[k + 1] = T.call_extern("uint32", "shifted_pair", words[k + 1], words[k + 2], shift)


@T.inline
def blend(pixels, p, words, k, bits, across, down):
    """pixels[p] = three bytes between those of two pixels in words[k:] and of the two below in words[k + 3:]."""
    both = across * down
    right = across - both
    below = down - both
    rest = T.float32(1) - across - below
    for c in T.unroll(3):
        bits[c] = tirx.reinterpret(
            "uint32",
            tirx.reinterpret("float32", T.uint32(ROUND))
            + fixed(words, k, c) * rest
            + fixed(words, k, 3 + c) * right
            + fixed(words, k + 3, c) * below
            + fixed(words, k + 3, 3 + c) * both,
        )
    pixels[p] = T.call_extern("uint32", "third_bytes", bits[0], bits[1], bits[2])


def joined(pixel, lane):
    """The word that a lane writes, where neighbouring lanes have neighbouring pixels of three bytes.

    It is what is left of its own and the beginning of the next lane's. The fourth lane writes none. Every lane of a
    warp comes here.
    """
    shift = T.Cast("uint32", lane % 4) * T.uint32(8)
    after = T.tvm_warp_shuffle_down(T.uint32(0xFFFFFFFF), pixel, 1, 32, 32)
    return (pixel >> shift) | (after << (T.uint32(24) - shift))
