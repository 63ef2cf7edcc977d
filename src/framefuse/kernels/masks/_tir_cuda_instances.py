"""What the instance kernels for CUDA share."""

PLAN = 8
"""Integers of a plan: samples kept, left, right, top, bottom, then pixels that may be set, left, right, top, bottom."""
