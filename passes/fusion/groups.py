"""Fusion groups: sets of units that become one kernel, and their builder.

A group's normal form is over canonical tensor names `t0`, `t1`, ... so that equal groups (same statements, types,
liveness) have equal forms: they are normalised once, evaluated once, and share one kernel.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal
from weakref import WeakValueDictionary

from attrs import define, evolve, field, frozen

from ...ir import (
    DType,
    FusedGroup,
    PassError,
    Reduction,
    Segment,
    Statement,
    Storage,
    dtype_of,
    factors,
    is_contraction,
    map_guards,
    print_ir,
    rename_expr,
    rename_in_text,
    rename_index,
    rename_statement,
)
from ..statements import Unit
from .legality import Policy, chain_level, register_level, shared_level
from .normalise import Illegal
from .views import Views

#: Elements that the widest access moves.
_WIDEST = 16


@frozen(cache_hash=True)
class Group:
    """Units that one kernel computes.

    `parts` has the units' names per segment, in order; `form` is the normal form over canonical names and `tensors` the
    graph tensor that each of those stands for. `repeat` is the unit of the loop that they belong to, `units` the names
    of all units.
    """

    parts: tuple[tuple[str, ...], ...]
    form: FusedGroup = field(repr=False, eq=False)
    tensors: Mapping[str, str] = field(repr=False, eq=False)
    repeat: str | None = None
    units: tuple[str, ...] = field(init=False, repr=False, eq=False)

    @units.default
    def _units(self) -> tuple[str, ...]:
        """Return the names of all units."""
        return tuple(name for part in self.parts for name in part)

    @property
    def level(self) -> Literal["single", "register", "shared"]:
        """Level of fusion of its units."""
        if len(self.parts) > 1:
            return "shared"
        return "register" if len(self.parts[0]) > 1 else "single"

    @property
    def text(self) -> str:
        """The normal form over graph tensors as text."""
        return rename_in_text(form_text(self.form), self.tensors)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Graph tensors that the kernel reads."""
        return tuple(self.tensors[t] for t in self.form.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Graph tensors that the kernel writes."""
        return tuple(self.tensors[t] for t in self.form.outputs)

    def storages(self, views: Views) -> dict[str, Storage]:
        """Return the storage of the canonical tensors.

        Buffers carry canonical names too, so that equal layouts compare equal.

        A kernel is handed pointers to its tensors, so of an offset, and of those that a loop adds, it needs to know
        only the alignment.
        """
        found = {t: views.storage(self.tensors[t]) for t in (*self.form.inputs, *self.form.outputs)}
        buffers = {b: f"b{n}" for n, b in enumerate(dict.fromkeys(s.buffer for s in found.values()))}
        return {t: Storage(buffers[s.buffer], _align_offset(s), s.strides) for t, s in found.items()}


def _align_offset(storage: Storage) -> int:
    """Return an offset with the common alignment of all offsets of a storage, also of later iterations."""
    offsets = storage.offset | abs(storage.by)
    return offsets % _WIDEST and offsets & -offsets


class FormKey:
    """Interned key of equal normal forms.

    There is one object for each form in use, in every process of its own, so that comparing keys takes no time.
    """

    __slots__ = ("__weakref__", "parts")

    def __init__(self, parts: tuple[object, ...]) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[object, ...]:
        """Return the parts from which another process finds its own key."""
        return _key_of, (self.parts,)


#: Normal forms in use, by their keys, and keys by their parts: equal ones are one object.
_SAME: WeakValueDictionary[Hashable, FusedGroup] = WeakValueDictionary()
_KEYS: WeakValueDictionary[tuple[object, ...], FormKey] = WeakValueDictionary()


def _key_of(parts: tuple[object, ...]) -> FormKey:
    return _KEYS.setdefault(parts, FormKey(parts))


def canonical_names(group: FusedGroup) -> tuple[FusedGroup, Mapping[str, str]]:
    """Return a group over names `t0`, `t1`, ..., and the new names.

    Tensors are named by their role and order, so that equal groups become equal.
    """
    order = dict.fromkeys((*group.inputs, *group.constants, *group.shared, *group.outputs))
    names = {tensor: f"t{n}" for n, tensor in enumerate(order)}
    return rename_group(group, names), names


def rename_group(group: FusedGroup, names: Mapping[str, str]) -> FusedGroup:
    """Rename tensors, and those values of reductions that `names` has."""

    def rename(segment: Segment) -> Segment:
        reductions = tuple(
            evolve(r, name=names.get(r.name, r.name), body=rename_expr(r.body, names)) for r in segment.reductions
        )
        outputs = tuple(
            evolve(
                o,
                tensor=names[o.tensor],
                write=tuple(rename_index(w, names) for w in o.write),
                body=rename_expr(o.body, names),
                guards=map_guards(o.guards, lambda index: rename_index(index, names)),
            )
            for o in segment.outputs
        )
        return Segment(segment.axes, reductions, outputs)

    inputs, outputs, shared = (tuple(names[t] for t in each) for each in (group.inputs, group.outputs, group.shared))
    tensors = {names.get(t, t): type_ for t, type_ in group.tensors.items()}
    constants = {names[t]: table for t, table in group.constants.items()}
    fixed = tuple(names[t] for t in group.fixed)
    return FusedGroup(tuple(rename(s) for s in group.segments), tensors, inputs, outputs, shared, constants, fixed)


def form_key(form: FusedGroup) -> Hashable:
    """Return a value that is equal for equal normal forms.

    Forms over canonical names are equal for groups that compute the same. The key is computed once for each form: it
    indexes everything that is cached for groups.
    """
    if "key" in form.memo:
        return form.memo["key"]
    parts = (
        form.segments,
        tuple(form.tensors.items()),
        form.inputs,
        form.outputs,
        form.shared,
        tuple(form.constants.items()),
    )
    form.memo["key"] = key = _key_of(parts)
    return key


def form_text(form: FusedGroup) -> str:
    """Return a normal form as text.

    The text is cached for each form, as keys, worker requests and records need it.
    """
    if "text" not in form.memo:
        form.memo["text"] = print_ir(form)
    return str(form.memo["text"])


def with_math(form: FusedGroup, math: str) -> FusedGroup:
    """Return a group whose contractions of f32 use a math mode."""
    if not math:
        return form
    segments = (evolve(s, reductions=tuple(_in_math(r, s, form, math) for r in s.reductions)) for s in form.segments)
    return evolve(form, segments=tuple(segments))


def _in_math(reduction: Reduction, segment: Segment, form: FusedGroup, math: str) -> Reduction:
    multiplies = is_contraction(reduction, [r.name for r in segment.reductions])
    single = all(dtype_of(part, form.tensors) is DType.F32 for part in factors(reduction.body))
    return evolve(reduction, math=math) if multiplies and single else reduction


@define
class NormalForms:
    """Normal forms by structure, shared by builders of one policy.

    Competing plans of one graph have most of their groups in common. `patterns` numbers structures of units,
    `statements` are theirs over some names, and `normal` are the normal forms.
    """

    patterns: dict[object, int] = field(factory=dict)
    statements: dict[tuple[int, tuple[str, ...]], tuple[Statement, ...]] = field(factory=dict)
    normal: dict[object, tuple[FusedGroup, Mapping[str, str]] | Illegal] = field(factory=dict)


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
        self._graph_outputs = set(programs.graph.outputs)
        self._constants = programs.graph.constants.keys()
        self._pattern_of: dict[str, int] = {}
        self._groups: dict[tuple[tuple[str, ...], ...], Group | Illegal] = {}
        self._turns: dict[str, GroupBuilder] = {}
        self._losing: dict[str, bool] = {}

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
        if min(len(first.parts), len(second.parts)) > 1:
            return Illegal("two kernels of several segments are none of three")
        place = self._reading(first, second)
        together = self._program_order((*first.parts[-1], *second.parts[place]))
        register = (*first.parts[:-1], *second.parts[:place], together, *second.parts[place + 1 :])
        found = self._form(register, self.policy)
        if isinstance(found, Group) or not self.policy.shared or len(first.parts) + len(second.parts) > 2:
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

    def _program_order(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=lambda n: self.order[n]))

    def _form(self, parts: tuple[tuple[str, ...], ...], policy: Policy | None) -> Group | Illegal:
        if parts not in self._groups:
            self._groups[parts] = self._make(parts, policy)
        return self._groups[parts]

    def _make(self, parts: tuple[tuple[str, ...], ...], policy: Policy | None) -> Group | Illegal:
        if pieces := self._pieces([name for part in parts for name in part]):
            return Illegal(f"'{pieces}' is written in pieces by several kernels")
        members = [self._with_views(part, {name for p in parts for name in p}) for part in parts]
        numbers: dict[str, int] = {}
        for unit in (u for units in members for u in units):
            for tensor in unit.tensors:
                numbers.setdefault(tensor, len(numbers))
        inside = {u.name for units in members for u in units}
        kept = [
            t for units in members[:-1] for u in units for t in u.writes if not u.free and self._is_needed(t, inside)
        ]
        between = {t for units in members[1:-1] for u in units for t in u.writes}
        for tensor in kept:
            if tensor not in between:
                return Illegal(f"'{tensor}' is in shared memory but needed outside")
        live = [self._live(units, inside, members[n + 1 :]) for n, units in enumerate(members)]
        key = (
            tuple(tuple((self._pattern(u), tuple(numbers[t] for t in u.tensors)) for u in units) for units in members),
            tuple(tuple(numbers[t] for t in tensors) for tensors in live),
            tuple(numbers[t] for t in kept),
            policy is None,
            self.policy,
        )
        if key not in self.forms.normal:
            self.forms.normal[key] = self._normal_form(members, numbers, live, kept, policy)
        found = self.forms.normal[key]
        names = {f"t{n}": tensor for tensor, n in numbers.items()}
        if isinstance(found, Illegal):
            return Illegal(re.sub(r"\bt\d+\b", lambda m: f"'{names.get(m.group(), m.group())}'", found.reason))
        form, canonical = found
        return Group(parts, form, {new: names.get(old, old) for old, new in canonical.items()})

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
        halves = [[s for u in units for s in self._pattern_statements(u, names)] for units in members]
        kept = [[names[t] for t in each] for each in live]
        if not any(kept):
            return Illegal("nothing that it computes is used")
        if len(halves) == 1:
            form = register_level(halves[0], tensors, kept[0], tables, policy)
        elif len(halves) == 2:
            form = shared_level(halves[0], halves[1], tensors, (kept[0], kept[1]), tables, policy or self.policy)
        else:
            form = chain_level(halves, tensors, kept, [names[t] for t in outside], tables, policy or self.policy)
        if isinstance(form, Illegal):
            return form
        constants = {names[t] for t in numbers if self.sources(t) in self._constants}
        form = evolve(form, fixed=tuple(t for t in form.inputs if t in constants))
        named, canonical = canonical_names(with_math(form, self.policy.math))
        return _SAME.setdefault(form_key(named), named), canonical

    def _pattern_statements(self, unit: Unit, names: Mapping[str, str]) -> tuple[Statement, ...]:
        """Return a unit's statements over names of tensors, made once for units of one structure."""
        own = tuple(names[t] for t in unit.tensors)
        key = self._pattern(unit), own
        if key not in self.forms.statements:
            named = dict(zip(unit.tensors, own, strict=True))
            self.forms.statements[key] = tuple(rename_statement(s, named) for s in unit.statements)
        return self.forms.statements[key]

    def _pattern(self, unit: Unit) -> int:
        """Return the number of a unit's structure: its statements over local names, with types and table values."""
        if unit.name not in self._pattern_of:
            local = {tensor: f"a{n}" for n, tensor in enumerate(unit.tensors)}
            types = tuple(self.types[t] for t in unit.tensors)
            tables = tuple(self.tables.get(t) for t in unit.tensors)
            key = (tuple(rename_statement(s, local) for s in unit.statements), types, tables)
            patterns = self.forms.patterns
            self._pattern_of[unit.name] = patterns.setdefault(key, len(patterns))
        return self._pattern_of[unit.name]

    def _pieces(self, names: Sequence[str]) -> str | None:
        """Return a tensor that the units write a piece of and also read or write otherwise."""
        units = [self.units[n] for n in names]
        touched = [t for u in units for t in dict.fromkeys((*(self.sources(r) for r in u.reads), *u.writes))]
        return next((t for u in units for t in u.writes if len(self._producers[t]) > 1 and touched.count(t) > 1), None)

    def _with_views(self, part: Sequence[str], group: set[str]) -> list[Unit]:
        """Return a part's units and the free copies through which they read results of the group, in order."""
        made = {t for name in group for t in self.units[name].writes}
        chosen = {name: self.units[name] for name in part}
        pending = list(chosen.values())
        while pending:
            for tensor in pending.pop().reads:
                view = self._view_units.get(tensor)
                if view is not None and view.name not in chosen and self.sources(tensor) in made:
                    chosen[view.name] = view
                    pending.append(view)
        return [chosen[name] for name in self._program_order(tuple(chosen))]

    def _live(self, units: Sequence[Unit], inside: set[str], later: Sequence[Sequence[Unit]]) -> tuple[str, ...]:
        """Return the tensors of a part that are needed outside of it: by other groups, or by a later part."""
        after = {t for part in later for u in part for t in u.reads}
        written = dict.fromkeys(t for u in units if not u.free for t in u.writes)
        return tuple(t for t in written if t in after or self._is_needed(t, inside))

    def _is_needed(self, tensor: str, inside: set[str]) -> bool:
        if tensor in self._graph_outputs:
            return True
        for unit in self._consumers.get(tensor, ()):
            if unit.free and unit.writes[0] in self.views.sources:
                if self._is_needed(unit.writes[0], inside):
                    return True
            elif unit.name not in inside:
                return True
        return False
