"""Extraction on demand against the paper's marking (DeepCuts section 5.3).

Both give the same graph for every thread of random kernels.

The block's graph of a phase is expanded to scalars. A thread's roots are those at the points of the block's box that
its shares name; their marked subgraph must equal the expansion of the thread's own graph, and the threads together must
make the whole block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import product
from math import prod

from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir.affine import Index, Var, evaluate, variables
from cuts.ir.dfg import (
    Accumulate,
    Convert,
    DfgNode,
    Op,
    RegisterRead,
    RegisterWrite,
    Root,
    Store,
    Value,
    Window,
    own_variables,
    post_order,
    substitute_node,
)
from cuts.ir.kernel import Kernel, Phase, phases
from cuts.passes.lowering.extract import extract, extract_phase
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.substitute_phase import substitute_phase
from cuts.passes.schedule.space import make_space
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ..kernels.cases import builder, chains, legal_points, pairs, points, unite

#: Few threads, so that every thread of a block can be looked at.
SMALL_TARGET = evolve(find_target("cuda:sm_90"), MAX_thread=32)
_SCALARS = 400

Point = Mapping[Var, int]


def expand(roots: Iterable[Root]) -> Iterator[Root]:
    """Yield the scalar roots of a folded graph.

    Each point of a root's box gives one root; held values and loads are included.
    """
    for root in roots:
        box = sorted(_box(root), key=lambda v: v.name)
        for point in product(*(range(v.extent) for v in box)):
            yield from substitute_phase(Phase("", "", (root,), ()), dict(zip(box, point, strict=True))).roots


def _box(root: Root) -> set[Var]:
    found: set[Var] = set()
    for node in post_order([root]):
        found |= own_variables(node)
    return found


def mark(roots: Iterable[Root], chosen: Iterable[Root]) -> set[Value | Root]:
    """Return the nodes of a scalar graph that chosen roots reach."""
    every = set(post_order(roots))
    return every & set(post_order(chosen))


def places(phase: Phase, fixed: Point) -> Iterator[Point]:
    """Yield the points of the block's box that a thread handles:
    its shares, at every point of its own loops, where they exist.
    """
    loops = [v for v in phase.unrolled if v not in fixed]
    for point in product(*(range(v.extent) for v in loops)):
        own = {**fixed, **dict(zip(loops, point, strict=True))}
        if all(g.low <= evaluate(g.index, own) < g.high for s in phase.shares for g in s.valid):
            yield own


def registers(phase: Phase, fixed: Point, held: Set[Var]) -> dict[tuple[Var, int], int]:
    """Return the block element of a thread's register numbers.

    Keys are box variables of held values.
    """
    found: dict[tuple[Var, int], int] = {}
    shares = [s for s in phase.shares if s.var in held]
    for own in places(phase, fixed):
        for share in shares:
            number, element = evaluate(share.register, own), evaluate(share.value, own)
            assert found.setdefault((share.var, number), element) == element, "one register holds two elements"
    return found


def renumber(
    at: tuple[Index, ...], box: tuple[Index, ...], elements: Mapping[tuple[Var, int], int]
) -> tuple[Index, ...]:
    """Replace a thread's register numbers by the block's elements."""
    named = [next(iter(variables(index)), None) for index in box]
    return tuple(n if v is None else Index(elements[v, n.const]) for n, v in zip(at, named, strict=True))


def in_block_terms(root: Root, box: Mapping[str, tuple[Index, ...]], elements: Mapping[tuple[Var, int], int]) -> Root:
    """Return a thread's root with held values named by block position."""

    def value(node: Value) -> Value:
        if isinstance(node, RegisterRead):
            return evolve(node, at=renumber(node.at, box[node.name], elements))
        if isinstance(node, Op):
            return evolve(node, args=tuple(value(a) for a in node.args))
        return evolve(node, arg=value(node.arg)) if isinstance(node, Convert) else node

    if isinstance(root, (Accumulate, RegisterWrite)):
        return evolve(root, at=renumber(root.at, box[root.name], elements), value=value(root.value))
    return evolve(root, value=value(root.value)) if isinstance(root, Store) else root


