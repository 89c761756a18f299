"""The evaluation as tables.

They are times, the number of workloads that each system wins (Tables 11 and 12 of DeepCuts), means over graphed
PyTorch, the breakdown of section 7.3, and the table of README.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import geometric_mean
from textwrap import fill

from cuts.bench.tools.markdown import digits, exponent, markdown_table
from cuts.bench.tools.records import Row

from .ledger import measured_rows
from .models import APPLICATIONS, Task
from .systems import CURVE_SYSTEMS, OURS, PEERS, SYSTEMS

TASKS: tuple[Task, ...] = ("inference", "training")
#: Our columns of Figure 5, and our versions of Tables 11 and 12.
FIGURE_5 = ("cuts untuned no-fusion", "cuts untuned fusion", "cuts untuned", OURS[0])
WINNERS = FIGURE_5[::-1]
KINDS = {model.name: model.kind for model in APPLICATIONS}


def times_table(rows: Sequence[Row], note: Callable[[Iterable[Row]], str] = lambda _: "") -> str:
    """Return milliseconds of each system by workload, each line with a note."""
    found = measured_rows(rows)
    systems = [s for s in SYSTEMS if s not in CURVE_SYSTEMS and any(s in each for each in found.values())]
    lines = []
    for (model, task, batch), each in found.items():
        peers = [row["ms"] for s, row in each.items() if s not in OURS]
        ours = each.get(OURS[0], {})
        speed = min(peers) / ours["ms"] if peers and ours else None
        times = [digits(each[s]["ms"]) if s in each else None for s in systems]
        label = f"{model}{' training' if task == 'training' else ''}"
        facts = [ours.get("launches"), exponent(ours.get("error")), ours.get("budget_s"), note(each.values())]
        lines.append([label, batch, *times, digits(speed), *facts])
    return markdown_table(["model", "batch", *systems, "speed", "launches", "error", "budget, s", "no."], lines)


def winners(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Return each system's number of won workloads (Tables 11 and 12).

    They are counted by kind of model in inference, and in training, where a version of ours and a peer ran. A version
    of ours wins where it beats every peer, a peer where it beats all others.
    """
    found: dict[str, dict[str, int]] = {}
    for kind, each in _comparable_rows(rows):
        times = {name: row["ms"] for name, row in each.items() if name in (*WINNERS, *PEERS)}
        peers = {name: ms for name, ms in times.items() if name in PEERS}
        best = [name for name, ms in times.items() if ms < min(peers.values())] or [min(peers, key=lambda n: peers[n])]
        for name in best:
            found.setdefault(kind, {})[name] = found.get(kind, {}).get(name, 0) + 1
    return found


def _comparable_rows(rows: Sequence[Row]) -> Iterator[tuple[str, Mapping[str, Row]]]:
    """Yield workloads with a peer and a version of ours, by kind."""
    for (model, task, _), each in measured_rows(rows).items():
        if each.keys() & {*WINNERS} and each.keys() & {*PEERS}:
            yield KINDS[model] if task == "inference" else task, each


def _is_comparable(each: Mapping[str, Row]) -> bool:
    return OURS[0] in each and any(name in each for name in PEERS)


def winners_table(rows: Sequence[Row]) -> str:
    """Return the table of the workloads that each system wins.

    Versions of ours have the number of their workloads, too.
    """
    found, there = winners(rows), {row["system"] for row in rows}
    ran = [(kind, name) for kind, each in _comparable_rows(rows) for name in each]
    names = [name for name in (*WINNERS, *PEERS) if name in there]
    kinds = [kind for kind in ("CNN", "RNN", "MLP", "training") if kind != "training" or kind in found]

    def cell(name: str, chosen: Sequence[str]) -> str:
        won = sum(found.get(kind, {}).get(name, 0) for kind in chosen)
        return f"{won} of {sum(ran.count((kind, name)) for kind in chosen)}"

    lines = [[kind, *(cell(name, [kind]) for name in names)] for kind in kinds]
    return markdown_table(["kind", *names], [*lines, ["all", *(cell(name, kinds) for name in names)]])


