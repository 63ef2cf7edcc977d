"""A seeded synthetic world with exact ground truth: boxes, identities, visibility, masks, disparity, complexity.

address.py   parameters, their addresses   chance.py    seeded randomness and textures, divided among the splits
world.py     World                         sketch.py    polygons and colours of a figure
truth.py     Snapshot, Truth               traffic.py   tracks of the scenes "street" and "bodies"
living.py    person, dog, bird             things.py    signs, balls, boxes, cones, vehicles, decoys
render.py    frames and ground truth       coco.py      ground truth as a COCO file
"""

from framefuse.world.truth import Snapshot, Truth
from framefuse.world.world import World

__all__ = ["Snapshot", "Truth", "World"]
