"""Horizontal fusion: independent groups share one launch, whose blocks are divided.

Algorithm 1 merges groups that an edge connects. Groups that no path connects can share a launch: it saves all launches
but one, and blocks of one fill the machine where those of another leave room. Its cost is that every block gets the
registers and the shared memory of the largest member. Both are in the estimate; where times are measured the
measurement decides.

Groups without sums are scheduled for their share of the machine (`costs/launch_schedules.py`).

Independence follows from levels: the length of the longest path that ends in a group. Groups of one level are
independent, and so are the results of merging several of them. Groups without readers, such as the steps of an
optimiser, have the last level. Rematerialised values, which are computed late to be stored for less time, have none:
fusion would move them to the early level of their operands.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product

from attrs import evolve, frozen

from ...ir import Budget, FusedGroup, Target, Var
from ..context import CompileContext
from ..costs import CostModel, Executor, MemberRow, schedule_products, schedule_row, shared_launch_seconds
from ..decisions import Decisions, ForeignDecisionsError, Replay
from ..fusion import Group, Views
from ..launch_order import launch_violations
from ..results import Launches, ScheduledPartition, kernel_key
from ..schedule import Candidate, choose
from .dependencies import connected_models, dependencies, levels
from .live_memory import in_least_memory, limit_live_memory
from .shared_launches import Launch, in_order, with_one_schedule

#: Bytes of launch parameters for each pointer, in any dialect.
POINTER_BYTES = 12
#: Share of the launch time that sharing a launch has to save.
MIN_SAVED_LAUNCH_SHARE = 0.5
#: Most launch times that a member takes where kernels differ, as they are compiled together: products of 600 us took
#: 1,060 us beside sums over rows.
MAX_DIFFERING_LAUNCHES = 100.0
#: Limits of different kernels in a launch, as they are compiled one after another; those without sums are short.
MAX_DISTINCT_KERNELS, MAX_DISTINCT_POINTWISE_KERNELS = 12, 64
#: Most threads of a block in which threads of narrower members are idle.
MAX_IDLING_BLOCK = 256
#: Seconds of horizontal fusion that are granted even beyond the budget.
MIN_FUSION_SECONDS = 2.0
#: Number of members for which one without sums is scheduled before the number is known.
ASSUMED_MEMBERS = 8


def fuse_horizontally(previous: ScheduledPartition, context: CompileContext) -> Launches:
    """Return the groups of each launch, in an order that respects dependencies."""
    partition, options, target = previous.partition, context.options, context.target
    executor = context.executor
    groups, views, replay, record = partition.groups, partition.views, partition.replay, context.record
    keys = {n: kernel_key(group, views) for n, group in enumerate(groups)}
    launches = [Launch((group,), (previous.chosen[keys[n]],), (n,)) for n, group in enumerate(groups)]
    if record is not None and replay is not None and replay.complete:
        return _launches(previous, _replay_launches(launches, record, views, target, executor), keys, target)
    needs = dependencies(groups, views)
    held = set() if replay is None else {*replay.groups.values()}
    wanted, over = options.horizontal_fusion and options.mode == "mixed", _late(context.budget)
    if wanted and target.lockstep:
        again = partition.layouts.statements.source.rematerialised
        late = [any(tensor in again for tensor in group.outputs) for group in groups]
        of = connected_models(groups, needs, views) if options.horizontal_fusion == "connected" else [0] * len(groups)
        found = zip(levels(needs, groups), of, late, strict=True)
        own = [None if again or level is None else (model, level) for level, model, again in found]
        own = [None if group in held else each for group, each in zip(groups, own, strict=True)]
        modelled = [evolve(each, candidates=tuple(c.modelled or c for c in each.candidates)) for each in launches]
        packed = _merge_launches(modelled, own, keys, target, executor, over)
        packed = limit_live_memory(packed, modelled, needs, views, target)
        members = [[launches[p] for p in launch.places] for launch in packed]
        packed = _merge_all(members, target, executor, over, packed)
        launches = list(_faster_launches(packed, launches, context.costs, views))
    shared = [] if record is None or replay is None else [*_shared_members(launches, record, replay)]
    launches = _with_shared(launches, shared, needs, views, target, executor)
    return _launches(previous, launches, keys, target)


def _with_shared(
    launches: Sequence[Launch],
    shared: Sequence[Sequence[Launch]],
    needs: Sequence[frozenset[int]],
    views: Views,
    target: Target,
    executor: Executor,
) -> list[Launch]:
    """Return launches in order, with recorded shared launches where they can still run."""
    single = in_least_memory(launches, needs, views)
    if not shared:
        return single
    taken = {launch for members in shared for launch in members}
    joint = _merge_all(shared, target, executor)
    found = list(in_order([*(each for each in launches if each not in taken), *joint], needs))
    places = [launch.places for launch in found]
    whole = sum(map(len, places)) == sum(len(launch.places) for launch in launches)
    broken = not whole or any(True for _ in launch_violations([each.groups for each in found], places, views))
    return single if broken else found


def _shared_members(launches: Sequence[Launch], record: Decisions, kept: Replay) -> Iterator[list[Launch]]:
    """Yield the launches of one group each that are recorded as faster together."""
    kernels: dict[Group, list[Launch]] = {}
    for launch in launches:
        kernels.setdefault(launch.groups[0], []).append(launch)
    for members in record.shared_launches(kept):
        found = [kernels.get(kept.groups[place], [])[n : n + 1] for place, n in members]
        if all(found):
            yield [launch for (launch,) in found]


def _late(budget: Budget) -> Callable[[], bool]:
    """Return a predicate that is true when horizontal fusion has to end; it gets at least `MIN_FUSION_SECONDS`."""
    end = budget.elapsed + MIN_FUSION_SECONDS
    return lambda: budget.overdue() and (budget.stopped or budget.elapsed > end)


def _launches(
    previous: ScheduledPartition, launches: Sequence[Launch], keys: Mapping[int, Hashable], target: Target
) -> Launches:
    """Return launches, which are in order, with the candidates of those that share one."""
    launches = with_one_schedule(launches, keys, lambda launch: is_launchable(launch, target))
    several = [launch for launch in launches if len(launch.groups) > 1]
    taken = {keys[p]: c for launch in several for p, c in zip(launch.places, launch.candidates, strict=True)}
    scheduled = evolve(previous, chosen={**previous.chosen, **taken})
    groups, places = [each.groups for each in launches], [each.places for each in launches]
    return Launches(scheduled, groups, places, [each.candidates for each in launches])


def _merge_all(
    several: Sequence[Sequence[Launch]],
    target: Target,
    executor: Executor,
    over: Callable[[], bool] = lambda: False,
    packed: Sequence[Launch] = (),
) -> list[Launch]:
    """Return each of several lists of launches of one group each as one launch.

    Its members are scheduled for their number, for fewer, or as single launches, by measurement or by the cost model:
    the first of these that is legal, or the launch `packed` before. Once it is `over`, they stay as they are.
    """
    rest = {n: launch for n, launch in enumerate(packed) if len(launch.groups) > 1}
    found = {n: launch for n, launch in rest.items() if _has_model_products(launch, several[n])}
    for way, count in product((_as_chosen, _as_modelled), (None, ASSUMED_MEMBERS)):
        left = [n for n, members in enumerate(several) if n not in found and len(members) > 1 and not over()]
        parts = [_Part(members := way(several[n], target), members, count or len(members)) for n in left]
        made = map(_joint, _schedule_parts(parts, target, executor, over))
        found |= {n: launch for n, launch in zip(left, made, strict=True) if is_launchable(launch, target)}
    return [found.get(n) or rest.get(n) or _joint(members) for n, members in enumerate(several)]


def _has_model_products(launch: Launch, members: Sequence[Launch]) -> bool:
    """Return whether a launch is of products of one row that the cost model scheduled together."""
    products = all(c.features["by_lanes"] for c in launch.candidates)
    return products and not any(c.measured for each in members for c in each.candidates)


def _as_chosen(members: Sequence[Launch], target: Target) -> Sequence[Launch]:
    return members


def _as_modelled(members: Sequence[Launch], target: Target) -> Sequence[Launch]:
    """Return launches of one group each with the cost model's choices for measured kernels."""
    own = {id(each.candidates[0]): each for each in members}
    found = {key: _model_choice(each.groups[0].form, each.candidates[0], target) for key, each in own.items()}
    return [evolve(each, candidates=(found[id(each.candidates[0])],)) for each in members]


