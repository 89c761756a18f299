"""Printed forms of passes' results; all but headings parse back (`ir.text`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ir import Program, Schedule, Var, print_graph, print_ir
from ..fusion import Programs, Unit
from ..results import Algorithms, Launches, LaunchKernels, Layouts, Partition, ScheduledPartition, Statements


def show_algorithms(algorithms: Algorithms) -> str:
    """Return the graph with its algorithms."""
    return print_graph(algorithms.graph)


def show_programs(statements: Statements) -> str:
    """Return every unit as a program."""
    programs = statements.programs
    return "\n".join(_unit(unit, programs) for unit in programs.every_unit)


def _unit(unit: Unit, programs: Programs) -> str:
    if unit.repeat is None:
        return f"# {unit.name}: {unit.op}\n{print_ir(_program(unit, programs))}"
    names = ", ".join(u.name for u in unit.repeat.units)
    return f"# {unit.name}: {unit.op}, {unit.repeat.step.extent} turns of {names}\n"


def _program(unit: Unit, programs: Programs) -> Program:
    tensors = {t: programs.types[t] for t in unit.tensors}
    tables = {t: programs.tables[t] for t in unit.tensors if t in programs.tables}
    return Program(tensors, unit.reads, unit.writes, unit.statements, tables)


def show_views(layouts: Layouts) -> str:
    """Return the storage of tensors without buffers, and units without kernels."""
    views = layouts.views
    lines = [f"# {tensor}\n{print_ir(storage)}" for tensor, storage in views.storages.items()]
    free = [u.name for u in views.programs.every_unit if u.free]
    return "".join([*lines, f"# no kernel: {', '.join(free) or 'none'}\n"])


def show_partition(partition: Partition) -> str:
    """Return the groups in execution order, in normal form over graph tensors."""
    parts = []
    for number, group in enumerate(partition.groups):
        units = " | ".join(", ".join(part) for part in group.parts)
        turn = f" in loop {group.repeat}" if group.repeat else ""
        parts.append(f"# group {number} ({group.level}){turn}: {units}\n{group.text}")
    return "\n".join(parts)


def show_launches(launches: Launches) -> str:
    """Return the groups of each launch, a line each."""
    lines = (" | ".join(", ".join(group.units) for group in groups) for groups in launches.launches)
    return "\n".join(f"launch {n}: {line}" for n, line in enumerate(lines))


def show_updates(launches: Launches) -> str:
    """Return the outputs in place of inputs, a line each."""
    views = launches.scheduled.partition.views
    pairs = views.programs.graph.interface.updates.items()
    found = [(old, new) for old, new in pairs if new in views.programs.types and views.storage(new).buffer == old]
    return "\n".join(f"{new} in place of {old}" for old, new in found) or "no output is in place of an input"


def show_schedules(scheduled: ScheduledPartition) -> str:
    """Return each kernel's schedule with its lower bound and limiting resource."""
    return _show_each(
        f"# bound {each.bound * 1e6:.3f} us, limited by {each.limit}\n{print_ir(each.schedule)}"
        for each in scheduled.chosen.values()
    )


def show_blocks(kernels: LaunchKernels) -> str:
    """Return the block-level kernels."""
    return _show_each(map(print_ir, kernels.blocks.values()))


def show_threads(kernels: LaunchKernels) -> str:
    """Return the thread-level kernels."""
    return _show_each(map(print_ir, kernels.threads.values()))


def show_sources(kernels: LaunchKernels) -> str:
    """Return the source of each kernel."""
    return _show_each(function.source for function in kernels.functions.values())


def _show_each(texts: Iterable[str]) -> str:
    return "\n".join(f"# kernel {n}\n{text}" for n, text in enumerate(texts))


def parameters(schedule: Schedule) -> dict[str, object]:
    """Return schedule parameters as JSON values: tiles per axis, K blocks, staging."""
    segments = []
    for segment in schedule.segments:
        reductions = [
            {
                "block_k": {_flat(d.axes): d.block_k for d in r.dims},
                "staged": [{"operand": s.operand, "order": list(s.order), "pad": s.pad} for s in r.staging],
                "stages": r.stages,
                **({"mma": r.mma, "prefetch": r.prefetch} if r.mma else {}),
            }
            for r in segment.reductions
        ]
        tiles = {_flat(d.axes): {"block": d.block, "thread": d.thread, "vector": d.vector} for d in segment.dims}
        segments.append(
            {
                "tiles": tiles,
                "reductions": reductions,
                "reduction_threads": segment.reduction_threads,
                "row_vector": segment.row_vector,
            }
            | ({"row_cache": segment.row_cache} if segment.row_cache else {})
            | ({"cluster": segment.cluster} if segment.cluster > 1 else {})
        )
    whole = {"threads": schedule.threads, "blocks": schedule.blocks, "raster": schedule.raster}
    return {**whole, "segments": segments}


def _flat(axes: Sequence[Var]) -> str:
    return "*".join(a.name for a in axes)
