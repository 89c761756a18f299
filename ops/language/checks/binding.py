"""Binding of operands and attributes to a declaration.

Each name gets its dim, element type or list; mismatches are errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from ....ir import Attribute, DType, GraphError, SpecError, TensorType
from ..declaration import Declaration
from ..evaluation import Absent, ExpressionEvaluator, TensorRef, Value, describe
from ..text import syntax as s

CLASSES: dict[str, tuple[DType, ...]] = {
    "float": tuple(d for d in DType if d.is_float),
    "int": tuple(d for d in DType if d.is_int),
    "number": tuple(d for d in DType if d is not DType.BOOL),
    "any": tuple(DType),
    **{d.value: (d,) for d in DType},
}


@frozen
class Binding:
    """Operands of one use: formal name and declared operand per position."""

    inputs: tuple[str | None, ...]
    operands: tuple[tuple[s.Operand, tuple[str, ...]], ...]


def bind_operands(decl: Declaration, types: Sequence[TensorType | None], evaluator: ExpressionEvaluator) -> Binding:
    """Bind operands to types.

    Dims and element types get their values in the evaluator's scope.
    """
    evaluator.scope.update({d.value: d for d in DType})
    groups = _distribute(decl, list(types))
    computed = {b.name for i in decl.items if isinstance(i, s.LetItem) for b in i.bindings} | set(decl.attributes)
    inputs: list[str | None] = []
    operands: list[tuple[s.Operand, tuple[str, ...]]] = []
    for operand, given in groups:
        names = tuple(f"{operand.name}_{n}" if operand.variadic else operand.name for n in range(len(given)))
        refs: list[TensorRef] = []
        for name, type_ in zip(names, given, strict=True):
            if type_ is None:
                inputs.append(None)
                continue
            inputs.append(name)
            _bind_dtype(decl, operand, name, type_, evaluator)
            evaluator.tensors[name] = type_
            refs.append(TensorRef(name, type_))
        present = tuple(ref.name for ref in refs)
        operands.append((operand, present))
        _bind_dims(decl, operand, refs, computed, evaluator)
        if operand.variadic:
            evaluator.scope[operand.name] = tuple(refs)
        else:
            evaluator.scope[operand.name] = refs[0] if refs else Absent(operand.name)
    return Binding(tuple(inputs), tuple(operands))


def _distribute(decl: Declaration, types: list[TensorType | None]) -> list[tuple[s.Operand, list[TensorType | None]]]:
    """Give each declared operand its share of the types; trailing optional operands may be left out."""
    operands = decl.operands
    variadic = next((n for n, o in enumerate(operands) if o.variadic), None)
    least = max((n + 1 for n, o in enumerate(operands) if not o.optional and not o.variadic), default=0) + (
        variadic is not None
    )
    most = None if variadic is not None else len(operands)
    if len(types) < least or (most is not None and len(types) > most):
        count = f"{least}" if most == least else f"at least {least}" if most is None else f"{least} to {most}"
        names = ", ".join(o.name + ("*" if o.variadic else "?" if o.optional else "") for o in operands)
        raise GraphError(
            f"op '{decl.name}': expected {count} operand{'' if count == '1' else 's'} ({names}), found {len(types)}"
        )
    extra = max(0, len(types) - len(operands) + 1) if variadic is not None else 0
    result: list[tuple[s.Operand, list[TensorType | None]]] = []
    for number, operand in enumerate(operands):
        take = extra if number == variadic else 1
        given, types = types[:take], types[take:]
        if not operand.variadic and not given:
            given = [None]
        if any(t is None for t in given) and not operand.optional:
            raise GraphError(f"op '{decl.name}': operand '{operand.name}': expected a tensor, found none")
        result.append((operand, given))
    return result


def _bind_dtype(
    decl: Declaration, operand: s.Operand, name: str, type_: TensorType, evaluator: ExpressionEvaluator
) -> None:
    known = evaluator.scope.get(operand.dtype)
    if known is None:
        classes = decl.element_types.get(operand.dtype, ("any",))
        if not any(type_.dtype in CLASSES[c] for c in classes):
            wanted = " or ".join(classes)
            raise GraphError(f"op '{decl.name}': operand '{name}': expected element type {wanted}, found {type_.dtype}")
        evaluator.scope[operand.dtype] = type_.dtype
    elif known is not type_.dtype:
        raise GraphError(f"op '{decl.name}': operand '{name}': expected element type {known}, found {type_.dtype}")


def _bind_dims(
    decl: Declaration, operand: s.Operand, refs: list[TensorRef], computed: set[str], evaluator: ExpressionEvaluator
) -> None:
    """Bind the plain names of an operand's shape; an operand with a computed spread is checked later only."""
    if any(isinstance(d, s.Spread) and not _binds(d.value, computed) for d in operand.dims):
        return
    found: list[dict[str, Value]] = [_match(decl, operand, ref, computed) for ref in refs]
    if operand.variadic:
        names = dict.fromkeys(n for each in found for n in each)
        found = [{n: tuple(each[n] for each in found) for n in names}]
    for each in found:
        for name, value in each.items():
            if name in evaluator.scope and evaluator.scope[name] != value:
                text = " x ".join(str(r.type) for r in refs)
                raise GraphError(
                    f"op '{decl.name}': operand '{operand.name}': expected {name} = {describe(evaluator.scope[name])}, "
                    f"found {describe(value)} in {text}"
                )
            evaluator.scope[name] = value


def _binds(node: s.Expression, computed: set[str]) -> bool:
    return isinstance(node, s.Name) and node.id not in computed


