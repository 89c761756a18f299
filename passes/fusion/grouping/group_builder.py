"""Builder of fusion groups from the units of one graph.

A group's normal form is found by the structures of its units and by the numbers of their tensors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from attrs import evolve

from ....ir import FusedGroup, PassError, Statement, TensorType
from ...statements import Unit
from ..legality import Policy, chain_level, register_level, shared_level, with_single_row
from ..normal_forms import NormalForms
from ..normalise import Illegal
from ..views import Views
from .chain_statements import divide_merged_dims, move_row_values
from .exchange import exchange_level
from .groups import (
    Group,
    canonical_names,
    is_pointwise,
    rename_group,
    shared_form,
    with_math,
)
from .writer_functions import apply_by_writer


class GroupBuilder:
    """Builds fusion groups from units of one graph.

    Every answer is cached by structure, in `forms` that others may have filled.
    """

    def __init__(self, views: Views, policy: Policy, forms: NormalForms | None = None) -> None:
        self.views = views
        self.policy = policy
        self.forms = NormalForms() if forms is None else forms
        programs = views.programs
        self.types = programs.types
        self.tables = programs.tables
        self.order = {u.name: n for n, u in enumerate(programs.units)}
        self.units = {u.name: u for u in programs.units}
        self._consumers, self._producers = programs.consumers(), programs.producers()
        self._view_units = {
            u.writes[0]: u for u in programs.units if u.free and u.writes and u.writes[0] in views.sources
        }
        self._piecewise = {t for t, producers in self._producers.items() if len(producers) > 1}
        self._shown = {u.name: tuple(t for t in u.reads if t in self._view_units) for u in programs.units}
        self._graph_outputs = set(programs.graph.outputs)
        self._constants = programs.graph.constants.keys()
        self._known = self._independent_tensors() if policy.invariant else frozenset[str]()
        self._pattern_of: dict[str, int] = {}
        self._groups: dict[tuple[tuple[str, ...], ...], Group | Illegal] = {}
        self._turns: dict[str, GroupBuilder] = {}
        self._losing: dict[str, bool] = {}
        self._readers_of: dict[str, frozenset[str] | None] = {}

    def iteration_builder(self, unit: str) -> GroupBuilder:
        """Return a builder for one iteration of a loop.

        Raises `PassError` where a unit is no loop.
        """
        if unit not in self._turns:
            repeat = self.units[unit].repeat
            if repeat is None:
                raise PassError(f"stage 'partition': expected unit '{unit}' to be a loop, found a unit of statements")
            views = evolve(self.views, programs=self.views.programs.iteration(repeat))
            self._turns[unit] = GroupBuilder(views, self.policy, self.forms)
        return self._turns[unit]

    # ---- queries

    def single(self, unit: str) -> Group:
        """Return the group of one unit.

        Raises `PassError` where the unit has no normal form.
        """
        found = self._form(((unit,),), None)
        if isinstance(found, Illegal):
            own = self.units[unit]
            raise PassError(
                f"stage 'partition': node '{own.node}' ({own.op}): expected unit '{unit}' to be a kernel, but it has "
                f"no normal form: {found.reason}",
                hint="report the graph: every unit of a declaration should be one kernel",
            )
        return found

    def is_used(self, unit: str) -> bool:
        """Return whether a result of a unit is read or an output."""
        return any(self._is_needed(t, {unit}) for t in self.units[unit].writes)

    def fuse(self, first: Group, second: Group) -> Group | Illegal:
        """Return two groups as one kernel, `second` being a consumer of `first`.

        Register level is preferred, in the segment that reads it, else shared-memory level.
        """
        exchange = is_pointwise(first.form) and is_pointwise(second.form)
        if min(len(first.parts), len(second.parts)) > 1:
            several = Illegal("two kernels of several segments are none of three")
            return self._form((*first.parts, *second.parts), self.policy) if exchange else several
        place = self._reading(first, second)
        together = self._program_order((*first.parts[-1], *second.parts[place]))
        register = (*first.parts[:-1], *second.parts[:place], together, *second.parts[place + 1 :])
        found = self._form(register, self.policy)
        if isinstance(found, Group) or not self.policy.shared:
            return found
        if len(first.parts) + len(second.parts) > 2 and not exchange:
            return found
        shared = self._form((*first.parts, *second.parts), self.policy)
        if isinstance(shared, Group):
            return shared
        return Illegal(f"register level: {found.reason}; shared-memory level: {shared.reason}")

    def outline(self, members: Sequence[Group]) -> FusedGroup | None:
        """Return the least reads and writes of a merge of groups.

        The computation is left out, as its form takes long to find. Nothing is returned where the merge may read less
        than the groups: some reads of several pieces, of rows and of tables may turn out not to be needed.
        """
        units = {name for group in members for name in group.units}
        made = {t for name in units for t in self.units[name].writes}
        inputs: dict[str, None] = {}
        for tensor in (t for group in members for t in group.inputs):
            if self.sources(tensor) not in made:
                inputs[tensor] = None
            elif tensor not in made:
                units.add(self._view_units[tensor].name)
        if any(map(self._loses_reads, units)):
            return None
        outputs = dict.fromkeys(t for group in members for t in group.outputs if self._is_needed(t, units))
        return FusedGroup((), {t: self.types[t] for t in (*inputs, *outputs)}, tuple(inputs), tuple(outputs))

    def _loses_reads(self, unit: str) -> bool:
        """Return whether some reads of a unit may become unnecessary in a merge."""
        if unit not in self._losing:
            statements, source = self.units[unit].statements, self._view_units
            pieces = len({s.target for s in statements}) < len(statements)
            shown = any(t in source and self._loses_reads(source[t].name) for t in self.units[unit].reads)
            own = any(s.along is not None or not self.tables.keys().isdisjoint(s.tensors_read) for s in statements)
            self._losing[unit] = pieces or own or shown
        return self._losing[unit]

    def _independent_tensors(self) -> frozenset[str]:
        """Return the tensors that depend on no input."""
        moving = set(self.views.programs.graph.inputs)
        for unit in self.views.programs.units:
            moving.update(() if moving.isdisjoint(unit.reads) else unit.writes)
        return frozenset(self.types.keys() - moving)

    def _reading(self, first: Group, second: Group) -> int:
        """Return the first segment of a group that reads results of another group; the first one where none does."""
        if len(second.parts) == 1:
            return 0
        made = {t for name in first.units for t in self.units[name].writes}
        reads = ((self.sources(t) for name in part for t in self.units[name].reads) for part in second.parts)
        return next((n for n, part in enumerate(reads) if not made.isdisjoint(part)), 0)

    def is_view(self, unit: str) -> bool:
        """Return whether a unit is a free copy, included on demand."""
        return self.units[unit].free and self.units[unit].writes[0] in self.views.sources

    def sources(self, tensor: str) -> str:
        """Return the tensor that a view, directly or indirectly, shows.

        Other tensors are their own source.
        """
        while tensor in self.views.sources:
            tensor = self.views.sources[tensor]
        return tensor

    # ---- construction

    def form(self, parts: tuple[tuple[str, ...], ...]) -> Group | Illegal:
        """Return the group whose segments have these units, in this order."""
        return self._form(parts, self.policy if len(parts) > 1 or len(parts[0]) > 1 else None)

    def _program_order(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=self.order.__getitem__))

    def _form(self, parts: tuple[tuple[str, ...], ...], policy: Policy | None) -> Group | Illegal:
        if parts not in self._groups:
            self._groups[parts] = self._make(parts, policy)
        return self._groups[parts]

    def _make(self, parts: tuple[tuple[str, ...], ...], policy: Policy | None) -> Group | Illegal:
        if pieces := self._pieces([name for part in parts for name in part]):
            return Illegal(f"'{pieces}' is written in pieces by several kernels")
        if len(parts) > 1 and (single := self._pointwise_parts(parts)):
            return self._exchange(parts, single)
        if len(parts) > 3:
            return Illegal("kernels of more than three segments exchange values of pointwise ones")
        own = [self.units[name] for part in parts for name in part]
        if len(own) > 1 and (once := next((unit.name for unit in own if unit.hoisted), None)):
            return Illegal(f"the values of '{once}' are computed once")
        made = {t for unit in own for t in unit.writes}
        members = [self._with_views(part, made) for part in parts]
        every = [unit for units in members for unit in units]
        numbers: dict[str, int] = {}
        for unit in every:
            for tensor in unit.tensors:
                numbers.setdefault(tensor, len(numbers))
        inside = {unit.name for unit in every}
        kept = [
            t for units in members[:-1] for u in units for t in u.writes if not u.free and self._is_needed(t, inside)
        ]
        between = {t for units in members[1:-1] for u in units for t in u.writes}
        for tensor in kept:
            if tensor not in between:
                return Illegal(f"'{tensor}' is in shared memory but needed outside")
        live = [self._live(units, inside, members[n + 1 :]) for n, units in enumerate(members)]
        key = (
            tuple(len(units) for units in members),
            tuple(map(self._pattern, every)),
            tuple(numbers[t] for unit in every for t in unit.tensors),
            tuple(tuple(map(numbers.__getitem__, tensors)) for tensors in live),
            tuple(map(numbers.__getitem__, kept)),
            tuple(number for tensor, number in numbers.items() if self.sources(tensor) in self._known),
            policy is None,
            self.policy,
        )
        if key not in self.forms.normal:
            self.forms.normal[key] = self._normal_form(members, numbers, live, kept, policy)
        found = self.forms.normal[key]
        names = {f"t{n}": tensor for n, tensor in enumerate(numbers)}
        if isinstance(found, Illegal):
            return Illegal(re.sub(r"\bt\d+\b", lambda m: f"'{names.get(m.group(), m.group())}'", found.reason))
        form, canonical = found
        return Group(parts, form, {new: names.get(old, old) for old, new in canonical.items()})

    def _pointwise_parts(self, parts: tuple[tuple[str, ...], ...]) -> list[Group]:
        """Return the parts of a group, with the views of other parts, as groups if all of them are pointwise."""
        if any(s.combine for part in parts for name in part for s in self.units[name].statements):
            return []
        made = {t for part in parts for name in part for t in self.units[name].writes}
        shown = [tuple(u.name for u in self._with_views(part, made)) for part in parts]
        found = [self._form((part,), self.policy if len(part) > 1 else None) for part in shown]
        single = [g for g in found if isinstance(g, Group) and is_pointwise(g.form)]
        return single if len(single) == len(parts) else []

    def _exchange(self, parts: tuple[tuple[str, ...], ...], single: Sequence[Group]) -> Group | Illegal:
        """Return the group whose pointwise segments are those of some groups."""
        inside = {name for part in parts for name in part}
        if kept := [t for group in single[:-1] for t in group.outputs if self._is_needed(t, inside)]:
            return Illegal(f"'{kept[0]}' is in shared memory but needed outside")
        found = exchange_level([rename_group(group.form, group.tensors) for group in single], self.policy)
        if isinstance(found, Illegal):
            return found
        known = dict.fromkeys(group.tensors[t] for group in single for t in group.form.fixed)
        fixed = tuple(t for t in known if t in (*found.inputs, *found.shared, *found.outputs))
        operations = tuple(dict.fromkeys(name for group in single for name in group.form.operations))
        named, canonical = canonical_names(evolve(found, fixed=fixed, operations=operations))
        return Group(parts, shared_form(named), {new: old for old, new in canonical.items()})

    def _normal_form(
        self,
        members: Sequence[Sequence[Unit]],
        numbers: Mapping[str, int],
        live: Sequence[Sequence[str]],
        outside: Sequence[str],
        policy: Policy | None,
    ) -> tuple[FusedGroup, Mapping[str, str]] | Illegal:
        names = {tensor: f"t{n}" for tensor, n in numbers.items()}
        tensors = {names[t]: self.types[t] for t in numbers}
        tables = {names[t]: self.tables[t] for t in numbers if t in self.tables}
        halves = [[s for u in units for s in self._statements(u, names)] for units in members]
        kept = [[names[t] for t in each] for each in live]
        known = {names[t] for t in numbers if self.sources(t) in self._known}
        if not any(kept):
            return Illegal("nothing that it computes is used")
        if len(halves) == 1:
            form = register_level(halves[0], tensors, kept[0], tables, policy, known)
            if policy is None and self.policy.invariant and not isinstance(form, Illegal):
                form = with_single_row(form, known)
        elif len(halves) == 2:
            form = shared_level(halves[0], halves[1], tensors, (kept[0], kept[1]), tables, policy or self.policy)
            form = form if isinstance(form, Illegal) else apply_by_writer(form)
        else:
            parts, left = move_row_values(halves, kept, [names[t] for t in outside], tensors)
            types: Mapping[str, TensorType] = tensors
            if len(left[0]) == 1 and not outside:
                parts, types = divide_merged_dims(parts, tensors, (*left[0], *left[1]))
            form = chain_level(parts, types, left, [names[t] for t in outside], tables, policy or self.policy)
        if isinstance(form, Illegal):
            return form
        constants = {names[t] for t in numbers if self.sources(t) in self._constants}
        fixed, operations = tuple(t for t in form.inputs if t in constants), (u.op for units in members for u in units)
        form = evolve(form, fixed=fixed, operations=tuple(dict.fromkeys(operations)))
        named, canonical = canonical_names(with_math(form, self.policy.math))
        return shared_form(named), canonical

    def _statements(self, unit: Unit, names: Mapping[str, str]) -> tuple[Statement, ...]:
        return self.forms.unit_statements(self._pattern(unit), unit, names)

    def _pattern(self, unit: Unit) -> int:
        """Return the number of a unit's structure."""
        if unit.name not in self._pattern_of:
            self._pattern_of[unit.name] = self.forms.pattern(unit, self.views.programs)
        return self._pattern_of[unit.name]

    def _pieces(self, names: Sequence[str]) -> str | None:
        """Return a tensor that the units write a piece of and also read or write otherwise."""
        units = [self.units[n] for n in names]
        if all(self._piecewise.isdisjoint(u.writes) for u in units):
            return None
        touched = [t for u in units for t in dict.fromkeys((*(self.sources(r) for r in u.reads), *u.writes))]
        return next((t for u in units for t in u.writes if t in self._piecewise and touched.count(t) > 1), None)

    def _with_views(self, part: Sequence[str], made: Collection[str]) -> list[Unit]:
        """Return a part's units and the free copies through which they read tensors in `made`, in order."""
        chosen = {name: self.units[name] for name in part}
        pending = [name for name in part if self._shown[name]]
        while pending:
            for tensor in self._shown[pending.pop()]:
                view = self._view_units[tensor]
                if view.name not in chosen and self.sources(tensor) in made:
                    chosen[view.name] = view
                    pending.append(view.name)
        return [chosen[name] for name in self._program_order(chosen)]

    def _live(self, units: Sequence[Unit], inside: set[str], later: Sequence[Sequence[Unit]]) -> tuple[str, ...]:
        """Return the tensors of a part that are needed outside of it: by other groups, or by a later part."""
        after = {t for part in later for u in part for t in u.reads}
        written = dict.fromkeys(t for u in units if not u.free for t in u.writes)
        return tuple(t for t in written if t in after or self._is_needed(t, inside))

    def _is_needed(self, tensor: str, inside: Set[str]) -> bool:
        """Return whether the graph, or a unit outside of some units, reads a tensor."""
        readers = self._readers(tensor)
        return readers is None or not readers <= inside

    def _readers(self, tensor: str) -> frozenset[str] | None:
        """Return the units that read a tensor, directly or through views; None where it is a result of the graph."""
        if tensor not in self._readers_of:
            found: set[str] | None = None if tensor in self._graph_outputs else set()
            for unit in self._consumers.get(tensor, ()):
                own = self._readers(unit.writes[0]) if self.is_view(unit.name) else {unit.name}
                found = None if found is None or own is None else found | own
            self._readers_of[tensor] = None if found is None else frozenset(found)
        return self._readers_of[tensor]
