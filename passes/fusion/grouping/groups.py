"""Fusion groups: sets of units that become one kernel.

A group's normal form is over canonical tensor names `t0`, `t1`, ... so that equal groups (same statements, types,
liveness) have equal forms: they are normalised once, evaluated once, and share one kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Literal
from weakref import WeakValueDictionary

from attrs import evolve, field, frozen

from ....ir import (
    DType,
    FusedGroup,
    Reduction,
    Segment,
    Storage,
    block_scales,
    dtype_of,
    factors,
    is_contraction,
    map_guards,
    print_ir,
    rename_expr,
    rename_in_text,
    rename_index,
    stored_factor,
)
from ..views import Views

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

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Graph tensors that the kernel reads."""
        return tuple(self.tensors[t] for t in self.form.inputs)

    @cached_property
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


def is_pointwise(form: FusedGroup) -> bool:
    """Return whether no segment of a group reduces anything."""
    return not any(segment.reductions for segment in form.segments)


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
    segments = tuple(rename(s) for s in group.segments)
    return FusedGroup(segments, tensors, inputs, outputs, shared, constants, fixed, group.operations)


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


def shared_form(form: FusedGroup) -> FusedGroup:
    """Return the one object of equal normal forms."""
    return _SAME.setdefault(form_key(form), form)


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
    scales, _ = block_scales(reduction.body, reduction.reduce)
    parts = [part for part in factors(reduction.body) if part not in scales]
    single = all(dtype_of(part, form.tensors) is DType.F32 for part in parts)
    # A math mode would round no number of one byte, which has instructions of its own.
    narrow = all(dtype_of(stored_factor(part), form.tensors).size == 1 for part in parts)
    return evolve(reduction, math=math) if multiplies and single and not narrow else reduction
