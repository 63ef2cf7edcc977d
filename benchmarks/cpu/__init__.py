"""Benchmarks of the CPU path. `python -m benchmarks.cpu` runs the whole set, one after the other."""
