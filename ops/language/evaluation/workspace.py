"""State of an instantiation: tensor types, index variables, statements.

A tensor named without subscripts stands for its element at the position being written, by NumPy's broadcasting rules. A
reduction inside an expression becomes a statement of its own with a temporary tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from ....ir import (
    COMBINERS,
    DType,
    Expr,
    Guard,
    Index,
    Indirect,
    Read,
    Span,
    SpecError,
    Statement,
    TensorType,
    Var,
    as_float,
    as_index,
    expr_variables,
    primary_index,
)
from ..canonical import unused_name
from .values import Absent, Arithmetic, TensorList, TensorRef, Trouble, Value, describe, is_expr, literal

#: Attributes that an assignment extends.
_UNDOABLE_STATE = ("statements", "tensors", "unwritten", "looked_at", "numbered", "wholes")


class Workspace:
    """Tensors and statements found so far, and the current assignment.

    Of the assignment it has target, position and variables.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, TensorType] = {}
        self.tables: dict[str, tuple[float, ...]] = {}
        self.statements: list[Statement] = []
        self.unwritten: set[str] = set()  # results and intermediates that no assignment wrote yet
        self.looked_at: set[str] = set()  # those that one has read
        self.arithmetic = Arithmetic(self.tensors)
        self.target: TensorRef | None = None
        self.position: tuple[Index, ...] = ()
        self.variables: list[Var] = []
        self.taken: set[str] = set()
        self.step: Var | None = None  # the variable of the loop that is being read
        self.numbered: dict[tuple[str, int], TensorRef] = {}  # those of lists of tensors that a number named
        self.wholes: dict[str, TensorList] = {}  # lists of tensors that an index selects from

    @property
    def written(self) -> TensorRef:
        """The tensor that the assignment at hand writes."""
        if self.target is None:
            raise Trouble("elements are computed in assignments only")
        return self.target

    def as_element(self, value: Value) -> Value:
        """Replace tensors by the elements that broadcast to the position being written."""
        if isinstance(value, tuple):
            return tuple(self.as_element(v) for v in value)
        if isinstance(value, Absent):
            raise Trouble(f"operand '{value.name}' is absent here; test it with present({value.name})")
        if not isinstance(value, TensorRef):
            return value
        shape = value.type.shape
        if len(shape) > len(self.position):
            raise Trouble(f"{value.type} tensor '{value.name}' does not broadcast to {len(self.position)} axes")
        indices = self.position[len(self.position) - len(shape) :]
        return self.read(value, tuple(Index() if n == 1 else i for i, n in zip(indices, shape, strict=True)), None)

    def as_index(self, value: Value, axis: int, type_: TensorType) -> Index:
        """Return a subscript as an index.

        An element of an integer tensor becomes an indirect one.
        """
        value = self.as_element(value)
        if isinstance(value, Index):
            return value
        if isinstance(value, int):
            return Index(value)
        if (
            isinstance(value, Read)
            and not value.guards
            and self.tensors[value.tensor].dtype.is_int
            and axis < len(type_.shape)
        ):
            return primary_index(Indirect(value.tensor, value.indices, type_.shape[axis]))
        message = f"a subscript is an index or an element of an integer tensor, found {describe(value)}"
        way = "to compute with an element of an integer tensor as an index, write index(element, size)"
        raise Trouble(f"{message}; {way}" if is_expr(value) else message)

    def read(self, ref: TensorRef, indices: tuple[Index, ...], fill: Value) -> Value:
        """Return the read of an element, with guards for its indices.

        Without `fill` they must need none.
        """
        row = () if ref.row is None else (ref.row,)
        guards = [g for i in row if not (g := Guard(i, 0, self.tensors[ref.name].shape[0])).always]
        never = any(v.extent == 0 for v in self.variables)  # no element is computed here
        for axis, (index, extent) in enumerate(zip(indices, ref.type.shape, strict=True)):
            guard = Guard(index, 0, extent)
            if guard.always or never:
                continue
            if extent == 0 and fill is None:
                raise Trouble(
                    f"'{ref.name}' is {ref.type}: an element of it is read, but it has none along axis {axis}"
                )
            if fill is None:
                low, high = index.bounds()
                raise Trouble(
                    f"'{ref.name}' is read out of bounds: index {index.text} of axis {axis} runs from {low} to {high}, "
                    f"the axis has {extent} elements; say what is 'outside'"
                )
            guards.append(guard)
        if not row and ref.name in self.tables and all(i.is_const for i in indices) and not guards:
            flat = sum(i.const * step for i, step in zip(indices, ref.type.strides, strict=True))
            return self.tables[ref.name][flat]
        filling = as_float(literal(fill, ref.type.dtype).value) if guards else 0.0
        return Read(ref.name, (*row, *indices), tuple(dict.fromkeys(guards)), filling)

    def mark(self) -> dict[str, Any]:
        """Return the present state, for `restore`."""
        held = (self.statements, self.tensors, self.unwritten, self.looked_at, self.numbered, self.wholes)
        return dict(zip(_UNDOABLE_STATE, (copy(value) for value in held), strict=True))

    def restore(self, mark: Mapping[str, Any]) -> None:
        """Restore the state of a mark."""
        for name, value in mark.items():
            current = getattr(self, name)
            current.clear()
            (current.extend if isinstance(current, list) else current.update)(value)
        self.step = None

    def list_item(self, base: TensorList, position: Value, outside: bool = False) -> TensorRef:
        """Return one of a list of tensors, by number or row.

        It is a row of all of them where only an index is known, which may be `outside`.
        """
        if isinstance(position, Index) and position.is_const:
            position = position.const
        low, high = position.bounds() if isinstance(position, Index) else (position, position)
        if not isinstance(low, int) or (not outside and not -base.count <= low <= high < base.count):
            raise Trouble(f"there are {base.count} tensors '{base.name}', found number {describe(position)}")
        if not isinstance(position, Index) and base.name not in self.wholes:
            return self._item_by_number(base, position % base.count)
        if not isinstance(position, Index):
            return base.row(Index(position % base.count))
        if low < 0 and not outside:
            raise Trouble(f"of the tensors '{base.name}' some are named from the end, as number {describe(position)}")
        self.wholes[base.name] = base
        self.tensors[base.name] = base.whole
        return base.row(position)

    def _item_by_number(self, base: TensorList, number: int) -> TensorRef:
        if (base.name, number) not in self.numbered:
            ref = base.item(self.fresh_tensor(f"{base.name}_{number}"))
            self.numbered[base.name, number] = ref
            self.tensors[ref.name] = ref.type
            self.unwritten.add(ref.name)
        return self.numbered[base.name, number]

    def new_variable(self, name: str, extent: int) -> Var:
        """Return a variable whose name is unique in the assignment."""
        name = unused_name(name, self.taken)
        self.taken.add(name)
        var = Var(name, extent)
        self.variables.append(var)
        return var

    def fresh_tensor(self, name: str) -> str:
        """Return a tensor name that is not taken."""
        number, candidate = 1, name
        while candidate in self.tensors:
            number += 1
            candidate = f"{name}{number}"
        return candidate

    def temporary(self, kind: str, body: Expr, reduce: tuple[Var, ...], span: Span) -> Expr:
        """Emit a reduction into a temporary; return the read of it.

        The temporary is over the variables that it depends on.

        Raises `SpecError` where it is one of floats and its operand is not.
        """
        free = expr_variables(body) - set(reduce)
        axes = tuple(v for v in self.variables if v in free)
        indices = tuple(as_index(v) for v in axes)
        step = self.step if self.step in axes else None
        for done in self.statements:
            if (
                done.step == step
                and (done.axes, done.body, done.reduce, done.combine)
                == (
                    axes,
                    body,
                    reduce,
                    kind,
                )
                and done.write == indices
            ):
                return Read(done.target, indices)
        name = self.fresh_tensor(f"{self.written.name}_{kind}")
        dtype = DType.I64 if COMBINERS[kind].position else self.arithmetic.dtype(body)
        if COMBINERS[kind].floats and not dtype.is_float:
            raise SpecError(f"'{kind}' is of floats, found {dtype}", span)
        self.tensors[name] = TensorType(dtype, tuple(v.extent for v in axes))
        self.statements.append(Statement(name, axes, indices, body, reduce, kind, step=step, span=span))
        return Read(name, indices)
