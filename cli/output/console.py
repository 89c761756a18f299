"""Printed results of the command line: tables of groups, times and comparisons.

Results go to standard output, all else to standard error.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...runtime import plain

if TYPE_CHECKING:
    from ...backends import Timing
    from ...backends.compilers import Cubin
    from ...numerics import Comparison
    from ...runtime import Plan

_LOG = logging.getLogger("cuts.cli")


def output_console() -> Console:
    """Return the console for results.

    A pipe gets lines wide enough that no table is cut.
    """
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(file=sys.stdout, highlight=False, width=200)


def note(text: str) -> None:
    """Print a text that is no result."""
    _LOG.info("%s", text)


class _Printed:
    """Flag of a command that has printed its one JSON object."""

    yes = False


def begin() -> None:
    """Begin a command: nothing is printed yet."""
    _Printed.yes = False


def note_table(made: Table) -> None:
    """Print a table that is no result."""
    Console(stderr=True, width=None if sys.stderr.isatty() else 120).print(made)


def print_json(value: Mapping[str, object]) -> None:
    """Print the one JSON object of a command."""
    print(json.dumps(plain(value), indent=1))
    _Printed.yes = True


def print_error(value: Mapping[str, object]) -> None:
    """Print an error as a command's JSON object, unless results are printed."""
    if not _Printed.yes:
        print_json(value)


def seconds(value: object) -> str:
    """Return a time in the unit that suits it."""
    if not isinstance(value, (int, float)):
        return "-"
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{value * factor:.3g} {unit}"
    return f"{value:.3g} s"


