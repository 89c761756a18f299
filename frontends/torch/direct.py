"""Graphs that need nothing of PyTorch's autograd when they run, and are called without its wrappers.

Autograd's wrapper of a graph gives views their bases, writes what a graph changed back to its inputs, and takes the
gradient's way. It takes as long as launching a plan does. A graph that has none of this is as good by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType

from .held import has_backward

#: What says that a graph has something for a wrapper to do, besides what inputs and outputs say of themselves.
_WORK = ("num_intermediate_bases", "tokens", "is_rng_op_functionalized", "grad_enabled_mutation",
         "num_graphsafe_rng_states", "mutated_inp_stream_indices")  # fmt: skip
#: Tensors that are nothing else; wrappers take others apart.
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def is_direct(graph: torch.fx.Graph, arguments: Sequence[Any]) -> bool:
    """Whether the graph that is being compiled, which autograd made of a captured one, may take the captured graph's
    arguments and give its results itself.
    """
    facts = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
    places = [node for node in graph.nodes if node.op == "placeholder"]
    if facts is None or len(places) != len(arguments) or has_backward(graph):
        return False
    written = any(about.mutates_data or about.mutates_metadata for about in facts.input_info)
    new = all(about.output_type is OutputType.non_alias for about in facts.output_info)
    plain = not any(isinstance(a, torch.Tensor) and type(a) not in PLAIN for a in arguments)
    return new and plain and not written and not any(getattr(facts, name, None) for name in _WORK)
