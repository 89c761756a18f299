"""Layer profiles of a GPU: training data of the latency models.

python -m cuts.latency.profiling --out DIR
"""
