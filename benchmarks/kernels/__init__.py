"""The kernels against what a user would have picked instead: `python -m benchmarks.kernels cpu` or `gpu`."""
