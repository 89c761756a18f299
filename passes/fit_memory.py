"""Memory limit: values are rematerialised until the live ones fit."""

from __future__ import annotations

import logging

from attrs import evolve

from .context import CompileContext
from .graph import Rematerialise
from .results import Algorithms

_LOG = logging.getLogger("cuts.passes")


def fit_memory(previous: Algorithms, context: CompileContext) -> Algorithms:
    """Return the graph with values rematerialised until it fits the memory."""
    if (room := context.memory_limit) is None:
        return previous
    before = previous.graph
    step = Rematerialise(context.instances, round(room))
    graph = step.run(before)
    _LOG.info(
        "cuts: %d values are computed again: values take about %.4g MB at once in place of %.4g MB, and %.4g MB "
        "more are read and written, in %.3g ms at the least",
        len(step.again), step.peaks[1] / 2**20, step.peaks[0] / 2**20, step.moved / 2**20,
        step.moved / context.target.BW_global * 1e3,
    )  # fmt: skip
    known = {value for node in before.nodes for value in node.outputs}
    fresh = {value for node in graph.nodes for value in node.outputs} - known
    return evolve(previous, graph=graph, rematerialised=frozenset(fresh))
