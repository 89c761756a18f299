"""`python -m cuts COMMAND`."""

import sys

from cuts.cli import main

sys.exit(main())
