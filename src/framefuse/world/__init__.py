"""A seeded synthetic world with exact ground truth: boxes, identities, visibility, masks, disparity, complexity.

address.py   synthetic:// addresses        chance.py    seeded randomness, divided among the splits
world.py     World                         spec.py      the parameters of a world
truth.py     Snapshot, Truth               textures.py  the texture banks
traffic.py   tracks of the scene "street"  people.py    tracks of the scene "bodies"
living.py    person, dog, bird             vehicles.py  car, bus, bicycle
things.py    sign, ball, box, cone, decoy  sketch.py    polygons and colours of a figure
backdrop.py  the background                render.py    frames and ground truth
coco.py      ground truth as a COCO file
"""

from framefuse.world.truth import Snapshot, Truth
from framefuse.world.world import World

__all__ = ["Snapshot", "Truth", "World"]
