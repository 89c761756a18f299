"""Profiles the layers of a GPU: the data that the latency models are fitted to.

python -m cuts.latency.profiling --out DIR
"""

from .profile import LayerBench, main

__all__ = ["LayerBench", "main"]
