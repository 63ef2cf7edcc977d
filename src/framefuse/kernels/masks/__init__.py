"""Masks: upsampling, arg-max, smoothing, compositing, instances, run lengths."""
