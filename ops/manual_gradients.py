"""Gradients in the manual: stated, derived, or none with the reason.

A derived gradient has its formula where that is short.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from ..ir import Attribute, CutsError, DType, Node, TensorType
from .gradient import Gradients, differentiability
from .language import OpDecl, Registry, print_item
from .language import syntax as s

_SIZES = (3, 5, 7, 4, 6)
_MOST_LINES, _MOST_CHARACTERS = 3, 120


def gradient_lines(decl: OpDecl, registry: Registry) -> Iterator[str]:
    """Yield the lines of a manual's entry that are about gradients."""
    found = differentiability(decl)
    if decl.gradient is not None:
        steps = "; ".join(f"`{line.strip()}`" for line in print_item(decl.gradient).split("\n")[1:-1])
        yield f"Gradient: stated for {_names(found.stated)}: {steps}."
    if found.derived:
        yield f"Gradient: derived for {_names(found.derived)}."
    reasons: dict[str, list[str]] = {}
    for name, reason in found.none.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        yield f"No gradient for {_names(names)}: {reason}."
    example = _example(decl, registry) if found.derived and decl.gradient is None else None
    if example is not None:
        yield from (f"For example, for {example[0]}:", "", "```", *example[1], "```")


def _names(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _example(decl: OpDecl, registry: Registry) -> tuple[str, list[str]] | None:
    """Return the derived gradient at shapes that fit the declaration, if such are found easily and it is short."""
    sample = sample_gradient(decl, registry)
    if sample is None or len(sample.steps) != 1 or sample.steps[0].op not in sample.gradients.texts:
        return None
    items = sample.gradients.registry[sample.steps[0].op].items
    lines = [line for item in items if isinstance(item, s.Assignment) for line in print_item(item).split("\n")]
    if len(lines) > _MOST_LINES or max(map(len, lines)) > _MOST_CHARACTERS:
        return None
    return ", ".join(
        f"`{o.name}: {t}`" for o, t in zip(decl.operands, sample.types, strict=True) if t is not None
    ), lines


@frozen
class GradientSample:
    """Operation at shapes that fit it, with its gradient's steps."""

    types: tuple[TensorType | None, ...]
    steps: tuple[Node, ...]
    gradients: Gradients


def sample_gradient(decl: OpDecl, registry: Registry) -> GradientSample | None:
    """Return the gradient of an operation at trial shapes.

    A list of sizes gets one axis, or two of equal size.
    """
    for spread in ((), (3, 3), (3,)):
        types = _sample_types(decl, spread)
        if types is None:
            continue
        gradients = Gradients(registry)
        try:
            instance = decl.instantiate(types, _sample_attributes(decl))
            given = zip(instance.inputs, types, strict=False)
            wanted = [
                formal for formal, type_ in given if formal is not None and type_ is not None and type_.dtype.is_float
            ]
            made = zip(instance.outputs, instance.output_types, strict=True)
            return GradientSample(
                types, gradients.steps(instance, wanted, [r for r, t in made if t.dtype.is_float]), gradients
            )
        except CutsError:
            continue
    return None


def _sample_types(decl: OpDecl, spread: tuple[int, ...]) -> tuple[TensorType | None, ...] | None:
    """Return a type for each operand (optional ones are absent), None where none is known to fit."""
    sizes: dict[str, int] = {}
    types: list[TensorType | None] = []
    for operand in decl.operands:
        classes = decl.element_types.get(operand.dtype, (operand.dtype,))
        integers = next((c for c in classes if c in {d.value for d in DType}), None)
        dtype = (
            DType.F32 if set(classes) & {"float", "number", "any"} else None if integers is None else DType(integers)
        )
        shape = [_extent(dim, sizes, spread) for dim in operand.dims]
        if operand.optional:
            types.append(None)
        elif operand.variadic or dtype is None or None in shape:
            return None
        else:
            types.append(TensorType(dtype, tuple(n for part in shape if part is not None for n in part)))
    return tuple(types)


def _extent(dim: s.Expression, sizes: dict[str, int], spread: tuple[int, ...]) -> tuple[int, ...] | None:
    if isinstance(dim, s.Number):
        return (int(dim.value),)
    if isinstance(dim, s.Spread) and spread:
        return spread
    name = dim.value if isinstance(dim, s.Spread) else dim
    if not isinstance(name, s.Name):
        return None
    return (sizes.setdefault(name.id, _SIZES[len(sizes) % len(_SIZES)]),)


def _sample_attributes(decl: OpDecl) -> dict[str, Attribute]:
    """Return the first axis for attributes that name one and have no default; others stay absent."""
    return {name: 0 for name, item in decl.attributes.items() if item.default is None and item.type.kind == "axis"}
