"""Warps: affine, perspective, remapping, flips, stereo, projections."""