def figure_5(rows: Sequence[Row]) -> str:
    """Return speed-ups over graphed PyTorch, by mode and peer."""
    measured = {key: each for key, each in measured_rows(rows).items() if "PyTorch" in each}
    found = {key: {n: each["PyTorch"]["ms"] / row["ms"] for n, row in each.items()} for key, each in measured.items()}
    found = {key: each for key, each in found.items() if each.keys() & {*FIGURE_5}}
    names = [name for name in (*FIGURE_5, *PEERS[1:]) if any(name in each for each in found.values())]
    lines: list[list[object]] = [
        [_label(key), *(f"{each[name]:.2f}" if name in each else None for name in names)] for key, each in found.items()
    ]
    shared = [each for each in found.values() if each.keys() >= {*FIGURE_5[:3]}]
    means = [geometric_mean(each[name] for each in shared) if shared else None for name in FIGURE_5[:3]]
    cells = [None if mean is None else f"{mean:.2f}" for mean in means]
    lines.append([f"geometric mean of {len(shared)}", *cells, *(None for _ in names[3:])])
    return markdown_table(["workload", *names], lines)


def _label(workload: tuple[str, str, int]) -> str:
    model, task, batch = workload
    return f"{model} b{batch}{' training' if task == 'training' else ''}"


def code_generation(rows: Sequence[Row]) -> str:
    """Return seconds of compilation and search by system (Figure 7)."""
    found = {key: {n: row for n, row in each.items() if "seconds" in row} for key, each in measured_rows(rows).items()}
    names = [
        n for n in (*WINNERS[:2], "torch.compile", "max-autotune", "XLA") if any(n in each for each in found.values())
    ]
    lines = [
        [_label(key), *(f"{each[n]['seconds']:.1f}" if n in each else None for n in names)]
        for key, each in found.items()
        if each.keys() & {*names}
    ]
    return markdown_table(["workload", *names], lines)


def library_shares(rows: Sequence[Row]) -> str:
    """Return launches of tuned plans, and those of libraries (section 7.2)."""
    found: dict[str, list[int]] = {}
    for (model, task, _), each in measured_rows(rows).items():
        if OURS[0] in each:
            counts = found.setdefault(KINDS[model] if task == "inference" else task, [0, 0, 0, 0])
            calls = sum(each[OURS[0]].get("libraries", {}).values())
            for place, more in enumerate((1, int(calls > 0), each[OURS[0]]["launches"], calls)):
                counts[place] += more
    heads = ["kind", "plans", "with routines", "launches", "routines", "share"]
    lines = [[kind, *counts, f"{counts[3] / counts[2]:.1%}"] for kind, counts in found.items()]
    return markdown_table(heads, lines)


def speedups(rows: Sequence[Row], task: Task = "inference") -> dict[str, tuple[float, int]]:
    """Return each system's mean speed-up over graphed PyTorch, and its workloads.

    The mean is geometric; graphed PyTorch is the paper's "cuDNN".
    """
    ratios: dict[str, list[float]] = {}
    for each in (found for key, found in measured_rows(rows).items() if key[1] == task):
        for name, row in each.items():
            if "PyTorch" in each and name != "PyTorch":
                ratios.setdefault(name, []).append(each["PyTorch"]["ms"] / row["ms"])
    return {name: (geometric_mean(ratios[name]), len(ratios[name])) for name in SYSTEMS if name in ratios}


def anytime(rows: Sequence[Row]) -> tuple[str, str]:
    """Return milliseconds by search budget, and the mean gain of measuring.

    The plans are those of searches of several budgets that any workload has. Changes are the greatest slowdown of a
    longer search of the same version, and the ratio of the plan without measurements to the tuned one.
    """
    there = {name for each in measured_rows(rows).values() for name in each}
    names = ["cuts untuned", *(name for name in CURVE_SYSTEMS if name in there), OURS[0]]
    lines, ratios = [], []
    for (model, task, batch), each in measured_rows(rows).items():
        curve = [each[name] for name in names[:-1] if name in each]
        if task == "training" or not curve:
            continue
        versions = dict.fromkeys(row.get("commit") for row in curve)
        rise = max(_rise([row["ms"] for row in curve if row.get("commit") == version]) for version in versions)
        ratio = each[names[0]]["ms"] / each[OURS[0]]["ms"] if {names[0], OURS[0]} <= each.keys() else None
        ratios += [ratio] if ratio else []
        cells = [digits(each[name]["ms"]) if name in each else None for name in names]
        last = None if ratio is None else f"{ratio:.2f}"
        lines.append([f"{model} b{batch}", *cells, f"{max(0.0, rise - 1):.1%}", last])
    heads = ["workload", *(name.removeprefix("cuts ") for name in names), "rise", "untuned / tuned"]
    mean = f"Untuned over tuned, geometric mean of {len(ratios)}: {geometric_mean(ratios):.2f}." if ratios else ""
    return markdown_table(heads, lines) if lines else "", mean


