"""Engine tensorrt: plans of TensorRT and of TensorRT for RTX."""
