"""The kernels between a network's convolutions, for engine cudnn."""
