"""Updates in place: outputs in the memory of inputs.

    input keys, output keys.next      ->      keys.next in the buffer of keys
    launch 3 reads keys                       launch 3 reads keys
    launch 4 writes keys.next[i, j]           launch 4 writes it over keys[i, j]
    launch 5 reads keys.next                  launch 5 reads the buffer

It is safe where no kernel reads an element of the input after it is overwritten: one group writes all of the output,
every other reader of the input is launched before it, and the group reads of the input only elements that the reading
thread replaces, by values that depend on them. A group may so update several inputs. The graph's interface names the
pairs (`Interface.updates`); other pairs keep two buffers.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

from attrs import evolve, frozen

from ...ir import Output, Read, Storage, expr_indirects, indirects, reads, rename_expr
from ..context import CompileContext
from ..fusion import Group, Views, form_key, run_over_updates, writers_of
from ..results import Launches, ScheduledPartition, kernel_key
from ..schedule import Candidate, choose

#: Schedules among which one as wide as a shared launch is looked for.
SHARED_CANDIDATES = 64


def update_inputs(previous: Launches, context: CompileContext) -> Launches:
    """Return launches with updates in place where that is safe."""
    partition = previous.scheduled.partition
    views = partition.views
    pairs = views.programs.graph.interface.updates
    accesses = tuple(_accesses(previous.launches, views)) if pairs else ()
    found = {new: old for old, new in pairs.items() if is_safe_update(old, new, accesses, views)}
    if not found:
        return previous
    moved = evolve(views, storages={**views.storages, **dict(_storages_in_place(views, found))})
    chosen, overwritten = previous.scheduled.chosen, {*found.values()}
    graph = views.programs.graph
    present = {moved.storage(t).buffer for t in (*graph.inputs, *graph.constants)}
    placed: dict[tuple[str, ...], Group] = {}  # by outputs: both kernels of a split reduction have the same units
    schedules, used = dict[Hashable, Candidate](), dict[tuple[str, ...], Candidate]()
    known: dict[Hashable, Candidate | None] = {}
    writers = writers_of(views.programs)
    for launch in previous.launches:
        for group in launch:
            kept = read_in_place(group, overwritten, moved)
            before = chosen[kernel_key(group, views)]
            new = kept if kept is group else run_over_updates(kept, moved, writers, present)
            better = None
            if new is not kept:
                alone, key = len(launch) == 1, (form_key(new.form), len(launch) == 1, before.schedule.threads)
                if key not in known:
                    known[key] = _schedule(new, before, alone=alone, context=context)
                better = known[key]
            placed[group.outputs] = kept if better is None else new
            used[group.outputs] = better or before
        present |= _buffers([t for group in launch for t in group.outputs], moved)
    partition = evolve(partition, views=moved, groups=[placed[g.outputs] for g in partition.groups])
    launches = [tuple(placed[g.outputs] for g in launch) for launch in previous.launches]
    candidates = [tuple(used[g.outputs] for g in launch) for launch in launches]
    for launch in sorted(launches, key=len):  # of equal kernels, one of a shared launch determines the schedule
        schedules |= {kernel_key(group, moved): used[group.outputs] for group in launch}
    scheduled = ScheduledPartition(partition, schedules)
    return evolve(previous, scheduled=scheduled, launches=launches, candidates=candidates)


def _schedule(group: Group, before: Candidate, *, alone: bool, context: CompileContext) -> Candidate | None:
    """Return the best schedule by the cost model; as wide as the one `before` in a shared launch."""
    found = choose(group.form, context.target, context.options.pruning, 1 if alone else SHARED_CANDIDATES)
    width = before.schedule.threads
    return next((each for each in found if alone or each.schedule.threads == width), None)


def read_in_place(group: Group, overwritten: Collection[str], views: Views) -> Group:
    """Return a group that reads its outputs in place of inputs.

    y[i] = x[i] + w[i], z[i] = x[i] * w[i], y in place of x   ->   y[i] = y[i] + w[i], z[i] = y[i] * w[i]

    Both outputs share one load, which no compiler may move beyond the store to the same pointer.
    """
    form = group.form
    if len(form.segments) > 1 or form.segments[0].reductions:
        return group
    stored = {name: views.storage(group.tensors[name]) for name in form.outputs}
    places = {storage: name for name, storage in stored.items() if storage.buffer in overwritten}
    names = {name: places.get(views.storage(group.tensors[name])) for name in form.inputs}
    same = {source: target for source, target in names.items() if target is not None}
    if not same:
        return group
    (segment,) = form.segments
    outputs = tuple(evolve(output, body=rename_expr(output.body, same)) for output in segment.outputs)
    inputs, fixed = (tuple(name for name in part if name not in same) for part in (form.inputs, form.fixed))
    tensors = {name: tensor for name, tensor in group.tensors.items() if name not in same}
    renamed = evolve(form, segments=(evolve(segment, outputs=outputs),), inputs=inputs, fixed=fixed)
    return evolve(group, form=renamed, tensors=tensors)


def _storages_in_place(views: Views, found: Mapping[str, str]) -> Iterator[tuple[str, Storage]]:
    """Yield the storages of outputs and of their views, in the buffers of inputs."""
    for tensor in {**views.storages, **found}:
        storage = views.storage(tensor)
        if storage.buffer in found:
            yield tensor, evolve(storage, buffer=found[storage.buffer])


@frozen
class _Access:
    """Buffers that a group reads and writes, with the number of its launch."""

    number: int
    group: Group
    read: frozenset[str]
    written: frozenset[str]


def _accesses(launches: Sequence[Sequence[Group]], views: Views) -> Iterator[_Access]:
    for number, launch in enumerate(launches):
        for group in launch:
            yield _Access(number, group, _buffers(group.inputs, views), _buffers(group.outputs, views))


def is_safe_update(old: str, new: str, accesses: Sequence[_Access], views: Views) -> bool:
    """Return whether an output may overwrite an input."""
    programs = views.programs
    graph, types = programs.graph, programs.types
    if old not in types or new not in types or types[old] != types[new]:
        return False
    dense = all(views.storage(t) == Storage(t, 0, types[t].strides) and t not in programs.orders for t in (old, new))
    if not dense or any(views.storage(output).buffer == old for output in graph.outputs):
        return False
    writers = [access for access in accesses if new in access.written]
    if len(writers) != 1:
        return False
    (last,) = writers
    writer, reads_old = last.group, old in last.read
    earlier = all(each.number < last.number for each in accesses if old in each.read and each is not last)
    outside = writer.repeat is None and not writer.form.adds_to_memory
    return earlier and outside and (not reads_old or _replaces_elements(writer, old, new, views))


def _buffers(tensors: Sequence[str], views: Views) -> frozenset[str]:
    return frozenset(views.storage(tensor).buffer for tensor in tensors)


def _replaces_elements(group: Group, old: str, new: str, views: Views) -> bool:
    """Return whether a group reads of an input only elements that it overwrites, each before its write."""
    segments = group.form.segments
    if any(segment.reductions for segment in segments):
        return False
    places = {name: views.storage(group.tensors[name]) for name in (*group.form.inputs, *group.form.outputs)}
    sources = {name: evolve(place, buffer=new) for name, place in places.items() if place.buffer == old}
    several = segments[0].outputs if len(segments) == 1 else ()
    every = [output for segment in segments for output in segment.outputs]
    return all(_reads_own_elements(output, several, sources, places) for output in every)


def _reads_own_elements(
    output: Output, several: Sequence[Output], sources: Mapping[str, Storage], places: Mapping[str, Storage]
) -> bool:
    """Return whether an output reads of `sources` the element that it or one of `several` outputs overwrites.

    A thread computes all outputs of an instance. The value that overwrites the element depends on it, and equal reads
    are one load, which so precedes the store.
    """
    written = (*output.write, *(guard.index for guard in output.guards))
    inner = [*expr_indirects(output.body), *(place for index in written for place in indirects(index))]
    if any(place.tensor in sources for place in inner):
        return False

    def is_overwritten(read: Read, by: Output) -> bool:
        own = read == Read(read.tensor, by.write) and sources[read.tensor] == places.get(by.tensor)
        return own and (by is output or (read in reads(by.body) and not by.extra and not output.extra))

    found = {read for read in reads(output.body) if read.tensor in sources}
    return all(any(is_overwritten(read, by) for by in (output, *several)) for read in found)
