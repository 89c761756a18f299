"""Printed forms of passes' results; all but headings parse back (`ir.text`)."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Program, Schedule, Var, print_ir
from .fusion import Group, Programs, Unit, Views
from .schedule import Candidate


def show_programs(programs: Programs) -> str:
    """Return every unit as a program."""
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


def show_views(views: Views) -> str:
    """Return the storage of tensors without buffers, and units without kernels."""
    lines = [f"# {tensor}\n{print_ir(storage)}" for tensor, storage in views.storages.items()]
    free = [u.name for u in views.programs.every_unit if u.free]
    return "".join([*lines, f"# no kernel: {', '.join(free) or 'none'}\n"])


def show_partition(groups: Sequence[Group]) -> str:
    """Return the groups in execution order, in normal form over graph tensors."""
    parts = []
    for number, group in enumerate(groups):
        units = " | ".join(", ".join(part) for part in group.parts)
        turn = f" in loop {group.repeat}" if group.repeat else ""
        parts.append(f"# group {number} ({group.level}){turn}: {units}\n{group.text}")
    return "\n".join(parts)


def show_launches(launches: Sequence[Sequence[Group]]) -> str:
    """Return the groups of each launch, a line each."""
    lines = (" | ".join(", ".join(group.units) for group in groups) for groups in launches)
    return "\n".join(f"launch {n}: {line}" for n, line in enumerate(lines))


def show_candidate(candidate: Candidate) -> str:
    """Return a candidate schedule with its lower bound and limiting resource."""
    return f"# bound {candidate.bound * 1e6:.3f} us, limited by {candidate.limit}\n{print_ir(candidate.schedule)}"


def parameters(schedule: Schedule) -> dict[str, object]:
    """Return schedule parameters as JSON values: tiles per axis, chunks, staging."""
    segments = []
    for segment in schedule.segments:
        reductions = [
            {
                "chunks": {_flat(d.axes): d.chunk for d in r.dims},
                "staged": [{"operand": s.operand, "order": list(s.order), "pad": s.pad} for s in r.staging],
                "stages": r.stages,
                **({"atom": r.atom, "ahead": r.ahead} if r.atom else {}),
            }
            for r in segment.reductions
        ]
        tiles = {_flat(d.axes): {"block": d.block, "thread": d.thread, "vector": d.vector} for d in segment.dims}
        segments.append(
            {"tiles": tiles, "reductions": reductions, "lanes": segment.lanes, "row_vector": segment.row_vector}
            | ({"kept": segment.kept} if segment.kept else {})
        )
    whole = {"threads": schedule.threads, "blocks": schedule.blocks, "index": schedule.index, "raster": schedule.raster}
    return {**whole, "segments": segments}


def _flat(axes: Sequence[Var]) -> str:
    return "*".join(a.name for a in axes)
