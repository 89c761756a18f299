"""Depth: work follows the distinct kernels of a model, not its layers."""

from __future__ import annotations

import cProfile
import pstats
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir.compiled import Budget, CompileOptions
from cuts.ir.graph import Graph
from cuts.ops import Registry
from cuts.passes.context import CompileContext
from cuts.passes.graph.simplification import compose_movement
from cuts.passes.pipeline import all_stages
from cuts.search.session import TuningSession
from cuts.search.tuner.tuner import Tuner

from ..gradients.networks import Network, layer_norm
from .fakes import OPENCL
from .simulation import FakeClock, SimulatedGPU, SimulatedWorkers, session
from .test_budgets import SHORT_SEARCH

TOKENS, WIDTH, HEADS = 16, 16, 2
FEW_LAYERS, SOME_LAYERS, MORE_LAYERS, MANY_LAYERS = 2, 6, 12, 36
#: Most growth of the evaluations of a stage from few layers to many.
MAX_GROWTH = 1.5
#: Most growth of the calls of a stage for each further layer: none of them is quadratic.
MAX_CALLS_GROWTH = 1.25
#: Functions that do the work of stages, by the name of their module and their own.
EVALUATIONS = {
    "compose-movement": ("compose_movement.py:compose", "compose_movement.py:_index_map"),
    "programs": ("instantiate.py:instantiate", "cut_units.py:cut_units"),
    "divide-behind": ("normalise.py:normalise",),
    "centre-means": ("normalise.py:normalise",),
    "layouts": (
        "accesses.py:_count",
        "number_products.py:_count",
        "accesses.py:_inverse_of",
        "dim_runs.py:_has_other_use",
        "mma_templates.py:is_mma_computable",
    ),
    "pack": ("normalise.py:normalise", "pack.py:_orders", "mma_templates.py:is_mma_computable"),
    "partition": ("group_builder.py:_normal_form", "analytic_cost.py:cost", "features.py:count_features"),
    "schedule": ("enumerate.py:evaluate", "features.py:count_features"),
    "lower": ("lower.py:lower",),
    "extract": ("extract.py:extract",),
    "emit": ("emit.py:emit",),
}
#: A GPU whose kernels no compiler is needed for.
GPU = evolve(find_target("cuda:sm_90"), dialect="opencl")


def encoder(layers: int) -> Graph:
    """Return an encoder of equal layers.

    Movements split and join heads, as exporters write them.
    """
    net = Network("encoder")
    h = net.input("x", 1, TOKENS, WIDTH)
    for n in range(layers):
        mark = f"{layers}.{n}."  # no cache of the process knows the names of another depth
        heads = []
        for name in "qkv":
            net.op("reshape", _dense(net, h, mark + name, WIDTH), out=f"{mark}{name}.row", shape=(TOKENS, WIDTH))
            split = (1, TOKENS, HEADS, WIDTH // HEADS)
            net.op("reshape", f"{mark}{name}.row", out=f"{mark}{name}.split", shape=split)
            heads.append(net.op("transpose", f"{mark}{name}.split", out=f"{mark}{name}.heads", perm=(0, 2, 1, 3)))
        net.op("attention", *heads, out=f"{mark}mixed")
        net.op("transpose", f"{mark}mixed", out=f"{mark}turned", perm=(0, 2, 1, 3))
        net.op("reshape", f"{mark}turned", out=f"{mark}joined", shape=(1, TOKENS, WIDTH))
        net.op("add", h, _dense(net, f"{mark}joined", f"{mark}o", WIDTH), out=f"{mark}seen")
        h = layer_norm(net, f"{mark}seen", f"{mark}ln1", WIDTH)
        net.op("gelu", _dense(net, h, f"{mark}up", 2 * WIDTH), out=f"{mark}gelu")
        net.op("add", h, _dense(net, f"{mark}gelu", f"{mark}down", WIDTH), out=f"{mark}thought")
        h = layer_norm(net, f"{mark}thought", f"{mark}ln2", WIDTH)
    return net.graph(h)


def _dense(net: Network, x: str, name: str, results: int) -> str:
    net.op("matmul", x, net.weight(name, net.types[x].shape[-1], results), out=f"{name}.product")
    return net.op("add", f"{name}.product", net.weight(f"{name}.bias", results), out=f"{name}.sum")


@cache
def calls_by_stage(layers: int) -> dict[str, Counter[str]]:
    """Return the calls of each function in each stage."""
    compose_movement.compose.cache_clear()
    compose_movement._index_map.cache_clear()
    context = CompileContext(Registry.builtin(), GPU, CompileOptions(mode="mixed"), emit)
    result, found = encoder(layers), {}
    for stage in all_stages(context.registry):
        profile = cProfile.Profile()
        result = profile.runcall(stage.perform, result, context)
        calls = Counter[str]()
        for (file, _, name), (_, number, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
            calls[f"{file.rpartition('/')[2]}:{name}"] += number
        found[stage.name] = calls
    return found


@pytest.mark.parametrize("stage", EVALUATIONS)
def test_stages_evaluate_equal_layers_once(stage: str) -> None:
    few, many = (sum(calls_by_stage(n)[stage][f] for f in EVALUATIONS[stage]) for n in (FEW_LAYERS, MANY_LAYERS))
    assert many <= MAX_GROWTH * few


def test_no_stage_is_quadratic() -> None:
    """Caches of the process are filled first."""
    _, some, more, many = (calls_by_stage(n) for n in (FEW_LAYERS, SOME_LAYERS, MORE_LAYERS, MANY_LAYERS))
    for stage in many:
        each = (more[stage].total() - some[stage].total()) / (MORE_LAYERS - SOME_LAYERS)
        further = (many[stage].total() - more[stage].total()) / (MANY_LAYERS - MORE_LAYERS)
        assert further <= MAX_CALLS_GROWTH * each + 8, stage


def simulate_search(layers: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], float]:
    """Return the jobs and measurements of a simulated search, and its seconds."""
    found = Counter[str]()

    def count(owner: type, name: str, key: Callable[..., str]) -> None:
        before = getattr(owner, name)

        def call(self: object, *more: object) -> object:
            found[key(*more)] += 1
            return before(self, *more)

        monkeypatch.setattr(owner, name, call)

    count(SimulatedWorkers, "submit", lambda job: job.method)
    count(SimulatedGPU, "check", lambda problem, built: "check")
    count(SimulatedGPU, "sample", lambda problem, built, repeats: problem.key)
    clock = FakeClock()
    tuning = TuningSession(OPENCL, Tuner(session(Budget.of(None, clock), clock)), SHORT_SEARCH)
    tuning.compile(encoder(layers), Registry.builtin(), OPENCL, CompileOptions(mode="mixed"), emit)
    return found, clock()


@pytest.mark.long
def test_search_measures_equal_layers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers have the same kernels."""
    with monkeypatch.context() as patch:
        few = simulate_search(FEW_LAYERS, patch)
    with monkeypatch.context() as patch:
        many = simulate_search(MANY_LAYERS, patch)
    assert many == few
