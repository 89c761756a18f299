"""A plan as one self-contained HTML page: no scripts, nothing fetched, every text escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ..backends import Timing
from .plan import Plan
from .plan_document import plain
from .verify import Comparison

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em }
body { color: #1a1a1a; background: #fff }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3em .6em; border-bottom: 1px solid #ddd }
td { overflow-wrap: anywhere }
pre { background: #f5f5f5; padding: 1em; overflow: auto }
.wrong { color: #b00020; font-weight: 600 }
svg text { font: 12px system-ui, sans-serif } summary { cursor: pointer }
@media (prefers-color-scheme: dark) {
  body { background: #161616; color: #e6e6e6 }
  pre { background: #222 }
  th, td { border-color: #333 }
  svg text { fill: #e6e6e6 }
}
"""


def html_page(title: str, sections: Sequence[str]) -> str:
    """Return a page of sections."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *sections])
    return f'<!doctype html><html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def html_section(
    plan: Plan,
    results: Sequence[Comparison] = (),
    times: Sequence[Timing] = (),
    resources: Mapping[int, Mapping[str, object]] | None = None,
) -> str:
    """Return what a page says of one plan."""
    parts = [
        _figures(plan),
        _chart(plan, times) if times else "",
        _comparisons(results) if results else "",
        "<h2>Groups</h2>",
        *(_group(plan, number, times, resources or {}) for number in range(len(plan.steps))),
    ]
    return "\n".join(part for part in parts if part)


def _rows(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(_text(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _figures(plan: Plan) -> str:
    weights = sum(array.nbytes for array in plan.constants.values())
    rows: list[Sequence[object]] = [
        ("groups", len(plan.steps)),
        ("distinct kernels", len(plan.kernels)),
        ("launches", plan.launch_count),
        ("inputs", [f"{name}: {plan.types[name]}" for name in plan.inputs]),
        ("outputs", [f"{name}: {plan.types[name]}" for name in plan.outputs]),
        ("arena bytes", plan.arena),
        ("buffer bytes without sharing", plan.buffer_bytes),
        ("constant bytes", weights),
        ("cuts", plan.cuts),
    ]
    return _rows(("figure", "value"), rows)


def _chart(plan: Plan, times: Sequence[Timing]) -> str:
    """Draw one bar per group, of all its turns, the slowest first."""
    spent = [timing.median * plan.turns(number) for number, timing in enumerate(times)]
    order = sorted(range(len(times)), key=lambda number: -spent[number])
    longest = max(spent, default=0.0) or 1.0
    bars = []
    for row, number in enumerate(order):
        median = spent[number]
        kernel = plan.kernels[plan.steps[number].kernel].name
        label = escape(f"#{number} {kernel}: {median * 1e6:.1f} us")
        bars.append(f'<rect x="0" y="{row * 20}" width="{500 * median / longest:.1f}" height="14" fill="#3b7dd8"/>')
        bars.append(f'<text x="{508 * median / longest + 6:.1f}" y="{row * 20 + 12}">{label}</text>')
    total = sum(spent)
    drawing = f'<svg width="100%" height="{20 * len(order) + 4}" role="img">{"".join(bars)}</svg>'
    return f"<h2>Time per group ({total * 1e6:.1f} us in all)</h2>{drawing}"


def _comparisons(results: Sequence[Comparison]) -> str:
    rows = [
        f"<tr><td>{escape(r.tensor)}</td><td>{r.error:.3g}</td><td>{r.tolerance:.3g}</td>"
        + ("<td>ok</td></tr>" if r.ok else f'<td class="wrong">wrong {escape(r.worst)}</td></tr>')
        for r in results
    ]
    head = "<tr><th>output</th><th>error</th><th>tolerance</th><th>verdict</th></tr>"
    return f"<h2>Comparison</h2><table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _group(plan: Plan, number: int, times: Sequence[Timing], resources: Mapping[int, Mapping[str, object]]) -> str:
    step = plan.steps[number]
    kernel = plan.kernels[step.kernel]
    group = dict(plan.groups[number]) if number < len(plan.groups) else {}
    details: dict[str, object] = {**group, "tensors": step.tensors, "grid": kernel.grid, "block": kernel.block}
    details |= {"info": kernel.info} if kernel.info else {}
    details |= resources.get(step.kernel, {})
    if number < len(times):
        details["median time, us"] = times[number].median * 1e6
    rows = [(key, value) for key, value in plain(details).items()]
    return (
        f"<details><summary>#{number} {escape(kernel.name)}: {escape(_text(group.get('nodes', '')))}</summary>"
        f"{_rows(('property', 'value'), rows)}<pre>{escape(kernel.source)}</pre></details>"
    )
