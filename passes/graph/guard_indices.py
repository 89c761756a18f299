"""Debug mode: a graph with range checks of all integer indices.

Each operation that indexes by a tensor of integers gets a further node, of an operation that
`ops/index_checks` derives from its declaration; the results of these nodes are outputs, which the runtime reads after a
run. Constants are checked at once.

    %y = gather(%x, %ids)    ->    %y.place, %y.found = gather_indices_...(%ids)
                                   %y = gather(%x, %ids)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from attrs import define, evolve, field, frozen

from ...ir import DType, Graph, IndexCheck, Node, Program, Source, TensorType, fresh_name
from ...ops import Finding, Registry, evaluate, index_program
from ...ops.gradient import declare


@frozen
class Checked:
    """Graph with index checks among its outputs, and its extended vocabulary."""

    graph: Graph
    registry: Registry
    checks: tuple[IndexCheck, ...] = ()


def check_indices(graph: Graph, registry: Registry) -> Checked:
    """Return the graph with a check of every index from data."""
    return _Checker(graph, registry, dict(graph.types), {node.name for node in graph.nodes}).run()


@define
class _Checker:
    """Graph and its extension."""

    graph: Graph
    registry: Registry
    types: dict[str, TensorType]
    taken: set[str]
    nodes: list[Node] = field(factory=list)
    checks: list[IndexCheck] = field(factory=list)

    def run(self) -> Checked:
        for node in self.graph.nodes:
            self._check(node)
            self.nodes.append(node)
        outputs = (*self.graph.outputs, *(name for check in self.checks for name in (check.place, check.found)))
        return Checked(
            evolve(self.graph, nodes=tuple(self.nodes), types=self.types, outputs=outputs),
            self.registry,
            tuple(self.checks),
        )

    def _check(self, node: Node) -> None:
        """Add the node that checks another one's indices, if it has any."""
        constants = self.graph.constants
        operands = [None if v is None else self.types[v] for v in node.inputs]
        known = {n: constants[v] for n, v in enumerate(node.inputs) if v is not None and v in constants}
        instance = self.registry.of(node).instantiate(operands, node.attributes, known)
        program, findings = index_program(instance.program)
        if not findings:
            return
        values = {
            formal: value for formal, value in zip(instance.inputs, node.inputs, strict=False) if formal and value
        }
        results = {formal: fresh_name(self.types, f"{node.outputs[0]}.{formal}") for formal in program.outputs}
        shapes = instance.program.tensors
        checks = [
            IndexCheck(
                node.origin or node.name, node.op, f.tensor, values.get(f.tensor, ""), shapes[f.tensor].shape, f.extent,
                results[f.place], results[f.found],
            )
            for f in findings
        ]  # fmt: skip
        inputs = tuple(values[formal] for formal in program.inputs)
        if all(value in constants for value in inputs):
            found = evaluate(program, {formal: constants[values[formal]] for formal in program.inputs})
            _raise_first(checks, findings, {name: int(array.item()) for name, array in found.items()})
            return
        self.types.update(dict.fromkeys(results.values(), TensorType(DType.I64, ())))
        name = fresh_name(self.taken, f"{node.name}.indices")
        self.taken.add(name)
        self.nodes.append(
            Node(
                name,
                self._declare_check(node.op, program),
                inputs,
                tuple(results.values()),
                {},
                node.origin,
                span=node.span,
            )
        )
        self.checks += checks

    def _declare_check(self, op: str, program: Program) -> str:
        """Return the name of a check's operation; equal ones are declared once."""
        name = f"{op}_indices_{hashlib.sha256(declare('check', '', program).encode()).hexdigest()[:10]}"
        if name not in self.registry:
            text = declare(name, f"the first index of {op} that is out of range, if any", program)
            self.registry = self.registry.extend(Source(f"{name}.cuts", text))
        return name


def _raise_first(checks: Sequence[IndexCheck], findings: Sequence[Finding], values: dict[str, int]) -> None:
    for check, finding in zip(checks, findings, strict=True):
        if (error := check.error(values[finding.place], values[finding.found])) is not None:
            raise error
