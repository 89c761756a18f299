"""ONNX's recurrent layers, in the same gate orders.

`layout` 1 is batch first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from ..call import Convert, NodeCall

#: Default activations of each direction.
_DEFAULT_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
#: Our name of each activation, and the values of its parameters alpha and beta where the model gives none.
_ACTIVATIONS: dict[str, tuple[str, tuple[float | None, float | None]]] = {
    "sigmoid": ("sigmoid", (None, None)),
    "tanh": ("tanh", (None, None)),
    "relu": ("relu", (None, None)),
    "softsign": ("softsign", (None, None)),
    "softplus": ("softplus", (None, None)),
    "affine": ("affine", (1.0, 0.0)),
    "leakyrelu": ("leaky_relu", (0.01, None)),
    "thresholdedrelu": ("thresholded_relu", (1.0, None)),
    "scaledtanh": ("scaled_tanh", (1.0, 1.0)),
    "hardsigmoid": ("hard_sigmoid", (0.2, 0.5)),
    "elu": ("elu", (1.0, None)),
}
_TURN = (1, 0, 2)  # from batch first to time first, and back


@frozen
class _Gates:
    """Activations of one direction, with their parameters."""

    activations: tuple[str, ...]
    alpha: tuple[float, ...]
    beta: tuple[float, ...]


def _recurrent(op: str, states: int) -> Convert:
    """Return the conversion to a recurrence with some carried states.

    The first result is all steps, then come the last states.
    """

    def convert(call: NodeCall) -> None:
        batch_first = bool(call.attribute("layout", 0))
        attributes = _attributes(call)
        given = [call.optional(n) for n in range(8 if op == "lstm" else 6)]
        _check_size(call)
        if batch_first:
            given = [
                call.emit("transpose", v, perm=_TURN) if n in (0, 5, 6) and v is not None else v
                for n, v in enumerate(given)
            ]
        gates = _gates(call, 2 if attributes["direction"] == "bidirectional" else 1)
        results = _results(call, op, given, attributes, gates, 1 + states)
        for position, value in enumerate(results):
            if position < len(call.outputs):
                perm = (2, 0, 1, 3) if position == 0 else _TURN
                call.give(call.emit("transpose", value, perm=perm) if batch_first else value, position)

    return convert


def _attributes(call: NodeCall) -> dict[str, Any]:
    """Return the attributes of all directions."""
    found: dict[str, Any] = {
        "direction": call.attribute("direction", "forward"),
        "clip": call.attribute("clip", 0.0) or None,
    }
    if call.op_type == "GRU":
        found["linear_before_reset"] = bool(call.attribute("linear_before_reset", 0))
    if call.op_type == "LSTM":
        found["input_forget"] = bool(call.attribute("input_forget", 0))
    return found


def _check_size(call: NodeCall) -> None:
    size, held = call.attribute("hidden_size", None), call.type(2).shape[-1]
    if size is not None and size != held:
        call.fail(f"attribute 'hidden_size': expected {held}, the last dim of operand 2 (R), found {size}")


def _gates(call: NodeCall, directions: int) -> tuple[_Gates, ...]:
    """Return the activations of each direction; those with parameters take the next ones of the model's lists."""
    usual = _DEFAULT_ACTIVATIONS[call.op_type]
    names = [
        n.decode() if isinstance(n, bytes) else n for n in call.attribute("activations", None) or usual * directions
    ]
    count = len(usual)
    if len(names) not in (count, count * directions) or any(n.lower() not in _ACTIVATIONS for n in names):
        known = ", ".join(sorted(_ACTIVATIONS))
        call.fail(
            f"attribute 'activations': expected {count} names for each of {directions} directions, found {names}",
            f"names are {known}",
        )
    lists = [iter(call.attribute(name, None) or ()) for name in ("activation_alpha", "activation_beta")]
    filled = [[_parameter(_ACTIVATIONS[n.lower()][1][k], given) for n in names] for k, given in enumerate(lists)]
    ours = [_ACTIVATIONS[n.lower()][0] for n in names]
    parts = [slice(d, d + count) for d in range(0, len(names), count)]
    found = [_Gates(tuple(ours[p]), tuple(filled[0][p]), tuple(filled[1][p])) for p in parts]
    return tuple(found * (directions // len(found)))


def _parameter(default: float | None, given: Any) -> float:
    """Return the parameter of an activation, 0 where it has none."""
    return 0.0 if default is None else float(next(given, default))


def _results(
    call: NodeCall,
    op: str,
    given: Sequence[str | None],
    attributes: dict[str, Any],
    gates: Sequence[_Gates],
    count: int,
) -> Sequence[str]:
    """Return all results of a layer; directions with different activations are separate layers, concatenated."""
    if len(set(gates)) == 1:
        return call.emit(op, *given, outputs=count, **attributes, **_gate_attributes(gates[0]))  # type: ignore[no-any-return]
    parts: list[Sequence[str]] = []
    for d, (direction, own) in enumerate(zip(("forward", "reverse"), gates, strict=True)):
        # Operands with a part for each direction have these along their first axis; both share time steps and lengths.
        chosen = [v if v is None or n in (0, 4) else _direction(call, v, d) for n, v in enumerate(given)]
        parts.append(
            call.emit(op, *chosen, outputs=count, **{**attributes, "direction": direction}, **_gate_attributes(own))
        )
    return [call.emit("concat", *pair, axis=1 if n == 0 else 0) for n, pair in enumerate(zip(*parts, strict=True))]


def _direction(call: NodeCall, value: str, number: int) -> str:
    return call.emit("slice", value, starts=(number,), ends=(number + 1,), axes=(0,))  # type: ignore[no-any-return]


def _gate_attributes(gates: _Gates) -> dict[str, Any]:
    return {"activations": gates.activations, "alpha": gates.alpha, "beta": gates.beta}


TABLE: dict[str, Convert] = {"RNN": _recurrent("rnn", 1), "GRU": _recurrent("gru", 1), "LSTM": _recurrent("lstm", 2)}
