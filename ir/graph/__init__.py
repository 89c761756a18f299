"""Graphs of named nodes with typed values and attributes."""

from .attributes import Attribute, attribute_of, attributes_key
from .checks import IndexCheck, IndexFault, out_of_range, tensor_words
from .dims import Dim, DimFactor, DimLayout, SizeSamples, SymbolicExtent, least_sizes, size_samples
from .graph import (
    Array,
    FixedResult,
    FixedValue,
    Graph,
    Interface,
    Node,
    RowProducer,
    StateTensor,
    fresh_name,
    live_graph,
    needed_nodes,
    subgraph,
)
