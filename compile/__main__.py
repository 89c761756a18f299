"""`python -m cuts.compile MODEL`: `cuts compile MODEL`; the other commands are understood too."""

import sys

from ..cli import main_of_module

sys.exit(main_of_module(sys.argv[1:]))
