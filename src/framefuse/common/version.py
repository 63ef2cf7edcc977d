"""Version of framefuse, which caches and reports carry."""

__version__ = "0.1.0"
