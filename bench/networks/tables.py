"""The evaluation as text and figures.

It has times, the number of workloads that each system wins (Tables 11 and 12 of DeepCuts), means over graphed PyTorch,
the breakdown of section 7.3, and the table of README.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from textwrap import fill

from cuts.bench.tools.records import geomean

from .ledger import measured_rows
from .models import APPLICATIONS, Task
from .systems import CURVE_SYSTEMS, OURS, PEERS, SYSTEMS, Row

#: Columns of a document's text.
WIDTH = 120
TASKS: tuple[Task, ...] = ("inference", "training")
#: Lines that enclose a table in a document.
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"
_KINDS = {model.name: model.kind for model in APPLICATIONS}


def winners(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Return each system's number of won workloads (Tables 11 and 12).

    They are counted by kind of model in inference, and in training. Only the workloads count that `cuts mixed` and a
    peer ran.
    """
    found: dict[str, dict[str, int]] = {}
    for (model, task, _), each in measured_rows(rows).items():
        if not _is_comparable(each):
            continue
        contenders = {name: row["ms"] for name, row in each.items() if name == OURS[0] or name in PEERS}
        best = min(contenders, key=lambda name: contenders[name])
        of_kind = found.setdefault(_KINDS[model] if task == "inference" else task, {})
        of_kind[best] = of_kind.get(best, 0) + 1
    return found


def _is_comparable(each: Mapping[str, Row]) -> bool:
    return OURS[0] in each and any(name in each for name in PEERS)


