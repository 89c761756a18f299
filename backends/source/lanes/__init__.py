"""Prefix scans, sorts and selections of rows that lanes hold."""

from .bitonic_network import LaneSort
from .prefix_scan import LaneScan
from .radix_selection import LaneSelect
from .radix_sort import LaneRadix
