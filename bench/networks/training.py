"""Training step of each model.

It consists of forward pass, loss, backward pass, and gradient descent with momentum.

Compilers get the model; the loss (cross entropy of classes, words, labels and places, of clicks the binary one) and the
optimiser are PyTorch's for all. DeepSpeech2 is trained on a label of each step instead of by CTC, whose kernels no
graph captures. Steps are captured as CUDA graphs; the error is that of the loss after a few steps, relative to
PyTorch's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from time import perf_counter
from typing import Any

import cuts
from cuts.backends import find_target
from cuts.bench.operators.timing import capture_graph, set_precision, time_calls
from cuts.compile import load_model, load_spec
from cuts.compile.driver import tune_graph
from cuts.ir import CompileOptions
from cuts.ir.machine import PrecisionName
from cuts.search import Settings, summary_values, tuning_session

from .models import Made
from .peer_calls import autocast, first, import_jax, time_turns

#: Steps until losses are compared.
STEPS = 3
RATE, MOMENTUM = 1e-3, 0.9


def loss_of(torch: Any, scores: Any) -> Callable[[Any], Any]:
    """Return the loss of such scores against random targets.

    [N, 1] are probabilities, others scores along the last dim.
    """
    torch.manual_seed(1)
    if scores.shape[-1] == 1:
        clicks = torch.randint(2, scores.shape, device=scores.device).to(scores.dtype)
        return lambda found: torch.nn.functional.binary_cross_entropy(found, clicks)
    classes = torch.randint(scores.shape[-1], (scores[..., 0].numel(),), device=scores.device)
    return lambda found: torch.nn.functional.cross_entropy(found.reshape(-1, found.shape[-1]), classes)


def without_dropout(torch: Any, network: Any) -> Any:
    """Disable a network's dropout, which differs between systems; return it."""
    for part in network.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        elif isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.0
    return network


def step_of(torch: Any, made: Made, way: str, precision: str) -> Callable[[], Any]:
    """Return one step of a network's fresh copy; it returns its loss."""
    network = without_dropout(torch, deepcopy(made[0])).to("cuda").train()
    given = tuple(x.to("cuda") for x in made[1])
    with torch.no_grad():
        loss = loss_of(torch, deepcopy(network)(*given))
    torch._dynamo.reset()
    call = network if way == "PyTorch" else torch.compile(network)
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)

    def step() -> Any:
        with autocast(torch, precision):
            scores = call(*given)
        found = loss(scores.float())
        found.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=False)
        return found.detach()

    return step


def reference_losses(torch: Any, made: Made) -> list[float]:
    """Return the losses of PyTorch's first steps in strict fp32."""
    set_precision(torch)
    step = step_of(torch, made, "PyTorch", "fp32")
    return [float(step()) for _ in range(STEPS)]


def train(torch: Any, made: Made, way: str, precision: PrecisionName) -> dict[str, Any]:
    """Time a step of a system that PyTorch calls.

    Its loss is compared with PyTorch's.
    """
    wanted = reference_losses(torch, made)[-1]
    torch.cuda.empty_cache()
    set_precision(torch, precision)
    start = perf_counter()
    step = step_of(torch, made, way, precision)
    found = [float(step()) for _ in range(STEPS)][-1]
    seconds = perf_counter() - start
    timed = time_calls(torch, capture_graph(torch, [step]))
    row: dict[str, Any] = {"ms": timed.median * 1e3, "spread": timed.spread, "error": abs(found - wanted) / abs(wanted)}
    return row | {"seconds": seconds}


# ---- a step by XLA


