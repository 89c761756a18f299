"""Recurrences whose states depend on their own element alone, as rows that threads walk.

A loop over steps writes a state for each step. Where each element of a state follows from the same element a step
before, and from what other steps do not change, no element needs another thread: the state is a row along the steps,
marked like a prefix scan (`Statement.along`), and its readers are statements like any other. Values of one step alone
are inlined.

    h[0, n] = first[n];   m[t, n] = a[t, n] * h[t, n], h[t + 1, n] = m[t, n] + x[t, n] step t < S;   y[t, n] = h[t + 1, n]
      ->   states[t, n] = a[t, n] * (states[t - 1, n] if t >= 1 else first[n]) + x[t, n]     along t
           y[t, n] = states[t, n]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from ...ir import (
    Call,
    Expr,
    Guard,
    Index,
    InRange,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    rebuild,
    runs,
    split_step,
    substitute,
    substitute_expr,
    variables,
)
from ...ops.language import canonicalise, live_statements, unused_name
from .inline import constant


def walk_recurrences(program: Program) -> Program:
    """Return an equal program with loops as rows of states where each element depends on itself alone."""
    for step, run in runs(program.statements):
        if step is not None:
            found = _Loop(program, step, run).walked()
            if found is not None:
                return walk_recurrences(found)
    return program


@frozen
class _State:
    """State of a loop.

    Step t writes row `factor * t + const`; `first` is the value before the first step over `axes`, those of the other
    dims.
    """

    tensor: str
    rows: str
    factor: int
    const: int
    axes: tuple[Var, ...]
    first: Expr

    def before(self, step: Index, places: Sequence[Index]) -> Expr:
        """Return the value before a step, at places of the other dims."""
        first = substitute_expr(self.first, dict(zip(self.axes, places, strict=True)))
        low, high = step.bounds()
        if high < 1:
            return first
        inside = Guard(step, 1, high + 1)
        read = Read(self.rows, (step - 1, *places), () if inside.always else (inside,))
        return read if inside.always else Call("select", (InRange((inside,)), read, first))

    def value(self, row: Index, places: Sequence[Index]) -> Expr:
        """Return the value of a row."""
        return self.before((row - self.const) * self.factor + 1, places)


@frozen
class _Loop:
    """A loop of a program: the statements of its steps."""

    program: Program
    step: Var
    run: tuple[Statement, ...]

    def walked(self) -> Program | None:
        """Return the program with the loop's states as rows, or None."""
        if self.step.extent < 2 or not all(map(self._has_rows, self.run)):
            return None
        states = self._states()
        if not states:
            return None
        tensors = dict(self.program.tensors)
        for state in states.values():
            shape = (self.step.extent, *(a.extent for a in state.axes))
            tensors[state.rows] = TensorType(tensors[state.tensor].dtype, shape)
        own = {s.target: s for s in self.run}
        statements: list[Statement] = []
        for statement in self.program.statements:
            if statement.step != self.step:
                if statement.target not in states:
                    statements.append(self._reader(statement, states))
                continue
            state = states.get(statement.target)
            body = self._inlined(statement, states, own)
            if body is None:
                return None
            if state is None:
                plain = evolve(statement, body=body, step=None)
                statements.append(canonicalise(plain))
                continue
            place = tuple(map(as_index, (self.step, *state.axes)))
            axes = (self.step, *state.axes)
            moved = evolve(statement, target=state.rows, axes=axes, write=place, body=body, step=None)
            statements.append(evolve(moved, along=self.step))
        kept = [self._whole(state) for state in states.values() if state.tensor in self.program.outputs]
        every = live_statements((*statements, *kept), self.program.outputs)
        return evolve(self.program, tensors=tensors, statements=every)

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
                if lag not in (0, 1) or (lag == 0 and places[read.tensor] >= number) or read.guards:
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

    def _state(self, statement: Statement) -> _State | None:
        """Return a state with the value before the first step."""
        factor, const = statement.write[0].coefficient(self.step), statement.write[0].const
        begins = [s for s in self.program.statements if s.target == statement.target and s.step != self.step]
        row = as_index(const - factor)
        if len(begins) != 1 or begins[0].write[0] != row or not begins[0].is_pointwise or begins[0].step is not None:
            return None
        named = enumerate(statement.write[1:])
        axes = tuple(next((a for a in statement.axes if as_index(a) == w), Var(f"one{n}", 1)) for n, w in named)
        moved = {}
        for index, axis in zip(begins[0].write[1:], axes, strict=True):
            own = next((a for a in begins[0].axes if as_index(a) == index and a.extent == axis.extent), None)
            if own is None and axis.extent > 1:
                return None
            if own is not None:
                moved[own] = as_index(axis)
        rows = unused_name(f"{statement.target}_states", self.program.tensors)
        first = substitute_expr(begins[0].body, moved)
        written = {s.target for s in self.run}
        if any(tensor in written for tensor in begins[0].tensors_read):
            return None
        return _State(statement.target, rows, factor, const, axes, first)

    def _inlined(
        self, statement: Statement, states: Mapping[str, _State], own: Mapping[str, Statement]
    ) -> Expr | None:
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
                axes = {a: i for a in definition.axes for w, i in zip(definition.write, node.indices, strict=True) if w == as_index(a)}
                axes[self.step] = as_index(self.step)
                return rebuild(substitute_expr(definition.body, axes), leaf)
            if state is not None:
                same = tuple(places) == tuple(map(as_index, state.axes))
                late = order.index(other.tensor) > order.index(state.tensor)
                legal = legal and (same if other is state else not late)
            step = as_index(self.step)
            lag = self._lag(node)
            return other.before(step if lag else step + 1, places)

        body = rebuild(statement.body, leaf)
        return body if legal else None

    def _reader(self, statement: Statement, states: Mapping[str, _State]) -> Statement:
        """Return a statement outside of the loop that reads rows of states."""

        def leaf(node: Expr) -> Expr:
            state = states.get(node.tensor) if isinstance(node, Read) else None
            if state is None:
                return node
            assert isinstance(node, Read)
            value = state.value(node.indices[0], node.indices[1:])
            if not node.guards:
                return value
            return Call("select", (InRange(node.guards), value, constant(node.fill, self.program.tensors[node.tensor].dtype)))

        body = rebuild(statement.body, leaf)
        return statement if body == statement.body else canonicalise(evolve(statement, body=body))

    def _whole(self, state: _State) -> Statement:
        """Return the statement that writes all rows of a state."""
        row = Var(unused_name("row", [a.name for a in state.axes]), self.program.tensors[state.tensor].shape[0])
        axes = (row, *state.axes)
        places = tuple(map(as_index, axes))
        return Statement(state.tensor, axes, places, state.value(places[0], places[1:]))
