"""How frames run through a model: stages, channels, programs, batching, measurement."""
