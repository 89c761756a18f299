"""Name of the distribution, and the command that installs an extra.

The package is imported as `cuts`; another project has that name where packages are published.
"""

from __future__ import annotations

#: Name under which the package is installed.
DISTRIBUTION = "cuts-compiler"


def install_command(*extras: str) -> str:
    """Return the command that installs the package with these extras.

    In an environment that has the package it adds the packages of the extras.
    """
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'" if extras else f"pip install {DISTRIBUTION}"
