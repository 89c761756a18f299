"""Importers of graphs: graph.json here, ONNX and PyTorch in packages."""

from .graph_json import graph_from_json, infer_types, load_graph, save_graph
from .quantise_activations import find_activations, largest_sizes, quantise_activations
from .quantise_weights import WEIGHT_FORMATS, WeightFormat, WeightsName, find_weight_format, quantise_weights
from .weights import open_weights
