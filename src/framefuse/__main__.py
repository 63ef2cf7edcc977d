"""python -m framefuse"""

import sys

from framefuse.cli import main

sys.exit(main())
