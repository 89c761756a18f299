"""Layer profiles of a GPU: training data of the latency models.

python -m cuts.latency.profiling --out DIR
"""

from .profile import LayerBench, main

__all__ = ["LayerBench", "main"]
