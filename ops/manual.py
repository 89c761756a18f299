"""Manual of the vocabulary, written from the declarations.

It has signature, constraints, formula, cost, gradient and algorithms.

The cost is that of one element of a result, as a sum over the statement that defines it: an operation that depends on
no tensor costs nothing, and a reduction repeats its body.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..ir import FUNCTIONS
from .gradient import differentiability
from .language import BUILTINS, OpDecl, Registry, children, print_expression, print_item
from .language import syntax as s
from .manual_gradients import gradient_lines

_HEAD = """# Operations

Written by `docs/make_ops.py` from the declarations in `spec/`; `cuts ops NAME` prints one entry. The language
is explained in [spec/README.md](../spec/README.md). Costs are operations per element of a tensor, in terms of the
declaration's sizes.
"""


def manual(registry: Registry) -> str:
    """Return the whole manual, by file of the vocabulary."""
    files: dict[str, list[OpDecl]] = {}
    for decl in registry.values():
        files.setdefault(decl.span.source.name, []).append(decl)
    parts = [_HEAD]
    for name, decls in files.items():
        title = name.rpartition("/")[2].removesuffix(".cuts")
        parts.append(f"## {title[:1].upper()}{title[1:]}\n")
        parts.extend(f"### {decl.name}\n\n{entry(decl, registry)}" for decl in sorted(decls, key=lambda d: d.name))
    return "\n".join(parts)


def entry(decl: OpDecl, registry: Registry | None = None) -> str:
    """Return one operation's entry, in Markdown.

    `registry` has the operations that its stated gradient uses.
    """
    lines = [f"{decl.summary[:1].upper()}{decl.summary[1:]}.", "", "```", _signature(decl), "```", ""]
    constraints = [item for item in decl.items if isinstance(item, s.Require)]
    if constraints:
        lines += ["It requires", "", *(f"* `{print_expression(item.condition)}`" for item in constraints), ""]
    lines += ["```", *(line for item in _formula(decl) for line in print_item(item).split("\n")), "```", ""]
    costs = list(_costs(decl))
    if costs:
        lines += ["Cost: " + "; ".join(costs) + ".", ""]
    lines += [*gradient_lines(decl, registry or Registry.builtin()), ""]
    lines += list(map(_algorithm, decl.algorithms))
    lines += [""] if decl.algorithms else []
    return "\n".join(lines)


def entry_values(decl: OpDecl) -> dict[str, object]:
    """Return an operation's entry as values: operands, attributes, results, counts, gradient, algorithms."""
    found = differentiability(decl)
    return {
        "name": decl.name,
        "family": decl.family,
        "summary": decl.summary,
        "declared": decl.span.position,
        "operands": [
            {"name": o.name, **_tensor(decl, o), "optional": o.optional, "variadic": o.variadic} for o in decl.operands
        ],
        "attributes": [_attribute(a) for a in decl.attributes.values()],
        "results": [{"name": r.name, **_tensor(decl, r)} for r in decl.results],
        "requires": [print_expression(item.condition) for item in decl.items if isinstance(item, s.Require)],
        "operations_per_element": dict(_counts(decl)),
        "gradient": {"stated": list(found.stated), "derived": list(found.derived), "none": dict(found.none)},
        "algorithms": [algorithm.name for algorithm in decl.algorithms],
        "text": decl.text,
    }


def _tensor(decl: OpDecl, tensor: s.Operand | s.Result) -> dict[str, object]:
    """Return the element types and the dims of an operand or a result."""
    classes = decl.element_types.get(tensor.dtype, (tensor.dtype,))
    return {"type": tensor.dtype, "types": list(classes), "dims": [print_expression(dim) for dim in tensor.dims]}


def _attribute(attribute: s.AttributeItem) -> dict[str, object]:
    """Return an attribute's name, type and default; None where it has to be given."""
    written = print_item(s.AttrItem((attribute,), span=attribute.span)).removeprefix("attr ")
    name, _, rest = written.partition(": ")
    kind, _, default = rest.partition(" = ")
    return {"name": name, "type": kind, "default": default or None}


