"""Detect in NumPy arrays, as OpenCV reads them (BGR): python examples/arrays.py"""

import numpy as np

import framefuse
from framefuse.world import World

world = World(frames=5, size=(640, 360), split="test")
frames = [np.ascontiguousarray(snapshot.image[..., ::-1]) for snapshot in world]
for result in framefuse.Pipeline(frames, "scout-n"):
    print(result.frame.index, len(result.detections), "objects")
