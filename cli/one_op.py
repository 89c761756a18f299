"""Graph of one operation with operand shapes of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ir import Attribute, DType, Graph, Node, TensorType, UsageError, quote, verify_graph
from ..ops import OpDecl, Registry
from ..ops.language import CLASSES

#: Preferred element types where a declaration leaves a choice, the first allowed one.
_DTYPE_ORDER = (DType.F32, DType.I64, DType.BOOL)

#: Operands' names and shapes, in the order given; a variadic operand occurs several times.
Shapes = Sequence[tuple[str, Sequence[int]]]


def graph_of_op(name: str, registry: Registry, shapes: Shapes, attributes: Mapping[str, Attribute]) -> Graph:
    """Return a graph of one node whose operands have the shapes given.

    Raises `UsageError` where operands lack a shape or have one too many, and the declaration's errors for the rest.
    """
    decl = registry[name]
    _check_names(decl, [given for given, _ in shapes])
    inputs, types = _operands(decl, shapes)
    infer = registry.instances.infer
    trial = Node(name, name, inputs, tuple(result.name for result in decl.results), dict(attributes))
    found = infer(trial, [types[value] if value else None for value in inputs])
    outputs = _outputs(decl, len(found))
    node = Node(name, name, inputs, outputs, dict(attributes))
    graph = Graph(name, tuple(types), outputs, types | dict(zip(outputs, found, strict=True)), (node,), {})
    return verify_graph(graph, infer)


def _check_names(decl: OpDecl, given: Sequence[str]) -> None:
    known = [operand.name for operand in decl.operands]
    several = {operand.name for operand in decl.operands if operand.variadic}
    problems = [f"has no operand {quote(name)}" for name in given if name not in known]
    problems += [f"needs a shape of {quote(o.name)}" for o in decl.operands if not o.optional and o.name not in given]
    problems += [f"takes one operand {quote(n)}" for n in known if given.count(n) > 1 and n not in several]
    if problems:
        shape = " ".join(f"--shape {name}=2x3" for name in known)
        raise UsageError(f"operation {quote(decl.name)} {problems[0]}", hint=f"operands are given as in {shape}")


def _operands(decl: OpDecl, shapes: Shapes) -> tuple[tuple[str | None, ...], dict[str, TensorType]]:
    """Return the inputs of the node, None for an optional one that is left out in the middle, and their types."""
    inputs: list[str | None] = []
    types: dict[str, TensorType] = {}
    for operand in decl.operands:
        own = [shape for name, shape in shapes if name == operand.name]
        names = [f"{operand.name}{number}" for number in range(len(own))] if operand.variadic else [operand.name]
        types |= {
            name: TensorType(_element_type(decl, operand.dtype), tuple(s)) for name, s in zip(names, own, strict=False)
        }
        inputs += names if own else [None]
    while inputs and inputs[-1] is None:
        inputs.pop()
    return tuple(inputs), types


def _outputs(decl: OpDecl, count: int) -> tuple[str, ...]:
    """Return the results' names; one that stands for several is numbered."""
    names = [result.name for result in decl.results]
    return tuple(names[:count]) if count <= len(names) else tuple(f"{names[-1]}{number}" for number in range(count))


def _element_type(decl: OpDecl, written: str) -> DType:
    """Return the element type of an operand: the one its declaration fixes, else the first that it allows."""
    allowed = [d for c in decl.element_types.get(written, (written,)) for d in CLASSES.get(c, CLASSES["any"])]
    return next((dtype for dtype in _DTYPE_ORDER if dtype in allowed), allowed[0])
