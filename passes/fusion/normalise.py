"""Normal form: statements become one register-level segment, or a reason against it.

Every element of the group is computed by an *instance*, a value of the parallel axes P of the last reduction (of the
largest output where there is none). The access maps are solved from statement to statement, in both directions, for
each statement's axes as functions of P; an output may have further axes, which the lanes of an instance share (softmax,
normalisation). Pointwise statements are inlined. A group is legal when each reduction is read only by the instance that
computed it.

    acc[n, c] = sum_hw x[n, c, h, w]; y[n, c] = acc[n, c] / 49; z[n*C + c] = exp(y[n, c])
      ->  axes (i0, i1); acc0 = sum over (r0, r1) x[i0, i1, r0, r1]; z[C*i0 + i1] = exp(acc0[i0, i1] / 49)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from math import prod

from attrs import evolve, field, frozen

from ...ir import (
    COMBINERS,
    Call,
    Cast,
    Const,
    DType,
    Expr,
    FusedGroup,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    MoveIndex,
    Output,
    Primary,
    Read,
    Reduction,
    Segment,
    Statement,
    TensorType,
    Var,
    as_index,
    dtype_of,
    expr_indirects,
    factors,
    indirects,
    is_bijection,
    map_guards,
    map_primaries,
    rebuild,
    rename_axes,
    solve,
    substitute,
    substitute_expr,
    substitute_guards,
    variables,
)
from ..statements import (
    FusionError,
    Inliner,
    constant,
    guard_factors,
    hoist_factors,
    holds_integers,
    single_term,
    split_argument_reduction,
)
from .align import Places, align, check_counts, order_of_row
from .fold_tables import fold_tables
from .held_rows import ColumnSum, HeldRows, check_column, check_rows, read_state, spread_columns

#: Largest integer up to which f32 represents all integers.
_MAX_EXACT_INTEGER = 1 << 24


@frozen
class Illegal:
    """Negative answer of a legality check.

    The reason is a sentence.
    """

    reason: str


def normalise(
    statements: Sequence[Statement],
    tensors: Mapping[str, TensorType],
    live: Sequence[str],
    constants: Mapping[str, tuple[float, ...]] | None = None,
    columns: Mapping[str, ColumnSum] | None = None,
) -> FusedGroup | Illegal:
    """Return the normal form of statements, or why they have none.

    `live` tensors are written to memory, those in `columns` as column sums.
    """
    try:
        found = _Normaliser(dict(tensors), tuple(live), dict(constants or {}), dict(columns or {}))
        return fold_tables(found.run(spread_columns(statements, found.columns, tensors, live)))
    except FusionError as error:
        return Illegal(str(error))


@frozen
class _Normaliser:
    tensors: dict[str, TensorType]
    live: tuple[str, ...]
    constants: dict[str, tuple[float, ...]]
    columns: dict[str, ColumnSum]
    held: HeldRows = field(init=False)

    @held.default
    def _held_rows(self) -> HeldRows:
        return HeldRows(self.tensors)

    def run(self, statements: Sequence[Statement]) -> FusedGroup:
        check_counts(statements, self.live)
        plain = self._prepare(statements)
        needed = self._needed_statements(plain)
        places = align(needed, self.live, self.columns)
        held = frozenset(s.target for s in needed if s.combine)
        sent = {i.tensor for s in needed for index in s.write for i in indirects(index)}
        inliner = Inliner(self.tensors, held, {*self.held.along, *(sent & held)})
        reductions: list[Reduction] = []
        outputs: list[Output] = []
        registers: dict[str, Expr] = {}  # replacement of reads of a reduced tensor
        for number, statement in enumerate(needed):
            values = places.of[number]
            if column := self.columns.get(statement.target):
                check_column(statement, column, values, places.axes, bool(self.held.along))
            elif statement.combine:
                self._check_reduction(statement, values, places)
                self._reduce(statement, values, inliner, places, reductions, registers)
            else:
                inliner.define(statement)
            if statement.target in self.live:
                outputs.append(self._output(statement, values, inliner, places, registers, reductions))
        segment = Segment(places.axes, tuple(reductions), tuple(outputs))
        check_rows(segment)
        return self._group(segment)

    # ---- statements ahead of alignment

    def _prepare(self, statements: Sequence[Statement]) -> list[Statement]:
        """Rename axes, split argmax and argmin, and turn reductions over one element into plain statements."""
        result: list[Statement] = []
        for number, statement in enumerate(_join_pieces(statements, self.live, self.tensors)):
            fresh = _rename_axes(statement, number)
            fresh = evolve(fresh, reduce=tuple(r for r in fresh.reduce if r.extent > 1))
            combiner = COMBINERS[fresh.combine] if fresh.combine else None
            if fresh.along is not None and (row := self.held.reduce_row(fresh, statements[:number])) is not None:
                result.extend(row)
                continue
            fresh = self.held.extend_reader(fresh)
            if combiner and not fresh.reduce:
                body = constant(0, self.tensors[fresh.target].dtype) if combiner.position else fresh.body
                fresh = evolve(fresh, combine=None, body=body)
            if combiner and combiner.position and fresh.reduce:
                value = f"{fresh.target}.value"
                self.tensors[value] = TensorType(
                    dtype_of(fresh.body, self.tensors), tuple(a.extent for a in fresh.axes)
                )
                result.extend(split_argument_reduction(fresh, value, self.tensors))
            else:
                result.append(fresh)
        return result

    def _needed_statements(self, statements: Sequence[Statement]) -> list[Statement]:
        """Return the statements that the live tensors depend on."""
        wanted = set(self.live)
        kept: list[Statement] = []
        for statement in reversed(statements):
            if statement.target in wanted:
                kept.append(statement)
                wanted.update(statement.tensors_read)
        return kept[::-1]

    # ---- parts of the segment

    def _check_reduction(self, statement: Statement, values: Mapping[Var, Index], places: Places) -> None:
        axes = [a for a in statement.axes if a.extent > 1]
        if not is_bijection(values, axes, [p for p in places.axes if p.extent > 1]):
            raise FusionError(
                f"the instances that compute {statement.target} do not match those of the group one to one"
            )

    def _reduce(
        self,
        statement: Statement,
        values: Mapping[Var, Index],
        inliner: Inliner,
        places: Places,
        reductions: list[Reduction],
        registers: dict[str, Expr],
    ) -> None:
        """Add a statement's reduction, unless an equal one exists: argmax beside max of the same rows shares it."""
        rows = places.row_vars(statement.reduce)
        body = inliner.inline(statement.body)
        body = self._resolve(substitute_expr(body, {**values, **places.rows(statement.reduce)}), places, registers)
        if any(i.held for i in expr_indirects(body)):
            raise FusionError(f"{statement.target} is a reduction of elements whose places are values of the instance")
        dtype = self.tensors[statement.target].dtype
        if reductions and (term := single_term(body, statement, rows)) is not None:
            registers[statement.target] = term if dtype_of(term, self.tensors) is dtype else Cast(dtype, term)
            return
        body, scale = hoist_factors(body, statement, frozenset(rows), self.tensors)
        if statement.combine == "sum" and len(factors(body)) > 1:
            body = guard_factors(body)
        accumulator = dtype.accumulator
        if (condition := self._count_condition(body, statement)) is not None:
            body, accumulator = Cast(DType.F32, condition), DType.F32
        elif (place := self._place(body, statement)) is not None:
            body, accumulator = place, DType.I32
        found = Reduction("", rows, str(statement.combine), body, along=self.held.along.get(statement.target, ""))
        name = next((r.name for r in reductions if self._is_same_reduction(r, found, accumulator)), "")
        if not name:
            name = next(n for n in (f"acc{k}" for k in count()) if n not in self.tensors)
            held = (*places.axes, *(rows if found.along else ()))
            self.tensors[name] = TensorType(accumulator, tuple(p.extent for p in held))
            body = read_state(body, statement.target, Read(name, tuple(map(as_index, held))), dtype, accumulator)
            reductions.append(evolve(found, name=name, body=body))
        value: Expr = Read(name, tuple(map(as_index, (*places.axes, *(rows if found.along else ())))))
        value = Cast(dtype, value) if accumulator is not dtype else value
        registers[statement.target] = Call("mul", (value, scale)) if scale is not None else value

    def _count_condition(self, body: Expr, statement: Statement) -> Expr | None:
        """Return the condition that a sum of integers counts, where f32 represents all results: GPUs compare and add
        integers in one pipe, at half the rate, and add floats in another.
        """
        whole = self.tensors[statement.target].dtype.is_int and statement.combine == "sum"
        if not whole or prod(r.extent for r in statement.reduce) > _MAX_EXACT_INTEGER or not isinstance(body, Cast):
            return None
        return body.arg if dtype_of(body.arg, self.tensors) is DType.BOOL else None

    def _place(self, body: Expr, statement: Statement) -> Expr | None:
        """Return the operand of an argument reduction in 32 bits where these suffice: 64 bits take twice the
        instructions.
        """
        if self.tensors[statement.target].dtype is not DType.I64 or statement.combine not in ("min", "max"):
            return None
        if not isinstance(body, Call) or body.fn != "select":
            return None
        condition, place, other = body.args
        if not isinstance(place, IndexValue) or not isinstance(other, Const):
            return None
        element = DType.I32.element
        if not all(element.lowest <= n <= element.highest for n in (*place.index.bounds(), other.value)):
            return None
        return Call("select", (condition, IndexValue(place.index, DType.I32), Const(other.value, DType.I32)))

    def _is_same_reduction(self, known: Reduction, other: Reduction, accumulator: DType) -> bool:
        """Return whether two reductions compute the same values in the same type."""
        kinds = known.combine == other.combine and known.along == other.along
        if not kinds or self.tensors[known.name].dtype is not accumulator:
            return False
        if [v.extent for v in known.reduce] != [v.extent for v in other.reduce]:
            return False
        rows = {v: as_index(w) for v, w in zip(other.reduce, known.reduce, strict=True)}
        return substitute_expr(other.body, rows) == known.body

    def _output(
        self,
        statement: Statement,
        values: Mapping[Var, Index],
        inliner: Inliner,
        places: Places,
        registers: dict[str, Expr],
        reductions: Sequence[Reduction],
    ) -> Output:
        statement = evolve(statement, write=tuple(map(inliner.inline_index, statement.write)))
        write = tuple(substitute(w, values) for w in statement.write)
        limit, column = self.held.limits.get(statement.target), self.columns.get(statement.target)
        named = (*write, *([values[limit[0]]] if limit else []), *(values.values() if column else ()))
        used = frozenset().union(*map(variables, named)) - set(places.axes)
        extra = tuple(v for v in _in_order(statement, values) if v in used)
        if not statement.combine and reductions:
            body = substitute_expr(inliner.inline(statement.body), values)
            extra = order_of_row(extra, write, body, reductions, self.tensors[statement.target], column is not None)
        rows = places.rows(extra)
        if statement.combine:
            body = registers[statement.target]
        else:
            body = substitute_expr(substitute_expr(inliner.inline(statement.body), values), rows)
            body = self._resolve(body, places, registers)
        guards: tuple[Guard, ...] = ()
        if limit:
            guards = (Guard(substitute(values[limit[0]], rows), *limit[1:]),)
        move = self._index_mover(places, registers)
        write = tuple(move(substitute(w, rows)) for w in write)
        arriving = statement.arrival_guards(self.tensors[statement.target].shape)
        guards += map_guards(substitute_guards(substitute_guards(arriving, values), rows), move)
        into = statement.into if statement.combines_in_memory else None
        across = column.combine if column else None
        return Output(statement.target, write, body, places.row_vars(extra), guards, into, across)

    def _resolve(self, expr: Expr, places: Places, registers: Mapping[str, Expr]) -> Expr:
        """Replace reads of reduced tensors by the instance's own value; raise where another's would be needed."""

        move = self._index_mover(places, registers)

        def leaf(node: Expr) -> Expr:
            if any(map(indirects, node.own_indices)):
                node = node.with_indices(move, lambda guards: map_guards(guards, move))
            if not isinstance(node, Read) or node.tensor not in registers:
                return node
            guards = tuple(dict.fromkeys((*self._own_guards(node.tensor, node.indices, places), *node.guards)))
            value = registers[node.tensor]
            if not guards:
                return value
            return Call("select", (InRange(guards), value, constant(node.fill, dtype_of(value, self.tensors))))

        return rebuild(expr, leaf)

    def _own_guards(self, tensor: str, indices: Sequence[Index], places: Places) -> tuple[Guard, ...]:
        """Return the guards of the instance's own value of a reduced tensor; raise where the element is another's."""
        statement, values = places.reductions[tensor]
        instance = indices[: len(statement.write)]  # the place along a row follows
        solution = solve(list(zip(statement.write, instance, strict=True)), statement.axes)
        same = solution is not None and all(solution.values[a] == values[a] for a in statement.axes)
        if tensor in self.held.along:
            same = same and indices[-1] == as_index(places.row_vars(statement.reduce)[0])
        if solution is None or not same:
            raise FusionError(f"{tensor} is needed at elements that other threads compute")
        return solution.guards

    def _index_mover(self, places: Places, registers: Mapping[str, Expr]) -> MoveIndex:
        """Return the function that replaces lookups of reduced rows in an index by the instance's own values."""

        def change(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
            if not isinstance(primary, Indirect) or primary.tensor not in registers:
                return None
            own, value = self._own_guards(primary.tensor, parts, places), registers[primary.tensor]
            value = value.arg if isinstance(value, Cast) else value
            dtype = self.tensors[primary.tensor].dtype
            if own or not isinstance(value, Read) or not holds_integers(dtype, self.tensors[value.tensor].dtype):
                raise FusionError(f"{primary.tensor} is an index, so it has to be a value of the instance")
            return evolve(primary, tensor=value.tensor, held=True).with_parts(value.indices)

        return lambda index: map_primaries(index, change) if indirects(index) else index

    def _group(self, segment: Segment) -> FusedGroup:
        read = segment.tensors_read
        written = tuple(dict.fromkeys(o.tensor for o in segment.outputs))
        own = [r.name for r in segment.reductions]
        names = [*read, *written, *own]
        inputs = tuple(t for t in read if t not in self.constants and t not in own)
        tables = {t: v for t, v in self.constants.items() if t in read}
        return FusedGroup((segment,), {n: self.tensors[n] for n in dict.fromkeys(names)}, inputs, written, (), tables)


@lru_cache(maxsize=1 << 13)
def _rename_axes(statement: Statement, number: int) -> Statement:
    """Return a statement with axes of its own; cached, as groups of one structure need it repeatedly."""
    return rename_axes(statement, f"s{number}_")


def _in_order(statement: Statement, values: Mapping[Var, Index]) -> list[Var]:
    """Return the variables of the axes' values, slowest axis first and each axis's highest digit first."""
    found: dict[Var, None] = {}
    for axis in statement.axes:
        terms = sorted(values[axis].terms, key=lambda term: -abs(term[1]))
        for primary, _ in terms:
            found.update(dict.fromkeys(sorted(variables(Index(0, ((primary, 1),))), key=lambda v: v.name)))
    return list(found)


def _join_pieces(
    statements: Sequence[Statement], live: Sequence[str], tensors: Mapping[str, TensorType]
) -> list[Statement]:
    """Define a live tensor that several pointwise statements write in pieces by one statement, by cases."""
    number: dict[str, int] = {}
    for statement in statements:
        number[statement.target] = number.get(statement.target, 0) + 1
    result: list[Statement] = []
    pieces: dict[str, list[Statement]] = {}
    for statement in statements:
        if number[statement.target] > 1 and (statement.combine or statement.along):
            raise FusionError(f"{statement.target} is written in pieces, one of them a reduction")
        if number[statement.target] == 1 or statement.target not in live:
            result.append(statement)
            continue
        pieces.setdefault(statement.target, []).append(statement)
        if len(pieces[statement.target]) == number[statement.target]:
            result.append(_cases(pieces[statement.target], tensors))
    return result


def _cases(pieces: Sequence[Statement], tensors: Mapping[str, TensorType]) -> Statement:
    target = pieces[0].target
    inliner = Inliner(tensors, frozenset())
    for number, piece in enumerate(pieces):
        inliner.define(rename_axes(piece, f"p{number}_"))
    axes = tuple(Var(f"d{n}", extent) for n, extent in enumerate(tensors[target].shape))
    position = tuple(as_index(a) for a in axes)
    return Statement(target, axes, position, inliner.inline(Read(target, position)), span=pieces[0].span)
