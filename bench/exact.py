"""A training step of a network in float64: what losses and gradients of float32 are compared with, ours and PyTorch's.

Steps that divide by deviations of batches multiply what rounding leaves, so that losses of two float32 programs part
behind a few steps, and neither says which is nearer to what is meant. Float64 says so of losses, and of every
parameter's gradient in the first step, by the norm of the difference over the norm.

Where an element of a relu lies nearer to its kink than rounding reaches, float32 may take the other side, and every
gradient before it is off by what that element hands on: of a small network with small images by percents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import cuts
import numpy as np
import torch
from cuts.backends.device import Array
from cuts.bench.networks.models import Made
from cuts.bench.networks.torch_calls import strict
from cuts.bench.networks.training import MOMENTUM, RATE, loss_of, without_dropout

#: What holds a parameter's gradient behind the first step: the velocity of a descent that begins at rest.
VELOCITY = ".velocity"
#: Parameters that a row names: those that are farthest off.
NAMED = 8


def gradients_of(training: cuts.Training, plan: Any, batch: Mapping[str, Any]) -> dict[str, Array]:
    """Return every parameter's gradient in the first step of a plan."""
    _, state = training.step(plan.run, dict(training.initial), batch)
    found = (name for name in training.carried if name.endswith(VELOCITY))
    return {name.removesuffix(VELOCITY): np.asarray(state[name]) for name in found}


def torch_steps(made: Made, dtype: torch.dtype, steps: int) -> tuple[list[float], dict[str, Array]]:
    """Return the losses of PyTorch's steps in a type, and each parameter's gradient in the first, in float64, by the
    names that a training graph has for them.
    """
    strict(torch)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = without_dropout(torch, deepcopy(made[0])).to(device).train()
    given = tuple(x.to(device) for x in made[1])
    with torch.no_grad():
        scores = deepcopy(network)(*given)
    network = network.to(dtype)
    given = tuple(x.to(dtype) if x.is_floating_point() else x for x in given)
    loss = loss_of(torch, scores.to(dtype))
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
    losses: list[float] = []
    gradients: dict[str, Array] = {}
    for _ in range(steps):
        optimiser.zero_grad(set_to_none=True)
        value = loss(network(*given))
        value.backward()
        if not gradients:
            moved = ((name, p.grad) for name, p in network.named_parameters() if p.grad is not None)
            gradients = {f"p_network_{n.replace('.', '_')}".lower(): g.double().cpu().numpy() for n, g in moved}
        optimiser.step()
        losses.append(float(value.detach()))
    return losses, gradients


def compared(ours: Mapping[str, Array], made: Made, steps: int) -> dict[str, Any]:
    """Return what a row says of float64: its losses and those of PyTorch in float32, and how far the gradients of
    either are from its own.
    """
    exact_losses, exact = torch_steps(made, torch.float64, steps)
    torch_losses, single = torch_steps(made, torch.float32, steps)
    mine = {name.lower(): array for name, array in ours.items()}
    missing = sorted(exact.keys() ^ mine.keys())
    return {
        "exact_losses": exact_losses,
        "exact_torch_losses": torch_losses,
        "exact_missing": missing,
        "exact_gradients": {"cuts": off(mine, exact), "torch": off(single, exact)},
    }


def off(found: Mapping[str, Array], exact: Mapping[str, Array]) -> dict[str, Any]:
    """Return how far gradients are from those of float64: of all together, of the median and of the worst parameter,
    and those that are farthest off.

    Where a gradient is nothing but rounding (that of a shift in front of a batch norm is zero), the difference is
    relative to the norm of all: its own says nothing.
    """
    names = [name for name in exact if name in found]
    differences = {n: float(np.linalg.norm(found[n].astype(np.float64).ravel() - exact[n].ravel())) for n in names}
    norms = {n: float(np.linalg.norm(exact[n].ravel())) for n in names}
    whole = float(np.linalg.norm(list(norms.values()))) or 1.0
    least = whole * float(np.finfo(np.float32).eps)
    relative = {n: differences[n] / (norms[n] if norms[n] > least else whole) for n in names}
    worst = sorted(names, key=lambda n: -relative[n])[:NAMED]
    return {
        "all": float(np.linalg.norm(list(differences.values()))) / whole,
        "median": float(np.median(list(relative.values()))),
        "most": max(relative.values()),
        "parameters": len(names),
        "farthest": {n: relative[n] for n in worst},
    }


def text_of(row: Mapping[str, Any]) -> str:
    """Return a line about a row that was compared with float64, nothing about another."""
    if "exact_gradients" not in row:
        return ""
    sides = {"cuts": row.get("losses", ()), "torch": row["exact_torch_losses"]}
    told = [_side(name, losses, row) for name, losses in sides.items()]
    missing = f"; {len(row['exact_missing'])} parameters have no partner" if row["exact_missing"] else ""
    return f"{'  to float64':<20}{'  '.join(told)}{missing}"


def _side(name: str, losses: Sequence[float], row: Mapping[str, Any]) -> str:
    known = row["exact_gradients"][name]
    far = max((abs(a - b) / abs(b) for a, b in zip(losses, row["exact_losses"], strict=False)), default=float("nan"))
    return (
        f"{name}: losses off {far:.1e}, gradients {known['all']:.1e} in all, {known['median']:.1e} median,"
        f" {known['most']:.1e} most"
    )
