"""Groups side by side: independent groups in one launch, whose blocks are divided among them.

Algorithm 1 merges groups that an edge connects. Groups that no path connects can share a launch: it saves all launches
but one, and blocks of one fill the machine where those of another leave room. What it costs is that every block gets
the registers and the shared memory of the member that needs most. Both are in the estimate; where times are measured
the clock decides.

What a small kernel takes by itself is a launch and a round trip to memory, whatever its schedule: 26 gathers in blocks
of 32 elements took 20 us on an H200, each of them 1.5 us. So groups without sums are scheduled for their part of the
machine.

Which groups no path connects is read off their levels: the length of the longest path that ends in a group. Groups of
one level are independent, and so is what results when several of them become one. Groups that nothing waits for, such
as the steps of an optimiser, have the last level, wherever what they read was computed. What is computed again late, to
be kept for less time, has none: it would go where what it reads is, which is early.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from heapq import heapify, heappop, heappush

from attrs import evolve, frozen

from ..ir import Budget, FusedGroup, Schedule, Target, Var, member_name
from .assemble import kernel_key
from .compilation import Compilation
from .decisions import Decisions, ForeignDecisionsError, Upheld
from .fusion import Group, Views, rename_group
from .launch_order import launch_violations
from .schedule import Candidate, assess, check_schedule, choose
from .shared_launches import seconds_together
from .workload import Selector

#: Bytes of parameters that a pointer takes in a launch, whatever the dialect.
POINTER = 12
#: The part of a launch that sharing it has to save.
WORTH = 0.5
#: Most different kernels in a launch, as they are compiled one after another; those without sums are short.
DISTINCT, SHORT = 12, 64
#: Seconds that putting launches together may take however late it begins.
OWN = 2.0
#: As one of how many a member without sums is scheduled before it is known how many there are.
MEMBERS = 8


@frozen(eq=False)
class Launch:
    """Groups that are launched together, the candidate of each, and where they stood in the order of execution; equal
    kernels stand side by side.
    """

    groups: tuple[Group, ...]
    candidates: tuple[Candidate, ...]
    places: tuple[int, ...]

    def with_member(self, other: Launch, key: Mapping[int, Hashable]) -> Launch:
        """Return two launches as one; `key` tells kernels apart by the place of a group."""
        first: dict[Hashable, int] = {}
        for place in (*self.places, *other.places):
            first.setdefault(key[place], place)
        members = zip(
            (*self.groups, *other.groups), (*self.candidates, *other.candidates), (*self.places, *other.places),
            strict=True,
        )  # fmt: skip
        ordered = sorted(members, key=lambda m: (first[key[m[2]]], m[2]))
        return Launch(tuple(m[0] for m in ordered), tuple(m[1] for m in ordered), tuple(m[2] for m in ordered))

    @property
    def arguments(self) -> int:
        """The pointers that it takes, tables not counted."""
        return sum(len(g.form.inputs) + len(g.form.outputs) for g in self.groups)


def put_side_by_side(work: Compilation) -> Sequence[tuple[Group, ...]]:
    """Leave which groups are launched together, in an order in which each launch comes behind what it reads."""
    groups = work.groups
    keys = {n: kernel_key(group, work.views) for n, group in enumerate(groups)}
    launches = [Launch((group,), (work.chosen[keys[n]],), (n,)) for n, group in enumerate(groups)]
    if work.told is not None and work.settled:
        return _leave(work, _told(launches, work.told, work.views, work.target), keys)
    needs = dependencies(groups, work.views)
    held = set() if work.kept is None else {*work.kept.groups.values()}
    wanted, over = work.options.side_by_side and work.options.mode == "mixed", _late(work.budget)
    if wanted and work.target.lockstep and (work.selector is None or work.selector.together):
        late = [any(tensor in work.again for tensor in group.outputs) for group in groups]
        of = _models(groups, needs, work) if work.options.side_by_side == "connected" else [0] * len(groups)
        found = zip(levels(needs, groups), of, late, strict=True)
        own = [None if again or level is None else (model, level) for level, model, again in found]
        own = [None if group in held else each for group, each in zip(groups, own, strict=True)]
        packed = _packed(launches, own, keys, work.target, over)
        packed = [_together_at([launches[p] for p in launch.places], work.target, over) for launch in packed]
        launches = packed if work.selector is None else list(_timed(packed, launches, work.selector, work.views))
    return _leave(work, _with_kept(launches, needs, work), keys)


def _with_kept(launches: Sequence[Launch], needs: Sequence[frozenset[int]], work: Compilation) -> list[Launch]:
    """Return launches in order, those put together that are known to be faster so, if they can still run."""
    apart = list(_in_order(launches, needs))
    shared = [] if work.told is None or work.kept is None else [*_shared(launches, work.told, work.kept)]
    if not shared:
        return apart
    taken = {launch for members in shared for launch in members}
    joint = [_together_at(members, work.target) for members in shared]
    found = list(_in_order([*(each for each in launches if each not in taken), *joint], needs))
    places = [launch.places for launch in found]
    whole = sum(map(len, places)) == sum(len(launch.places) for launch in launches)
    broken = not whole or any(True for _ in launch_violations([each.groups for each in found], places, work.views))
    return apart if broken else found


def _shared(launches: Sequence[Launch], told: Decisions, kept: Upheld) -> Iterator[list[Launch]]:
    """Yield the launches of one group each that are known to be faster together."""
    kernels: dict[Group, list[Launch]] = {}
    for launch in launches:
        kernels.setdefault(launch.groups[0], []).append(launch)
    for members in told.shared(kept):
        found = [kernels.get(kept.groups[place], [])[n : n + 1] for place, n in members]
        if all(found):
            yield [launch for (launch,) in found]


def _late(budget: Budget) -> Callable[[], bool]:
    """Return what says whether it is too late to put launches together: however late it begins, a moment is its own."""
    end = budget.elapsed + OWN
    return lambda: budget.overdue() and (budget.stopped or budget.elapsed > end)


def _leave(work: Compilation, launches: Sequence[Launch], keys: Mapping[int, Hashable]) -> Sequence[tuple[Group, ...]]:
    """Leave launches, which are in order, and the candidates of those that share one."""
    several = [launch for launch in launches if len(launch.groups) > 1]
    taken = {keys[p]: c for launch in several for p, c in zip(launch.places, launch.candidates, strict=True)}
    work.chosen = {**work.chosen, **taken}
    work.places = [launch.places for launch in launches]
    work.launches = [launch.groups for launch in launches]
    work.groups = [group for launch in work.launches for group in launch]
    return work.launches


def _together_at(members: Sequence[Launch], target: Target, over: Callable[[], bool] = lambda: False) -> Launch:
    """Return launches of one group each as one: scheduled for as many, for fewer, or as they are by themselves, the
    first of these that can be made; as they are once it is `over`.
    """
    for count in (len(members), MEMBERS) if len(members) > 1 and not over() else ():
        launch = _joint(_scheduled(members, target, count))
        if allowed(launch, target):
            return launch
    return _joint(members)


def _joint(members: Sequence[Launch]) -> Launch:
    places = tuple(m.places[0] for m in members)
    return Launch(tuple(m.groups[0] for m in members), tuple(m.candidates[0] for m in members), places)


def _among_others(
    form: FusedGroup, target: Target, count: int, known: MutableMapping[tuple[Var, ...], Schedule]
) -> Schedule:
    """Return the schedule that a kernel without sums has as one of so many: the model's for its part of the machine;
    that of others over the same axes, where that is `known` and legal, so that their blocks are equally wide.
    """
    schedule = known.get(axes := form.segments[-1].axes)
    if schedule is None or check_schedule(form, schedule, target):
        schedule = known[axes] = choose(form, _part_of(target, count))[0].schedule
    return schedule


def _part_of(target: Target, count: int) -> Target:
    """Return one of so many equal parts of a machine."""
    return evolve(
        target,
        NUM_SM=max(1, target.NUM_SM // count),
        PERF_peak=target.PERF_peak / count,
        BW_global=target.BW_global / count,
        l2_bandwidth=target.l2_bandwidth / count,
    )


def _scheduled(
    launches: Sequence[Launch],
    target: Target,
    count: int,
    wanted: Sequence[Launch] | None = None,
    over: Callable[[], bool] = lambda: False,
) -> list[Launch]:
    """Return launches of one group each as they are as one of so many, those that are `wanted`: kernels without sums
    with a schedule for that. Equal kernels keep having one candidate; what one was measured to take by itself stays
    known. Once it is `over`, the rest stay as they are.
    """
    some = [launch for launch in (launches if wanted is None else wanted) if not _sums(launch)]
    axes, kernels = {_axes(launch) for launch in some}, {id(launch.candidates[0]) for launch in some}
    found: dict[int, Candidate] = {}
    schedules: dict[tuple[Var, ...], Schedule] = {}
    for launch in launches:  # one that is not wanted itself may be the first over its axes
        ((group,), (candidate,)) = launch.groups, launch.candidates
        if id(candidate) in found or _sums(launch) or _axes(launch) not in axes or over():
            continue
        schedule = _among_others(group.form, target, count, schedules)
        found[id(candidate)] = candidate
        if id(candidate) in kernels:
            facts = {**candidate.measured, "why": "chosen by the model for a launch that it shares"}
            assessed = assess(group.form, schedule, target, candidate.score)
            found[id(candidate)] = evolve(assessed, measured=facts)
    return [evolve(each, candidates=(found.get(id(c := each.candidates[0]), c),)) for each in launches]


def _sums(launch: Launch) -> bool:
    return any(segment.reductions for segment in launch.groups[0].form.segments)


def _axes(launch: Launch) -> tuple[Var, ...]:
    return launch.groups[0].form.segments[-1].axes


def _told(launches: Sequence[Launch], told: Decisions, views: Views, target: Target) -> list[Launch]:
    """Return launches of the groups that are known to be faster together, held to the law of launches: who decided may
    have been another version.
    """
    if sorted(place for places in told.launches for place in places) != list(range(len(launches))):
        raise ForeignDecisionsError("there are other groups to launch")
    found = [_together_at([launches[p] for p in places], target) for places in told.launches]
    for broken in launch_violations([launch.groups for launch in found], told.launches, views):
        raise ForeignDecisionsError(f"launches cannot run as told: {broken.message}")
    return found


# ---- who waits for whom


def dependencies(groups: Sequence[Group], views: Views) -> list[frozenset[int]]:
    """Return for each group, by its place, the places of those in front of it that it reads from, or whose results it
    changes where they lie. Each of a loop's groups reads and writes what the whole loop does.
    """
    units = {unit.name: unit for unit in views.programs.units}
    makers: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        for tensor in group.outputs if group.repeat is None else units[group.repeat].writes:
            makers.setdefault(tensor, []).append(place)
    producers = views.programs.producers()
    found = []
    for place, group in enumerate(groups):
        pending = list(group.inputs if group.repeat is None else units[group.repeat].reads)
        pending += group.outputs if group.form.adds_to_memory else ()
        seen, needed = set(pending), set[int]()
        while pending:
            tensor = pending.pop()
            needed.update(maker for maker in makers.get(tensor, ()) if maker < place)
            passed = [t for unit in producers.get(tensor, ()) if unit.free for t in unit.reads if t not in seen]
            seen.update(passed)
            pending += passed
        found.append(frozenset(needed))
    return found


def levels(needs: Sequence[frozenset[int]], groups: Sequence[Group]) -> list[int | None]:
    """Return each group's level: the length of the longest path to it, the last level where nothing waits for it. Those
    of loops have none.
    """
    found: list[int] = []
    for waits in needs:
        found.append(1 + max((found[n] for n in waits), default=-1))
    read = {n for waits in needs for n in waits}
    last = max(found, default=0)
    own = [level if place in read else last for place, level in enumerate(found)]
    return [None if group.repeat is not None else level for level, group in zip(own, groups, strict=True)]


def _models(groups: Sequence[Group], needs: Sequence[frozenset[int]], work: Compilation) -> list[int]:
    """Return for each group, by its place, a number that it shares with those that a value joins it to: one that it
    makes for them or gets from them, or one that both read and that is no constant.
    """
    number = list(range(len(groups)))
    readers: dict[str, int] = {}
    for place, group in enumerate(groups):
        buffers = {work.views.storage(tensor).buffer for tensor in group.inputs} - work.graph.constants.keys()
        others = {*needs[place], *(readers.setdefault(buffer, place) for buffer in buffers), place}
        same = {number[other] for other in others}
        number = [min(same) if each in same else each for each in number]
    return number


def _in_order(launches: Sequence[Launch], needs: Sequence[frozenset[int]]) -> Iterator[Launch]:
    """Yield launches so that each comes behind what it reads; otherwise as late as the last of its groups stood. Those
    of a loop stay together, in their order.
    """
    runs = _runs(launches)
    owner = {place: n for n, run in enumerate(runs) for launch in run for place in launch.places}
    waits = [{owner[p] for launch in run for place in launch.places for p in needs[place]} for run in runs]
    following: dict[int, list[int]] = {}
    for n, before in enumerate(waits):
        before.discard(n)  # the groups of a loop wait for each other
        for other in before:
            following.setdefault(other, []).append(n)
    missing = [len(before) for before in waits]
    ready = [(_last(runs[n]), n) for n, count in enumerate(missing) if not count]
    heapify(ready)
    while ready:
        _, n = heappop(ready)
        yield from runs[n]
        for other in following.get(n, ()):
            missing[other] -= 1
            if not missing[other]:
                heappush(ready, (_last(runs[other]), other))


def _runs(launches: Sequence[Launch]) -> list[list[Launch]]:
    """Return each launch by itself, those of a loop as one run."""
    runs: list[list[Launch]] = []
    loops: dict[str, list[Launch]] = {}
    for launch in sorted(launches, key=lambda each: each.places):
        loop = launch.groups[0].repeat
        run = [] if loop is None else loops.setdefault(loop, [])
        if not run:
            runs.append(run)
        run.append(launch)
    return runs


def _last(run: Sequence[Launch]) -> int:
    return max(place for launch in run for place in launch.places)


# ---- which of them share a launch


def _packed(
    launches: Sequence[Launch],
    found: Sequence[Hashable],
    keys: Mapping[int, Hashable],
    target: Target,
    over: Callable[[], bool],
) -> list[Launch]:
    """Return launches of one group each, those of one level put together where that is faster."""
    by_level: dict[Hashable, list[Launch]] = {}
    for launch in launches:
        adds, own = any(group.form.adds_to_memory for group in launch.groups), found[launch.places[0]]
        by_level.setdefault(None if own is None else (own, adds), []).append(launch)
    result = by_level.pop(None, [])
    several = [launch for members in by_level.values() if len(members) > 1 for launch in members]
    shared = {each.places[0]: each for each in _scheduled(launches, target, MEMBERS, several, over)}
    for members in by_level.values():
        result += _together([shared[launch.places[0]] for launch in members], keys, target, over)
    return result


def _together(
    members: Sequence[Launch], keys: Mapping[int, Hashable], target: Target, over: Callable[[], bool]
) -> list[Launch]:
    """Put each launch to the one that gains most by it, equal kernels first, until it is `over`."""
    first: dict[Hashable, int] = {}
    for launch in members:
        first.setdefault(keys[launch.places[0]], launch.places[0])
    made: list[Launch] = []
    for launch in sorted(members, key=lambda each: (first[keys[each.places[0]]], each.places)):
        tries = [(n, other.with_member(launch, keys)) for n, other in enumerate(made)] if not over() else []
        gains = [(saved(made[n], launch, both, target), -n) for n, both in tries if allowed(both, target)]
        gain, place = max(gains, default=(0.0, 0))
        if gain > WORTH * target.launch_time:
            made[-place] = tries[-place][1]
        else:
            made.append(launch)
    return made


def _timed(launches: Sequence[Launch], apart: Sequence[Launch], selector: Selector, views: Views) -> Iterator[Launch]:
    """Yield launches, or their members as they are by themselves where the clock has not found them faster together.
    Of those that add to memory, which a second run would change, the model's word counts.
    """
    adding = {launch for launch in launches if any(group.form.adds_to_memory for group in launch.groups)}
    several = [launch for launch in launches if len(launch.groups) > 1 and launch not in adding]
    asked = [
        [(g.form, g.storages(views), c) for g, c in zip(launch.groups, launch.candidates, strict=True)]
        for launch in several
    ]
    faster = {launch for launch, yes in zip(several, selector.faster_together(asked), strict=True) if yes}
    own = {place: launch for launch in apart for place in launch.places}
    for launch in launches:
        yield from [launch] if launch in faster or launch in adding else [own[place] for place in launch.places]


def allowed(launch: Launch, target: Target) -> bool:
    """Whether a launch can be made: its parameters fit, it is not too much text, and threads that a narrow kernel
    leaves out are not missed, which is certain where all are equally wide.
    """
    threads = {candidate.features["threads"] for candidate in launch.candidates}
    distinct = {id(candidate) for candidate in launch.candidates}  # equal kernels have one candidate
    fits = POINTER * launch.arguments <= target.parameter_bytes
    sums = [bool(segment.reductions) for group in launch.groups for segment in group.form.segments]
    short = bool(sums) and not any(sums)
    return len(threads) == 1 and len(distinct) <= (SHORT if short else DISTINCT) and fits


def saved(first: Launch, second: Launch, both: Launch, target: Target) -> float:
    """Return the seconds that putting two launches together saves."""
    return seconds(first, target) + seconds(second, target) - seconds(both, target)


def seconds(launch: Launch, target: Target) -> float:
    """Return about what a launch takes."""
    return seconds_together(launch.candidates, target)


# ---- their normal form


def joined(forms: Sequence[FusedGroup]) -> FusedGroup:
    """Return what several groups compute as one group: segments side by side, tensors called as in their bundle."""
    renamed = [_member(form, number) for number, form in enumerate(forms)]
    return FusedGroup(
        tuple(segment for form in renamed for segment in form.segments),
        {tensor: type_ for form in renamed for tensor, type_ in form.tensors.items()},
        tuple(tensor for form in renamed for tensor in form.inputs),
        tuple(tensor for form in renamed for tensor in form.outputs),
        tuple(tensor for form in renamed for tensor in form.shared),
        {tensor: table for form in renamed for tensor, table in form.constants.items()},
        tuple(tensor for form in renamed for tensor in form.fixed),
    )


def _member(form: FusedGroup, number: int) -> FusedGroup:
    """Return a member's form with all names as its bundle has them, those of its reductions too."""
    held = {r.name for segment in form.segments for r in segment.reductions}
    names = {t: member_name(number, t) for t in {*form.tensors, *form.constants, *held}}
    return rename_group(form, names)