def _match(decl: Declaration, operand: s.Operand, ref: TensorRef, computed: set[str]) -> dict[str, Value]:
    """Match a shape against the declared dims; return the values of the names."""
    shape, dims = ref.type.shape, operand.dims
    spreads = [n for n, d in enumerate(dims) if isinstance(d, s.Spread)]
    fixed = len(dims) - len(spreads)
    if len(shape) < fixed or (not spreads and len(shape) != fixed):
        wanted = f"at least {fixed}" if spreads else str(fixed)
        raise GraphError(
            f"op '{decl.name}': operand '{ref.name}': expected {wanted} axes, found {len(shape)} in {ref.type}"
        )
    values: dict[str, Value] = {}
    position = 0
    for dim in dims:
        width = len(shape) - fixed if isinstance(dim, s.Spread) else 1
        part = shape[position : position + width]
        node = dim.value if isinstance(dim, s.Spread) else dim
        position += width
        if not isinstance(node, s.Name) or node.id in computed:
            continue
        value: Value = part if isinstance(dim, s.Spread) else part[0]
        if values.get(node.id, value) != value:
            expected = f"expected {node.id} = {describe(values[node.id])}, found {describe(value)} in {ref.type}"
            raise GraphError(f"op '{decl.name}': operand '{ref.name}': {expected}")
        values[node.id] = value
    return values


def check_shapes(decl: Declaration, binding: Binding, evaluator: ExpressionEvaluator) -> None:
    """Check each operand against its declared shape.

    Every name has a value by now.

    Raises `GraphError` where they differ.
    """
    for operand, names in binding.operands:
        if operand.variadic:
            continue
        for name in names:
            expected = evaluator.items(operand.dims)
            found = evaluator.tensors[name]
            if expected != found.shape:
                raise GraphError(
                    f"op '{decl.name}': operand '{name}': expected shape {describe(expected)}, "
                    f"found {describe(found.shape)}"
                )


def bind_attribute(
    decl: Declaration, item: s.AttributeItem, given: Mapping[str, Attribute], evaluator: ExpressionEvaluator
) -> Value:
    """Return an attribute's value: the given one, checked, or the default.

    Raises `GraphError` where the value is missing or of another type or length, `SpecError` where the declared type has
    no meaning.
    """
    where = f"op '{decl.name}': attribute '{item.name}'"
    if item.name in given and given[item.name] is not None:
        value: Value = _plain(given[item.name])
    elif item.default is None:
        raise GraphError(f"{where}: expected {_describe_type(item.type)}, found none")
    else:
        value = evaluator.evaluate(item.default)
        if value is None:
            return None
    converted = _convert(item.type, value)
    if converted is None:
        raise GraphError(f"{where}: expected {_describe_type(item.type)}, found {describe(value)}")
    if item.type.length is not None:
        length = evaluator.size(item.type.length)
        if not isinstance(converted, tuple) or len(converted) != length:
            raise GraphError(f"{where}: expected {length} items, found {describe(value)}")
    if item.type.shape is not None:
        shape = evaluator.evaluate(item.type.shape)
        if not isinstance(shape, tuple):
            raise SpecError(f"axes count in a shape, found {describe(shape)}", item.type.shape.span)
        return _axes(where, converted, len(shape))
    return converted


def _axes(where: str, value: Value, rank: int) -> Value:
    """Count axes from the front; they must exist and be distinct."""
    axes = value if isinstance(value, tuple) else (value,)
    for axis in axes:
        if not -rank <= axis < rank:
            allowed = f"an axis from {-rank} to {rank - 1}" if rank else "no axis, as there is none"
            raise GraphError(f"{where}: expected {allowed}, found {axis}")
    counted = tuple(axis % rank for axis in axes)
    if len(set(counted)) < len(counted):
        raise GraphError(f"{where}: expected distinct axes, found {describe(value)}")
    return counted if isinstance(value, tuple) else counted[0]


def _plain(value: object) -> Value:
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return value


_WORDS = {
    "int": "an integer", "float": "a number", "bool": "true or false", "string": "a string",
    "ints": "a list of integers", "floats": "a list of numbers", "strings": "a list of strings",
    "dtype": "an element type", "axis": "an axis", "axes": "a list of axes",
}  # fmt: skip
ATTRIBUTE_KINDS = frozenset(_WORDS) | {"choice"}


def _describe_type(type_: s.AttributeType) -> str:
    return _WORDS.get(type_.kind) or " or ".join(f'"{c}"' for c in type_.choices)


def _convert(type_: s.AttributeType, value: Value) -> Value:
    """Return the value as the attribute's type, None where it is not one."""
    kind = type_.kind
    if kind == "strings":
        return value if isinstance(value, tuple) and all(isinstance(v, str) for v in value) else None
    if kind in ("ints", "axes", "floats"):
        if not isinstance(value, tuple):
            return None
        items = tuple(_convert_number("float" if kind == "floats" else "int", v) for v in value)
        return None if None in items else items
    if kind in ("int", "axis", "float"):
        return _convert_number("float" if kind == "float" else "int", value)
    if kind == "bool":
        return bool(value) if value in (0, 1) and isinstance(value, int) else None
    if kind == "dtype":
        return value if isinstance(value, DType) else next((d for d in DType if d.value == value), None)
    if not isinstance(value, str):
        return None
    return value if kind == "string" or value in type_.choices else None


def _convert_number(kind: str, value: Value) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:  # no element type holds it
        return None
    return float(value) if kind == "float" else value if isinstance(value, int) else None
