"""Decisions about whole graphs, as they are kept and travel: what measuring decided, which kernels it takes, and what
these take together.

A graph is found by its structure (operations, attributes, types; no names and no weights), the vocabulary, the way of
compiling, and the machine, whichever compiler is on it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

import cattrs
from attrs import frozen

from ..ir import CompileOptions, Graph
from ..passes import Decisions
from .problem import FORMAT, digest

#: The fact of a machine that times depend on, but hardly how a graph is best cut.
COMPILER = "compiler"
_CONVERTER = cattrs.Converter(forbid_extra_keys=True)


@frozen
class Question:
    """A graph on a machine, whose cut into kernels is asked for; `description` is what its key is the SHA-256 of."""

    description: str
    label: str

    @property
    def key(self) -> str:
        """Under which the answer is kept."""
        return digest(self.description)


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


def question_of(
    graph: Graph, declarations: Mapping[str, str], options: CompileOptions, machine: Mapping[str, str], libraries: bool
) -> Question:
    """Return the question of a compilation."""
    parts = {
        "format": str(FORMAT),
        "graph": structure_of(graph),
        "declarations": digest(repr(sorted(declarations.values()))),
        "options": f"{options.mode} {options.precision} {bool(options.debug)} {options.side_by_side} {libraries}"
        + ("" if options.memory is None else f" {options.memory}"),
        "machine": {name: fact for name, fact in sorted(machine.items()) if name != COMPILER},
    }
    return Question(json.dumps(parts, indent=1, sort_keys=True), graph.name)


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
