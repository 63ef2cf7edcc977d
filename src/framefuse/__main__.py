"""python -m framefuse"""

from framefuse.entry import start

start()
