"""Training of the shipped models: networks, losses, recipes, export. Not part of the wheel; needs the extra `train`."""
