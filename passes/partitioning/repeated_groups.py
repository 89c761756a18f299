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

from ...ir import Graph, Storage
from ..context import CompileContext
from ..fusion import Group, Programs, Unit, Views
from ..graph import KEPT_FIRST, Place, RepeatedLayers
from ..results import Layouts, Partition
from .layer_names import LayerNames, tensors_of

T = TypeVar("T", Unit, Group)
V = TypeVar("V")
#: Numbers of units or groups of a layer that are tried.
MAX_SIZES = 3


def insert_layers(
    layers: RepeatedLayers, considered: Graph, short: Partition, context: CompileContext
) -> Partition | None:
    """Return the whole graph's groups for those of its shortened graph.

    None where units or groups of its layers are not equal. Algorithms are chosen for nodes of the graph `considered`.
    """
    copies, source = layers.removed, short.layouts.statements.source
    names = LayerNames.of(layers, short.views)
    units = _find_run(short.views.programs.units, names, LayerNames.follows_unit)
    formed = _find_run(short.formed, names, LayerNames.follows_group)
    groups = _find_run(short.groups, names, LayerNames.follows_group)
    if units is None or formed is None or groups is None or any(unit.repeat for unit in units.items):
        return None
    moved: list[tuple[Unit | Group, int]] = [*units.order(copies), *formed.order(copies), *groups.order(copies)]
    try:
        views = _whole_views(dict.fromkeys((t, by) for item, by in moved for t in tensors_of(item)), names)
        whole = evolve(views.programs, units=tuple(names.moved_unit(*each) for each in units.order(copies)))
        first, final = ([names.moved_group(*each) for each in run.order(copies)] for run in (formed, groups))
    except LookupError:
        return None
    views = evolve(views, programs=whole)
    if not _is_computed(whole):
        return None
    algorithms, replaced = map(layers.copy_for_nodes, (source.algorithms, source.replaced))
    source = evolve(source, considered=considered, algorithms=algorithms, replaced=replaced)
    statements = evolve(short.layouts.statements, source=source, programs=whole)
    return Partition(Layouts(statements, views, context.builder(views)), first, final, views)


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


def _find_run(items: Sequence[T], names: LayerNames, follows: Callable[[LayerNames, T, T], bool]) -> _Run[T] | None:
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


def _likely_sizes(items: Sequence[T], names: LayerNames) -> Iterator[int]:
    """Yield likely numbers of items of a layer: the distances of items that touch equal values."""
    first: dict[Place, int] = {}
    for n, item in enumerate(items):
        for tensor in tensors_of(item):
            if tensor in names.tensors.places:
                first.setdefault(names.tensors.places[tensor], n)
    later = ((n, first.get(Place(p.root, p.layer + 1))) for p, n in first.items() if p.layer == KEPT_FIRST - 1)
    counts = Counter(then - n for n, then in later if then is not None and then > n)
    yield from (size for size, _ in counts.most_common(MAX_SIZES))


def _is_computed(programs: Programs) -> bool:
    """Return whether units compute the values that others and the caller read."""
    graph, computed = programs.graph, {t for unit in programs.units for t in unit.writes}
    present = {*graph.inputs, *graph.constants, *programs.tables} | computed
    return present.issuperset(graph.outputs) and all(present.issuperset(unit.reads) for unit in programs.units)


def _whole_views(pairs: dict[tuple[str, int], None], names: LayerNames) -> Views:
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
