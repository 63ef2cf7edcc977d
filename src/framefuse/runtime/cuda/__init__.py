"""The program of NVIDIA GPUs: captured batches, uploads, and outputs on the device."""
