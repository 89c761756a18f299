"""Groups of repeated layers: inserts those that a shortened graph lacks.

    A1 | A2 | A35 | A36      ->      A1 | A2 | A3 | ... | A34 | A35 | A36

The units of a layer are a run of units that the next units repeat: statements are equal, and each tensor is the same,
or moves by one layer together with its type and storage; so are its groups. Copies of both runs are inserted, with the
tensors of the other layers. Units and groups after them have the tensors of as many layers later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from attrs import evolve, frozen

from ...ir import Storage, fresh_name, rename_statement
from ..context import CompileContext
from ..fusion import Group, Unit, Views, form_key
from ..graph import KEPT_FIRST, Place, RepeatedLayers
from ..results import Layouts, Partition, ScheduledPartition

T = TypeVar("T", Unit, Group)
V = TypeVar("V")
#: Numbers of units or groups of a layer that are tried.
MAX_SIZES = 3


def insert_layers(
    layers: RepeatedLayers, previous: ScheduledPartition, context: CompileContext
) -> ScheduledPartition | None:
    """Return the whole graph's groups for those of its shortened graph.

    None where units or groups of its layers are not equal.
    """
    short, copies = previous.partition, layers.removed
    names = _Names.of(layers, short.views)
    units = _find_run(short.views.programs.units, names, _Names.follows_unit)
    formed = _find_run(short.formed, names, _Names.follows_group)
    groups = _find_run(short.groups, names, _Names.follows_group)
    if units is None or formed is None or groups is None or any(unit.repeat for unit in units.items):
        return None
    moved: list[tuple[Unit | Group, int]] = [*units.order(copies), *formed.order(copies), *groups.order(copies)]
    try:
        views = _whole_views(dict.fromkeys((t, by) for item, by in moved for t in _tensors(item)), names)
        whole = evolve(views.programs, units=tuple(names.moved_unit(*each) for each in units.order(copies)))
        first, final = ([names.moved_group(*each) for each in run.order(copies)] for run in (formed, groups))
    except LookupError:
        return None
    views = evolve(views, programs=whole)
    layouts = Layouts(evolve(short.layouts.statements, programs=whole), views, context.builder(views))
    return evolve(previous, partition=Partition(layouts, first, final, views))


@frozen(eq=False)
class _Run(Generic[T]):
    """Items of a graph; those of one layer, `size` from `first` on, are copied."""

    items: Sequence[T]
    first: int
    size: int

    def order(self, copies: int) -> Iterator[tuple[T, int]]:
        """Yield the whole graph's items: those of the shortened one, with distances.

        Each moves by so many layers.
        """
        end = self.first + self.size
        yield from ((item, 0) for item in self.items[:end])
        yield from ((item, by) for by in range(1, copies + 1) for item in self.items[self.first : end])
        yield from ((item, copies) for item in self.items[end:])


def _find_run(items: Sequence[T], names: _Names, follows: Callable[[_Names, T, T], bool]) -> _Run[T] | None:
    """Return the items of a layer, which the next ones repeat; note how their names move."""
    for size in _likely_sizes(items, names):
        start, longest, trial = 0, range(0), names.fresh()
        for n in range(len(items) - size + 1):
            if n == len(items) - size or not follows(trial, items[n], items[n + size]):
                longest = max(longest, range(start, n), key=len)
                start, trial = n + 1, names.fresh()
        if len(longest) >= size:
            noted = all(follows(names, items[n], items[n + size]) for n in longest)
            return _Run(items, longest.start + (len(longest) - size) // 2, size) if noted else None
    return None


def _likely_sizes(items: Sequence[T], names: _Names) -> Iterator[int]:
    """Yield likely numbers of items of a layer: the distances of items that touch equal values."""
    first: dict[Place, int] = {}
    for n, item in enumerate(items):
        for tensor in _tensors(item):
            if tensor in names.tensors.places:
                first.setdefault(names.tensors.places[tensor], n)
    later = ((n, first.get(Place(p.root, p.layer + 1))) for p, n in first.items() if p.layer == KEPT_FIRST - 1)
    counts = Counter(then - n for n, then in later if then is not None and then > n)
    yield from (size for size, _ in counts.most_common(MAX_SIZES))


def _tensors(item: Unit | Group) -> Sequence[str]:
    return (*item.tensors, *item.reads, *item.writes) if isinstance(item, Unit) else [*item.tensors.values()]


def _whole_views(pairs: dict[tuple[str, int], None], names: _Names) -> Views:
    """Return the types and the storage of tensors of a shortened graph, and of those of some layers later.

    Raises `LookupError` where a tensor would be in two places.
    """
    views, graph = names.views, names.layers.graph
    programs, move = views.programs, names.tensors.move
    pairs |= dict.fromkeys((views.storages[t].buffer, by) for t, by in [*pairs] if t in views.storages)

    def extend(known: Mapping[str, V], change: Callable[[V, int], V] = lambda value, by: value) -> dict[str, V]:
        found = dict[str, V]()
        for tensor, by in pairs:
            if tensor in known:
                name, value = move(tensor, by), change(known[tensor], by)
                if found.setdefault(name, value) != value:
                    raise LookupError(name)
        return found

    moved = evolve(
        programs,
        graph=evolve(graph, constants={**programs.graph.constants, **graph.constants}),
        types={**graph.types, **extend(programs.types)},
        tables=extend(programs.tables),
        orders=extend(programs.orders),
    )
    places: Callable[[Storage, int], Storage] = lambda place, by: evolve(place, buffer=move(place.buffer, by))  # noqa: E731
    storages = extend(views.storages, places)
    return Views(moved, storages, extend(views.sources, move))


class _Chains:
    """Names that move from layer to layer, by their `places` or as found by comparing layers."""

    def __init__(self, places: Mapping[str, Place], wholes: dict[Place, str], taken: set[str]) -> None:
        self.places, self.wholes, self.taken = places, wholes, taken
        self.later: dict[str, str] = {}
        self.earlier: dict[str, str] = {}

    def follows(self, old: str, new: str) -> bool:
        """Return whether a name is another one a layer later; note it.

        It may be the same.
        """
        first, second = self.places.get(old), self.places.get(new)
        if old != new and (first is None) != (second is None):
            return False
        if first is not None and second is not None and old != new and second != Place(first.root, first.layer + 1):
            return False
        return self.later.setdefault(old, new) == new and self.earlier.setdefault(new, old) == old

    def move(self, name: str, by: int) -> str:
        """Return the whole graph's name for one that moves by some layers.

        Raises `LookupError` where no layer has it.
        """
        place = self.places.get(name) or self._found_place(name)
        if place is None:
            return name
        moved = Place(place.root, place.layer + by)
        if name in self.places:
            return self.wholes[moved]
        if moved not in self.wholes:
            self.wholes[moved] = name if not by else fresh_name(self.taken, name)
            self.taken.add(self.wholes[moved])
        return self.wholes[moved]

    def _found_place(self, name: str) -> Place | None:
        """Return the place of a name between graph values; None where it is the same in all layers."""
        root, layer = name, 0
        while (before := self.earlier.get(root, root)) != root:
            root, layer = before, layer + 1
        return None if self.later.get(name, name) == name and not layer else Place(root, layer)


class _Names:
    """Names of tensors and units of a shortened graph, and how they move from layer to layer."""

    def __init__(self, layers: RepeatedLayers, views: Views, tensors: _Chains) -> None:
        self.layers, self.views, self.tensors = layers, views, tensors
        self.units = _Chains({}, {}, {unit.name for unit in views.programs.units})

    @staticmethod
    def of(layers: RepeatedLayers, views: Views) -> _Names:
        """Return the names of a shortened graph before any are compared."""
        short = {value: layers.kept_place(place) for value, place in layers.places.items()}
        wholes = {place: value for value, place in layers.places.items()}
        return _Names(layers, views, _Chains(short, wholes, {*layers.graph.types, *views.programs.types}))

    def fresh(self) -> _Names:
        """Return the same names before any are compared."""
        return _Names(self.layers, self.views, _Chains(self.tensors.places, {}, set()))

    def follows_unit(self, old: Unit, new: Unit) -> bool:
        """Return whether a unit is another one a layer later."""
        pairs = [(old.tensors, new.tensors), (old.reads, new.reads), (old.writes, new.writes)]
        first, second = ((u.op, u.free, u.hoisted, len(u.statements)) for u in (old, new))
        if first != second or any(len(a) != len(b) for a, b in pairs) or not self.units.follows(old.name, new.name):
            return False
        moved = dict(zip(old.tensors, new.tensors, strict=True))
        if any(rename_statement(a, moved) != b for a, b in zip(old.statements, new.statements, strict=True)):
            return False
        return all(self.follows_tensor(a, b) for each in pairs for a, b in zip(*each, strict=True))

    def follows_group(self, old: Group, new: Group) -> bool:
        """Return whether a group is another one a layer later."""
        if form_key(old.form) != form_key(new.form) or [*map(len, old.parts)] != [*map(len, new.parts)]:
            return False
        units = all(map(self.units.follows, old.units, new.units))
        return units and all(self.follows_tensor(tensor, new.tensors[t]) for t, tensor in old.tensors.items())

    def follows_tensor(self, old: str, new: str) -> bool:
        """Return whether a tensor is another one a layer later.

        It may be the same; its storage is, but for the buffer.
        """
        if self.tensors.later.get(old) == new:
            return True
        views, programs = self.views, self.views.programs
        facts = (programs.types, programs.tables, programs.orders)
        if any(known.get(old) != known.get(new) for known in facts) or not self.tensors.follows(old, new):
            return False
        derived = old != new and old not in self.tensors.places
        fixed = self.layers.graph.types.keys() | programs.graph.constants.keys()
        if derived and not fixed.isdisjoint((old, new)):
            return False
        source, moved = views.sources.get(old), views.sources.get(new)
        if source is None or moved is None:
            if source is not moved:
                return False
        elif not self.follows_tensor(source, moved):
            return False
        first, second = views.storages.get(old), views.storages.get(new)
        if first is None or second is None:
            return first is second
        return evolve(first, buffer=second.buffer) == second and self.follows_tensor(first.buffer, second.buffer)

    def moved_unit(self, unit: Unit, by: int) -> Unit:
        """Return the unit of some layers later."""
        tensors = {t: self.tensors.move(t, by) for t in _tensors(unit)}
        return evolve(
            unit,
            name=self.units.move(unit.name, by),
            node=self.layers.moved_node(unit.node, by),
            statements=tuple(rename_statement(statement, tensors) for statement in unit.statements),
            reads=tuple(tensors[t] for t in unit.reads),
            writes=tuple(tensors[t] for t in unit.writes),
        )

    def moved_group(self, group: Group, by: int) -> Group:
        """Return the group of some layers later."""
        parts = tuple(tuple(self.units.move(unit, by) for unit in part) for part in group.parts)
        return evolve(group, parts=parts, tensors={t: self.tensors.move(name, by) for t, name in group.tensors.items()})
