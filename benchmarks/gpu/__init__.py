"""Benchmarks of the GPU path; benchmarks/device/run_gpu.sh runs them on a machine without internet."""
