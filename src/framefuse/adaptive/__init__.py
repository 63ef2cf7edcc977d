"""Adaptive compute: less where the scene needs less, under a guard. Pure policy; `runtime.adaptive` carries it out.

interpolation.py  objects of the frames between two that were inferred, and how wrong these may be
governor.py       which frames the model sees
guard.py          which rung of a ladder runs, so that limits hold
blocks.py         the frames of a source, from their arrival to their results
"""

from framefuse.adaptive.blocks import Blocks
from framefuse.adaptive.governor import Budget, Governor, Limits
from framefuse.adaptive.guard import Guard
from framefuse.adaptive.interpolation import Bridge, disagreement

__all__ = ["Blocks", "Bridge", "Budget", "Governor", "Guard", "Limits", "disagreement"]
