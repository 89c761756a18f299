"""Printing of declarations in their syntax.

Print, parse, print is the identity.
"""

from __future__ import annotations

from collections.abc import Iterable

from . import syntax as s

#: Binding strength of each operator; the operand of a weaker one is put in parentheses.
_STRENGTH = {
    "if": 1, "or": 2, "and": 3, "not": 4, "<": 5, "<=": 5, ">": 5, ">=": 5, "==": 5, "!=": 5, "+": 6, "-": 6, "++": 6,
    "reduce": 7,
    "*": 8, "/": 8, "//": 8, "%": 8, "neg": 9, "**": 10, "outside": 11,
}  # fmt: skip
_ATOM = 12


def print_declaration(declaration: s.Declaration) -> str:
    """Return a declaration as text, one line per item."""
    head = f"{declaration.kind} {declaration.name}"
    if declaration.family is not None:
        head += f" : {declaration.family}"
    if declaration.summary:
        head += f' "{declaration.summary}"'
    lines = [f"  {line}" for item in declaration.items for line in print_item(item).split("\n")]
    return "\n".join([head + " {", *lines, "}", ""])


def print_file(declarations: Iterable[s.Declaration]) -> str:
    """Return declarations as the text of a file."""
    return "\n".join(map(print_declaration, declarations))


def _let(binding: s.Binding) -> str:
    parameters = f"({', '.join(binding.parameters)})" if binding.parameters else ""
    return f"{binding.name}{parameters} = {print_expression(binding.value)}"


def print_item(item: s.Item) -> str:
    """Return one item of a declaration."""
    if isinstance(item, s.TypeItem):
        return f"type {item.name}: {' | '.join(item.classes)}"
    if isinstance(item, s.InItem):
        return "in " + ", ".join(map(_operand, item.operands))
    if isinstance(item, s.OutItem):
        return "out " + ", ".join(map(_result, item.results))
    if isinstance(item, s.TempItem):
        return "temp " + ", ".join(map(_result, item.temporaries))
    if isinstance(item, s.AttrItem):
        return "attr " + ", ".join(map(_attribute, item.attributes))
    if isinstance(item, s.LetItem):
        return "let " + ", ".join(map(_let, item.bindings))
    if isinstance(item, s.TableItem):
        return f"table {item.name}: {item.dtype} = {print_expression(item.value)}"
    if isinstance(item, s.Require):
        return f'require {print_expression(item.condition)} "{item.message}"'
    if isinstance(item, s.Assignment):
        return _assignment(item)
    if isinstance(item, s.Repetition):
        lines = [f"  {line}" for inner in item.items for line in print_item(inner).split("\n")]
        return "\n".join([f"each {_binder(item.each)} {{", *lines, "}"])
    head = "grad" if isinstance(item, s.Gradient) else f"algorithm {item.name}"
    if isinstance(item, s.Algorithm) and item.guard is not None:
        head += f" when {print_expression(item.guard)}"
    return "\n".join([head + " {", *(f"  {_step(step)}" for step in item.steps), "}"])


def print_expression(node: s.Expression) -> str:
    """Return an expression, with parentheses only where they are needed."""
    return _print(node)[0]


def _operand(o: s.Operand) -> str:
    return f"{o.name}{'*' if o.variadic else ''}{'?' if o.optional else ''}: {o.dtype}[{_list(o.dims)}]"


def _result(r: s.Result | s.Temporary) -> str:
    binder = f"[{_binder(r.binder)}]" if r.binder is not None else ""
    return f"{r.name}{binder}: {r.dtype}[{_list(r.dims)}]"


def _attribute(a: s.AttributeItem) -> str:
    kind = " | ".join(f'"{c}"' for c in a.type.choices) if a.type.kind == "choice" else a.type.kind
    if a.type.length is not None:
        kind += f"[{print_expression(a.type.length)}]"
    if a.type.shape is not None:
        kind += f"({print_expression(a.type.shape)})"
    return f"{a.name}: {kind}" + (f" = {print_expression(a.default)}" if a.default is not None else "")


