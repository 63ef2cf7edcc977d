"""A seeded synthetic world with exact ground truth: boxes, identities, visibility, masks, disparity, complexity.

address.py   synthetic:// addresses        chance.py    seeded randomness and textures, divided among the splits
world.py     World                         spec.py      the parameters of a world
truth.py     Snapshot, Truth               sketch.py    polygons and colours of a figure
traffic.py   tracks of the scene "street"  people.py    tracks of the scene "bodies"
living.py    person, dog, bird             things.py    signs, balls, boxes, cones, vehicles, decoys
render.py    frames and ground truth       coco.py      ground truth as a COCO file
"""

from framefuse.world.truth import Snapshot, Truth
from framefuse.world.world import World

__all__ = ["Snapshot", "Truth", "World"]
