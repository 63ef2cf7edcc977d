"""Shared helpers: facts about the machine, YAML, redaction, ONNX Runtime without telemetry."""
