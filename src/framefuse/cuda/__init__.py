"""CUDA below kernels and engines: device, arrays, streams, compiled kernels, launches and errors."""
