"""PyTorch's recurrent layers in core form.

Each layer becomes one operator of our vocabulary, under its own name and with the derived gradient (`declared`).
Between layers stand the conversions of PyTorch's orders (gates, batch first) and dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from attrs import field, frozen

from ....ir import GraphError, UsageError
from ....ops import Registry
from ..captured_graph import CapturedGraph
from ..operator_registry import define_operator
from ..program import CompileGraph

aten = torch.ops.aten

#: Our gates by PyTorch's positions: LSTM's i, f, c, o as i, o, f, c; GRU's r, z, h as z, r, h.
_ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}


#: Fewest samples whose gates are one product in training; the compiler chooses where no gradients are wanted. With 64
#: samples and 1,000 cells a step took 43 us as four sums, their gradient 50 us, and the product in cuBLAS 20 us.
MIN_TRAINED_ROWS = 16


class ForeignLayerError(GraphError):
    """Raised for a recurrent layer outside the vocabulary."""


@frozen
class Recurrent:
    """Recurrent operation of PyTorch, and the operation of its layers.

    It is called as PyTorch's is.
    """

    op: str
    attributes: Mapping[str, Any] = field(factory=dict)

    def __call__(
        self, x: Any, state: Any, weights: Sequence[Any], biased: bool, layers: int, dropout: float, training: bool,
        bidirectional: bool, batch_first: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Return all steps and the last states, computed by our operators.

        Raises `ForeignLayerError` for projected states, which ours have not.
        """
        directions, parameters = 2 if bidirectional else 1, 4 if biased else 2
        if len(weights) != parameters * directions * layers:
            raise ForeignLayerError("projected states of a recurrent layer (proj_size) are not supported")
        kind = _computation_type(x, self.op)
        x, *states = (value.to(kind) for value in (x, *(state if self.op == "lstm" else [state])))
        value = x.permute(1, 0, 2) if batch_first else x
        last: list[list[Any]] = [[] for _ in states]
        for layer in range(layers):
            first = layer * directions
            own = [weights[parameters * (first + d) : parameters * (first + d + 1)] for d in range(directions)]
            w, r, *bs = (_stack_parameters(self.op, [part[n].to(kind) for part in own]) for n in range(parameters))
            given = [s.narrow(0, first, directions) for s in states]
            found = self._layer(value, w, r, torch.cat(bs, 1) if bs else None, given, bidirectional)
            value = found[0].permute(0, 2, 1, 3).flatten(2)  # concatenates the results of all directions
            if training and dropout and layer < layers - 1:
                value = torch.dropout(value, dropout, True)
            for held, end in zip(last, found[1:], strict=True):
                held.append(end)
        value = value.permute(1, 0, 2) if batch_first else value
        return (value, *(held[0] if layers == 1 else torch.cat(held, 0) for held in last))

    def _layer(self, x: Any, w: Any, r: Any, b: Any, states: Sequence[Any], bidirectional: bool) -> tuple[Any, ...]:
        direction, attributes = "bidirectional" if bidirectional else "forward", dict(self.attributes)
        if self.op != "rnn" and torch.is_grad_enabled() and r.requires_grad and states[0].shape[1] >= MIN_TRAINED_ROWS:
            attributes["together"] = True
        made: tuple[Any, ...] = layer_operator(self.op)(x, w, r, b, None, *states, direction=direction, **attributes)
        return made

    def like(
        self, x: Any, state: Any, weights: Sequence[Any], biased: bool, layers: int, dropout: float, training: bool,
        bidirectional: bool, batch_first: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Return empty results, whose extents may be symbols, without a trace."""
        states = list(state) if self.op == "lstm" else [state]
        kind, wanted = _computation_type(x, self.op), any(t.requires_grad for t in (x, *states, *weights))
        steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
        y = x.new_empty((steps, batch, states[0].shape[2] * (2 if bidirectional else 1)), dtype=kind)
        found = [y, *(s.new_empty(s.shape, dtype=kind) for s in states)]
        for value in found if wanted and torch.is_grad_enabled() else ():
            value.requires_grad_()
        return (y.permute(1, 0, 2) if batch_first else y, *found[1:])


#: PyTorch's recurrent operations over sequences of one length.
RECURRENT: Mapping[torch._ops.OpOverload, Recurrent] = {
    aten.lstm.input: Recurrent("lstm"),
    aten.gru.input: Recurrent("gru", {"linear_before_reset": True}),
    aten.rnn_tanh.input: Recurrent("rnn"),
    aten.rnn_relu.input: Recurrent("rnn", {"activations": ["relu"]}),
}

#: The same over packed sequences, whose lengths are values, and their unpacking.
PACKED_OPERATIONS = (*(overload.overloadpacket.data for overload in RECURRENT), aten._pad_packed_sequence.default)


def _computation_type(x: Any, op: str) -> torch.dtype:
    """Return the element type of the computation and the results.

    It is autocast's, except that PyTorch's GRU on the CPU ignores autocast, and its layers on a GPU are f16 for any
    type of autocast.
    """
    device = x.device.type
    cast = torch.is_autocast_enabled(device) and x.is_floating_point() and (device != "cpu" or op != "gru")
    kind: torch.dtype = torch.get_autocast_dtype(device) if cast else x.dtype
    return torch.float16 if cast and device == "cuda" else kind


def _stack_parameters(op: str, parts: Sequence[Any]) -> Any:
    """Return the parameters of all directions as one tensor, their gates in our order."""
    ordered = []
    for part in parts:
        gates = part.chunk(len(_ORDER[op]))
        whole = part if len(gates) == 1 else torch.cat([gates[n] for n in _ORDER[op]])
        ordered.append(whole.unsqueeze(0))
    return ordered[0] if len(ordered) == 1 else torch.cat(ordered)


@cache
def layer_operator(op: str) -> Callable[..., Any]:
    """Return one of our operations as an operator under a reserved name."""
    registry = Registry.builtin()
    made: Callable[..., Any] = define_operator(registry[op], registry, {}, _compile_layer, f"_layer_{op}")
    return made


_KERNELS: list[CompileGraph] = []


def compile_layers(compile_graph: CompileGraph) -> None:
    """Set the compiler of single layers.

    A backward graph that stays in PyTorch calls these where its forward graph is compiled.
    """
    _KERNELS[:] = [compile_graph]


def _compile_layer(captured: CapturedGraph, device: Any) -> Any:
    if not _KERNELS:
        raise UsageError(f"operator '_layer_{captured.graph.name}' is for captured graphs", hint="call cuts.torch_op")
    return _KERNELS[0](captured, device)
