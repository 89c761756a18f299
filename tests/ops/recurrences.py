"""Random recurrences as declarations, in either direction.

They have several states, reads of earlier iterations and of other tensors, conditions on the iteration, and results of
each iteration.
"""

from __future__ import annotations

from attrs import frozen
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from hypothesis import strategies as st

STEPS, ROWS = 7, 3
BUILTIN = Registry.builtin()


@frozen
class Recurrence:
    """Declaration `t` of operands x, r and i, and its iteration count.

    x has rows by iteration; r has rows of x by iteration, as i has.
    """

    text: str
    steps: int

    @property
    def registry(self) -> Registry:
        """The vocabulary with it."""
        return BUILTIN.extend(Source("recurrence.cuts", self.text))

    @property
    def types(self) -> list[TensorType]:
        """The types of its operands."""
        wide = TensorType(DType.F32, (self.steps, ROWS))
        return [wide, TensorType(DType.F32, (ROWS, ROWS)), TensorType(DType.I32, (self.steps,))]


@st.composite
def recurrences(draw: st.DrawFn) -> Recurrence:
    """Draw a recurrence of up to three states with several iterations' lookback."""
    steps = draw(st.integers(2, STEPS))
    back = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    names = [f"s{n}" for n in range(len(back))]
    lines = [f"temp {name}[t < S + {b}]: f32[N]" for name, b in zip(names, back, strict=True)]
    first = ["x[0, n]", "0", "r[n, 0] * 0.5"]
    for name, b in zip(names, back, strict=True):
        lines += [f"{name}[{k}][n] = {draw(st.sampled_from(first))}" for k in range(b)]
    body, held = [], draw(st.booleans())
    if held:
        lines.append("temp m[t < S]: f32[N]")
        body.append(f"m[t][n] = {draw(_value(names, back, []))}")
    for number, (name, b) in enumerate(zip(names, back, strict=True)):
        new = [f"{names[k]}[t + {back[k]}][n]" for k in range(number)] + (["m[t][n]"] if held else [])
        body.append(f"{name}[t + {b}][n] = tanh({draw(_value(names, back, new))})")
    result = draw(st.sampled_from(["", "body", "behind"]))
    place = draw(st.sampled_from(["t", "S - 1 - t"]))
    last = f"{names[0]}[t + {back[0]}][n]"
    lines += ["temp v[t < S]: f32[N]"] if result == "behind" else []
    body += [f"v[t][n] = {last} * 2"] if result == "behind" else [f"y[{place}, n] = {last} + x[t, n]"] if result else []
    lines.append(f"each t < S {{ {'  '.join(body)} }}")
    if result == "behind":
        lines.append(f"each t < S: y[{place}, n] = v[t][n]")
    elif not result:
        lines.append(f"y[s, n] = x[s, n] * {names[-1]}[S][n]")
    ends = " + ".join(f"{name}[S]" for name in names)
    head = "in x: f32[S, N], r: f32[N, N], i: i32[S]  out y: f32[S, N], z: f32[N]"
    lines.append(f"z = {ends}")
    text = "\n".join(f"  {line}" for line in lines)
    return Recurrence(f'op t "t" {{\n  {head}\n{text}\n}}\n', steps)


def _value(names: list[str], back: list[int], new: list[str]) -> st.SearchStrategy[str]:
    """Draw an iteration's expression of earlier states, its own ones, and other tensors."""
    states = [f"{name}[t + {k}][n]" for name, b in zip(names, back, strict=True) for k in range(b)]
    sums = [f"(sum[q < N] r[n, q] * {name}[t][q])" for name in names]
    others = [
        "x[t, n]", "x[S - 1 - t, n]", "(x[t - 1, n] outside 0)", "(sum[q < N] r[n, q] * x[t, q])", "f32(t) * 0.1",
        "(x[t, n] if t % 2 == 0 else 0)", "x[i[t], n]", "(r[n, 0] if t > 0 else x[t, n])", "r[0, n]",
        "x[t // 2, n]",
    ]  # fmt: skip
    others += [f"({names[0]}[t - 1][n] outside 0)", f"({names[-1]}[t][n] if t < S - 1 else x[0, n])"]
    parts = st.lists(st.sampled_from([*states, *sums, *others, *new]), min_size=1, max_size=4)
    return st.tuples(st.sampled_from([*states, *sums]), parts).map(lambda p: " + ".join([p[0], *p[1]]))
