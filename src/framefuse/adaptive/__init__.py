"""Adaptive compute: less where the scene needs less, under a guard. Pure policy; `runtime.adaptive` carries it out.

interpolation.py  objects of the frames between two that were inferred, and how wrong these may be
ladder.py         models, sizes and precisions that are worth having on this device
governor.py       which frames are inferred, and by which rung
blocks.py         the frames of a source, from their arrival to their results
"""

from __future__ import annotations

from framefuse.adaptive.blocks import Blocks
from framefuse.adaptive.governor import Governor, Limits
from framefuse.adaptive.interpolation import Bridge, disagreement
from framefuse.adaptive.ladder import Ladder, Rung, load_ladder

__all__ = ["Blocks", "Bridge", "Governor", "Ladder", "Limits", "Rung", "disagreement", "load_ladder"]
