"""PyTorch's recurrent layers, one of ours per layer; what PyTorch orders otherwise (gates,
batch first) is put in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..reader import Convert, Reader, Value

#: Our gates by PyTorch's places: LSTM's i, f, c, o as i, o, f, c; GRU's r, z, h as z, r, h.
_ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}


def _recurrent(op: str, **attributes: Any) -> Convert:
    def convert(
        reader: Reader, x: Value, state: Any, weights: Sequence[Value], biased: bool, layers: int, dropout: float,
        training: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        if training and dropout:
            reader.fail("dropout between layers is not supported; export the model for inference")
        states = state if op == "lstm" else [state]
        directions = 2 if bidirectional else 1
        count = 4 if biased else 2
        if len(weights) != count * directions * layers:
            reader.fail("projected states are not supported")
        value = reader.emit("transpose", x, perm=(1, 0, 2)) if batch_first else x
        last: list[list[Value]] = [[] for _ in states]
        for layer in range(layers):
            first = layer * directions
            own = [weights[count * (first + d) : count * (first + d + 1)] for d in range(directions)]
            parameters = [_stacked(reader, op, [part[n] for part in own]) for n in range(count)]
            bias = reader.emit("concat", parameters[2], parameters[3], axis=1) if biased else None
            given = [reader.emit("slice", s, starts=(first,), ends=(first + directions,), axes=(0,)) for s in states]
            direction = "bidirectional" if bidirectional else "forward"
            results = reader.emit(
                op,
                value,
                parameters[0],
                parameters[1],
                bias,
                None,
                *given,
                outputs=1 + len(states),
                direction=direction,
                **attributes,
            )
            value = _joined(reader, results[0])
            for held, found in zip(last, results[1:], strict=True):
                held.append(found)
        value = reader.emit("transpose", value, perm=(1, 0, 2)) if batch_first else value
        ends = [held[0] if len(held) == 1 else reader.emit("concat", *held, axis=0) for held in last]
        return (value, *ends)

    return convert


def _stacked(reader: Reader, op: str, parts: Sequence[Value]) -> Value:
    """Return the parameters of all directions as one tensor, their gates in our order."""
    ordered: list[Value] = []
    for part in parts:
        rows = reader.shape(part)[0] // len(_ORDER[op])
        gates = [reader.emit("slice", part, starts=(n * rows,), ends=((n + 1) * rows,), axes=(0,)) for n in _ORDER[op]]
        whole = part if len(gates) == 1 else reader.emit("concat", *gates, axis=0)
        ordered.append(reader.emit("reshape", whole, shape=(1, *reader.shape(whole))))
    return ordered[0] if len(ordered) == 1 else reader.emit("concat", *ordered, axis=0)


def _joined(reader: Reader, y: Value) -> Value:
    """Return the results of all directions side by side: [S, D, N, H] as [S, N, D * H]."""
    steps, directions, batch, hidden = reader.shape(y)
    turned = reader.emit("transpose", y, perm=(0, 2, 1, 3))
    joined: Value = reader.emit("reshape", turned, shape=(steps, batch, directions * hidden))
    return joined


TABLE: dict[str, Convert] = {
    "aten.lstm.input": _recurrent("lstm"),
    "aten.gru.input": _recurrent("gru", linear_before_reset=True),
    "aten.rnn_tanh.input": _recurrent("rnn"),
    "aten.rnn_relu.input": _recurrent("rnn", activations=("relu",)),
}
