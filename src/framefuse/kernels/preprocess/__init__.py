"""Frame -> model input in one kernel: resize, colour, normalise, layout."""
