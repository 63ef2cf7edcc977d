"""Which requests run together, and when: policy without threads, clocks or models."""
