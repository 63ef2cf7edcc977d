"""python -m framefuse.cli"""

import sys

from framefuse.cli import main

sys.exit(main())
