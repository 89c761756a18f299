"""Interface of a graph pass; runs passes with verification after each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeAlias

from ...ir import (
    CutsError,
    Graph,
    Infer,
    ObjectCache,
    PassError,
    convert_error,
    naming_faults,
    raise_all,
    single_errors,
    violations,
)

#: Called with a pass's name and its result.
AfterPass: TypeAlias = Callable[[str, Graph], None]
#: Results of passes by graph.
_Results: TypeAlias = "ObjectCache[dict[Pass, Graph]]"
_RESULTS: ContextVar[_Results | None] = ContextVar("_MADE", default=None)


class Pass(Protocol):
    """Rewriting of graphs that preserves their results."""

    @property
    def name(self) -> str:
        """Kebab-case name of the pass on the command line."""

    def run(self, graph: Graph) -> Graph:
        """Return the rewritten graph."""


@contextmanager
def memoised_passes() -> Iterator[None]:
    """Context manager that memoises passes on equal graphs.

    One compilation needs their results for the name of the model, for its plan, and for candidate plans.
    """
    token = None if _RESULTS.get() is not None else _RESULTS.set(ObjectCache())
    try:
        yield
    finally:
        if token is not None:
            _RESULTS.reset(token)


def run_passes(
    graph: Graph, passes: Iterable[Pass], after: AfterPass | None = None, infer: Infer | None = None
) -> Graph:
    """Run passes in order; `infer` enables verification, `after` gets each result.

    Raises `PassError`, which names the pass, where one fails or breaks the graph.
    """
    for step in passes:
        try:
            with naming_faults(f"pass '{step.name}'"):
                graph = _run_memoised(step, graph)
        except PassError:
            raise
        except CutsError as error:
            raise convert_error(error, PassError, f"pass '{step.name}': ") from error
        if infer is not None:
            _verify(step.name, graph, infer)
        if after is not None:
            after(step.name, graph)
    return graph


def _run_memoised(step: Pass, graph: Graph) -> Graph:
    cache = _RESULTS.get()
    if cache is None:
        return step.run(graph)
    made = cache.find(graph, dict)
    if step not in made:
        made[step] = step.run(graph)
    return made[step]


def _verify(name: str, graph: Graph, infer: Infer) -> None:
    try:
        raise_all(list(violations(graph, infer)))
    except CutsError as error:
        raise PassError(
            f"pass '{name}' broke the graph: " + "; ".join(part.message for part in single_errors(error))
        ) from error
