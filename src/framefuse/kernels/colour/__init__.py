"""YUV <-> RGB, normalisation, and memory layouts."""
