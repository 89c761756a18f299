"""A training step of a workload as one graph of ours: forward, loss, backward and a step of the optimiser.

What is trained, the loss and the optimiser are those of `training.py`, so that losses compare step by step.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from time import perf_counter
from typing import Any

import cuts
import torch
from cuts.backends import find_target
from cuts.compile import build_graph, load_model, load_spec
from cuts.ir import CompileOptions
from cuts.search import Settings, summary_values, tuning_session

from .models import Made
from .training import MOMENTUM, RATE, STEPS, reference_losses, without_dropout


class ScoredRows(torch.nn.Module):
    """A network whose scores are rows, as a loss takes them."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """Return a row of scores for each sample, word or frame."""
        scores: torch.Tensor = self.network(*given)
        return scores.reshape(-1, scores.shape[-1])


def training_graph(made: Made) -> cuts.Training:
    """Return a step of a network as a training graph."""
    network = ScoredRows(without_dropout(torch, deepcopy(made[0]).to("cpu"))).eval()
    with warnings.catch_warnings():  # exporters warn of their own insides
        warnings.simplefilter("ignore")
        program = torch.export.export(network, made[1])
    form = cuts.in_training(load_model(program, load_spec([])), momentum=0.9, unbiased=True)
    (scores,) = form.graph.outputs
    loss = "cross_entropy" if form.graph.types[scores].shape[-1] > 1 else "bce_loss"
    graph = cuts.with_loss(form.graph, loss, prediction=scores)
    wrt = [name for name in graph.constants if name.startswith("p_")]
    return cuts.grad(graph, loss="loss", wrt=wrt, optimiser=cuts.SGD(RATE, MOMENTUM), updates=form.updates)


def batch_of(training: cuts.Training, made: Made) -> dict[str, Any]:
    """Return what a step is given: the network's inputs, and random targets as PyTorch's step has them."""
    target = training.graph.types["target"]
    names = [name for name in training.graph.inputs if name not in (*training.initial, "target")]
    given = {name: tensor.numpy() for name, tensor in zip(names, made[1], strict=True)}
    classes = training.graph.types[training.graph.outputs[1]].shape[-1]
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # which draws other numbers
    drawn = torch.randint(2 if target.dtype.is_float else classes, target.shape, device=device)
    return {**given, "target": drawn.cpu().numpy().astype(target.dtype.numpy)}


def train_as_one_graph(made: Made, budget: float) -> dict[str, Any]:
    """Search for the plan of a step within a budget of seconds, of which it is a part to read the network and to derive
    the step, and time it; the error is that of the loss behind a few steps, relative to PyTorch's.
    """
    wanted = reference_losses(torch, made)[-1]
    torch.cuda.empty_cache()
    start, options = perf_counter(), CompileOptions(budget=budget)
    begun = options.begin()
    training = training_graph(made)
    imported = perf_counter() - start
    settings = Settings(libraries=True)  # they take part where they are installed, as users have it
    with tuning_session(find_target("cuda"), budget=begun, settings=settings, quiet=True) as selector:
        plan = build_graph(training.graph, training.spec, selector.target, options, selector)
        search = summary_values(selector)
        stages = {name: round(taken, 1) for name, taken in selector.budget.spent.items() if taken >= 0.1}
    seconds = perf_counter() - start
    found = training.run([batch_of(training, made)] * STEPS, plan, progress=False).losses[-1]
    timed = plan.session.time_compute(warmup=3, repeats=20)
    row: dict[str, Any] = {"ms": timed.median * 1e3, "spread": timed.spread, "error": abs(found - wanted) / abs(wanted)}
    kept = {name: search[name] for name in ("kernels", "measured", "compiled", "timed", "elapsed")}
    return row | {
        "budget": budget, "seconds": seconds, "import": imported, "launches": plan.plan.launch_count,
        "arena": plan.plan.arena, "search": kept, "stages": stages, "loss": [found, wanted],
    }  # fmt: skip
