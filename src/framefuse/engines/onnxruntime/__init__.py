"""Engine onnxruntime, on CPUs and, with its CUDA provider, on NVIDIA GPUs."""
