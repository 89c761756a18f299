"""Rewriters of units, with def-use chains."""

from __future__ import annotations

from attrs import define, evolve, field

from ....ir import Statement, TensorType
from ....ops.language import unused_name
from ..programs import Programs, Unit


@define
class Rewriter:
    """Rewriter of units.

    `types` grows by added tensors, `has_changed` is set once a rewrite changes the programs.
    """

    programs: Programs
    types: dict[str, TensorType] = field(init=False)
    units: list[Unit] = field(init=False)
    has_changed: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.types, self.units = dict(self.programs.types), list(self.programs.units)

    @property
    def result(self) -> Programs:
        """The programs with all rewrites."""
        return evolve(self.programs, types=self.types, units=tuple(self.units)) if self.has_changed else self.programs

    def add_tensor(self, name: str, type_: TensorType) -> str:
        """Add a tensor of a type under a new name."""
        name = unused_name(name, self.types)
        self.types[name] = type_
        return name

    def update_uses(self, unit: Unit) -> Unit:
        """Return a unit with the reads and writes of its current statements."""
        own = {s.target for s in unit.statements}
        read = dict.fromkeys(t for s in unit.statements for t in s.tensors_read if t not in own)
        reads = tuple(t for t in read if t not in self.programs.tables)
        return evolve(unit, reads=reads, writes=tuple(t for t in unit.writes if t in own))


@define
class DefUseRewriter(Rewriter):
    """Rewriter with the statements that write and that read each tensor."""

    definitions: dict[str, list[Statement]] = field(factory=dict, init=False)
    uses: dict[str, list[Statement]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for unit in self.programs.every_unit:
            for statement in unit.statements:
                self.definitions.setdefault(statement.target, []).append(statement)
                for tensor in statement.tensors_read:
                    self.uses.setdefault(tensor, []).append(statement)
