"""How the shipped models are made: networks, losses, recipe, export. Not part of the wheel; needs the extra `train`."""