def additions(roots: tuple[Root, ...], phase: Phase, fixed: Point) -> list[int]:
    """Return counts of values a thread adds to each register.

    They cover every accumulation of the block's graph.
    """
    elements = {s.var: {evaluate(s.value, own) for own in places(phase, fixed)} for s in phase.shares}
    return [prod(len(elements.get(v, range(v.extent))) for v in r.over) for r in roots if isinstance(r, Accumulate)]


def held_places(phase: Phase) -> dict[str, tuple[Index, ...]]:
    """Return held values' names in the block's graph, by box variables."""
    return {n.name: n.at for n in post_order(phase.roots) if isinstance(n, (RegisterRead, Accumulate, RegisterWrite))}


def happens(root: Root) -> bool:
    """Return whether the guards of a scalar root hold."""
    guards = root.guards if isinstance(root, Store) else ()
    return all(g.low <= g.index.const < g.high for g in guards)


def coordinates(kernel: Kernel, block: int, thread: int) -> Point:
    """Return the values of the definitions of a thread."""
    values = {v: {"blk": block, "tid": thread}[v.name] for v in _coordinate_variables(kernel)}
    for define in kernel.defines:
        values[define.var] = evaluate(define.value, values)
    return values


def _coordinate_variables(kernel: Kernel) -> set[Var]:
    used = {v for d in kernel.defines for v in variables(d.value)}
    for phase in phases(kernel.items):
        used |= {v for s in phase.shares for i in (s.value, *(g.index for g in s.valid)) for v in variables(i)}
        used |= {v for g in phase.when for v in variables(g.index)}
        used |= {v for node in post_order(phase.roots) for v in own_variables(node)}
    return {v for v in used if v.name in ("blk", "tid")}


def at_point(roots: tuple[Root, ...], point: Point) -> list[Root]:
    """Return scalar roots at one point of the block's box."""
    return list(substitute_phase(Phase("", "", roots, ()), point).roots)


def carries(phase: Phase) -> bool:
    """Return whether threads carry values by numbers of their own.

    Such numbers name nothing of the block.
    """
    own = set(phase.unrolled) - {s.var for s in phase.shares}
    kept = (n for n in post_order(phase.roots) if isinstance(n, (RegisterRead, RegisterWrite)))
    return any(variables(index) & own for node in kept for index in node.at)


def check_phase(kernel: Kernel, phase: Phase, block: int, step: int) -> None:
    """Compare every thread's extraction from a phase with the marked graph."""
    box = held_places(phase)
    thread_phase = extract_phase(phase)
    kept: Counter[Root] = Counter()
    whole: set[Root] = set()
    for thread in range(kernel.threads):
        fixed = dict(coordinates(kernel, block, thread))
        fixed |= {v: step % v.extent for v in _loop_counters(phase, fixed)}
        if not all(g.low <= evaluate(g.index, fixed) < g.high for g in phase.when):
            continue
        if not whole:
            threads = {d.var for d in kernel.defines if not d.var.name.startswith("b")}
            shared = {v: x for v, x in fixed.items() if v not in threads and v.name != "tid"}
            whole = set(expand(substitute_phase(phase, shared).roots))
        mine = [r for own in places(phase, fixed) for r in at_point(phase.roots, _box_point(phase, own)) if happens(r)]
        mine = list(dict.fromkeys(mine))
        kept.update(mine)
        elements = registers(phase, fixed, {v for at in box.values() for i in at for v in variables(i)})
        elements |= {
            (v, n): n for v in phase.unrolled for n in range(v.extent)
        }  # carried values have the thread's numbers
        on_demand = [r for r in expand(substitute_phase(thread_phase, fixed).roots) if happens(r)]
        named = [in_block_terms(r, box, elements) for r in on_demand]
        # Registers are a thread's own: one without an element keeps the value that stands for the element.
        named = [r for r in named if not isinstance(r, RegisterWrite) or r in mine]
        assert set(named) == set(mine)
        assert additions(phase.roots, phase, fixed) == [
            prod(v.extent for v in r.over) for r in thread_phase.roots if isinstance(r, Accumulate)
        ]
        nodes: set[DfgNode] = set(post_order(named))
        assert nodes == mark(whole, mine)
    if kept and not carries(phase):
        assert {r for r in whole if happens(r)} == set(kept)
    if kept:
        assert all(count == 1 for root, count in kept.items() if isinstance(root, Store))


