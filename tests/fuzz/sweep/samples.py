"""Uses of operations drawn from their declarations: element types, shapes and attributes.

Nothing here depends on an operation. Dims are drawn by their names, shapes that must broadcast by varying an earlier
one, attributes by their types; values that the declaration refuses are drawn again. A use in `tests/operations.py`
helps where that never succeeds: its types and sizes are changed instead, equal sizes to equal sizes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from attrs import field, frozen
from cuts.ir.errors import CutsError
from cuts.ir.types import DType, TensorType
from cuts.ops import Instance, OpDecl, Registry
from cuts.ops.language import syntax as s
from cuts.ops.language.checks.binding import CLASSES, bind_attribute, bind_operands
from cuts.ops.language.evaluation.evaluator import ExpressionEvaluator
from cuts.tests.operations import DIFFERENTIABLE, FLAT, SCALAR, Use

#: Extents: one, primes, multiples of a vector or a warp, zero.
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17)
#: Elements that all tensors of a use have at most, terms of its sums, and statements: one use takes milliseconds.
MOST_ELEMENTS, MOST_TERMS, MOST_STATEMENTS = 3000, 400_000, 80
#: How often a use is drawn before a known one is varied, and how often that is.
TRIES, VARIATIONS = 24, 40
#: The round in which lists of dims are drawn equal, and large enough for any two ends of a type to meet.
WIDE_ROUND, WIDE_EXTENTS = 1, (17, 17)
#: Attributes that are real numbers.
_FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 1e-5, 0.25, 100.0, math.inf, -math.inf)
_INTS = (0, 1, 2, 3, -1, 4, 5, 7, -2, 16)


@frozen
class Sample:
    """A use of an operation.

    The types of its operands, and its attributes.
    """

    op: str
    types: tuple[TensorType | None, ...]
    attributes: Mapping[str, Any] = field(factory=dict)

    def instance(self, registry: Registry) -> Instance:
        """Return the meaning of the operation here."""
        return registry[self.op].instantiate(self.types, self.attributes)

    @property
    def text(self) -> str:
        """The sample on one line."""
        types = ", ".join("none" if t is None else str(t) for t in self.types)
        return f"{self.op}({types}){dict(self.attributes) or ''}"

    @property
    def record(self) -> dict[str, Any]:
        """The sample as JSON values."""
        types = [None if t is None else [str(t.dtype), list(t.shape)] for t in self.types]
        return {"op": self.op, "types": types, "attributes": dict(self.attributes)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Sample:
        """Return the sample of a record."""
        types = tuple(None if t is None else TensorType(DType(t[0]), tuple(t[1])) for t in record["types"])
        attributes = {n: tuple(v) if isinstance(v, list) else v for n, v in record["attributes"].items()}
        return cls(record["op"], types, attributes)


@frozen
class Slot:
    """Operation and element type of its first type parameter.

    The type is none without a parameter.
    """

    op: str
    dtype: DType | None


def slots(registry: Registry) -> tuple[Slot, ...]:
    """Return every operation with every element type that its declaration allows."""
    return tuple(Slot(name, dtype) for name, decl in registry.items() for dtype in _first_types(decl))


def _first_types(decl: OpDecl) -> tuple[DType | None, ...]:
    for classes in decl.element_types.values():
        return tuple(dict.fromkeys(d for c in classes for d in CLASSES[c]))
    return (None,)


@cache
def known_uses(op: str) -> tuple[Use, ...]:
    """Return an operation's uses in the tests of gradients and kernels."""
    return tuple(use for use in (*DIFFERENTIABLE, *SCALAR, *FLAT) if use.op == op)


