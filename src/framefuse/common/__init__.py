"""What no room owns: the machine, YAML, redaction, ONNX Runtime without telemetry."""
