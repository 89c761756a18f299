"""Divides long reductions with few results (split-K), and aligns factors of contractions."""

from .splitting import Division, Splitting, split_groups