def _model_choice(form: FusedGroup, own: Candidate, target: Target) -> Candidate:
    if own.modelled is not None or not own.measured:
        return own.modelled or own
    return choose(form, target)[0].in_shared_launch(own)


def _joint(members: Sequence[Launch]) -> Launch:
    places = tuple(m.places[0] for m in members)
    return Launch(tuple(m.groups[0] for m in members), tuple(m.candidates[0] for m in members), places)


@frozen(eq=False)
class _Part:
    """Launches of one group each, those of them that share a launch, and the number of its members."""

    launches: Sequence[Launch]
    wanted: Sequence[Launch]
    count: int


def _schedule_parts(
    parts: Sequence[_Part], target: Target, executor: Executor, over: Callable[[], bool] = lambda: False
) -> list[list[Launch]]:
    """Return the launches of each part, with schedules for a shared launch for the wanted ones without sums.

    Equal kernels keep one candidate; the measured time of a single launch is kept. Once it is `over`, the rest stay as
    they are.
    """
    rows = [(number, row) for number, part in enumerate(parts) for row in _rows(part)]
    asked = [_member_row(row, parts[number].count, target) for number, row in rows]
    unique = {row.key: row for row in asked}
    made = dict(zip(unique, executor.submit([*unique.values()])(), strict=True))
    kernels = [{id(launch.candidates[0]) for launch in part.wanted} for part in parts]
    found: list[dict[int, Candidate]] = [{} for _ in parts]
    for (number, row), members in zip(rows, asked, strict=True):
        made[members.key] = scheduled = made[members.key] or schedule_row(members, over)
        for launch, candidate in zip(row, scheduled, strict=False):
            if id(own := launch.candidates[0]) in kernels[number]:
                found[number][id(own)] = candidate.in_shared_launch(own)
    return [
        [evolve(each, candidates=(new.get(id(c := each.candidates[0]), c),)) for each in part.launches]
        for part, new in zip(parts, found, strict=True)
    ]


