"""What a pass is, and running a list of them with the verifier at the seams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeAlias

from ...ir import CutsError, Graph, Infer, PassError, naming_faults, parts_of, raise_all, retold, violations

#: Called with a pass's name and the graph it made.
AfterPass: TypeAlias = Callable[[str, Graph], None]
#: What passes made of graphs, which are kept so that no other one gets the identity of one that is gone.
_Made: TypeAlias = "dict[tuple[int, Pass], tuple[Graph, Graph]]"
_MADE: ContextVar[_Made | None] = ContextVar("_MADE", default=None)


class Pass(Protocol):
    """A rewriting of graphs that keeps what they compute."""

    @property
    def name(self) -> str:
        """The kebab-case name that the command line knows the pass by."""

    def run(self, graph: Graph) -> Graph:
        """Return the rewritten graph."""


@contextmanager
def remembered_passes() -> Iterator[None]:
    """Let passes be run once on each graph in a block: one compilation asks several times, for the name of the model,
    for its plan, and for plans that compete with that.
    """
    token = None if _MADE.get() is not None else _MADE.set({})
    try:
        yield
    finally:
        if token is not None:
            _MADE.reset(token)


def run_passes(
    graph: Graph, passes: Iterable[Pass], after: AfterPass | None = None, infer: Infer | None = None
) -> Graph:
    """Run passes in order; `infer` turns on verification after each, `after` sees each result.

    Raises `PassError`, which names the pass, where one fails or breaks the graph.
    """
    for step in passes:
        try:
            with naming_faults(f"pass '{step.name}'"):
                graph = _made(step, graph)
        except PassError:
            raise
        except CutsError as error:
            raise retold(error, PassError, f"pass '{step.name}': ") from error
        if infer is not None:
            _verify(step.name, graph, infer)
        if after is not None:
            after(step.name, graph)
    return graph


def _made(step: Pass, graph: Graph) -> Graph:
    """Return what a pass makes of a graph."""
    made = _MADE.get()
    if made is None:
        return step.run(graph)
    key = id(graph), step
    if key not in made:
        made[key] = graph, step.run(graph)
    return made[key][1]


def _verify(name: str, graph: Graph, infer: Infer) -> None:
    try:
        raise_all(list(violations(graph, infer)))
    except CutsError as error:
        raise PassError(
            f"pass '{name}' broke the graph: " + "; ".join(part.message for part in parts_of(error))
        ) from error