def _loop_counters(phase: Phase, fixed: Point) -> set[Var]:
    """Return the loop counters a phase mentions."""
    used = {v for node in post_order(phase.roots) for v in own_variables(node)}
    used |= {v for s in phase.shares for i in (s.value, *(g.index for g in s.valid)) for v in variables(i)}
    used |= {v for g in phase.when for v in variables(g.index)}
    return used - set(fixed) - set(phase.unrolled) - {s.var for s in phase.shares}


def _box_point(phase: Phase, own: Point) -> Point:
    return {**own, **{s.var: evaluate(s.value, own) for s in phase.shares}}


def _scalars(phase: Phase) -> int:
    return prod(v.extent for v in {s.var for s in phase.shares} | set(phase.unrolled)) * len(phase.roots)


@settings(max_examples=60)
@given(st.data(), st.integers(0, 3), st.integers(0, 3))
def test_extraction_on_demand_is_extraction_by_marking(data: st.DataObject, block: int, step: int) -> None:
    group = data.draw(st.one_of(chains(), pairs()))
    schedule = data.draw(points(group, SMALL_TARGET))
    assume(schedule is not None)
    kernel = lower(group, schedule, {}, SMALL_TARGET)
    for phase in phases(kernel.items):
        if phase.shares and _scalars(phase) <= _SCALARS:
            check_phase(kernel, phase, block % kernel.blocks, step)


def unmerge(node: Value) -> Value:
    """Return a value with loads for windows and divisions for quotients."""
    if isinstance(node, Window):
        return substitute_node(node.load, dict(zip(node.axes, node.at, strict=True)), {})
    if isinstance(node, Op):
        return evolve(node, fn={"quotient": "div"}.get(node.fn, node.fn), args=tuple(unmerge(a) for a in node.args))
    return evolve(node, arg=unmerge(node.arg)) if isinstance(node, Convert) else node


@settings(max_examples=60)
@given(st.data())
def test_merging_windows_leaves_every_value_as_it_is(data: st.DataObject) -> None:
    group = data.draw(st.one_of(chains(), pairs()))
    schedule = data.draw(points(group, SMALL_TARGET))
    assume(schedule is not None)
    kernel = lower(group, schedule, {}, SMALL_TARGET)
    for phase, merged in zip(phases(kernel.items), phases(extract(kernel).items), strict=True):
        plain = [evolve(r, value=unmerge(r.value)) if isinstance(r, (Store, Accumulate)) else r for r in merged.roots]
        assert plain == list(extract_phase(phase).roots)


def test_equal_windows_of_loads_are_walked_once() -> None:
    make = builder()
    source = make.node("add", make.input(1, 2, 16, 16), make.input(1, 2, 16, 16))
    result = make.node("conv", source, make.input(4, 2, 3, 3))
    group = unite(make.programs(), result)
    space = make_space(group, SMALL_TARGET)
    several = 0
    for structure in space.templates:
        for point in legal_points(space, structure, 1, 64):
            for phase in phases(extract(lower(group, point, {}, SMALL_TARGET)).items):
                windows = [
                    n
                    for n in post_order([r.value for r in phase.roots if isinstance(r, Accumulate)])
                    if isinstance(n, Window)
                ]
                several += len(windows) > len({w.axes for w in windows})
                assert len(set(phase.unrolled)) == len(phase.unrolled)
    assert several