def size(nbytes: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    value = float(nbytes)
    for unit in ("B", "KB", "MB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GB"


def count(number: int, noun: str) -> str:
    """Return a number of things in words.

    `noun` is their singular.
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def brief(value: object, limit: int = 60) -> str:
    """Return a report value on one line of limited length.

    Control characters of user text are escaped.
    """
    if isinstance(value, Mapping):
        text = " ".join(f"{key}={brief(item)}" for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        text = ", ".join(brief(item) for item in value)
    else:
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def parameters_text(value: object) -> str:
    """Return schedule parameters on one line.

    They are `axis:block/thread` with the vector width, `axis:chunk` of reductions, and staged operands.
    """
    if not isinstance(value, Mapping) or "segments" not in value:
        return brief(value, 80)
    return brief("; ".join(filter(None, map(_segment_text, value["segments"]))), 120)


def _segment_text(segment: Mapping[str, Any]) -> str:
    words = []
    for axis, tile in segment.get("tiles", {}).items():
        if tile["block"] > 1:
            words.append(
                f"{axis}:{tile['block']}/{tile['thread']}" + (f"v{tile['vector']}" if tile["vector"] > 1 else "")
            )
    for reduction in segment.get("reductions", ()):
        words += [f"{axis}:{block}" for axis, block in reduction.get("block_k", {}).items()]
        words += [f"{len(reduction['staged'])} staged x{reduction.get('stages', 1)}"] if reduction.get("staged") else []
    words += [f"{segment['reduction_threads']} reduction threads"] if segment.get("reduction_threads", 1) > 1 else []
    return " ".join(words)


def detail(key: str, value: object) -> str:
    """Return a report value in full: blocks indented, nested values as JSON."""
    if isinstance(value, str):
        lines = [brief(line, 10_000) for line in value.splitlines()] or [""]
        return f"{key}: {lines[0]}" if len(lines) == 1 else "\n    ".join([f"{key}:", *lines])
    if isinstance(value, (Mapping, list, tuple)) and any(
        isinstance(item, (Mapping, list, tuple)) for item in _items(value)
    ):
        return f"{key}: {json.dumps(plain(value))}"
    return f"{key}: {brief(value, 10_000)}"


def _items(value: object) -> list[Any]:
    return (
        list(value.values()) if isinstance(value, Mapping) else list(value) if isinstance(value, (list, tuple)) else []
    )


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Return a table of plain text cells; numbers are right-aligned."""
    result = Table(title=escape(title), title_justify="left", header_style="bold")
    for index, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        result.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        result.add_row(*(escape(brief(cell, 200)) for cell in row))
    return result


def group_rows(plan: Plan, cubins: Sequence[Cubin] = (), times: Sequence[Timing] = ()) -> list[list[object]]:
    """Return one row per step: members, kernel, launch, parameters, bound, time."""
    rows: list[list[object]] = []
    for number, step in enumerate(plan.steps):
        kernel = plan.kernels[step.kernel]
        group = plan.groups[number] if number < len(plan.groups) else {}
        row: list[object] = [
            number, brief(group.get("nodes", kernel.info.get("nodes", "-"))), _fusion(plan, number, group),
            kernel.name,
            f"{'x'.join(map(str, kernel.grid))} / {'x'.join(map(str, kernel.block))}",
            parameters_text(group.get("parameters", kernel.info.get("parameters", "-"))), seconds(group.get("bound")),
        ]  # fmt: skip
        if _is_tuned(plan):
            row.append(seconds(group.get("measured")))
        if cubins:
            cubin = cubins[step.kernel]
            row.append(f"{cubin.registers}" + (f" (spills {cubin.spill_bytes} B)" if cubin.spill_bytes else ""))
        if times:
            row.append(seconds(times[number].median))
        rows.append(row)
    return rows


def _fusion(plan: Plan, number: int, group: Mapping[str, object]) -> str:
    """Return a group's kind of fusion, the number of groups in its launch, and its iterations."""
    turns = f", {plan.turns(number)} turns" if plan.turns(number) > 1 else ""
    members = f", {group['members']}" if "members" in group else ""
    return f"{brief(group.get('level', '-'))}{members}{turns}"


def _is_tuned(plan: Plan) -> bool:
    return any("measured" in group for group in plan.groups)


def group_table(plan: Plan, cubins: Sequence[Cubin] = (), times: Sequence[Timing] = ()) -> Table:
    """Return the table of a plan's groups."""
    columns = ["#", "nodes", "fusion", "kernel", "grid / block", "parameters", "bound"]
    columns += ["measured"] if _is_tuned(plan) else []
    columns += ["registers"] if cubins else []
    columns += ["time"] if times else []
    return table(f"{plan.name} for {plan.target.name}", columns, group_rows(plan, cubins, times))


def comparison_table(results: Sequence[Comparison], oracle: str) -> Table:
    """Return the table of outputs against an oracle."""
    rows = [[r.tensor, f"{r.error:.3g}", f"{r.tolerance:.3g}", "ok" if r.ok else f"WRONG {r.worst}"] for r in results]
    return table(f"outputs against {oracle}", ["output", "error", "tolerance", "verdict"], rows)


def weight_table(weights: str, costs: Mapping[str, float]) -> Table:
    """Return the table of the accuracy that rounded weights cost."""
    rows = [[name, f"{error:.3g}"] for name, error in costs.items()]
    return table(f"cost of weights in {weights}", ["output", "relative error"], rows)


def weight_values(weights: str | None, costs: Mapping[str, float]) -> dict[str, object]:
    """Return the accuracy that rounded weights cost as JSON values."""
    return {"weights": {"format": weights, "error": dict(costs)}} if costs else {}


def totals(plan: Plan) -> str:
    """Return one line of a plan's figures."""
    weights = sum(array.nbytes for array in plan.constants.values())
    launches = f"{plan.launch_count} launches, " if plan.loops else ""
    launches += "in branches, " if plan.branched else ""
    return (
        f"{count(len(plan.steps), 'group')}, {count(plan.distinct_kernels, 'distinct kernel')}, "
        f"{launches}arena {size(plan.arena)}"
        f" (buffers {size(plan.buffer_bytes)}), weights {size(weights)}"
    )


def percentiles(samples: Timing) -> dict[str, float]:
    """Return the reported statistics of repeated times, in seconds."""
    return {"min": samples.best, "median": samples.median} | {f"p{p}": samples.percentile(p) for p in (90, 95, 99)}


def comparison_values(results: Sequence[Comparison], oracle: str) -> dict[str, object]:
    """Return comparisons as JSON values."""
    outputs = {r.tensor: {"error": r.error, "tolerance": r.tolerance, "ok": r.ok} for r in results}
    return {"oracle": oracle, "ok": all(r.ok for r in results), "outputs": outputs}
