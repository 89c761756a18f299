"""A training step of each model: forward, loss, backward, a step of gradient descent with momentum; strict fp32.

The model is what compilers get; the loss (cross entropy of classes, words, labels and places, of clicks the binary one)
and the optimiser are PyTorch's for all. DeepSpeech2 is trained on a label of each step instead of by CTC, whose kernels
no graph captures. Steps are captured as CUDA graphs; the error is that of the loss behind a few steps, relative to
PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from time import perf_counter
from typing import Any

from cuts.compile.torch_backend import cuts_backend

from .models import Made
from .torch_calls import graphed, strict, time_calls

#: Steps behind which losses are compared.
STEPS = 3
RATE, MOMENTUM = 1e-3, 0.9


def loss_of(torch: Any, scores: Any) -> Callable[[Any], Any]:
    """Return the loss of scores like these against random targets: [N, 1] are chances, others scores of what the last
    dim counts.
    """
    torch.manual_seed(1)
    if scores.shape[-1] == 1:
        clicks = torch.randint(2, scores.shape, device=scores.device).to(scores.dtype)
        return lambda found: torch.nn.functional.binary_cross_entropy(found, clicks)
    classes = torch.randint(scores.shape[-1], (scores[..., 0].numel(),), device=scores.device)
    return lambda found: torch.nn.functional.cross_entropy(found.reshape(-1, found.shape[-1]), classes)


def without_dropout(torch: Any, network: Any) -> Any:
    """Return a network that drops nothing, as each system would drop something else; it is changed."""
    for part in network.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        elif isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.0
    return network


def compiled(torch: Any, network: Any, way: str, budget: float) -> Any:
    """Return a network as a system calls it."""
    torch._dynamo.reset()
    if way == "PyTorch":
        return network
    if way == "cuts door":  # the budget is of each graph, and there are two
        return torch.compile(network, backend=cuts_backend, options={"budget": budget / 2})
    return torch.compile(network)


def step_of(torch: Any, made: Made, way: str, budget: float) -> Callable[[], Any]:
    """Return one step of a fresh copy of a network, which returns its loss."""
    network = without_dropout(torch, deepcopy(made[0])).to("cuda").train()
    given = tuple(x.to("cuda") for x in made[1])
    with torch.no_grad():
        loss = loss_of(torch, deepcopy(network)(*given))
    call = compiled(torch, network, way, budget)
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)

    def step() -> Any:
        found = loss(call(*given))
        found.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=False)
        return found.detach()

    return step


def reference_losses(torch: Any, made: Made) -> list[float]:
    """Return the losses of PyTorch's first steps."""
    strict(torch)
    step = step_of(torch, made, "PyTorch", 0.0)
    return [float(step()) for _ in range(STEPS)]


def train(torch: Any, made: Made, way: str, budget: float) -> dict[str, Any]:
    """Time a step of a system that PyTorch calls, and compare its loss with PyTorch's."""
    wanted = reference_losses(torch, made)[-1]
    torch.cuda.empty_cache()
    start = perf_counter()
    step = step_of(torch, made, way, budget)
    found = [float(step()) for _ in range(STEPS)][-1]
    seconds = perf_counter() - start
    timed = time_calls(torch, graphed(torch, step))
    row: dict[str, Any] = {"ms": timed.ms, "spread": timed.spread, "error": abs(found - wanted) / abs(wanted)}
    return row | {"seconds": seconds} | ({"budget": budget} if way == "cuts door" else {})
