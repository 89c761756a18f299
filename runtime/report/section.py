"""Section of a page, which describes one plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from attrs import field, frozen
from markupsafe import Markup

from ...backends import Timing
from ...numerics import Comparison
from ..files import plain
from ..plan import Plan
from .chart import StepCurve, chart
from .dependency_arcs import ROW, WIDTH, arcs
from .page import template
from .roofline import LaunchPoint, roofline
from .timeline import TimelineBar, timeline

#: Records of a group that the page shows outside of the table of its facts.
_SHOWN_SEPARATELY = ("merges", "parts")


@frozen
class CandidateOutcome:
    """Measured candidate of a kernel.

    It has its schedule as text, its outcome, and the seconds, if it ran.
    """

    schedule: str
    outcome: str
    seconds: float | None


@frozen
class Evidence:
    """Facts about a plan from outside of it.

    `times` are those of each step, `resources` the compiler's figures of each kernel by its number, `curve` the total
    time of the kernels during the search, `trials` by the key of a search ("tuning" in a group's record) the candidates
    of a kernel, `search` figures of the whole search, `work` the floating-point operations and distinct bytes of each
    step, None where they are not known.
    """

    results: Sequence[Comparison] = ()
    times: Sequence[Timing] = ()
    resources: Mapping[int, Mapping[str, object]] = field(factory=dict)
    curve: Sequence[StepCurve] = ()
    trials: Mapping[str, Sequence[CandidateOutcome]] = field(factory=dict)
    search: Mapping[str, object] = field(factory=dict)
    work: Sequence[tuple[float, float] | None] = ()


def html_section(plan: Plan, evidence: Evidence, name: str = "plan", title: str = "") -> Markup:
    """Return the section of one plan.

    `name` distinguishes it from others of the page, `title` is its heading.
    """
    spent, source = _step_seconds(plan, evidence.times)
    limits = list(dict.fromkeys(str(_group(plan, n).get("limit", "")) for n in range(len(plan.steps))))
    longest = max(spent, default=0.0) or 1.0
    launches = [_launch(plan, n, spent, longest, limits, evidence) for n in range(len(plan.steps))]
    return Markup(
        template("section.html").render(
            name=name,
            title=title,
            figures=[(key, _text(value)) for key, value in _figures(plan).items()],
            comparisons=evidence.results,
            launches=launches,
            timeline=timeline(list(_bars(launches, spent, name))),
            roofline=roofline(list(_points(plan, launches, spent, evidence.work)), plan.target),
            total=_time(sum(spent)),
            source=source,
            limits=limits,
            arcs=list(arcs(plan)),
            width=WIDTH,
            row=ROW,
            curve=chart(evidence.curve, "seconds of search", "ms"),
            search=[(key, _text(value)) for key, value in evidence.search.items()],
            merges=list(_merges(plan)),
        )
    )


def _bars(launches: Sequence[Mapping[str, Any]], spent: Sequence[float], section: str) -> Iterator[TimelineBar]:
    """Yield the launches of the timeline."""
    for launch, seconds in zip(launches, spent, strict=True):
        title, link = f"#{launch['number']} {launch['what']}: {launch['time']}", f"#{section}-{launch['number']}"
        yield TimelineBar(title, link, seconds, launch["limit"])


def _points(
    plan: Plan,
    launches: Sequence[Mapping[str, Any]],
    spent: Sequence[float],
    work: Sequence[tuple[float, float] | None],
) -> Iterator[LaunchPoint]:
    """Yield the launches with known work, for the roofline."""
    for launch, seconds, known in zip(launches, spent, work, strict=False):
        if known is not None:
            number, (operations, nbytes) = launch["number"], known
            turns = plan.turns(number)
            title = f"#{number} {launch['what']}"
            yield LaunchPoint(title, operations * turns, nbytes * turns, seconds, launch["limit"])


def _group(plan: Plan, number: int) -> Mapping[str, Any]:
    return plan.groups[number] if number < len(plan.groups) else {}


def _step_seconds(plan: Plan, times: Sequence[Timing]) -> tuple[list[float], str]:
    """Return the seconds of each step, of all its iterations, and their source."""
    if times:
        return [t.typical * plan.turns(n) for n, t in enumerate(times)], "each launch was timed in this plan"
    known = [_group(plan, n) for n in range(len(plan.steps))]
    seconds = [float(g.get("measured") or g.get("estimate") or 0.0) * plan.turns(n) for n, g in enumerate(known)]
    count = sum("measured" in g for g in known)
    if count == len(known):
        return seconds, "each kernel was timed alone while it was tuned"
    return seconds, f"{count} of {len(known)} timed while they were tuned, the others as the model estimates"


def _figures(plan: Plan) -> Mapping[str, object]:
    return {
        "launches": plan.launch_count,
        "distinct kernels": plan.distinct_kernels,
        "inputs": [f"{name}: {plan.types[name]}" for name in plan.interface.caller_inputs(plan.inputs)],
        "outputs": [f"{name}: {plan.types[name]}" for name in plan.interface.caller_outputs(plan.outputs)],
        **_state_figures(plan),
        "bytes of the arena": f"{plan.arena:,} ({plan.buffer_bytes:,} without sharing memory over time)",
        "bytes of constants": f"{sum(array.nbytes for array in plan.constants.values()):,}",
    }


def _state_figures(plan: Plan) -> Mapping[str, object]:
    state = plan.interface.state
    return {"state": [f"{name}: {plan.types[tensor.input]}" for name, tensor in state.items()]} if state else {}


def _launch(
    plan: Plan, number: int, spent: Sequence[float], longest: float, limits: Sequence[str], evidence: Evidence
) -> Mapping[str, object]:
    """Return the facts of a launch for the page."""
    step, group = plan.steps[number], _group(plan, number)
    kernel, turns, bound = plan.kernels[step.kernel], plan.turns(number), group.get("bound")
    facts = {key: value for key, value in group.items() if key not in _SHOWN_SEPARATELY}
    facts |= {"tensors": step.tensors, "grid": kernel.grid, "block": kernel.block}
    facts |= {"info": kernel.info} if kernel.info else {}
    facts |= evidence.resources.get(step.kernel, {})
    facts = {key: value for key, value in facts.items() if value not in (None, "", [], {})}
    if "parts" in group:
        facts["its operations by themselves"] = _price(group["parts"])
    return {
        "number": number,
        "kernel": kernel.name,
        "nodes": _text(group.get("nodes", "")),
        "what": " + ".join(map(str, group.get("ops", ()))) or kernel.name,
        "time": _time(spent[number]),
        "share": f"{100 * spent[number] / longest:.2f}",
        "least": None if bound is None else f"{min(100.0, 100 * float(bound) * turns / longest):.2f}",
        "limit": limits.index(str(group.get("limit", ""))) % 6,
        "turns": f"{turns} turns" if turns > 1 else "",
        "rate": _rate(plan, number, spent[number], evidence.work),
        "facts": [(key, _text(value)) for key, value in plain(facts).items()],
        "trials": [_trial(each) for each in evidence.trials.get(str(group.get("tuning", "")), ())],
        "source": kernel.source,
    }


def _rate(plan: Plan, number: int, seconds: float, work: Sequence[tuple[float, float] | None]) -> str:
    """Return the operations of a launch per second, and their share of the f32 peak."""
    found = work[number] if number < len(work) else None
    if not found or not found[0] or not seconds:
        return ""
    rate = found[0] * plan.turns(number) / seconds
    return f"{rate / 1e9:.4g} GFLOP/s, {rate / plan.target.PERF_peak:.2%} of the f32 peak"


def _trial(trial: CandidateOutcome) -> Mapping[str, str]:
    shown = "" if trial.seconds is None else f"{trial.seconds * 1e6:.2f}"
    return {"time": shown, "outcome": trial.outcome, "schedule": trial.schedule}


def _merges(plan: Plan) -> Sequence[Mapping[str, object]]:
    """Return the merges of all groups, each once, the closest first."""
    found: dict[Any, Mapping[str, Any]] = {}
    for number in range(len(plan.steps)):
        for merge in _group(plan, number).get("merges", ()):
            found.setdefault((tuple(merge["first"]), tuple(merge["second"])), merge)
    return [
        {
            "first": _text(merge["first"]),
            "second": _text(merge["second"]),
            "together": _price(merge["together"]) if merge["together"] else "",
            "together_value": merge["together"]["seconds"] if merge["together"] else inf,
            "apart": _price(merge["apart"]),
            "apart_value": merge["apart"]["seconds"],
            "why": merge["why"] or f"{_relative_loss(merge):+.1%}",
        }
        for merge in sorted(found.values(), key=_relative_loss)
    ]


def _relative_loss(merge: Mapping[str, Any]) -> float:
    """Return the relative time that merging adds to the unfused groups; impossible merges come last."""
    return inf if not merge["together"] else merge["together"]["seconds"] / merge["apart"]["seconds"] - 1


def _price(price: Mapping[str, Any]) -> str:
    word = {"measured": "measured", "model": "by the model", "bound": "at least"}[price["source"]]
    return f"{_time(price['seconds'])} {word}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.2f} us"


def _text(value: object) -> str:
    """Return a fact as text: numbers grouped by thousands, nested facts in parentheses."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_enclose(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, (list, tuple)):
        return ", ".join(_enclose(item) if isinstance(item, Mapping) else _text(item) for item in value)
    if isinstance(value, float):
        return f"{value:.4g}"
    whole = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if whole else "-" if value is None else str(value)


def _enclose(value: object) -> str:
    return f"({_text(value)})" if isinstance(value, (Mapping, list, tuple)) else _text(value)
