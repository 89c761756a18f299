"""Operands of a declaration that have a gradient; reasons for the others.

Both are read off the declaration, before any shape is known.

A derivative flows from a tensor to a numeric reader. It is lost in comparisons, conversions to integers, indices and
functions that are constant between jumps; `ops/gradient/derivatives.py` has the same rules for expressions at given
shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import field, frozen

from ...ir import COMBINERS, FUNCTIONS, DType
from ..language import OpDecl, children
from ..language import syntax as s
from .derivatives import RULES

_REAL = frozenset({"float", "number", "any", *(d.value for d in DType if d.is_float)})
_JUMPS = frozenset({"sign", "floor", "ceil", "trunc", "round", "//"})
_COMPARISONS = frozenset(
    {"<", "<=", ">", ">=", "==", "!=", "and", "or", "not", "lt", "le", "gt", "ge", "eq", "ne", "xor", "isnan", "isinf"}
)
_INTEGER_CASTS = frozenset({"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"})


@frozen
class Differentiability:
    """Operands by gradient: stated, derived, or none, with the reason."""

    stated: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    none: Mapping[str, str] = field(factory=dict)


def differentiability(decl: OpDecl) -> Differentiability:
    """Return which operands have a gradient."""
    types = decl.element_types
    real = {r.name for r in decl.results if _is_real(r.dtype, decl)}
    stated = () if decl.gradient is None else tuple(r[1:] for step in decl.gradient.steps for r in step.results)
    reached = _reaching_tensors(decl, real)
    none: dict[str, str] = {}
    derived: list[str] = []
    for operand in decl.operands:
        if operand.name in stated:
            continue
        if not _is_real(operand.dtype, decl):
            none[operand.name] = _kind(types.get(operand.dtype, (operand.dtype,)))
        elif not real:
            none[operand.name] = "the results are not real numbers"
        elif operand.name in reached:
            derived.append(operand.name)
        else:
            none[operand.name] = _why(decl, operand.name)
    return Differentiability(tuple(o.name for o in decl.operands if o.name in stated), tuple(derived), none)


def _is_real(dtype: str, decl: OpDecl) -> bool:
    return dtype in decl.attributes or bool(set(decl.element_types.get(dtype, (dtype,))) & _REAL)


def _kind(classes: tuple[str, ...]) -> str:
    return "truth values" if set(classes) == {"bool"} else "integers"


def _tensors(decl: OpDecl) -> dict[str, str]:
    """Return the element type of every tensor of a declaration."""
    temporaries = {t.name: t.dtype for item in decl.items if isinstance(item, s.TempItem) for t in item.temporaries}
    return {o.name: o.dtype for o in decl.operands} | {r.name: r.dtype for r in decl.results} | temporaries


def _reaching_tensors(decl: OpDecl, results: set[str]) -> set[str]:
    """Return the tensors from which a derivative reaches a result."""
    tensors = _tensors(decl)
    steps = {(t.target.name, name) for t in decl.assignments for name in _flows(t.value, decl, tensors)}
    found = set(results)
    while more := {name for target, name in steps if target in found and _is_real(tensors[target], decl)} - found:
        found |= more
    return found


def _flows(node: s.Expression, decl: OpDecl, tensors: Mapping[str, str]) -> set[str]:
    """Return the tensors that an expression depends on differentiably."""
    if isinstance(node, s.Name):
        return {node.id} & set(tensors)
    if isinstance(node, s.Subscript):
        return _flows(node.base, decl, tensors)
    if _blocks(node, decl):
        return set()
    parts = (node.then, node.other) if isinstance(node, s.Conditional) else children(node)
    if isinstance(node, (s.Reduction, s.Comprehension)):
        parts = (node.body,)
    elif isinstance(node, s.Call) and node.fn == "select":
        parts = node.args[1:]
    elif isinstance(node, s.Call) and (body := _bodies(decl).get(node.fn)) is not None:
        parts = (*parts, body)
    return set().union(*(_flows(part, decl, tensors) for part in parts))


def _bodies(decl: OpDecl) -> dict[str, s.Expression]:
    """Return the bodies of a declaration's own functions, by name."""
    bindings = (binding for item in decl.items if isinstance(item, s.LetItem) for binding in item.bindings)
    return {binding.name: binding.value for binding in bindings if binding.parameters}


def _blocks(node: s.Expression, decl: OpDecl) -> str:
    """Return a description of an expression that no derivative passes; an empty text where one does."""
    if isinstance(node, s.Reduction):
        return "its elements are only compared by size" if COMBINERS[node.kind].position else ""
    if isinstance(node, (s.Binary, s.Unary, s.Call)):
        name = node.fn if isinstance(node, s.Call) else node.op
        if name in _JUMPS:
            return "zero, as the result is constant between jumps"
        if name in _COMPARISONS:
            return "its elements are only compared"
        if name in _INTEGER_CASTS or (name in decl.element_types and not _is_real(name, decl)):
            return "its elements become integers"
        if name in ("rank", "present", "count") or (
            isinstance(node, s.Call) and name in FUNCTIONS and name not in RULES
        ):
            return "its elements are no numbers that one may differentiate by"
    return ""


def _why(decl: OpDecl, operand: str) -> str:
    """Return the reason that no derivative reaches a result from an operand, from where it is read."""
    tensors, reasons = _tensors(decl), dict[str, None]()
    names, seen = {operand}, set[str]()
    while names - seen:
        name = sorted(names - seen)[0]
        seen.add(name)
        for assignment in decl.assignments:
            found = list(_reads(assignment.value, name, "", decl))
            reasons |= dict.fromkeys(reason for reason in found if reason)
            if any(not reason for reason in found):
                if _is_real(tensors[assignment.target.name], decl):
                    names.add(assignment.target.name)
                else:
                    reasons["its elements become integers"] = None
    return " and ".join(reasons) or "only its shape counts"


def _reads(node: s.Expression, tensor: str, blocked: str, decl: OpDecl) -> Iterator[str]:
    """Yield the obstacle of the derivative at each read of a tensor (an empty text where it flows)."""
    if isinstance(node, s.Name):
        if node.id == tensor:
            yield blocked
        return
    blocked = blocked or _blocks(node, decl)
    if isinstance(node, s.Conditional):
        yield from _reads(node.test, tensor, blocked or "its elements are only compared", decl)
        yield from _reads(node.then, tensor, blocked, decl)
        yield from _reads(node.other, tensor, blocked, decl)
    elif isinstance(node, s.Call) and (body := _bodies(decl).get(node.fn)) is not None:
        for part in (*node.args, body):
            yield from _reads(part, tensor, blocked, decl)
    elif isinstance(node, s.Subscript):
        yield from _reads(node.base, tensor, blocked, decl)
        for item in node.items:
            yield from _reads(item, tensor, blocked or "it only names places", decl)
    else:
        for child in children(node):
            yield from _reads(child, tensor, blocked, decl)
