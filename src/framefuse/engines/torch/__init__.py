"""Engine torch: the ONNX graph as PyTorch operators."""
