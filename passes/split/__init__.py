"""Divides long reductions with few results: split-K in two kernels, or sliced-K."""

from .splitting import Division, Splitting, split_groups
