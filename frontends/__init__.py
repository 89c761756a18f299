"""Importers of graphs: graph.json here, ONNX and PyTorch in packages."""

from .graph_json import graph_from_json, infer_types, load_graph, save_graph
from .weights import open_weights
