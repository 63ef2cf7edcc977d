"""A seeded synthetic world whose truth is known exactly: boxes, identities, visibility, masks, depth, complexity.

address.py   synthetic:// addresses        chance.py    seeded randomness, divided among the splits
world.py     World, Snapshot, Truth        textures.py  the texture banks
traffic.py   the street's tracks           people.py    tracks of the scene "bodies"
living.py    person, dog, bird             vehicles.py  car, bus, bicycle
things.py    sign, ball, box, cone, decoy  sketch.py    a figure's polygons and inks
backdrop.py  what is behind                render.py    frames and truth
coco.py      ground truth as a COCO file
"""

from framefuse.world.truth import Snapshot, Truth
from framefuse.world.world import World

__all__ = ["Snapshot", "Truth", "World"]
