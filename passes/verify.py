"""What must hold behind each stage of the pipeline, level by level: the verifiers of the IR, and what only a
compilation can tell.

Every function raises a `VerifyError`, or an `ErrorList` of them, and names the node, group or phase that breaks an
invariant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from attrs import evolve

from ..ir import (
    CutsError,
    FusedGroup,
    Kernel,
    Program,
    Schedule,
    Statement,
    Target,
    VerifyError,
    kernel_violations,
    parts_of,
    quote,
    raise_all,
    retold,
    unsliced,
    verify_group,
    verify_program,
)
from .fusion import Group, Programs, Unit, Views
from .lowering import check_barriers
from .schedule import check_schedule


def verify_programs(programs: Programs) -> None:
    """Hold all statements of a graph, as one program, to the invariants of index IR, and units to what they say of
    themselves.
    """
    graph = programs.graph
    statements = tuple(s for unit in programs.units for s in _whole(unit, programs))
    given = (*graph.inputs, *graph.constants)
    verify_program(Program(programs.types, given, graph.outputs, statements, programs.tables))
    raise_all(
        [*check_units_named(programs), *(e for u in programs.every_unit for e in check_unit_interface(u, programs))]
    )


def _whole(unit: Unit, programs: Programs) -> Iterator[Statement]:
    """Yield the statements of a unit over whole tensors; those of a loop have its step."""
    if unit.repeat is None:
        yield from (unsliced(s, programs.slices) for s in unit.statements)
        return
    step = unit.repeat.step
    for statement in (s for u in unit.repeat.units for s in u.statements):
        yield evolve(unsliced(statement, programs.slices), axes=(step, *statement.axes), step=step)


def check_units_named(programs: Programs) -> Iterator[VerifyError]:
    """Every unit has a name of its own."""
    for name, count in Counter(unit.name for unit in programs.every_unit).items():
        if count > 1:
            yield VerifyError(f"{count} units are named {quote(name)}")


def check_unit_interface(unit: Unit, programs: Programs) -> Iterator[VerifyError]:
    """A unit says of all that it reads, and that no statement of its own writes, that it reads it; it writes what its
    statements write.
    """
    if unit.repeat is not None:
        return
    own = {s.target for s in unit.statements}
    needed = {t for s in unit.statements for t in s.tensors_read} - own - programs.tables.keys()
    needed |= {s.target for s in unit.statements if s.into}
    if needed != set(unit.reads):
        yield VerifyError(
            f"unit {quote(unit.name)} says it reads {sorted(unit.reads)}, its statements read {sorted(needed)}"
        )
    if not set(unit.writes) <= own:
        yield VerifyError(
            f"unit {quote(unit.name)} says it writes {sorted(unit.writes)}, its statements write {sorted(own)}"
        )


def verify_groups(
    groups: Sequence[Group], views: Views, is_new: Callable[[FusedGroup], bool] = lambda form: True
) -> None:
    """Hold each new normal form to the invariants of its level, and groups to an order in which they can run."""
    for group in groups:
        if is_new(group.form):
            _named(f"group {', '.join(map(quote, group.units))}", group.form)
    raise_all([*check_tensors_named(groups, views), *check_groups_in_order(groups, views)])


def _named(where: str, form: FusedGroup) -> None:
    try:
        verify_group(form)
    except CutsError as error:
        raise_all([retold(part, VerifyError, f"{where}: ") for part in parts_of(error)])


def check_tensors_named(groups: Sequence[Group], views: Views) -> Iterator[VerifyError]:
    """Every tensor of a form stands for one of the graph, of the same type."""
    types = views.programs.types
    for group in groups:
        for tensor in (*group.form.inputs, *group.form.outputs):
            name, type_ = group.tensors.get(tensor), group.form.tensors[tensor]
            if name is None or types.get(name) != type_:
                yield VerifyError(
                    f"group {', '.join(map(quote, group.units))}: {tensor} of {type_} stands for {quote(str(name))}"
                )


def check_groups_in_order(groups: Sequence[Group], views: Views) -> Iterator[VerifyError]:
    """A group reads what the graph is given, what groups before it wrote, and views of these; every output is there in
    the end.
    """
    order = _Order(views)
    units = {unit.name: unit for unit in views.programs.units}
    for repeat, run in groupby(groups, key=lambda group: group.repeat):
        if repeat is None:
            for group in run:
                yield from _in_order(group, order)
            continue
        loop = units[repeat]
        assert loop.repeat is not None, f"unit {repeat} is no loop"
        yield from (
            VerifyError(f"loop {quote(repeat)} reads {quote(t)} before it is computed")
            for t in loop.reads
            if not order.has(t, (repeat,))
        )
        turn = _Order(evolve(views, programs=views.programs.turn(loop.repeat)))
        made = {t for unit in loop.repeat.units for t in unit.writes}
        turn.present.update(t for unit in loop.repeat.units for t in unit.reads if t not in made)
        for group in run:
            yield from _in_order(group, turn)
        yield from (
            VerifyError(f"loop {quote(repeat)} does not compute {quote(t)}")
            for t in loop.repeat.kept
            if not turn.has(t)
        )
        order.done.add(repeat)
    for tensor in views.programs.graph.outputs:
        if not order.has(tensor) and views.programs.graph.types[tensor].size:
            yield VerifyError(f"no group computes output {quote(tensor)}")


def _in_order(group: Group, order: _Order) -> Iterator[VerifyError]:
    for tensor in group.inputs:
        if not order.has(tensor, group.units):
            yield VerifyError(f"group {', '.join(map(quote, group.units))} reads {quote(tensor)} before it is computed")
    order.done.update(group.units)
    order.present.update(t for t in group.outputs if t not in order.producers)


class _Order:
    """Which tensors are there, while groups run one after the other.

    A tensor is there when all units that write it have run. A unit that needs no kernel has run when what it reads is
    there. Of a tensor that is written in pieces, units need those that stand in front of them.
    """

    def __init__(self, views: Views) -> None:
        graph = views.programs.graph
        self.producers = views.programs.producers()
        self.place = {unit.name: place for place, unit in enumerate(views.programs.units)}
        self.reads = {unit.name: unit.reads for unit in views.programs.units}
        self.present = {*graph.inputs, *graph.constants, *views.programs.tables}
        self.done: set[str] = set()

    def has(self, tensor: str, readers: Sequence[str] = ()) -> bool:
        """Whether a tensor is there, or as much of it as some units need."""
        places = [self.place[unit] for unit in readers if tensor in self.reads[unit]]
        pending, later = [(tensor, min(places, default=len(self.place)))], False
        while pending:
            name, place = pending.pop()
            units = self.producers.get(name, [])
            if name in self.present:
                continue
            waiting = [u for u in units if u.name not in self.done and self.place[u.name] < place]
            later = later or any(u.name not in self.done for u in units)
            if not units or any(not u.free for u in waiting):
                return False
            pending.extend((t, self.place[u.name]) for u in waiting for t in u.reads)
        self.present |= set() if later else {tensor}
        return True


def verify_schedule(group: FusedGroup, schedule: Schedule, target: Target) -> None:
    """Hold a schedule to the rules of its group and of the machine."""
    raise_all([VerifyError(f"schedule: {reason}") for reason in check_schedule(group, schedule, target)])


def verify_kernel(kernel: Kernel) -> None:
    """Hold a block-level kernel to the invariants of its level, and find races in shared memory."""
    raise_all([*kernel_violations(kernel), *map(VerifyError, check_barriers(kernel))])


def verify_dfg(kernel: Kernel) -> None:
    """Hold what one thread does, the data-flow graph of each phase, to the invariants of its level."""
    raise_all(kernel_violations(kernel, threads=True))
