"""Runs the profile from the command line."""

import sys

from .profile import main

if __name__ == "__main__":
    sys.exit(main())
