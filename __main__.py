"""`python -m cuts COMMAND`."""

import sys

from .compile import main

sys.exit(main())
