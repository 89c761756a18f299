"""Decisions about whole graphs, as they are kept and travel: what measuring decided, which kernels it takes, and what
these take together.

A graph is found by its structure (operations, attributes, types; no names and no weights), the vocabulary, the way of
compiling, and the machine, whichever compiler is on it. Where nobody asked about it before, decisions about another one
hold where the two are alike.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import cattrs
from attrs import frozen

from ..ir import CompileOptions, Graph
from ..passes import Decisions
from .problem import digest

#: The fact of a machine that times depend on, but hardly how a graph is best cut.
COMPILER = "compiler"
#: Changed whenever a question would no longer mean what it meant; how kernels are timed is no part of it.
FORMAT = 1
#: What a question says of libraries: their routines took part in decisions once, which depend on them no more.
NO_LIBRARIES = False
#: What a question says of its graph, and of what that is written in.
ABOUT = ("graph", "declarations")
_CONVERTER = cattrs.Converter(forbid_extra_keys=True)


@frozen
class Question:
    """A graph on a machine, whose cut into kernels is asked for; `description` is what its key is the SHA-256 of, and
    `nodes` are the marks of the graph's.
    """

    description: str
    label: str
    nodes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Under which the answer is kept."""
        return digest(self.description)

    def nearest(self, answers: Iterable[DecidedGraph]) -> DecidedGraph | None:
        """Return the answer about the graph that is most like this one, of those that have half of its nodes and were
        asked for alike; nothing where there is none.
        """
        wanted, own = Counter(self.nodes), _circumstances(self.description)
        least, found = len(self.nodes) / 2, None
        for answer in answers:
            decisions = answer.read() if _circumstances(answer.description) == own else None
            alike = sum((wanted & Counter(decisions.nodes)).values()) if decisions is not None else 0
            if alike > least:
                least, found = alike, answer
        return found


@frozen
class DecidedGraph:
    """What is known of a question: the decisions as text, the keys of the kernels' problems, the seconds of all
    launches, and whether there is nothing more to search.
    """

    key: str
    description: str
    label: str
    decisions: str
    problems: tuple[str, ...]
    seconds: float
    finished: bool

    def read(self) -> Decisions | None:
        """Return the decisions; None where the text is damaged."""
        try:
            return _CONVERTER.structure(json.loads(self.decisions), Decisions)
        except (ValueError, TypeError, KeyError, RecursionError, cattrs.BaseValidationError):
            return None


def decisions_text(decisions: Decisions) -> str:
    """Return decisions as text that `DecidedGraph.read` understands."""
    return json.dumps(_CONVERTER.unstructure(decisions), separators=(",", ":"))


def _circumstances(description: str) -> object:
    """Return what a question says besides its graph and the vocabulary; nothing where it is none."""
    try:
        found = json.loads(description)
    except (ValueError, RecursionError):
        return None
    return [(k, found[k]) for k in sorted(found) if k not in ABOUT] if isinstance(found, dict) else None


def question_of(
    graph: Graph,
    declarations: Mapping[str, str],
    options: CompileOptions,
    machine: Mapping[str, str],
    nodes: tuple[str, ...] = (),
) -> Question:
    """Return the question of a compilation."""
    parts = {
        "format": str(FORMAT),
        "graph": structure_of(graph),
        "declarations": digest(repr(sorted(declarations.values()))),
        "options": f"{options.mode} {options.precision} {bool(options.debug)} {options.side_by_side} {NO_LIBRARIES}"
        + ("" if options.memory is None else f" {options.memory}"),
        "machine": {name: fact for name, fact in sorted(machine.items()) if name != COMPILER},
    }
    return Question(json.dumps(parts, indent=1, sort_keys=True), graph.name, nodes)


def structure_of(graph: Graph) -> str:
    """Return a digest of a graph that is equal for graphs whose values and nodes only have other names, and whose
    constants have other numbers.
    """
    found = hashlib.sha256()
    for line in _lines(graph):
        found.update(line.encode() + b"\n")
    return found.hexdigest()


def _lines(graph: Graph) -> Iterator[str]:
    """Yield what decides about the structure, values by their number."""
    numbers: dict[str, int] = {}
    for value in graph.inputs:
        numbers[value] = len(numbers)
        yield f"input {graph.types[value]}"
    for node in graph.nodes:
        for value in node.operands:  # constants are numbered where they are first read
            if value not in numbers:
                numbers[value] = len(numbers)
                yield f"constant {graph.types[value]}"
        read = " ".join("-" if v is None else str(numbers[v]) for v in node.inputs)
        attributes = repr(sorted(node.attributes.items()))
        for value in node.outputs:
            numbers[value] = len(numbers)
        types = " ".join(str(graph.types[v]) for v in node.outputs)
        yield f"{node.op} {read} {attributes} {types} {node.declaration}"
    yield "outputs " + " ".join(str(numbers.get(v, graph.types[v])) for v in graph.outputs)
