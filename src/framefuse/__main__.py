"""Entry point of `python -m framefuse`."""

from framefuse.cli.entry import start

start()
