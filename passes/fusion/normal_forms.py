"""Cache of normal forms: groups of one structure are normalised once.

unit a    %y = exp(%x)        pattern 0    a1 = exp(a0)
unit b    %v = exp(%u)        pattern 0
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field

from ...ir import FusedGroup, Statement, rename_statement
from ..statements import Programs, Unit
from .normalise import Illegal


@define
class NormalForms:
    """Normal forms by structure, shared by builders of one policy.

    Competing plans of one graph have most of their groups in common. `patterns` numbers structures of units,
    `statements` are theirs over some names, and `normal` are the normal forms.
    """

    patterns: dict[object, int] = field(factory=dict)
    statements: dict[tuple[int, tuple[str, ...]], tuple[Statement, ...]] = field(factory=dict)
    normal: dict[object, tuple[FusedGroup, Mapping[str, str]] | Illegal] = field(factory=dict)

    def pattern(self, unit: Unit, programs: Programs) -> int:
        """Return the number of a unit's structure.

        It has statements over local names, types, and values of tables."""
        local = {tensor: f"a{n}" for n, tensor in enumerate(unit.tensors)}
        types = tuple(programs.types[t] for t in unit.tensors)
        tables = tuple(programs.tables.get(t) for t in unit.tensors)
        key = (tuple(rename_statement(s, local) for s in unit.statements), types, tables)
        return self.patterns.setdefault(key, len(self.patterns))

    def unit_statements(self, pattern: int, unit: Unit, names: Mapping[str, str]) -> tuple[Statement, ...]:
        """Return a unit's statements over names of tensors.

        They are made once for units of one pattern."""
        own = tuple(names[t] for t in unit.tensors)
        if (pattern, own) not in self.statements:
            named = dict(zip(unit.tensors, own, strict=True))
            self.statements[pattern, own] = tuple(rename_statement(s, named) for s in unit.statements)
        return self.statements[pattern, own]