def _signature(decl: OpDecl) -> str:
    kinds = (s.TypeItem, s.InItem, s.AttrItem, s.OutItem)
    items = [item for kind in kinds for item in decl.items if isinstance(item, kind)]
    narrowed = {item.name: item for item in items if isinstance(item, s.TypeItem)}
    shown = [item for item in items if not isinstance(item, s.TypeItem) or narrowed[item.name] is item]
    return "\n".join(map(print_item, shown))


def _formula(decl: OpDecl) -> Iterator[s.Item]:
    """Yield the lines of the formula: definitions, intermediates, tables and statements."""
    kinds = (s.LetItem, s.TempItem, s.TableItem, s.Assignment, s.Repetition)
    return (item for item in decl.items if isinstance(item, kinds))


def _algorithm(algorithm: s.Algorithm) -> str:
    """Return the line of an algorithm: its legality condition and its operations."""
    guard = f", when `{print_expression(algorithm.guard)}`" if algorithm.guard else ""
    steps = ", ".join(f"`{op}`" for op in dict.fromkeys(step.op for step in algorithm.steps))
    return f"* Algorithm `{algorithm.name}`{guard}: {steps}."


# ---- costs


def _costs(decl: OpDecl) -> Iterator[str]:
    """Yield the cost of an element of every computed tensor, in words."""
    return (f"{total} per element of `{tensor}`" for tensor, total in _counts(decl))


def _counts(decl: OpDecl) -> Iterator[tuple[str, str]]:
    """Yield every computed tensor with the operations of an element."""
    tensors = {o.name for o in decl.operands} | {r.name for r in decl.results}
    tensors |= {t.name for item in decl.items if isinstance(item, s.TempItem) for t in item.temporaries}
    for assignment in decl.assignments:
        terms = {factor: count for factor, count in _operations(assignment.value, tensors, "").items() if count}
        if terms:
            total = " + ".join(_term(count, factor) for factor, count in terms.items())
            yield assignment.target.name, total


def _term(count: int, factor: str) -> str:
    return str(count) if not factor else factor if count == 1 else f"{count} * {factor}"


def _operations(node: s.Expression, tensors: set[str], factor: str) -> Mapping[str, int]:
    """Return how many operations an expression takes, by the product of the sizes of the reductions around them."""
    if isinstance(node, s.Subscript) or not _mentions(node, tensors):
        return {}
    if isinstance(node, s.Reduction):
        sizes = [f"prod({print_expression(b.bound)})" if b.spread else print_expression(b.bound) for b in node.binders]
        inner = " * ".join([factor, *sizes] if factor else sizes)
        return _add_counts(_operations(node.body, tensors, inner), {inner: 1})
    if isinstance(node, s.Conditional):
        then, other = (_operations(part, tensors, factor) for part in (node.then, node.other))
        longer = max(then, other, key=lambda found: (len(found), sum(found.values())))
        return longer if not _mentions(node.test, tensors) else _add_counts(longer, {factor: 1})
    total: Mapping[str, int] = {}
    for child in children(node):
        total = _add_counts(total, _operations(child, tensors, factor))
    computes = isinstance(node, (s.Binary, s.Unary)) or (isinstance(node, s.Call) and node.fn in FUNCTIONS)
    computes = computes or (isinstance(node, s.Call) and node.fn in ("clamp", "sum", "prod", "all"))
    return _add_counts(total, {factor: 1}) if computes else total


def _mentions(node: s.Expression, tensors: set[str]) -> bool:
    """Return whether the value of an expression depends on an element of a tensor."""
    if isinstance(node, s.Name):
        return node.id in tensors
    if isinstance(node, s.Call) and node.fn in ("present", "rank", "count") and node.fn in BUILTINS:
        return False
    return any(_mentions(child, tensors) for child in children(node))


def _add_counts(first: Mapping[str, int], second: Mapping[str, int]) -> Mapping[str, int]:
    return {
        factor: first.get(factor, 0) + second.get(factor, 0)
        for factor in (*first, *(f for f in second if f not in first))
    }
