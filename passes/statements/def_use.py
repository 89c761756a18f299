"""Def-use index of units: the statements that write and read each tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from attrs import define, evolve, field

from ...ir import Cast, DType, Expr, Index, Program, Read, Statement, TensorType, Var, dtype_of, indirects, solve
from ...ops.language import unused_name
from .units import Programs, Unit


@define
class DefUse:
    """Units with the statements that write (`definitions`) and read (`uses`) each tensor.

    `types` grows by added tensors. Readers beyond the statements, as the graph and loops, read tensors in `pinned`;
    loops write tensors in `looped`. `homes` has the unit of each statement, `names` those of the units. A whole
    `Program` is one unit.
    """

    units: list[Unit]
    types: dict[str, TensorType]
    tables: Collection[str]
    pinned: frozenset[str]
    looped: frozenset[str] = frozenset()
    definitions: dict[str, list[Statement]] = field(init=False, factory=dict)
    uses: dict[str, list[Statement]] = field(init=False, factory=dict)
    homes: dict[Statement, Unit] = field(init=False)
    names: set[str] = field(init=False)

    @homes.default
    def _homes(self) -> dict[Statement, Unit]:
        return {s: unit for unit in reversed(self.units) for s in unit.statements}

    @names.default
    def _names(self) -> set[str]:
        return {unit.name for unit in self.units}

    @classmethod
    def of_programs(cls, programs: Programs) -> DefUse:
        """Return the index of a graph's units, with those that loops repeat."""
        loops = [unit for unit in programs.units if unit.repeat is not None]
        parts = (t for name, part in programs.slices.items() for t in (name, part.whole))
        pinned = (*programs.graph.outputs, *parts, *(t for loop in loops for t in (*loop.reads, *loop.writes)))
        inner = [unit for loop in loops if loop.repeat is not None for unit in loop.repeat.units]
        looped = (*(t for loop in loops for t in loop.writes), *(s.target for unit in inner for s in unit.statements))
        units, types = list(programs.units), dict(programs.types)
        index = cls(units, types, programs.tables, frozenset(pinned), frozenset(looped))
        index.add(s for unit in programs.every_unit for s in unit.statements)
        return index

    @classmethod
    def of_nothing(cls) -> DefUse:
        """Return the index for patterns that follow no reads."""
        return cls([], {}, (), frozenset())

    @classmethod
    def of_program(cls, program: Program) -> DefUse:
        """Return the index of one node's statements."""
        unit = Unit("", "", "", program.statements, program.inputs, program.outputs)
        index = cls([unit], dict(program.tensors), program.constants, frozenset(program.outputs))
        index.add(program.statements)
        return index

    def add(self, statements: Iterable[Statement]) -> None:
        """Enter statements."""
        for statement in statements:
            self.definitions.setdefault(statement.target, []).append(statement)
            for tensor in statement.tensors_read:
                self.uses.setdefault(tensor, []).append(statement)

    def remove(self, statement: Statement) -> None:
        """Forget a statement."""
        self.definitions[statement.target].remove(statement)
        if not self.definitions[statement.target]:
            del self.definitions[statement.target]
        for tensor in statement.tensors_read:
            self.uses[tensor].remove(statement)

    def add_tensor(self, name: str, type_: TensorType) -> str:
        """Add a tensor under a new name that begins with `name`."""
        name = unused_name(name, self.types)
        self.types[name] = type_
        return name

    def convert(self, value: Expr, dtype: DType) -> Expr:
        """Return a value in an element type."""
        return value if dtype_of(value, self.types) is dtype else Cast(dtype, value)

    def new_unit(self, unit: Unit, suffix: str, statements: Sequence[Statement], hoisted: bool = False) -> Unit:
        """Return a unit like another one, of other statements."""
        name = unused_name(f"{unit.name}.{suffix}", self.names)
        return evolve(unit, name=name, statements=tuple(statements), reads=(), writes=(), hoisted=hoisted)

    def insert(self, place: int, unit: Unit, suffix: str, statements: Sequence[Statement]) -> None:
        """Insert a unit like another one, of new statements."""
        self.units.insert(place, self.new_unit(unit, suffix, statements))
        self._enter(self.units[place])
        self.add(statements)

    def put_in_order(self) -> bool:
        """Move units ahead of their readers; return whether an order exists.

        A unit stays where no reader precedes it. Units that write a tensor several of them define are not moved.
        """
        order: list[Unit] = []
        done = set[int]()

        def place(unit: Unit, waiting: frozenset[int]) -> bool:
            if id(unit) in done:
                return True
            for statement in unit.statements:
                makers = [self.single_definition(tensor) for tensor in statement.tensors_read]
                homes = [home for maker in makers if maker and (home := self.unit_of(maker)) and home is not unit]
                if any(id(home) in waiting or not place(home, waiting | {id(unit)}) for home in homes):
                    return False
            if waiting and any(self.single_definition(s.target) is None for s in unit.statements):
                return False
            done.add(id(unit))
            order.append(unit)
            return True

        if not all(place(unit, frozenset()) for unit in self.units):
            return False
        self.units = order
        return True

    def replace(self, unit: Unit, others: Sequence[Unit]) -> None:
        """Replace a unit by others, at its place."""
        place = next(n for n, each in enumerate(self.units) if each is unit)
        self.units[place : place + 1] = others
        for statement in unit.statements:
            self.homes.pop(statement, None)
        for other in others:
            self._enter(other)

    def _enter(self, unit: Unit) -> None:
        self.names.add(unit.name)
        self.homes.update(dict.fromkeys(unit.statements, unit))

    def remove_unused(self, tensors: Collection[str]) -> None:
        """Remove the definitions of some tensors, as long as nothing reads them."""
        while unused := {t for t in tensors if t in self.definitions and t not in self.pinned and not self.uses.get(t)}:
            dropped = [s for t in unused for s in self.definitions[t]]
            for unit in {id(unit): unit for s in dropped if (unit := self.unit_of(s)) is not None}.values():
                left = tuple(s for s in unit.statements if s.target not in unused)
                self.replace(unit, [evolve(unit, statements=left)])
            for statement in dropped:
                self.remove(statement)

    def unit_of(self, statement: Statement) -> Unit | None:
        """Return the unit of a statement, None for statements of loops."""
        return self.homes.get(statement)

    def single_definition(self, tensor: str) -> Statement | None:
        """Return the only statement that writes a tensor.

        None for tensors of loops."""
        found = self.definitions.get(tensor, ())
        return found[0] if len(found) == 1 and tensor not in self.looped else None

    def definition(self, read: Expr) -> Statement | None:
        """Return the only definition of an unguarded read.

        Scatters, recurrences and scans are none."""
        if not isinstance(read, Read) or read.guards or any(map(indirects, read.indices)):
            return None
        found = self.single_definition(read.tensor)
        return found if found is not None and is_plain(found) else None

    def is_only_read_by(self, tensor: str, readers: Collection[Statement]) -> bool:
        """Return whether exactly these statements read a tensor."""
        return tensor not in self.pinned and {*self.uses.get(tensor, ())} == {*readers}


def is_plain(statement: Statement) -> bool:
    """Return whether a statement is no scatter, no recurrence and no scan."""
    return statement.into is None and statement.step is None and statement.along is None


def axis_values(statement: Statement, indices: Sequence[Index]) -> Mapping[Var, Index] | None:
    """Return the axes of a statement for an element of its result.

    None where the element does not determine them."""
    found = solve(list(zip(statement.write, indices, strict=True)), statement.axes)
    return found.values if found is not None and not found.free and not found.guards else None
