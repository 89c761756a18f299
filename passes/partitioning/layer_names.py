"""Names of tensors and units of repeated layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from ...ir import fresh_name, rename_statement
from ..fusion import Group, Unit, Views, form_key
from ..graph import Place, RepeatedLayers


def tensors_of(item: Unit | Group) -> Sequence[str]:
    """Return the tensors of a unit or a group."""
    return (*item.tensors, *item.reads, *item.writes) if isinstance(item, Unit) else [*item.tensors.values()]


class NameChains:
    """Names that move from layer to layer.

    Their `places` are known, or found by comparing layers.
    """

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
        if place is None or self.later.get(name) == name:
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
        while layer < len(self.earlier) and (before := self.earlier.get(root, root)) != root:
            root, layer = before, layer + 1
        return Place(root, layer) if name in self.later or layer else None


class LayerNames:
    """Names of a shortened graph, and their moves from layer to layer."""

    def __init__(self, layers: RepeatedLayers, views: Views, tensors: NameChains) -> None:
        self.layers, self.views, self.tensors = layers, views, tensors
        self.units = NameChains({}, {}, {unit.name for unit in views.programs.units})

    @staticmethod
    def of(layers: RepeatedLayers, views: Views) -> LayerNames:
        """Return the names of a shortened graph before any are compared."""
        short = {value: layers.kept_place(place) for value, place in layers.places.items()}
        wholes = {place: value for value, place in layers.places.items()}
        return LayerNames(layers, views, NameChains(short, wholes, {*layers.graph.types, *views.programs.types}))

    def fresh(self) -> LayerNames:
        """Return the same names before any are compared."""
        return LayerNames(self.layers, self.views, NameChains(self.tensors.places, {}, set()))

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
        tensors = {t: self.tensors.move(t, by) for t in tensors_of(unit)}
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
