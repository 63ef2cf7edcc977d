"""Signals of scene complexity from the luma plane."""
