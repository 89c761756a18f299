"""ONNX's recurrent layers: ours by the same gate orders; `layout` 1 puts the batch first."""

from __future__ import annotations

from .onnx_call import Call, Convert

#: What the standard takes for each direction where the model names no activations.
_USUAL = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _recurrent(op: str, states: int) -> Convert:
    """Return the conversion to a recurrence with some carried states; the first result is all steps, then the last of each state."""

    def convert(call: Call) -> None:
        batch_first = bool(call.attribute("layout", 0))
        call.attribute("hidden_size", 0)
        attributes = {"direction": call.attribute("direction", "forward"), **_activations(call)}
        if op == "gru":
            attributes["linear_before_reset"] = bool(call.attribute("linear_before_reset", 0))
        if call.attribute("input_forget", 0):
            call.refuse("attribute 'input_forget': only 0 is supported, found 1")
        turn = (1, 0, 2)
        given = [call.optional(n) for n in range(8 if op == "lstm" else 6)]
        if batch_first:
            for position in (0, 5, 6):
                if position < len(given) and given[position] is not None:
                    given[position] = call.emit("transpose", given[position], perm=turn)
        results = call.emit(op, *given, outputs=1 + states, **attributes)
        for position, value in enumerate(results):
            if position < len(call.outputs):
                perm = (2, 0, 1, 3) if position == 0 else turn
                call.give(call.emit("transpose", value, perm=perm) if batch_first else value, position)

    return convert


def _activations(call: Call) -> dict[str, str]:
    """Return the activation of a plain recurrence; the others have the usual ones only."""
    usual = _USUAL[call.op_type]
    names = call.attribute("activations", None)
    found = tuple(n.decode() if isinstance(n, bytes) else n for n in names or usual)
    if call.op_type == "RNN" and set(found) in ({"Tanh"}, {"Relu"}):
        return {"nonlinearity": found[0].lower()}
    if found != usual * (len(found) // len(usual)):
        call.refuse(f"attribute 'activations': expected {list(usual)} for each direction, found {list(found)}")
    return {}


TABLE: dict[str, Convert] = {"RNN": _recurrent("rnn", 1), "GRU": _recurrent("gru", 1), "LSTM": _recurrent("lstm", 2)}
