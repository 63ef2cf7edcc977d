"""Engine tensorrt: TensorRT >= 10, or TensorRT for RTX."""