def _assignment(a: s.Assignment) -> str:
    each = f"each {_binder(a.each)}: " if a.each is not None else ""
    target = a.target.name + "".join(f"[{_list(items)}]" for items in a.target.brackets)
    tail = f" for {', '.join(map(_binder, a.binders))}" if a.binders else ""
    how = f"{'atomic' if a.atomic else 'scatter'} {a.into} " if a.into else ""
    return f"{each}{how}{target} = {print_expression(a.value)}{tail}"


def _step(step: s.Step) -> str:
    arguments = ", ".join((f"{a.name}: " if a.name else "") + print_expression(a.value) for a in step.arguments)
    return f"{', '.join(step.results)} = {step.op}({arguments})"


def _binder(b: s.Binder) -> str:
    return f"{'...' if b.spread else ''}{b.name} < {_at_least(b.bound, _STRENGTH['+'])}"


def _list(items: Iterable[s.Expression]) -> str:
    return ", ".join(map(print_expression, items))


def _at_least(node: s.Expression, strength: int) -> str:
    text, own = _print(node)
    return text if own >= strength else f"({text})"


def _print(node: s.Expression) -> tuple[str, int]:
    """Return the text of an expression and how strongly its outermost operator binds."""
    if isinstance(node, s.Number):
        return _number(node.value), _ATOM
    if isinstance(node, s.Text):
        return f'"{node.value}"', _ATOM
    if isinstance(node, s.Name):
        return node.id, _ATOM
    if isinstance(node, s.Call):
        return f"{node.fn}({_list(node.args)})", _ATOM
    if isinstance(node, s.Listing):
        return f"[{_list(node.items)}]", _ATOM
    if isinstance(node, s.Comprehension):
        link = "<" if node.counted else "in"
        return f"[{print_expression(node.body)} for {node.var} {link} {_at_least(node.source, _STRENGTH['+'])}]", _ATOM
    if isinstance(node, s.Subscript):
        return f"{_at_least(node.base, _STRENGTH['outside'])}[{_list(node.items)}]", _STRENGTH["outside"]
    if isinstance(node, s.Spread):
        return f"...{_at_least(node.value, _STRENGTH['neg'])}", 0
    if isinstance(node, s.Slice):
        ends = ("" if end is None else _at_least(end, _STRENGTH["+"]) for end in (node.low, node.high))
        return ":".join(ends), 0
    return _print_operator(node)


def _print_operator(node: s.Expression) -> tuple[str, int]:
    if isinstance(node, s.Outside):
        negative = isinstance(node.fill, s.Unary) and node.fill.op == "-"
        fill = (
            f"-{_at_least(node.fill.arg, _ATOM)}"
            if isinstance(node.fill, s.Unary) and negative
            else _at_least(node.fill, _ATOM)
        )
        return f"{_at_least(node.read, _STRENGTH['outside'])} outside {fill}", _STRENGTH["outside"]
    if isinstance(node, s.Unary):
        key, text = ("not", "not ") if node.op == "not" else ("neg", "-")
        return text + _at_least(node.arg, _STRENGTH[key]), _STRENGTH[key]
    if isinstance(node, s.Binary):
        own = _STRENGTH[node.op]
        # Comparisons do not chain, a power takes the stronger operand on its left, all others group to the left.
        left = own + 1 if own == _STRENGTH["<"] or node.op == "**" else own
        right = _STRENGTH["neg"] if node.op == "**" else own + 1
        return f"{_at_least(node.left, left)} {node.op} {_at_least(node.right, right)}", own
    if isinstance(node, s.Conditional):
        own = _STRENGTH["if"]
        then, test = _at_least(node.then, own + 1), _at_least(node.test, own + 1)
        return f"{then} if {test} else {_at_least(node.other, own)}", own
    assert isinstance(node, s.Reduction)
    binders = ", ".join(map(_binder, node.binders))
    return f"{node.kind}[{binders}] {_at_least(node.body, _STRENGTH['reduce'])}", _STRENGTH["reduce"]


def _number(value: float) -> str:
    text = repr(value)
    return text if "e" not in text or "." in text.split("e")[0] else text.replace("e", ".0e")
