"""Tracks: motion, overlap and assignment of boxes, on the CPU."""
