"""Builds the runner of plans: `python -m cuts.runtime.native [FOLDER]`."""

from __future__ import annotations

import sys

from ...backends.native import build_library


def main() -> int:
    """Compile the library into a folder, and print its path."""
    print(build_library(sys.argv[1] if len(sys.argv) > 1 else "."))
    return 0


if __name__ == "__main__":
    sys.exit(main())