def draw(registry: Registry, slot: Slot, seed: int, number: int) -> Sample | None:
    """Return sample `number` of a slot, or None without any.

    The first ones are known uses in its element type.
    """
    rng = np.random.default_rng([seed, number, zlib.crc32(f"{slot.op} {slot.dtype}".encode())])
    decl, uses = registry[slot.op], known_uses(slot.op)
    known = uses[number : number + 1] if number != WIDE_ROUND else ()
    if known and (found := _legal(registry, _retype(decl, known[0], slot, rng, {}))):
        return found
    for turn in range(TRIES):
        wide = WIDE_EXTENTS if number == WIDE_ROUND and turn < TRIES // 2 else None
        if found := _legal(registry, _fresh(decl, slot, rng, turn >= TRIES // 2, wide)):
            return found
    for _ in range(VARIATIONS if uses else 0):
        use = uses[int(rng.integers(len(uses)))]
        if found := _legal(registry, _retype(decl, use, slot, rng, _sizes(use, rng))):
            return found
    return next((f for use in uses if (f := _legal(registry, _retype(decl, use, slot, rng, {})))), None)


def _legal(registry: Registry, sample: Sample | None) -> Sample | None:
    """Return a sample that the declaration takes and that is no larger than allowed."""
    if sample is None or sum(t.size for t in sample.types if t is not None) > MOST_ELEMENTS:
        return None
    try:
        program = sample.instance(registry).program
    except CutsError:
        return None
    sizes = [type_.size for type_ in program.tensors.values()]
    terms = sum(
        program.tensors[st.target].size * int(np.prod([a.extent for a in st.reduce])) for st in program.statements
    )
    fits = sum(sizes) <= 2 * MOST_ELEMENTS and terms <= MOST_TERMS and len(program.statements) <= MOST_STATEMENTS
    return sample if fits else None


# ---- from the declaration alone


def draw_dtypes(decl: OpDecl, slot: Slot, rng: np.random.Generator) -> dict[str, DType]:
    """Draw types for a declaration's parameters; the first is the slot's."""
    chosen = {}
    for number, (name, classes) in enumerate(decl.element_types.items()):
        options = list(dict.fromkeys(d for c in classes for d in CLASSES[c]))
        chosen[name] = slot.dtype if number == 0 else options[int(rng.integers(len(options)))]
    return chosen


@frozen
class Shapes:
    """Dims by name.

    A dim has an extent, or a list of extents where it is spread.
    """

    rng: np.random.Generator
    small: bool
    wide: tuple[int, ...] | None = None
    extents: dict[str, int] = field(factory=dict)
    lists: dict[str, tuple[int, ...]] = field(factory=dict)

    def extent(self) -> int:
        """Draw an extent: mostly a small one, seldom zero."""
        if self.rng.integers(40) == 0:
            return 0
        return EXTENTS[int(self.rng.integers(5 if self.small else len(EXTENTS)))]

    def single(self, name: str) -> int:
        """Return the extent of a name."""
        if name not in self.extents:
            used = list(self.extents.values())
            equal = bool(used) and self.rng.integers(3) == 0
            self.extents[name] = used[int(self.rng.integers(len(used)))] if equal else self.extent()
        return self.extents[name]

    def spread_extents(self, name: str) -> tuple[int, ...]:
        """Return the extents of a spread name.

        They are new ones, or a variation of an earlier list.
        """
        if self.wide is not None:
            return self.lists.setdefault(name, self.wide)
        if name not in self.lists:
            earlier = list(self.lists.values())
            if earlier and self.rng.integers(5):
                self.lists[name] = self.vary(earlier[int(self.rng.integers(len(earlier)))])
            else:
                self.lists[name] = tuple(self.extent() for _ in range(int(self.rng.choice([0, 1, 2, 2, 3]))))
        return self.lists[name]

    def vary(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape, varied by broadcasting.

        It stays, has axes of one element or fewer leading axes, or is another one of the same rank.
        """
        how = int(self.rng.integers(5))
        if how == 0:
            return shape
        if how == 1:
            return tuple(d if self.rng.integers(2) else 1 for d in shape)
        if how == 2:
            return shape[int(self.rng.integers(len(shape) + 1)) :]
        if how == 3:
            return tuple(max(1, d - int(self.rng.integers(3))) for d in shape)
        return tuple(self.extent() for _ in shape)


def _fresh(
    decl: OpDecl, slot: Slot, rng: np.random.Generator, small: bool, wide: tuple[int, ...] | None
) -> Sample | None:
    """Draw a use from the declaration; None where a requirement is known not to hold, or a dim is computed."""
    dtypes, shapes = draw_dtypes(decl, slot, rng), Shapes(rng, small, wide)
    types: list[TensorType | None] = []
    for operand in decl.operands:
        for _ in range(int(rng.integers(1, 4)) if operand.variadic else 1):
            if operand.optional and rng.integers(2):
                types.append(None)
                continue
            shape = draw_shape(operand, shapes)
            if shape is None:
                return None
            dtype = dtypes.get(operand.dtype) or DType(operand.dtype)
            types.append(TensorType(dtype, shape))
    while types and types[-1] is None:
        types.pop()
    try:
        return Sample(decl.name, tuple(types), draw_attributes(decl, types, rng))
    except CutsError:
        return None


def draw_shape(operand: s.Operand, shapes: Shapes) -> tuple[int, ...] | None:
    """Return a shape of the declared dims.

    A computed dim has any length.
    """
    found: list[int] = []
    for dim in operand.dims:
        node = dim.value if isinstance(dim, s.Spread) else dim
        name = node.id if isinstance(node, s.Name) else f"computed {node!r}"
        if not isinstance(dim, s.Spread):
            found.append(shapes.single(name))
        elif operand.variadic:
            base = shapes.spread_extents(name)
            found.extend(shapes.vary(base) if shapes.wide is None and shapes.rng.integers(3) else base)
        else:
            found.extend(shapes.spread_extents(name))
    return tuple(found)


def draw_attributes(
    decl: OpDecl, types: Sequence[TensorType | None], rng: np.random.Generator, stated: int = 3
) -> dict[str, Any]:
    """Draw attributes in order; raise `CutsError` where one does not fit.

    Of attributes with a default, `stated` of five are drawn.
    """
    evaluator = ExpressionEvaluator()
    bind_operands(decl, types, evaluator)
    drawn: dict[str, Any] = {}
    for item in decl.items:
        if isinstance(item, s.AttrItem):
            for attribute in item.attributes:
                if attribute.default is None or rng.integers(5) < stated:
                    drawn[attribute.name] = _value(attribute.type, evaluator, types, rng)
                evaluator.scope[attribute.name] = bind_attribute(decl, attribute, drawn, evaluator)
        elif isinstance(item, s.LetItem):
            for let in item.bindings:
                evaluator.scope[let.name] = let if let.parameters else evaluator.evaluate(let.value)
    return drawn


def _value(
    kind: s.AttributeType,
    evaluator: ExpressionEvaluator,
    types: Sequence[TensorType | None],
    rng: np.random.Generator,
) -> Any:
    """Draw a value of an attribute's type."""
    sizes = [d for t in types if t is not None for d in t.shape]
    if kind.choices:
        return _one(rng, kind.choices)
    if kind.kind in ("axis", "axes"):
        rank = len(evaluator.evaluate(kind.shape)) if kind.shape is not None else 1  # type: ignore[arg-type]
        places = [int(a) - (rank if rng.integers(2) else 0) for a in rng.permutation(rank)]
        if kind.kind == "axis":
            return places[0] if places else 0
        whole = kind.length is not None or bool(rng.integers(3) == 0)
        return tuple(places if whole else places[: int(rng.integers(rank + 1))])
    if kind.kind == "ints":
        length = evaluator.size(kind.length) if kind.length is not None else int(rng.integers(4))
        return tuple(_integer(rng, sizes) for _ in range(length))
    single = {"int": lambda: _integer(rng, sizes), "float": lambda: _one(rng, _FLOATS),
              "bool": lambda: bool(rng.integers(2)), "dtype": lambda: str(_one(rng, tuple(DType))),
              "floats": lambda: tuple(_one(rng, _FLOATS) for _ in range(int(rng.integers(4)))),
              "string": lambda: "", "strings": lambda: ()}  # fmt: skip
    return single[kind.kind]()


def _integer(rng: np.random.Generator, sizes: Sequence[int]) -> int:
    """Draw an integer: small ones most often, now and then the size of an axis."""
    if sizes and rng.integers(4) == 0:
        return int(_one(rng, sizes))
    return int(_INTS[min(int(rng.geometric(0.35)), len(_INTS)) - 1])


def _one(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


# ---- from a known use


def _sizes(use: Use, rng: np.random.Generator) -> dict[int, int]:
    """Draw another extent for each that a use has."""
    extents = sorted({d for t in use.types if t is not None for d in t.shape})
    return {d: d if rng.integers(2) else EXTENTS[int(rng.integers(8))] for d in extents}


def _retype(decl: OpDecl, use: Use, slot: Slot, rng: np.random.Generator, sizes: Mapping[int, int]) -> Sample | None:
    """Return a use with the slot's element type, and other sizes."""
    dtypes = draw_dtypes(decl, slot, rng)
    operands = _spread_out(decl, len(use.types))
    types = tuple(
        None if t is None else TensorType(dtypes.get(o.dtype) or t.dtype, tuple(sizes.get(d, d) for d in t.shape))
        for o, t in zip(operands, use.types, strict=True)
    )
    attributes = dict(use.attributes)
    for name, item in decl.attributes.items():
        if item.default is not None and rng.integers(4) == 0:
            attributes.pop(name, None)
        if item.type.choices and rng.integers(2):
            attributes[name] = _one(rng, item.type.choices)
        elif item.type.kind == "bool" and rng.integers(3) == 0:
            attributes[name] = bool(rng.integers(2))
        elif item.type.kind == "dtype" and rng.integers(2):
            attributes[name] = str(_one(rng, tuple(DType)))
    return Sample(use.op, types, attributes)


def _spread_out(decl: OpDecl, count: int) -> list[s.Operand]:
    """Return the declared operand of each of `count` operands."""
    extra = count - len(decl.operands)
    return [o for o in decl.operands for _ in range(1 + max(extra, 0) if o.variadic else 1)][:count]
