"""Verifiers of the compilation's invariants, level by level.

They call the verifiers of the IR, and check the invariants that only a compilation can. Every function raises a
`VerifyError`, or an `ErrorList` of them, and names the node, group or phase that breaks an invariant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import evolve

from ...ir import (
    CutsError,
    FusedGroup,
    Kernel,
    Program,
    Schedule,
    Statement,
    Target,
    VerifyError,
    convert_error,
    kernel_violations,
    quote,
    raise_all,
    single_errors,
    unslice,
    verify_group,
    verify_program,
)
from ..fusion import Group, Programs, Unit, Views, form_key
from ..launch_order import check_launches_in_order, launch_violations
from ..lowering import check_barriers
from ..schedule import check_schedule


def verify_programs(programs: Programs) -> None:
    """Verify all statements of a graph as one program, and units' interfaces."""
    graph = programs.graph
    statements = tuple(s for unit in programs.units for s in _whole_statements(unit, programs))
    given = (*graph.inputs, *graph.constants)
    verify_program(Program(programs.types, given, graph.outputs, statements, programs.tables))
    raise_all(
        [*check_units_named(programs), *(e for u in programs.every_unit for e in check_unit_interface(u, programs))]
    )


def _whole_statements(unit: Unit, programs: Programs) -> Iterator[Statement]:
    """Yield the statements of a unit over whole tensors; those of a loop have its step."""
    if unit.repeat is None:
        yield from (unslice(s, programs.slices) for s in unit.statements)
        return
    step = unit.repeat.step
    for statement in (s for u in unit.repeat.units for s in u.statements):
        yield evolve(unslice(statement, programs.slices), axes=(step, *statement.axes), step=step)


def check_units_named(programs: Programs) -> Iterator[VerifyError]:
    """Yield names that several units have."""
    for name, count in Counter(unit.name for unit in programs.every_unit).items():
        if count > 1:
            yield VerifyError(f"{count} units are named {quote(name)}")


def check_unit_interface(unit: Unit, programs: Programs) -> Iterator[VerifyError]:
    """Yield units whose declared reads and writes differ from their statements.

    A unit reads all tensors that its statements read and do not write; it writes tensors of its statements.
    """
    if unit.repeat is not None:
        return
    own = {s.target for s in unit.statements}
    needed = {t for s in unit.statements for t in s.tensors_read} - own - programs.tables.keys()
    needed |= {s.target for s in unit.statements if s.combines_in_memory}
    if needed != set(unit.reads):
        yield VerifyError(
            f"unit {quote(unit.name)} says it reads {sorted(unit.reads)}, its statements read {sorted(needed)}"
        )
    if not set(unit.writes) <= own:
        yield VerifyError(
            f"unit {quote(unit.name)} says it writes {sorted(unit.writes)}, its statements write {sorted(own)}"
        )


def verify_groups(groups: Sequence[Group], views: Views) -> None:
    """Verify each distinct normal form, and an order of groups."""
    for group in {form_key(group.form): group for group in groups}.values():
        _verify_form(f"group {', '.join(map(quote, group.units))}", group.form)
    raise_all([*check_tensors_named(groups, views), *check_launches_in_order([(group,) for group in groups], views)])


def _verify_form(where: str, form: FusedGroup) -> None:
    try:
        verify_group(form)
    except CutsError as error:
        raise_all([convert_error(part, VerifyError, f"{where}: ") for part in single_errors(error)])


def check_tensors_named(groups: Sequence[Group], views: Views) -> Iterator[VerifyError]:
    """Yield tensors of forms without a graph tensor of equal type."""
    types = views.programs.types
    for group in groups:
        for tensor in (*group.form.inputs, *group.form.outputs):
            name, type_ = group.tensors.get(tensor), group.form.tensors[tensor]
            if name is None or types.get(name) != type_:
                yield VerifyError(
                    f"group {', '.join(map(quote, group.units))}: {tensor} of {type_} stands for {quote(str(name))}"
                )


def verify_launches(launches: Sequence[Sequence[Group]], places: Sequence[Sequence[int]], views: Views) -> None:
    """Verify the order of launches, for any order within one.

    `places` has the positions of their groups when they were formed.
    """
    raise_all([*launch_violations(launches, places, views)])


def verify_schedule(group: FusedGroup, schedule: Schedule, target: Target) -> None:
    """Verify a schedule against its group and the machine."""
    raise_all([VerifyError(f"schedule: {reason}") for reason in check_schedule(group, schedule, target)])


def verify_kernel(kernel: Kernel) -> None:
    """Verify a block-level kernel, races in shared memory included."""
    raise_all([*kernel_violations(kernel), *map(VerifyError, check_barriers(kernel))])


def verify_dfg(kernel: Kernel) -> None:
    """Verify a thread-level kernel: the data-flow graph of each phase."""
    raise_all(kernel_violations(kernel, threads=True))
