"""Engine openvino: the default on CPUs."""
