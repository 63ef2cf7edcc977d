"""Version of framefuse, stored in caches and reports."""

__version__ = "0.1.0"