def _rise(times: Sequence[float]) -> float:
    """Return how many times as long as the best before it a later plan takes at most."""
    return max((later / least for later, least in zip(times[1:], accumulate(times, min), strict=False)), default=1.0)


def breakdowns(rows: Sequence[Row]) -> str:
    """Return microseconds by kind of kernel, for rows that have them."""
    kinds = ("complex", "complex (fusion)", "simple", "simple (fusion)")
    lines = [
        [f"{model} b{batch}", name, *(f"{row['breakdown'].get(kind, 0.0):.1f}" for kind in kinds)]
        for (model, _, batch), each in measured_rows(rows).items()
        for name, row in each.items()
        if "breakdown" in row and name not in CURVE_SYSTEMS
    ]
    return markdown_table(["workload", "system", *kinds], lines)


def readme_table(rows: Sequence[Row]) -> str:
    """Return README's table of measured models and their circumstances.

    It has models at batch 1 and at the largest measured one, with their peers, where both were measured.
    """
    found = {key: each for key, each in measured_rows(rows).items() if key[1] == "inference" and _is_comparable(each)}
    names = [p for p in PEERS if any(p in each for each in found.values())]
    lines = []
    for (model, _, batch), each in found.items():
        ours, peers = each[OURS[0]]["ms"], {name: each[name]["ms"] for name in names if name in each}
        cells = [digits(peers.get(name)) for name in names]
        lines.append([model, batch, digits(ours), *cells, f"{min(peers.values()) / ours:.2f}"])
    titles = {"PyTorch": "PyTorch, graphed", "torch.compile": "torch.compile, graphed"}
    heads = ["model", "batch", "`cuts`", *(titles.get(name, name) for name in names), "over the best"]
    measured = [row for each in found.values() for row in each.values()]
    return "\n\n".join([markdown_table(heads, lines), *_circumstances(measured)])


def _circumstances(rows: Sequence[Row]) -> Iterator[str]:
    """Yield README's statement on the rows' measurement."""
    if not rows:
        return
    gpus, dates = sorted({row["device"] for row in rows}), sorted({row["date"][:10] for row in rows})
    torches = sorted({row["versions"].get("torch", "?") for row in rows})
    # Earlier searches in calls of their own count, for the row's search found their results.
    budgets = sorted({row["budget_s"] + row.get("budget before", 0.0) for row in rows if row["system"] == OURS[0]})
    searched = " to ".join(f"{b:g}" for b in dict.fromkeys((budgets[0], budgets[-1])))
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    text = f"Milliseconds on {', '.join(gpus)}, strict fp32, {when}, PyTorch {', '.join(torches)}; `cuts` searched for"
    yield fill(f"{text} {searched} s.", 120)


def all_tables(rows: Sequence[Row], note: Callable[[Iterable[Row]], str] = lambda _: "") -> Iterator[str]:
    """Yield all tables with rows: times, means, wins, budgets, breakdowns."""
    found = measured_rows(rows)
    yield times_table(rows, note)
    for task in TASKS:
        means = {s: each for s, each in speedups(rows, task).items() if s not in CURVE_SYSTEMS}
        if means:
            text = ", ".join(f"{s} {mean:.2f} ({count})" for s, (mean, count) in means.items())
            yield f"Geometric means of speed-ups over PyTorch in {task} (number of workloads): {text}."
    if any(map(_is_comparable, found.values())):
        yield f"Workloads that each system wins (Tables 11 and 12 of DeepCuts):\n\n{winners_table(rows)}"
    if any(FIGURE_5[0] in each for each in found.values()):
        yield f"Speed-ups over graphed PyTorch by mode (Figure 5 of DeepCuts):\n\n{figure_5(rows)}"
    curve, mean = anytime(rows)
    if curve:
        yield f"Milliseconds by budget:\n\n{curve}"
    if mean:
        yield mean
    if any("breakdown" in row for each in found.values() for row in each.values()):
        yield f"Microseconds of each kind of kernel (section 7.3 of DeepCuts):\n\n{breakdowns(rows)}"
