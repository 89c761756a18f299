"""Importers of graphs: graph.json here, ONNX and PyTorch in packages."""

from typing import TYPE_CHECKING

from ..ir import lazy_exports

if TYPE_CHECKING:
    from .activation_quantisation import find_activations, largest_sizes, quantise_activations
    from .graph_json import graph_from_json, infer_types, load_graph, save_graph
    from .weight_formats import WEIGHT_FORMATS, WeightFormat, WeightsName, find_weight_format
    from .weight_quantisation import quantise_weights
    from .weights import open_weights

__getattr__ = lazy_exports(__name__)
