"""PyTorch's optimisers and recurrences as counterparts of operations."""

from __future__ import annotations

import math
from typing import Any

from .counterparts_torch import Attributes, Counterpart, of_tensors, torch


def _step(kind: str) -> Counterpart:
    def apply(a: Attributes, w: Any, g: Any, rate: Any, *state: Any) -> Any:
        if not 0 <= float(rate) < math.inf or a["weight_decay"] < 0 or not math.isfinite(a["weight_decay"]):
            return None
        w = w.clone().requires_grad_()
        more: dict[str, Any] = {"lr": float(rate), "weight_decay": a["weight_decay"], "foreach": False}
        if kind == "adam":
            betas, (m, v, step) = (a["beta1"], a["beta2"]), state
            if not all(0 <= beta < 1 for beta in betas) or a["epsilon"] < 0 or float(step) < 1 or float(step) % 1:
                return None
            made = (torch.optim.AdamW if a["decoupled"] else torch.optim.Adam)(
                [w], betas=betas, eps=a["epsilon"], **more
            )
            made.state[w] = {"step": step - 1, "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
        else:
            momentum = a.get("momentum", 0.0)
            if not 0 <= momentum < math.inf or (a.get("nesterov") and not momentum) or (state and not momentum):
                return None
            made = torch.optim.SGD([w], momentum=momentum, nesterov=a.get("nesterov", False), **more)
            made.state[w] = {"momentum_buffer": state[0].clone()} if state else {}
        w.grad = g
        made.step()
        kept = made.state[w]
        return w, *(kept[n] for n in ("momentum_buffer", "exp_avg", "exp_avg_sq") if n in kept)

    return of_tensors(apply)


def _recurrent(kind: str) -> Counterpart:
    """PyTorch's gates stand in another order: of a long short-term memory i, f, c, o, of a gated unit r, z, n."""
    orders = {"rnn": (0,), "lstm": (0, 2, 3, 1), "gru": (1, 0, 2)}

    def apply(
        a: Attributes, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h0: Any = None, *more: Any
    ) -> Any:
        usual = {"rnn": ("tanh",), "lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh")}[kind]
        cell, peepholes = (*more, None, None)[:2]
        plain = tuple(a["activations"]) == usual and a["clip"] is None and not a.get("input_forget")
        if (not plain or lengths is not None or peepholes is not None or a["direction"] == "reverse" or not all(x.shape)
                or not all(r.shape) or (kind == "gru" and not a["linear_before_reset"])):  # fmt: skip
            return None
        hidden, sides = r.shape[-1], len(w)
        order = torch.cat([torch.arange(k * hidden, (k + 1) * hidden) for k in orders[kind]])
        weights = [part for d in range(sides) for part in (w[d][order], r[d][order], *(
            () if b is None else (b[d][: len(order)][order], b[d][len(order) :][order])))]  # fmt: skip
        start = torch.zeros(sides, x.shape[1], hidden, dtype=x.dtype) if h0 is None else h0
        state: Any = start if kind != "lstm" else (start, torch.zeros_like(start) if cell is None else cell)
        function = getattr(torch._VF, {"rnn": "rnn_tanh"}.get(kind, kind))
        y, *last = function(x, state, weights, b is not None, 1, 0.0, False, sides == 2, False)
        return y.reshape(*y.shape[:2], sides, hidden).transpose(1, 2), *last

    return of_tensors(apply)


#: Optimisers and layers that carry a state.
TRAINING: dict[str, Counterpart] = {
    "sgd": _step("sgd"), "sgd_momentum": _step("sgd"), "adam": _step("adam"),
    "rnn": _recurrent("rnn"), "lstm": _recurrent("lstm"), "gru": _recurrent("gru"),
}  # fmt: skip
