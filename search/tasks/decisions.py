"""Decision records of whole graphs: decisions, kernels and their total time.

A graph is identified by its structure (operations, attributes, types; no names and no weights), the vocabulary, the
compile options and the machine, for any compiler. A graph without a record of its own uses that of a similar graph.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import cattrs
from attrs import frozen

from ...ir import BOUND_PRUNING, CompileOptions, Graph
from ...store import describe, digest

if TYPE_CHECKING:
    from ...passes import Decisions

#: Fact of a machine that affects times but hardly the partition of a graph.
COMPILER = "compiler"
#: Changes whenever a question would no longer mean the same; the way of timing is no part of it.
FORMAT = 1
#: Entry of a question for libraries, which decisions no longer depend on.
NO_LIBRARIES = False
#: Entries of a question that describe its graph.
GRAPH_ENTRIES = ("graph", "declarations")
_CONVERTER = cattrs.Converter(forbid_extra_keys=True)


@frozen
class Question:
    """Graph on a machine, whose partition is requested.

    The key is the SHA-256 of `description`; `nodes` are the fingerprints of the graph's nodes.
    """

    description: str
    label: str
    nodes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Key of the decision record."""
        return digest(self.description)

    def nearest(self, answers: Iterable[DecisionRecord]) -> DecisionRecord | None:
        """Return the record of the most similar graph with equal options.

        It must share half of the nodes in the same order, as a replay matches them; the result is None where there is
        none. Networks of one family have most nodes in common, in other places.
        """
        wanted, own = Counter(self.nodes), _circumstances(self.description)
        least, found = len(self.nodes) / 2, None
        for answer in answers:
            decisions = answer.read() if _circumstances(answer.description) == own else None
            if decisions is None or sum((wanted & Counter(decisions.nodes)).values()) <= least:
                continue
            if (common := len(decisions.match_nodes(self.nodes))) > least:
                least, found = common, answer
        return found


@frozen
class DecisionRecord:
    """Decision record of a graph.

    It has the decisions as text, the keys of the kernels' tuning tasks, the seconds of all launches, and whether the
    search is finished.
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
        from ...passes import Decisions

        try:
            found = json.loads(self.decisions)
            for group in found["groups"]:
                group.pop("slices", None)  # earlier versions divided reductions within a kernel, too
            return _CONVERTER.structure(found, Decisions)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, cattrs.BaseValidationError):
            return None


def decisions_text(decisions: Decisions) -> str:
    """Return decisions as text for `DecisionRecord.read`."""
    return json.dumps(_CONVERTER.unstructure(decisions), separators=(",", ":"))


def _circumstances(description: str) -> object:
    """Return the entries of a question besides its graph; None where the text is no question."""
    try:
        found = json.loads(description)
    except (ValueError, RecursionError):
        return None
    return [(k, found[k]) for k in sorted(found) if k not in GRAPH_ENTRIES] if isinstance(found, dict) else None


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
        "options": f"{options.mode} {options.precision} {bool(options.debug)} "
        f"{options.horizontal_fusion} {NO_LIBRARIES}"
        + ("" if options.memory is None else f" {options.memory}")
        + ("" if options.deterministic else " atomic")
        + ("" if options.pruning == BOUND_PRUNING else f" {options.pruning}"),
        "machine": {name: fact for name, fact in sorted(machine.items()) if name != COMPILER},
    }
    return Question(describe(parts), graph.name, nodes)


def structure_of(graph: Graph) -> str:
    """Return the fingerprint of a graph.

    It is equal for graphs that differ only in the names of values and nodes and in the numbers of constants.
    """
    found = hashlib.sha256()
    for line in _lines(graph):
        found.update(line.encode() + b"\n")
    return found.hexdigest()


def _lines(graph: Graph) -> Iterator[str]:
    """Yield the structure of a graph, values by their number."""
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
