"""Graphs by number.

The same seed gives the same graphs, and each can be reduced later.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from cuts.ir.graph import Graph
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.internal.conjecture import providers

from .graphs import graphs

#: Graphs that one run of Hypothesis draws, and how many it may draw for them.
BATCH, DRAWS = 25, 100


class _Differs(Exception):
    """Signal inside Hypothesis that a graph has the property."""


def draw_graphs(chosen: int, first: int, count: int) -> Iterator[tuple[int, Graph]]:
    """Yield `count` graphs with their numbers, from number `first` on."""
    for batch in range(first // BATCH, -(-(first + count) // BATCH)):
        for place, graph in enumerate(_batch(chosen, batch)):
            if first <= batch * BATCH + place < first + count:
                yield batch * BATCH + place, graph


def shrunk(chosen: int, number: int, shows: Callable[[Graph], bool], most: int) -> Graph:
    """Return Hypothesis's smallest graph from graph `number` on for which `shows` holds.

    `shows` is called at most `most` times.
    """
    batch, place = divmod(number, BATCH)
    least: list[Graph] = []
    fresh: list[Graph] = []
    known: set[Hashable] = set()
    asked = 0

    def look(graph: Graph) -> None:
        nonlocal asked
        if not least:
            if len(fresh) <= place and _is_new(graph, known):
                fresh.append(graph)
            if len(fresh) <= place or graph is not fresh[place]:
                return
        elif asked >= most or not shows(graph):
            return
        asked += 1
        least.append(graph)
        raise _Differs

    try:
        _engine(chosen, batch, look, (Phase.generate, Phase.shrink))
    except (
        BaseException
    ) as error:  # Hypothesis calls the least graph again and may find that the time for asking is over
        if not least:
            raise error
    return least[-1]


def _batch(chosen: int, batch: int) -> list[Graph]:
    """Return the graphs of a batch: of those that Hypothesis draws, which vary each other, the ones that begin in a way
    of their own.
    """
    found: list[Graph] = []
    known: set[Hashable] = set()

    def look(graph: Graph) -> None:
        if len(found) < BATCH and _is_new(graph, known):
            found.append(graph)

    _engine(chosen, batch, look, (Phase.generate,))
    return found


def _engine(chosen: int, batch: int, look: Callable[[Graph], None], phases: tuple[Phase, ...]) -> None:
    run = settings(
        max_examples=DRAWS, phases=phases, database=None, deadline=None, derandomize=False, print_blob=False,
        report_multiple_bugs=False, suppress_health_check=list(HealthCheck),
    )(given(graphs())(look))  # fmt: skip
    with same_anywhere():
        seed((chosen << 24) + batch)(run)()


@contextmanager
def same_anywhere() -> Iterator[None]:
    """Draw independently of the loaded modules.

    Hypothesis prefers numbers in the source of loaded modules, which differ between processes and versions.
    """
    finder = getattr(providers, "_get_local_constants", None)
    if finder is None:  # a version that looks for none
        yield
        return
    none = type(providers.GLOBAL_CONSTANTS)()
    providers._get_local_constants = lambda: none
    providers.CONSTANTS_CACHE.cache.clear()
    try:
        yield
    finally:
        providers._get_local_constants = finder
        providers.CONSTANTS_CACHE.cache.clear()


def _is_new(graph: Graph, known: set[Hashable]) -> bool:
    start = (graph.types[graph.inputs[0]], tuple(node.op for node in graph.nodes[:2]))
    return start not in known and (known.add(start) or True)  # type: ignore[func-returns-value]
