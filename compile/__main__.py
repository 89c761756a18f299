"""Entry point of `python -m cuts.compile MODEL`, as `cuts compile MODEL`.

The other commands work too.
"""

import sys

from ..cli import main_of_module

sys.exit(main_of_module(sys.argv[1:]))