def _member_row(row: Sequence[Launch], count: int, target: Target) -> MemberRow:
    forms, scores = (launch.groups[0].form for launch in row), (launch.candidates[0].score for launch in row)
    return MemberRow(tuple(forms), tuple(scores), count, target)


def _rows(part: _Part) -> Iterable[list[Launch]]:
    """Return the launches of a part without sums by their axes, one of each kernel.

    Only axes of wanted launches count; the first launch over some axes may be an unwanted one.
    """
    axes = {_axes(launch) for launch in part.wanted if not _sums(launch)}
    rows: dict[tuple[Var, ...], dict[int, Launch]] = {}
    for launch in part.launches:
        if not _sums(launch) and _axes(launch) in axes:
            rows.setdefault(_axes(launch), {}).setdefault(id(launch.candidates[0]), launch)
    return [[*row.values()] for row in rows.values()]


def _sums(launch: Launch) -> bool:
    return any(segment.reductions for segment in launch.groups[0].form.segments)


def _axes(launch: Launch) -> tuple[Var, ...]:
    return launch.groups[0].form.segments[-1].axes


def _replay_launches(
    launches: Sequence[Launch], record: Decisions, views: Views, target: Target, executor: Executor
) -> list[Launch]:
    """Return the recorded launches.

    Raises `ForeignDecisionsError` where they cannot run.
    """
    if sorted(place for places in record.launches for place in places) != list(range(len(launches))):
        raise ForeignDecisionsError("there are other groups to launch")
    found = _merge_all([[launches[p] for p in places] for places in record.launches], target, executor)
    for broken in launch_violations([launch.groups for launch in found], record.launches, views):
        raise ForeignDecisionsError(f"launches cannot run as recorded: {broken.message}")
    return found


# ---- merging of launches


def _merge_launches(
    launches: Sequence[Launch],
    found: Sequence[Hashable],
    keys: Mapping[int, Hashable],
    target: Target,
    executor: Executor,
    over: Callable[[], bool],
) -> list[Launch]:
    """Return launches of one group each, merged within a level where that is faster."""
    by_level: dict[Hashable, list[Launch]] = {}
    for launch in launches:
        adds, own = any(group.form.adds_to_memory for group in launch.groups), found[launch.places[0]]
        by_level.setdefault(None if own is None else (own, adds), []).append(launch)
    result = by_level.pop(None, [])
    several = [launch for members in by_level.values() if len(members) > 1 for launch in members]
    (scheduled,) = _schedule_parts([_Part(launches, several, ASSUMED_MEMBERS)], target, executor, over)
    shared = {each.places[0]: each for each in scheduled}
    joined: dict[Hashable, Mapping[Hashable, Candidate]] = {}
    for members in by_level.values():
        result += _merge_level([shared[launch.places[0]] for launch in members], keys, joined, target, over)
    return result


