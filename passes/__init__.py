"""How a program changes on its way from a graph to kernels: the pipeline, and what its stages share."""

from .fragments import Fragment, Priced, cut_fragment
from .pipeline import compile_graph, graph_passes
from .workload import Selector, Workload

__all__ = ["Fragment", "Priced", "Selector", "Workload", "compile_graph", "cut_fragment", "graph_passes"]
