"""What each precision policy costs in accuracy on real models: errors against double precision, and decisions kept.

Run it with `python bench/precision.py [--target opencl|cuda] [--only resnet50 ...] [--precision bf16 ...]`. The models
are those of `tests/models.py`, with their small inputs; each is run on `--draws` random inputs. On the target
`reference`, the default, nothing is compiled: NumPy computes in f32 what each policy makes of the graph, rounding
whatever a kernel behind each operation would round. Fused kernels round less often, and atoms only multiply where they
fit, so that this is what a policy may cost at most; accumulators of tensor cores, which round towards zero, are not
imitated. On another target kernels compute. Rows go to `bench/results/precision.json`, where a row takes the place of
an older one of the same model, policy and target; `--markdown` prints the table of `docs/precision.md`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve, frozen
from cuts.backends.devices import find_target
from cuts.backends.source import emit
from cuts.bench.records import RESULTS, Row, circumstances, exit_code, merged, read_rows, write_rows
from cuts.compile.build import build
from cuts.frontends.onnx.load import load_onnx_for
from cuts.ir import MATH_MODES, Array, Call, CutsError, DType, Expr, Graph, Precision, Program, Statement, call, reads
from cuts.ir.compiled import CompileOptions
from cuts.ir.precision import PRECISIONS
from cuts.ops import Registry, evaluate, evaluate_graph
from cuts.passes.compilation import Compilation
from cuts.passes.graph.precision import is_contraction
from cuts.passes.pipeline import all_stages
from cuts.tests.models import REAL

Values = Mapping[str, Array]
Run = Callable[[Values], Values]


@frozen
class Errors:
    """How results differ from exact ones on some inputs: the greatest difference over the greatest element of an
    output, the distance from 1 of the least cosine, and how often another class than before is the likeliest, where the
    first output has a row of classes.
    """

    error: float
    angle: float
    changed: int


def compared(found: Sequence[Values], exact: Sequence[Values]) -> Errors:
    """Compare the outputs of several runs with those in double precision."""
    pairs = [(np.asarray(f[t], np.float64), np.asarray(e[t], np.float64)) for f, e in zip(found, exact, strict=True)
             for t in e]  # fmt: skip
    error = max(float(np.max(np.abs(f - e)) / (np.max(np.abs(e)) or 1.0)) for f, e in pairs)
    first = [(f[next(iter(e))], e[next(iter(e))]) for f, e in zip(found, exact, strict=True)]
    changed = sum(bool((np.argmax(f, -1) != np.argmax(e, -1)).any()) for f, e in first if np.ndim(e) == 2)
    return Errors(error, max(_angle(f, e) for f, e in pairs), changed)


def _angle(found: Array, exact: Array) -> float:
    """Return 1 less the cosine between two tensors: half the squared distance of their directions, which loses no
    digits.
    """
    got, want = (np.asarray(x, np.float64).ravel() / (float(np.linalg.norm(x)) or 1.0) for x in (found, exact))
    return float(np.sum(np.square(got - want)) / 2)


# ---- the policies in NumPy


def by_rounding(graph: Graph, registry: Registry, policy: Precision) -> Run:
    """Return a run that rounds as a policy says: the graph that the passes make of it, in f32, every result in its type
    and the operands of contractions in their format.
    """
    options = CompileOptions(precision=policy.name, verify=False)
    work = Compilation(registry, find_target("cuda:sm_90"), options, emit, graph)
    for stage in all_stages(registry, policy.name):
        if stage.name == "algorithms":
            break
        stage.perform(work)
    return lambda feeds: _evaluated(work.graph, registry, policy, feeds)


def _evaluated(graph: Graph, registry: Registry, policy: Precision, feeds: Values) -> Values:
    values: dict[str, Array] = {**graph.constants, **{name: feeds[name] for name in graph.inputs}}
    for node in graph.nodes:
        types = [None if v is None else graph.types[v] for v in node.inputs]
        known = {n: graph.constants[v] for n, v in enumerate(node.inputs) if v is not None and v in graph.constants}
        instance = registry[node.op].instantiate(types, node.attributes, known)
        given = {f: values[v] for f, v in zip(instance.inputs, node.inputs, strict=False) if f and v is not None}
        found = evaluate(rounded(instance.program, policy), given, np.float32, stored=True)
        values |= {v: found[formal] for v, formal in zip(node.outputs, instance.outputs, strict=False)}
    return {name: values[name] for name in graph.outputs}


def rounded(program: Program, policy: Precision) -> Program:
    """Return a program whose sums of products of f32 have operands of as many digits as the policy multiplies."""
    if not policy.math:
        return program
    mode = MATH_MODES[policy.math]

    def cut(factor: Expr) -> Expr:
        if not all(program.tensors[r.tensor].dtype is DType.F32 for r in reads(factor)):
            return factor
        several = [call(mode.cut, call(part, factor)) for part in mode.parts]
        return several[0] if len(several) == 1 else call("add", *several)

    def changed(statement: Statement) -> Statement:
        body = statement.body
        if not is_contraction(statement) or not isinstance(body, Call) or body.fn != "mul":
            return statement
        return evolve(statement, body=evolve(body, args=tuple(map(cut, body.args))))

    return evolve(program, statements=tuple(map(changed, program.statements)))


def by_kernels(graph: Graph, policy: Precision, target: str) -> Run:
    """Return a run of a plan for a target; raises `UsageError` where the target cannot follow the policy."""
    return build(graph, target=target, precision=policy.name).run


# ---- rows


def measure(name: str, policies: Sequence[str], target: str, draws: int) -> list[Row]:
    """Return the rows of one model, a policy each."""
    model, registry = REAL[name], Registry.builtin()
    feeds = [model.draw(seed) for seed in range(draws)]
    graph, _ = load_onnx_for(model.fetch(), feeds[0])
    exact = [evaluate_graph(graph, registry, each) for each in feeds]
    rows = []
    for policy in (PRECISIONS[p] for p in policies):
        row: Row = {"suite": "precision", "class": target, "name": name, "batch": 1, "precision": policy.name}
        try:
            reference = target == "reference"
            run = by_rounding(graph, registry, policy) if reference else by_kernels(graph, policy, target)
            errors = compared([run({t: each[t] for t in graph.inputs}) for each in feeds], exact)
            row |= {"draws": draws, "error": errors.error, "angle": errors.angle, "changed": errors.changed}
        except CutsError as error:
            row |= {"failure": error.message.splitlines()[0]}
        rows.append(row | circumstances("none" if reference else target))
    return rows


def row_line(row: Row) -> str:
    """Return a row as a line of text."""
    start = f"{row['name']:<16}{row['precision']:<8}"
    if "failure" in row:
        return f"{start}failed: {row['failure']}"
    kept = f"{row['draws'] - row['changed']} of {row['draws']} decisions kept"
    return f"{start}error {row['error']:.1e}, 1 - cosine {row['angle']:.1e}, {kept}"


def markdown(rows: Sequence[Row]) -> str:
    """Return a table per target: a line for each model, a column for each policy."""
    lines: list[str] = []
    for target in dict.fromkeys(row["class"] for row in rows):
        own = {(r["name"], r["precision"]): r for r in rows if r["class"] == target and "failure" not in r}
        policies = [p for p in PRECISIONS if any(key[1] == p for key in own)]
        lines += [f"`{target}`:", "", f"| model | {' | '.join(f'`{p}`' for p in policies)} |"]
        lines.append("|---" * (1 + len(policies)) + "|")
        for name in (n for n in REAL if any(key[0] == n for key in own)):
            lines.append(f"| {name} | {' | '.join(_cell(own.get((name, p))) for p in policies)} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    return f"{row['error']:.1e}" + (f" ({row['changed']} of {row['draws']} changed)" if row["changed"] else "")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="reference")
    parser.add_argument("--only", nargs="+", choices=tuple(REAL), help="these models")
    parser.add_argument("--precision", nargs="+", choices=tuple(PRECISIONS), help="these policies")
    parser.add_argument("--draws", type=int, default=3, metavar="N", help="random inputs of each model")
    parser.add_argument("--out", type=Path, default=RESULTS / "precision.json", help="the file of rows")
    parser.add_argument("--markdown", action="store_true", help="only print the table of the file")
    return parser.parse_args(argv)


def main() -> int:
    """Measure the chosen models; 1 where one failed."""
    options = arguments()
    if options.markdown:
        print(markdown(read_rows(options.out)))
        return 0
    os.environ["CUTS_NO_CACHE"] = "1"
    failed = 0
    for name in options.only or REAL:
        try:
            rows = measure(name, options.precision or tuple(PRECISIONS), options.target, options.draws)
        except (CutsError, pytest.skip.Exception) as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
            failed += 1
            continue
        for row in rows:
            failed += "failure" in row
            print(row_line(row), flush=True)
            write_rows(options.out, merged(read_rows(options.out), row))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(exit_code(main))
