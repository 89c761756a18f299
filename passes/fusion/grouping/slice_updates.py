"""Slices: updates in place run over the elements that they replace.

A node that replaces a few slices is declared over all elements of its result: each is the last update that arrives, or
the old element. In the input's memory the old ones stay, so the kernel may run over updates:

    last[i] = max of j where at[j] == i;   place = max(last, 0)
    y[b, i] = u[b, place[i]] if last[i] >= 0 else y[b, i]
      ->   y[b, at[j]] = u[b, j] if last[at[j]] == j else y[b, at[j]]

A step of a decoder so writes its slice of a cache, however long the cache is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from math import prod

from attrs import evolve, frozen

from ....ir import (
    Call,
    Const,
    Expr,
    FusedGroup,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Output,
    Primary,
    Read,
    Segment,
    Statement,
    Var,
    as_index,
    call,
    expr_indirects,
    indirects,
    map_indices,
    map_primaries,
    substitute,
    substitute_expr,
    variables,
)
from ...statements import Programs, index_tests
from ..views import Views
from .groups import Group, canonical_names, rename_group

#: Elements of a result per update from which a kernel over the updates is worth its lookups.
MIN_SAVING = 2
_Writers = Mapping[str, Sequence[Statement]]


def writers_of(programs: Programs) -> _Writers:
    """Return the statements that write each tensor."""
    writers: dict[str, list[Statement]] = {}
    for statement in (s for unit in programs.every_unit for s in unit.statements):
        writers.setdefault(statement.target, []).append(statement)
    return writers


def run_over_updates(group: Group, views: Views, writers: _Writers, present: Collection[str]) -> Group:
    """Return a group in place that runs over its updates.

    It is the group itself where that is impossible or saves nothing. `writers` are the statements that write each
    tensor, `present` the buffers that are in memory when it is launched.
    """
    form = rename_group(group.form, group.tensors)
    if len(form.segments) != 1 or len(form.segments[0].outputs) != 1 or form.segments[0].reductions:
        return group
    segment = _over_updates(form.segments[0], form, writers, views)
    read = () if segment is None else tuple(t for t in segment.tensors_read if t not in form.outputs)
    if segment is None or any(t not in form.inputs and views.storage(t).buffer not in present for t in read):
        return group
    types = {t: form.tensors.get(t) or views.programs.types[t] for t in (*read, *form.outputs)}
    fixed = tuple(t for t in form.fixed if t in read)
    made = FusedGroup((segment,), types, read, form.outputs, (), {}, fixed, form.operations)
    named, canonical = canonical_names(made)
    return evolve(group, form=named, tensors={new: old for old, new in canonical.items()})


@frozen
class _Arrivals:
    """Places of updates.

    `axes` number the updates, and `places` has the place of each replaced axis. Of updates with one place, the one
    whose number is in a tensor of `last` numbers counts.
    """

    axes: tuple[Var, ...]
    places: Mapping[Var, Index]
    last: Read | None = None
    number: Index = Index()


def _over_updates(segment: Segment, form: FusedGroup, writers: _Writers, views: Views) -> Segment | None:
    """Return a segment over its updates, None where it has none or that saves little."""
    (output,) = segment.outputs
    body = output.body
    if output.guards or output.extra or output.into or not isinstance(body, Call) or body.fn != "select":
        return None
    condition, new, old = body.args
    unused = [f"j{n}" for n in range(len(segment.axes))]
    found = _arrivals(condition, writers, unused) if old == Read(output.tensor, output.write) else None
    if found is None or not _are_dims(found.places, output, form):
        return None
    first = min(n for n, axis in enumerate(segment.axes) if axis in found.places)
    axes = [axis for axis in segment.axes if axis not in found.places]
    axes[first:first] = found.axes
    value = new if found.last is None else _with_numbers(new, found, writers)
    if value is None or prod(a.extent for a in axes) * MIN_SAVING > prod(a.extent for a in segment.axes):
        return None
    write = tuple(substitute(index, found.places) for index in output.write)
    value = substitute_expr(value, found.places)
    places = dict.fromkeys(i for index in found.places.values() for i in indirects(index))
    tests = [test for place in places for test in index_tests(place, views.programs.types)]
    if found.last is not None:
        last = substitute_expr(found.last, found.places)
        tests.append(call("eq", last, IndexValue(found.number, views.programs.types[found.last.tensor].dtype)))
    if tests:
        value = call("select", reduce(lambda a, b: call("and", a, b), tests), value, Read(output.tensor, write))
    return Segment(tuple(axes), (), (evolve(output, write=write, body=value),))


def _are_dims(places: Mapping[Var, Index], output: Output, form: FusedGroup) -> bool:
    """Return whether each replaced axis is one whole dim of the output, and its place an element of that."""
    shape = form.tensors[output.tensor].shape
    for axis, place in places.items():
        dims = [n for n, index in enumerate(output.write) if axis in variables(index)]
        whole = len(dims) == 1 and output.write[dims[0]] == as_index(axis) and shape[dims[0]] == axis.extent
        low, high = place.bounds()
        if not whole or low < 0 or high >= axis.extent or {*places} & variables(place):
            return False
    return True


def _arrivals(condition: Expr, writers: _Writers, unused: Sequence[str]) -> _Arrivals | None:
    """Return the places where a condition holds that an update arrives."""
    if not isinstance(condition, Call) or condition.fn != "ge" or condition.args[1] != _zero(condition.args[1]):
        return None
    number = condition.args[0]
    if not isinstance(number, Read):
        return _compared_places(number, (), {})
    axes = [_plain_axis(index) for index in number.indices]
    if number.guards or None in axes or len({*axes}) < len(axes):
        return None
    if not writers.get(number.tensor):
        return None
    *start, last = writers[number.tensor]
    if last.step is not None or not all(_is_negative(s.body) for s in start):
        return None
    named = dict(zip(last.axes if last.into else last.reduce, unused, strict=False))
    moved: dict[Var, Index] = {v: as_index(Var(name, v.extent)) for v, name in named.items()}
    if last.into == "max" and isinstance(last.body, IndexValue):
        places = {axis: substitute(index, moved) for axis, index in zip(axes, last.write, strict=True) if axis}
        found = _Arrivals(tuple(Var(name, v.extent) for v, name in named.items()), places)
        return evolve(found, last=number, number=substitute(last.body.index, moved))
    own = [_plain_axis(index) for index in last.write]
    if last.into or last.combine != "max" or start or None in own:
        return None
    moved |= {there: as_index(here) for there, here in zip(own, axes, strict=True) if there and here}
    compared = _compared_places(last.body, tuple(Var(name, v.extent) for v, name in named.items()), moved)
    return None if compared is None else evolve(compared, last=number)


def _compared_places(body: Expr, axes: tuple[Var, ...], moved: Mapping[Var, Index]) -> _Arrivals | None:
    """Return the places of updates that are compared with those of elements: `j if at[j] == i else -1`."""
    if not isinstance(body, Call) or body.fn != "select" or not _is_negative(body.args[2]):
        return None
    test, number, _ = body.args
    solved = [_solve(guard) for guard in test.guards] if isinstance(test, InRange) else [None]
    if None in solved or not isinstance(number, (IndexValue, Const)) or _is_negative(number):
        return None
    places = {
        _plain_axis(substitute(as_index(axis), moved)): substitute(place, moved)
        for axis, place in (each for each in solved if each is not None)
    }
    count = substitute(number.index, moved) if isinstance(number, IndexValue) else Index(int(number.value))
    if None in places or len(places) < len(solved):
        return None
    return _Arrivals(axes, {axis: place for axis, place in places.items() if axis}, number=count)


def _solve(guard: Guard) -> tuple[Var, Index] | None:
    """Return the axis that a guard fixes at an element of a tensor of integers, and that element."""
    axes = [v for v, factor in guard.index.terms if isinstance(v, Var) and factor == -1]
    if len(axes) != 1 or (guard.low, guard.high) != (0, 1):
        return None
    place = guard.index + as_index(axes[0])
    found = [i for i, factor in place.terms if isinstance(i, Indirect) and factor == 1]
    alone = len(found) == len(place.terms) == 1 and not place.const
    return (axes[0], place) if alone and axes[0] not in variables(place) else None


def _with_numbers(value: Expr, found: _Arrivals, writers: _Writers) -> Expr | None:
    """Return a value with an update's number in place of lookups of it; None where it looks up others."""
    assert found.last is not None
    looked_up, last = found.last, found.last.tensor
    numbers = {t for t in {i.tensor for i in expr_indirects(value)} if _is_number(writers.get(t, ()), last)}

    def replace(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
        own = isinstance(primary, Indirect) and primary.tensor in numbers and parts == looked_up.indices
        return found.number if own else None

    replaced = map_indices(value, lambda index: map_primaries(index, replace))
    left = {i.tensor for i in expr_indirects(replaced)} & numbers
    return None if left else replaced


def _is_number(writers: Sequence[Statement], last: str) -> bool:
    """Return whether a tensor is `max(last, 0)`, element by element."""
    if len(writers) != 1:
        return False
    (writer,) = writers
    if not writer.is_pointwise or not isinstance(writer.body, Call) or writer.body.fn != "max":
        return False
    read, least = writer.body.args
    return read == Read(last, writer.write) and least == _zero(least)


def _plain_axis(index: Index) -> Var | None:
    found = next((v for v in variables(index)), None)
    return found if found is not None and index == as_index(found) else None


def _is_negative(body: Expr) -> bool:
    return isinstance(body, Const) and body.value < 0


def _zero(like: Expr) -> Expr | None:
    return Const(0, like.dtype) if isinstance(like, Const) else None
