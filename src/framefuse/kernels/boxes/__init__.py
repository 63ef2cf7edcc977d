"""Raw model outputs -> boxes: filter, rank, suppress."""