def steps_by_xla(torch: Any, made: Made) -> tuple[Any, Callable[[int], Any]]:
    """Return JAX, and a call of some steps from the first weights.

    It returns the last loss. Gradients are JAX's; no statistics of norms are kept.
    """
    modules = import_module(f"{__package__}.modules")
    network = modules.ScoredRows(without_dropout(torch, deepcopy(made[0]).to("cpu"))).train()
    program = torch.export.export(network, made[1])
    jax, export = import_jax()
    values, function = export.exported_program_to_jax(program)
    count, numpy = len(program.graph_signature.parameters), jax.numpy
    values, rest, given = values[:count], values[count:], jax.device_put(tuple(x.numpy() for x in made[1]))
    target = jax.device_put(drawn_target(torch, jax.eval_shape(function, [*values, *rest], given)[0].shape).numpy())

    def loss(values: Any, given: Any, target: Any) -> Any:
        scores = first(function([*values, *rest], given))
        if scores.shape[-1] == 1:
            return -numpy.mean(target * numpy.log(scores) + (1 - target) * numpy.log1p(-scores))
        picked = numpy.take_along_axis(scores, target[:, None], 1)[:, 0]
        return numpy.mean(jax.nn.logsumexp(scores, -1) - picked)

    def steps(count: Any, values: Any, given: Any, target: Any) -> Any:
        def step(_: Any, carried: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            values, moments, _ = carried
            found, slopes = jax.value_and_grad(loss)(values, given, target)
            moments = [MOMENTUM * moment + slope for moment, slope in zip(moments, slopes, strict=True)]
            return [v - RATE * moment for v, moment in zip(values, moments, strict=True)], moments, found

        begin = (values, [numpy.zeros_like(value) for value in values], numpy.float32(0))
        return jax.lax.fori_loop(0, count, step, begin)[2]

    compiled = jax.jit(steps)
    return jax, lambda count: compiled(count, values, given, target)


def drawn_target(torch: Any, shape: tuple[int, ...]) -> Any:
    """Return random targets of scores of a shape, as `loss_of` draws them."""
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # which draws other numbers
    if shape[-1] == 1:
        return torch.randint(2, shape, device=device).to(torch.float32).cpu()
    return torch.randint(shape[-1], shape[:1], device=device).cpu()


def train_by_xla(torch: Any, made: Made) -> dict[str, Any]:
    """Time a step of XLA; its loss is compared with PyTorch's."""
    wanted = reference_losses(torch, made)[-1]  # before torchax is there, which PyTorch's autograd does not know
    torch.cuda.empty_cache()
    start = perf_counter()
    jax, run = steps_by_xla(torch, made)
    found, seconds = float(run(STEPS)), perf_counter() - start
    timed = time_turns(jax, run)
    row = {"ms": timed.median * 1e3, "spread": timed.spread, "error": abs(found - wanted) / abs(wanted)}
    return row | {"seconds": seconds}


# ---- a step as one graph


def training_graph(made: Made) -> cuts.Training:
    """Return a step of a network as a training graph."""
    torch, modules = import_module("torch"), import_module(f"{__package__}.modules")
    network = modules.ScoredRows(without_dropout(torch, deepcopy(made[0]).to("cpu"))).eval()
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
    """Return a step's inputs, and random targets as PyTorch has them."""
    torch, target = import_module("torch"), training.graph.types["target"]
    names = [name for name in training.graph.inputs if name not in (*training.initial, "target")]
    given = {name: tensor.numpy() for name, tensor in zip(names, made[1], strict=True)}
    classes = training.graph.types[training.graph.outputs[1]].shape[-1]
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # which draws other numbers
    drawn = torch.randint(2 if target.dtype.is_float else classes, target.shape, device=device)
    return {**given, "target": drawn.cpu().numpy().astype(target.dtype.numpy)}


def train_as_one_graph(torch: Any, made: Made, budget: float, precision: PrecisionName) -> dict[str, Any]:
    """Search for a step's plan within a budget, and time it.

    The budget in seconds includes import of the network and derivation of the step; the error is that of the loss after
    a few steps, relative to PyTorch's.
    """
    wanted = reference_losses(torch, made)[-1]
    torch.cuda.empty_cache()
    start, options = perf_counter(), CompileOptions(budget=budget, precision=precision)
    begun = options.begin()
    training = training_graph(made)
    imported = perf_counter() - start
    settings = Settings(libraries=True)  # they take part where they are installed, as users have it
    with tuning_session(find_target("cuda"), budget=begun, settings=settings) as session:
        plan = tune_graph(training.graph, training.spec, session.target, options, session)
        search = summary_values(session)
        stages = {name: round(taken, 1) for name, taken in session.budget.spent.items() if taken >= 0.1}
    seconds = perf_counter() - start
    found = training.run([batch_of(training, made)] * STEPS, plan, progress=False).losses[-1]
    timed = plan.session.time_compute(warmup=3, repeats=20)
    row: dict[str, Any] = {"ms": timed.median * 1e3, "spread": timed.spread, "error": abs(found - wanted) / abs(wanted)}
    kept = {name: search[name] for name in ("kernels", "measured", "compiled", "timed", "elapsed")}
    return row | {
        "budget_s": budget, "seconds": seconds, "import": imported, "launches": plan.plan.launch_count,
        "arena": plan.plan.arena, "search": kept, "stages": stages, "loss": [found, wanted],
    }  # fmt: skip
