"""Symbolic dims: one graph for a range of sizes."""

from .bounded_graph import BoundedGraph, bounded_graph
from .bounded_program import bounded_program
from .computed_sizes import ComputedSizes
from .least_sizes import graphs_at_least
from .unify import SizeDependence, SizeInput
