"""Groups with few results and long reductions, divided: into parts that two kernels compute, or into slices."""

from .splitting import Division, Splitting, split_groups

__all__ = ["Division", "Splitting", "split_groups"]
