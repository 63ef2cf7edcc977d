"""Boxes and masks drawn into the planes of a frame."""