def _merge_level(
    members: Sequence[Launch],
    keys: Mapping[int, Hashable],
    joined: dict[Hashable, Mapping[Hashable, Candidate]],
    target: Target,
    over: Callable[[], bool],
) -> list[Launch]:
    """Merge each launch with the one that gains most, equal kernels first, until it is `over`."""
    first: dict[Hashable, int] = {}
    for launch in members:
        first.setdefault(keys[launch.places[0]], launch.places[0])
    members = sorted(members, key=lambda each: (first[keys[each.places[0]]], each.places))
    products = [each for each in members if each.candidates[0].features["by_lanes"]]
    joint = None if over() else _join_products(products, keys, joined, target)
    made = [] if joint is None else [joint]
    for launch in members if joint is None else [each for each in members if each not in products]:
        several = enumerate(made if not over() else ())
        tries = [(n, each.merge(launch, keys)) for n, each in several]
        gains = [
            (saved_seconds(made[n], launch, both, target), -n)
            for n, both in tries
            if _is_short(both, target) and is_launchable(both, target)
        ]
        gain, place = max(gains, default=(0.0, 0))
        if gain > MIN_SAVED_LAUNCH_SHARE * target.launch_time:
            made[-place] = tries[-place][1]
        else:
            made.append(launch)
    return made


def _join_products(
    members: Sequence[Launch],
    keys: Mapping[int, Hashable],
    known: dict[Hashable, Mapping[Hashable, Candidate]],
    target: Target,
) -> Launch | None:
    """Return products of one row as one launch, with one schedule, where that is faster."""
    kinds = tuple(keys[each.places[0]] for each in members)  # equal kernels have one candidate
    if kinds not in known:
        found = schedule_products([each.groups[0].form for each in members], target) if len(members) > 1 else []
        own = zip(kinds, found, members, strict=False)
        known[kinds] = {kind: candidate.in_shared_launch(each.candidates[0]) for kind, candidate, each in own}
    if not (made := known[kinds]):
        return None
    parts = [evolve(each, candidates=(made[kind],)) for kind, each in zip(kinds, members, strict=True)]
    joint = reduce(lambda launch, part: launch.merge(part, keys), parts)
    saved = sum(launch_seconds(each, target) for each in members) - launch_seconds(joint, target)
    faster = saved > MIN_SAVED_LAUNCH_SHARE * target.launch_time and _is_short(joint, target)
    return joint if faster and is_launchable(joint, target) else None


def _faster_launches(
    launches: Sequence[Launch], single: Sequence[Launch], costs: CostModel, views: Views
) -> Iterator[Launch]:
    """Yield launches, or their members where these are measured to be no slower.

    A launch that adds to memory, which a second run would change, is kept by the cost model.
    """
    adding = {launch for launch in launches if any(group.form.adds_to_memory for group in launch.groups)}
    several = [launch for launch in launches if len(launch.groups) > 1 and launch not in adding]
    asked = [
        [(g.form, g.storages(views), c) for g, c in zip(launch.groups, launch.candidates, strict=True)]
        for launch in several
    ]
    faster = {launch for launch, yes in zip(several, costs.compare_launches(asked), strict=True) if yes}
    own = {place: launch for launch in single for place in launch.places}
    for launch in launches:
        yield from [launch] if launch in faster or launch in adding else [own[place] for place in launch.places]


def is_launchable(launch: Launch, target: Target) -> bool:
    """Return whether a launch is legal and short enough.

    Its parameters fit, it has few kernels, none has tensor maps or clusters, and all members have equally many threads:
    threads of small blocks without barriers may be idle.
    """
    threads = {candidate.features["threads"] for candidate in launch.candidates}
    distinct = {id(candidate) for candidate in launch.candidates}  # equal kernels have one candidate
    fits = POINTER_BYTES * launch.arguments <= target.parameter_bytes
    sums = [bool(segment.reductions) for group in launch.groups for segment in group.form.segments]
    short = bool(sums) and not any(sums)
    may_idle = short and len(sums) == len(launch.groups) and max(threads) <= MAX_IDLING_BLOCK
    loops = [loop for c in launch.candidates for part in c.schedule.segments for loop in part.reductions]
    return (
        (may_idle or len(threads) == 1)
        and not any(loop.tma for loop in loops)
        and all(part.cluster == 1 for c in launch.candidates for part in c.schedule.segments)
        and len(distinct) <= (MAX_DISTINCT_POINTWISE_KERNELS if short else MAX_DISTINCT_KERNELS)
        and fits
    )


def saved_seconds(first: Launch, second: Launch, both: Launch, target: Target) -> float:
    """Return the seconds that merging two launches saves."""
    return launch_seconds(first, target) + launch_seconds(second, target) - launch_seconds(both, target)


def _is_short(launch: Launch, target: Target) -> bool:
    """Return whether kernels of a launch are equal, or none of them takes long."""
    longest = max(candidate.score for candidate in launch.candidates)
    return len({*map(id, launch.candidates)}) == 1 or longest < MAX_DIFFERING_LAUNCHES * target.launch_time


def launch_seconds(launch: Launch, target: Target) -> float:
    """Return the estimated seconds of a launch."""
    return shared_launch_seconds(launch.candidates, target)
