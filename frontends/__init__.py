"""Where graphs come from: graph.json here, ONNX and PyTorch in packages of their own, which import theirs."""

from .graph_json import graph_from_json, infer_types, load_graph, save_graph

__all__ = ["graph_from_json", "infer_types", "load_graph", "save_graph"]