def winners_table(rows: Sequence[Row]) -> str:
    """Return the table of the workloads that each system wins."""
    found = winners(rows)
    names = [OURS[0], *(p for p in PEERS if any(row["system"] == p for row in rows))]
    lines = [f"| kind | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for kind in ("CNN", "RNN", "MLP", *(["training"] if "training" in found else [])):
        cells = " | ".join(str(found.get(kind, {}).get(name, 0)) for name in names)
        lines += [f"| {kind} | {cells} |"]
    totals = [sum(of_kind.get(name, 0) for of_kind in found.values()) for name in names]
    return "\n".join([*lines, f"| all | {' | '.join(map(str, totals))} |"])


def speedups(rows: Sequence[Row], task: Task = "inference") -> dict[str, tuple[float, int]]:
    """Return each system's mean speed-up over graphed PyTorch, and its workloads.

    The mean is geometric; graphed PyTorch is the paper's "cuDNN".
    """
    ratios: dict[str, list[float]] = {}
    for each in (found for key, found in measured_rows(rows).items() if key[1] == task):
        for name, row in each.items():
            if "PyTorch" in each and name != "PyTorch":
                ratios.setdefault(name, []).append(each["PyTorch"]["ms"] / row["ms"])
    return {name: (geomean(ratios[name]), len(ratios[name])) for name in SYSTEMS if name in ratios}


def anytime(rows: Sequence[Row]) -> str:
    """Return milliseconds of plans by search budget, and their changes.

    The plans are those of searches of several budgets that any workload has. Changes are the greatest slowdown of a
    longer search of the same version, and the ratio of the plan without measurements to the tuned one.
    """
    there = {name for each in measured_rows(rows).values() for name in each}
    names = ["cuts untuned", *(name for name in CURVE_SYSTEMS if name in there), OURS[0]]
    heads = [name.removeprefix("cuts ") for name in names]
    lines = [f"| workload | {' | '.join(heads)} | rise | untuned / tuned |", "|---" * (len(names) + 3) + "|"]
    ratios: list[float] = []
    for (model, task, batch), each in measured_rows(rows).items():
        curve = [each[name] for name in names[:-1] if name in each]
        if task == "training" or not curve:
            continue
        versions = dict.fromkeys(row.get("commit") for row in curve)
        rise = max(_rise([row["ms"] for row in curve if row.get("commit") == version]) for version in versions)
        ratio = each[names[0]]["ms"] / each[OURS[0]]["ms"] if {names[0], OURS[0]} <= each.keys() else None
        ratios += [ratio] if ratio else []
        cells = [f"{each[name]['ms']:.3g}" if name in each else "" for name in names]
        last = "" if ratio is None else f"{ratio:.2f}"
        lines.append(f"| {model} b{batch} | {' | '.join(cells)} | {max(0.0, rise - 1):.1%} | {last} |")
    if not lines[2:]:
        return ""
    mean = [f"Untuned over tuned, geometric mean of {len(ratios)}: {geomean(ratios):.2f}."] if ratios else []
    return "\n".join([*lines, *mean])


def _rise(times: Sequence[float]) -> float:
    """Return how many times as long as the best before it a later plan takes at most."""
    return max((later / least for later, least in zip(times[1:], accumulate(times, min), strict=False)), default=1.0)


def breakdowns(rows: Sequence[Row]) -> str:
    """Return microseconds by kind of kernel, for rows that have them."""
    kinds = ("complex", "complex (fusion)", "simple", "simple (fusion)")
    lines = [f"| workload | system | {' | '.join(kinds)} |", "|---" * 6 + "|"]
    for (model, _, batch), each in measured_rows(rows).items():
        for name, row in each.items():
            if "breakdown" in row and name not in CURVE_SYSTEMS:
                cells = " | ".join(f"{row['breakdown'].get(kind, 0.0):.1f}" for kind in kinds)
                lines.append(f"| {model} b{batch} | {name} | {cells} |")
    return "\n".join(lines)


def readme(rows: Sequence[Row]) -> str:
    """Return README's table of measured models and their circumstances.

    It has models at batch 1 and at the largest measured one, with their peers, where both were measured.
    """
    found = {key: each for key, each in measured_rows(rows).items() if key[1] == "inference" and _is_comparable(each)}
    names = [p for p in PEERS if any(p in each for each in found.values())]
    columns = ["model", "batch", "`cuts`", *(_heading(name) for name in names), "over the best"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for (model, _, batch), each in found.items():
        ours, peers = each[OURS[0]], {name: each[name]["ms"] for name in names if name in each}
        cells = [f"{peers[name]:.3g}" if name in peers else "" for name in names]
        ratio = min(peers.values()) / ours["ms"]
        lines.append(f"| {model} | {batch} | {ours['ms']:.3g} | {' | '.join(cells)} | {ratio:.2f} |")
    return "\n".join([*lines, "", *_circumstances([row for each in found.values() for row in each.values()])])


def _heading(name: str) -> str:
    return {"PyTorch": "PyTorch, graphed", "torch.compile": "torch.compile, graphed"}.get(name, name)


def _circumstances(rows: Sequence[Row]) -> Iterator[str]:
    """Yield README's statements on the rows' measurement."""
    if not rows:
        return
    gpus, dates = sorted({row["device"] for row in rows}), sorted({row["date"][:10] for row in rows})
    torches = sorted({row["versions"].get("torch", "?") for row in rows})
    # Earlier searches in calls of their own count, for the row's search found their results.
    budgets = sorted({row["budget_s"] + row.get("budget before", 0.0) for row in rows if row["system"] == OURS[0]})
    searched = " to ".join(f"{b:g}" for b in dict.fromkeys((budgets[0], budgets[-1])))
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    yield fill(
        f"Milliseconds on {', '.join(gpus)}, strict fp32, {when}, PyTorch {', '.join(torches)}; `cuts` searched for "
        f"{searched} s.",
        WIDTH,
    )


def all_tables(rows: Sequence[Row]) -> str:
    """Return all tables: times, wins, means, breakdowns, and failures."""
    names = [name for name in SYSTEMS if name not in CURVE_SYSTEMS and any(row["system"] == name for row in rows)]
    lines = [f"| workload | {' | '.join(names)} | launches | error |", "|---" * (len(names) + 3) + "|"]
    for (model, task, batch), found in measured_rows(rows).items():
        label = f"{model} b{batch}" + (" training" if task == "training" else "")
        cells = [f"{found[name]['ms']:.3g}" if name in found else "" for name in names]
        ours = found.get(OURS[0], {})
        error = f"{ours['error']:.0e}" if ours.get("error") is not None else ""
        lines.append(f"| {label} | {' | '.join(cells)} | {ours.get('launches', '')} | {error} |")
    lines += ["", "Workloads that each system wins:", "", winners_table(rows), ""]
    for task in TASKS:
        found_means = {name: each for name, each in speedups(rows, task).items() if name not in CURVE_SYSTEMS}
        means = [f"{name} {mean:.2f} ({count})" for name, (mean, count) in found_means.items()]
        said = f"Geometric means over graphed PyTorch in {task}, with how many workloads: {', '.join(means)}."
        lines += [fill(said, WIDTH), ""] if means else []
    lines += [curve, ""] if (curve := anytime(rows)) else []
    lines += ["Microseconds of each kind of kernel (section 7.3 of the paper):", "", breakdowns(rows), ""]
    lines += [f"Failed: {r['model']} b{r['batch']} {r['system']}: {r['failure'][:80]}." for r in rows if "failure" in r]
    return "\n".join([*lines, *_circumstances([row for each in measured_rows(rows).values() for row in each.values()])])


#: Contents between the lines of each name.
PLACES = {"evaluation": readme, "whole evaluation": all_tables}


def with_table(text: str, rows: Sequence[Row]) -> str:
    """Return a document with the tables in their places.

    Raises `ValueError` where there is none.
    """
    found = [name for name in PLACES if BEGIN.format(name) in text and END.format(name) in text]
    if not found:
        raise ValueError(f"expected the lines {BEGIN.format('evaluation')} and {END.format('evaluation')}")
    for name in found:
        before, _, rest = text.partition(BEGIN.format(name))
        after = rest.partition(END.format(name))[2]
        text = f"{before}{BEGIN.format(name)}\n{PLACES[name](rows)}\n{END.format(name)}{after}"
    return text


# ---- Figure 5

#: Denominator of all speed-ups.
BASE = "PyTorch"
PANELS = (("CNN inference", ("CNN",), "inference"), ("RNN and MLP inference", ("RNN", "MLP"), "inference"),
          ("Training", ("CNN", "RNN", "MLP"), "training"))  # fmt: skip
COLOURS = ("#0b6e4f", "#4d9078", "#a3c9a8", "#e09f3e", "#9e2a2b", "#540b0e", "#335c67")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the panels that have rows; equal rows make equal files."""
    mpl, plt = import_module("matplotlib"), import_module("matplotlib.pyplot")
    found = {key: each for key, each in measured_rows(rows).items() if BASE in each and len(each) > 1}
    shown = [name for name in SYSTEMS if name not in (BASE, *CURVE_SYSTEMS)]
    names = [name for name in shown if any(name in each for each in found.values())]
    panels = [(title, part) for title, kinds, task in PANELS if (part := _task_rows(found, kinds, task))]
    mpl.rcParams.update({"svg.hashsalt": "cuts", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(
        len(panels) or 1, 1, figsize=(10, 2.6 * (len(panels) or 1)), squeeze=False, constrained_layout=True
    )
    for axis, (title, part) in zip(axes[:, 0], panels, strict=False):
        width = 0.8 / len(names)
        for number, name in enumerate(names):
            bars = [(x, each[BASE]["ms"] / each[name]["ms"]) for x, each in enumerate(part.values()) if name in each]
            places = [x + (number - (len(names) - 1) / 2) * width for x, _ in bars]
            axis.bar(places, [height for _, height in bars], width, label=name, color=_colour(name))
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_title(title, loc="left")
        axis.set_ylabel("speed-up over graphed PyTorch")
        axis.set_xticks(range(len(part)), [f"{model}\nb{batch}" for model, _, batch in part])
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, ncols=len(names))
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)


def _task_rows(
    found: dict[tuple[str, str, int], dict[str, Row]], kinds: Sequence[str], task: str
) -> dict[tuple[str, str, int], dict[str, Row]]:
    return {key: each for key, each in found.items() if _KINDS[key[0]] in kinds and key[1] == task}


def _colour(name: str) -> str:
    return COLOURS[list(SYSTEMS).index(name) % len(COLOURS)]
