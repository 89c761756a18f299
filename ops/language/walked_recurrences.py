"""Recurrences whose elements are independent, as rows that threads walk.

A loop over steps writes a state for each step. Where each element of a state follows from the same element a step
before, and from tensors around the loop, no element needs another thread: the state is a row along the steps,
marked like a prefix scan (`Statement.along`), and its readers are statements like any other. Values of one step alone
are inlined; the row before the first step is stored where something reads it.

    h[0, n] = first[n];   m[t, n] = a[t, n] * h[t, n], h[t + 1, n] = m[t, n] + x[t, n] step t;   y[t, n] = h[t + 1, n]
      ->   h[t + 1, n] = a[t, n] * (h[t, n] if t >= 1 else first[n]) + x[t, n]     along t
           y[t, n] = h[t + 1, n]
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from ...ir import (
    Call,
    Const,
    Expr,
    Guard,
    InRange,
    Program,
    Read,
    Statement,
    Var,
    as_index,
    rebuild,
    runs,
    split_step,
    substitute_expr,
    variables,
)
from .canonical import canonicalise, live_statements
from .peeled_rows import join_peeled_rows


def walk_recurrences(program: Program) -> Program:
    """Return an equal program whose states of independent elements are rows."""
    for step in dict.fromkeys(s.step for s in program.statements if s.step is not None):
        for form in (join_peeled_rows(program, step), program):
            for own, run in runs(form.statements):
                found = _Loop(form, own, run).rewrite() if own is not None and own.name == step.name else None
                if found is not None:
                    return walk_recurrences(found)
    return program


@frozen
class _State:
    """State of a loop, which a step writes over `axes`; `first` is its value before the first step."""

    tensor: str
    factor: int
    const: int
    axes: tuple[Var, ...]
    first: Expr

    def read_before(self, step: Var, read: Read) -> Expr:
        """Return a read of the value a step before."""
        inside = Guard(as_index(step), 1, step.extent)
        first = substitute_expr(self.first, dict(zip(self.axes, read.indices[1:], strict=True)))
        return Call("select", (InRange((inside,)), evolve(read, guards=(inside,)), first))

    def is_start_read(self, statement: Statement) -> bool:
        """Return whether a statement reads the row before the first step."""
        rows = (r.indices[0].bounds() for r in statement.reads if r.tensor == self.tensor)
        return any(low <= self.const - self.factor <= high for low, high in rows)

    def without_start(self, program: Program, step: Var) -> Program:
        """Return a program without the row before the first step."""
        low = (as_index(step) * self.factor + self.const).bounds()[0]

        def leaf(node: Expr) -> Expr:
            if not isinstance(node, Read) or node.tensor != self.tensor:
                return node
            return evolve(node, indices=(node.indices[0] - low, *node.indices[1:]))

        moved = []
        for statement in (s for s in program.statements if s.target != self.tensor or s.along == step):
            own = statement.target == self.tensor
            write = (statement.write[0] - low, *statement.write[1:]) if own else statement.write
            moved.append(evolve(statement, write=write, body=rebuild(statement.body, leaf)))
        type_ = program.tensors[self.tensor]
        rows = evolve(type_, shape=(step.extent, *type_.shape[1:]))
        return evolve(program, tensors={**program.tensors, self.tensor: rows}, statements=tuple(moved))


@frozen
class _Loop:
    """A loop of a program: the statements of its steps."""

    program: Program
    step: Var
    run: tuple[Statement, ...]

    def rewrite(self) -> Program | None:
        """Return the program with the loop's states as rows, or None."""
        if self.step.extent < 2 or not all(map(self._has_rows, self.run)):
            return None
        states = self._states()
        if not states:
            return None
        own = {s.target: s for s in self.run}
        statements: list[Statement] = []
        for statement in self.program.statements:
            if statement.step != self.step:
                statements.append(statement)
                continue
            body = self._inline(statement, states, own)
            if body is None:
                return None
            along = self.step if statement.target in states else None
            moved = evolve(statement, body=body, step=None, along=along)
            statements.append(moved if along else canonicalise(moved))
        program = evolve(self.program, statements=live_statements(statements, self.program.outputs))
        if not any(self._needs_rows(state, program) for state in states):
            return None
        for state in states.values():
            others = [s for s in program.statements if s.target != state.tensor and s.along != self.step]
            if state.tensor not in self.program.outputs and not any(map(state.is_start_read, others)):
                program = state.without_start(program, self.step)
        return program

    def _needs_rows(self, state: str, program: Program) -> bool:
        """Return whether values of all steps are read: a loop keeps few rows of others."""
        found = (r for s in program.statements if s.along != self.step for r in s.reads if r.tensor == state)
        return state in program.outputs or any(not r.indices[0].is_const for r in found)

    def _has_rows(self, statement: Statement) -> bool:
        """Return whether a step writes whole rows, each dim by an axis."""
        first, *others = statement.write
        factor = first.coefficient(self.step)
        wide = [i for i in others if not i.is_const]
        places = {as_index(a) for a in statement.axes if a != self.step and a.extent > 1}
        whole = len({*wide}) == len(wide) and {*wide} == places and statement.into is None
        return whole and factor in (1, -1) and variables(first) == {self.step} and len(first.terms) == 1

    def _states(self) -> dict[str, _State]:
        """Return the states in the order of their statements, none where a loop does more."""
        found: dict[str, _State] = {}
        places = {s.target: n for n, s in enumerate(self.run)}
        if len(places) != len(self.run):
            return {}
        earlier = set[str]()
        for number, statement in enumerate(self.run):
            for read in statement.reads:
                if read.tensor not in places:
                    continue
                lag = self._lag(read)
                outside = Guard(read.indices[0], 0, self.program.tensors[read.tensor].shape[0])
                guards = lag == 1 and read.guards == (outside,) and self._begins(read.tensor) == []
                if lag not in (0, 1) or (lag == 0 and places[read.tensor] >= number) or (read.guards and not guards):
                    return {}
                if lag == 1:
                    earlier.add(read.tensor)
        for statement in self.run:
            if statement.target in earlier:
                state = self._state(statement)
                if state is None or statement.combine is not None:
                    return {}
                found[statement.target] = state
        return found

    def _lag(self, read: Read) -> int:
        """Return the steps between the write of an element of the loop and its read, -1 where they differ."""
        writer = next(s for s in self.run if s.target == read.tensor)
        try:
            (factor, at), (other, place) = (split_step(i, self.step) for i in (writer.write[0], read.indices[0]))
        except Exception:  # no multiple of the step
            return -1
        distance = (at - place) * factor
        return distance.const if factor == other and distance.is_const else -1

    def _begins(self, tensor: str) -> list[Statement]:
        """Return the statements outside of the loop that write a tensor."""
        return [s for s in self.program.statements if s.target == tensor and s.step != self.step]

    def _state(self, statement: Statement) -> _State | None:
        """Return a state with the value before the first step."""
        factor, const = statement.write[0].coefficient(self.step), statement.write[0].const
        begins = self._begins(statement.target)
        named = enumerate(statement.write[1:])
        axes = tuple(next((a for a in statement.axes if as_index(a) == w), Var(f"one{n}", 1)) for n, w in named)
        if not begins:
            dtype = self.program.tensors[statement.target].dtype
            nothing = Const(0.0 if dtype.is_float else 0, dtype)
            return _State(statement.target, factor, const, axes, nothing)
        row = as_index(const - factor)
        if len(begins) != 1 or begins[0].write[0] != row or not begins[0].is_pointwise or begins[0].step is not None:
            return None
        moved = {}
        for index, axis in zip(begins[0].write[1:], axes, strict=True):
            own = next((a for a in begins[0].axes if as_index(a) == index and a.extent == axis.extent), None)
            if own is None and axis.extent > 1:
                return None
            if own is not None:
                moved[own] = as_index(axis)
        first = substitute_expr(begins[0].body, moved)
        written = {s.target for s in self.run}
        if any(tensor in written for tensor in begins[0].tensors_read):
            return None
        return _State(statement.target, factor, const, axes, first)

    def _inline(self, statement: Statement, states: Mapping[str, _State], own: Mapping[str, Statement]) -> Expr | None:
        """Return a body over states and tensors around the loop; None where a state needs other elements."""
        state = states.get(statement.target)
        order = [s.target for s in self.run]
        legal = True

        def leaf(node: Expr) -> Expr:
            nonlocal legal
            if not isinstance(node, Read) or node.tensor not in own:
                return node
            places = node.indices[1:]
            other = states.get(node.tensor)
            if other is None:
                definition = own[node.tensor]
                if state is None:
                    return node
                if definition.combine is not None:
                    legal = False
                    return node
                pairs = list(zip(definition.write, node.indices, strict=True))[1:]
                axes = {a: i for a in definition.axes for w, i in pairs if w == as_index(a)}
                return rebuild(substitute_expr(definition.body, axes), leaf)
            if state is not None:
                same = tuple(places) == tuple(map(as_index, state.axes))
                late = order.index(other.tensor) > order.index(state.tensor)
                legal = legal and (same if other is state else not late)
            return other.read_before(self.step, node) if self._lag(node) else node

        body = rebuild(statement.body, leaf)
        return body if legal else None
