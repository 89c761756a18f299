"""The printed forms of what the passes between graph and kernels make: programs, views, groups, schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ir.expr import Call, Cast, Const, Expr, Guard, IndexValue, InRange, Read
from ..ir.index import Var
from ..ir.kernel import Kernel
from ..ir.schedule import Schedule
from ..ir.segment import FusedGroup, Segment
from ..ir.statement import Statement
from .choose import Candidate
from .groups import Group
from .programs import Programs
from .rename import rename_expr
from .views import Views

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def show_expr(expr: Expr) -> str:
    """Return an expression as text, as declarations write it."""
    if isinstance(expr, Call):
        args = [show_expr(a) for a in expr.args]
        return f"({args[0]} {_INFIX[expr.fn]} {args[1]})" if expr.fn in _INFIX else f"{expr.fn}({', '.join(args)})"
    if isinstance(expr, Cast):
        return f"{expr.dtype}({show_expr(expr.arg)})"
    if isinstance(expr, Const):
        return str(expr.value).lower() if isinstance(expr.value, bool) else f"{expr.value:g}"
    if isinstance(expr, IndexValue):
        return f"index({expr.index.text})"
    if isinstance(expr, InRange):
        return _guards(expr.guards)
    inner = f"{expr.tensor}[{', '.join(i.text for i in expr.indices)}]"
    return f"({inner} if {_guards(expr.guards)} else {expr.fill:g})" if expr.guards else inner


def _guards(guards: Sequence[Guard]) -> str:
    return " and ".join(g.text for g in guards)


def _axes(axes: Sequence[Var]) -> str:
    return ", ".join(f"{a.name} < {a.extent}" for a in axes)


def show_statement(statement: Statement) -> str:
    """Return a statement as one line."""
    body = show_expr(statement.body)
    if statement.combine:
        body = f"{statement.combine}[{_axes(statement.reduce)}] {body}"
    over = f" for {_axes(statement.axes)}" if statement.axes else ""
    return f"{statement.target}[{', '.join(w.text for w in statement.write)}] = {body}{over}"


def show_group(group: FusedGroup, names: Mapping[str, str] | None = None) -> str:
    """Return a normal form as text, with the tensors' names replaced where `names` has them."""
    return "\n".join(_segment(s, dict(names or {})) for s in group.segments)


def _segment(segment: Segment, names: Mapping[str, str]) -> str:
    lines = [f"for {_axes(segment.axes)}:"]
    for r in segment.reductions:
        lines.append(f"  {r.name} = {r.combine}[{_axes(r.reduce)}] {show_expr(rename_expr(r.body, names))}")
    for o in segment.outputs:
        extra = f" for {_axes(o.extra)}" if o.extra else ""
        where = ", ".join(w.text for w in o.write)
        lines.append(f"  {names.get(o.tensor, o.tensor)}[{where}] = {show_expr(rename_expr(o.body, names))}{extra}")
    return "\n".join(lines)


def show_programs(programs: Programs) -> str:
    """Return all units with their statements."""
    lines: list[str] = []
    for unit in programs.units:
        lines.append(f"{unit.name}: {unit.op}{' (free)' if unit.free else ''}")
        lines.extend(f"  {show_statement(s)}" for s in unit.statements)
    return "\n".join(lines) + "\n"


def show_views(views: Views) -> str:
    """Return where tensors live that own no buffer, and the units that need no kernel."""
    lines = [f"{t}: {s.buffer} + {s.offset}, strides {s.strides}" for t, s in views.storages.items()]
    free = [u.name for u in views.programs.units if u.free]
    return "\n".join([*lines, f"free: {', '.join(free) or 'none'}"]) + "\n"


def show_partition(groups: Sequence[Group]) -> str:
    """Return the groups in execution order, each with its normal form over graph tensors."""
    parts = []
    for number, group in enumerate(groups):
        units = " | ".join(", ".join(part) for part in group.parts)
        parts.append(f"group {number} ({group.level}): {units}\n{show_group(group.form, group.tensors)}\n")
    return "\n".join(parts)


def parameters(schedule: Schedule) -> dict[str, object]:
    """Return a point of the parameter space as JSON values, in the paper's terms: tiles per axis, chunks, staging."""
    segments = []
    for segment in schedule.segments:
        reductions = [
            {
                "chunks": {_flat(d.axes): d.chunk for d in r.dims},
                "staged": [{"operand": s.operand, "order": list(s.order), "pad": s.pad} for s in r.staging],
                "stages": r.stages,
            }
            for r in segment.reductions
        ]
        tiles = {_flat(d.axes): {"block": d.block, "thread": d.thread, "vector": d.vector} for d in segment.dims}
        segments.append({"tiles": tiles, "reductions": reductions, "lanes": segment.lanes, "row_vector": segment.row_vector})
    return {"threads": schedule.threads, "blocks": schedule.blocks, "index": schedule.index, "raster": schedule.raster, "segments": segments}


def _flat(axes: Sequence[Var]) -> str:
    return "*".join(a.name for a in axes)


def show_candidate(candidate: Candidate) -> str:
    """Return a chosen point: its parameters, its bound, and what limits it."""
    lines = [f"  {key}: {value}" for key, value in parameters(candidate.schedule).items()]
    return "\n".join([f"  bound: {candidate.bound * 1e6:.3f} us, limited by {candidate.limit}", *lines]) + "\n"


def show_kernel(kernel: Kernel) -> str:
    """Return kernel IR, one item per line."""
    return "\n".join(["  " + str(item) for item in (*kernel.defines, *kernel.shared, *kernel.items)]) + "\n"
