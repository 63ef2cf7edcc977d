"""Engine torch: modules of PyTorch, and ONNX graphs as PyTorch operators."""
