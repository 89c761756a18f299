"""Sums, prefix scans, sorts and selections of rows that lanes hold."""

from .bitonic_network import LaneSort
from .combination import LaneCombination, begin_cluster
from .prefix_scan import LaneScan
from .radix_selection import LaneSelect
from .radix_sort import radix_printer
from .strided_lanes import StridedLanes
