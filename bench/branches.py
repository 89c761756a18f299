"""Plans with their launches in a chain and in branches, side by side on one GPU.

    python bench/branches.py --make FILE inception-v3:1 inception-v3:64 attention-rnn:64   # anywhere: plans, no weights
    python bench/branches.py --plans FILE --out FOLDER                                     # on a GPU of that kind
    python bench/branches.py --budget 60 --out FOLDER inception-v3:1                       # on a GPU: tuned there

Plans of a file are those that are made without a measurement, with random weights. Of each workload there are the
milliseconds of a run in a `chain`, in `branches`, in branches over the memory of the chain (`shared`), and in branches
whose edges all hold launches back (`plain`), timed in turns; the longest way through its launches as a part of what
they take one after another, by their times among others; and whether all of them leave the same bits. It is written to
`FOLDER/branches.json`, and the table comes last.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from attrs import evolve, frozen
from cuts.backends import find_target, open_device
from cuts.bench.networks.ledger import parse_workload
from cuts.bench.networks.systems import Case, tuned
from cuts.compile import compile_model, load_model, load_spec, plan_of
from cuts.compile.branches import width
from cuts.ir import BackendError, CompileOptions
from cuts.runtime import Plan, Session, in_branches, random_inputs

#: Turns that the forms of a plan take, and runs in each; runs of each step.
TURNS, RUNS, STEPS = 5, 10, 5
#: Random numbers that weights are made of, and how far they are from 0.
NUMBERS, SPREAD = 1 << 20, 0.05
FORMS = ("chain", "branches", "shared", "plain")
Row = dict[str, Any]


@frozen
class Packed:
    """A plan without its weights, which are known by their shapes and types."""

    label: str
    plan: Plan
    weights: Mapping[str, tuple[tuple[int, ...], str]]

    @classmethod
    def of(cls, label: str, plan: Plan) -> Packed:
        weights = {name: (array.shape, array.dtype.str) for name, array in plan.constants.items()}
        return cls(label, evolve(plan, constants={}, model=None, groups=()), weights)

    def unpacked(self) -> Plan:
        """Return the plan with weights that are random, or 0 where they may be indices."""
        numbers = np.random.default_rng(0).standard_normal(NUMBERS).astype(np.float32) * np.float32(SPREAD)
        constants = {}
        for name, (shape, text) in self.weights.items():
            dtype = np.dtype(text)
            floats = dtype.kind == "f" or dtype.kind == "V"
            constants[name] = np.resize(numbers, shape).astype(dtype) if floats else np.zeros(shape, dtype)
        return evolve(self.plan, constants=constants)


def made(texts: Sequence[str], target: str) -> Iterator[Packed]:
    """Yield the plans that workloads have without a measurement."""
    torch = import_module("torch")
    for workload in map(parse_workload, texts):
        case, spec = Case(workload, workload.model.make(workload.batch, False), torch, 0.0), load_spec([])
        graph, machine = load_model(case.program, spec, None, ()), find_target(target)
        compiled = compile_model(graph, spec, machine, CompileOptions())
        print(f"{workload.label}: {len(compiled.kernels)} kernels", file=sys.stderr, flush=True)
        yield Packed.of(workload.label, plan_of(compiled, graph, spec, machine).plan)


def searched(texts: Sequence[str], budget: float) -> Iterator[tuple[str, Plan]]:
    """Yield the plans that searches end with."""
    torch = import_module("torch")
    for workload in map(parse_workload, texts):
        case = Case(workload, workload.model.make(workload.batch, False), torch, workload.budget or budget)
        yield workload.label, tuned(case, "mixed")[0].plan


def forms_of(plan: Plan) -> dict[str, Plan]:
    """Return a plan in each form; only a chain where each launch needs the one before it."""
    branched = in_branches(plan)
    found = {"chain": evolve(plan, branched=False)}
    if branched is not None:
        found |= {"branches": branched, "shared": evolve(plan, branched=True), "plain": branched}
    return found


def opened(name: str, plan: Plan) -> Session:
    """Return a form of a plan, ready to run."""
    device = open_device(plan.target)
    if name == "plain":  # kernels of older machines do not wait by themselves, so all edges hold them back
        device.target = evolve(device.target, arch="sm_80")
    session = Session(plan, device)
    session.compute()
    return session


def measured(label: str, plan: Plan) -> Row:
    """Time a plan in all forms."""
    forms = forms_of(plan)
    inputs = random_inputs(plan.types, plan.inputs, 0)
    row: Row = {"workload": label, "launches": plan.launch_count}
    row |= {f"{name} bytes": form.arena for name, form in forms.items()}
    if len(forms) == 1:
        return row | {"note": "a chain"}
    sessions = {name: opened(name, form) for name, form in forms.items()}
    outputs = {name: [session.run(inputs) for _ in range(2)] for name, session in sessions.items()}
    row["same"] = all(_same(found, outputs["chain"][0]) for each in outputs.values() for found in each)
    times = [each.median for each in sessions["chain"].time_steps(repeats=STEPS)]
    row |= {"width": width(forms["branches"], times), "steps ms": 1e3 * sum(times[n] for n, _ in plan.launches())}
    taken: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(TURNS):
        for name, session in sessions.items():
            taken[name].append(1e3 * session.time_compute(warmup=2, repeats=RUNS).median)
    return row | {name: median(each) for name, each in taken.items()}


def _same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(np.array_equal(found[n], wanted[n], equal_nan=wanted[n].dtype.kind == "f") for n in wanted)


def table(rows: Sequence[Row]) -> str:
    """Return rows as text."""
    lines = [
        f"{'workload':<20}{'launches':>9}{'width':>7}" + "".join(f"{form:>10}" for form in FORMS) + "  faster  same"
    ]
    for row in rows:
        cells = "".join(f"{row[form]:>10.4f}" if form in row else f"{'':>10}" for form in FORMS)
        faster = f"{row['chain'] / row['branches']:>8.3f}" if "branches" in row else f"  {row.get('note', '')}"
        wide = f"{row['width']:>7.2f}" if "width" in row else f"{'':>7}"
        lines.append(f"{row['workload']:<20}{row['launches']:>9}{wide}{cells}{faster}  {row.get('same', '')}")
    return "\n".join(lines)


def main() -> int:
    """Make plans, or time them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="MODEL:BATCH")
    parser.add_argument("--make", type=Path, metavar="FILE", help="write plans")
    parser.add_argument("--target", default="cuda:sm_90", help="what they are made for")
    parser.add_argument("--plans", type=Path, metavar="FILE", help="time the plans of a file")
    parser.add_argument("--budget", type=float, default=30.0, metavar="SECONDS", help="of each search")
    parser.add_argument("--out", type=Path, default=Path("."), metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.make:
        arguments.make.write_bytes(gzip.compress(pickle.dumps(list(made(arguments.workloads, arguments.target)))))
        return 0
    if arguments.plans:
        packed: list[Packed] = pickle.loads(gzip.decompress(arguments.plans.read_bytes()))
        found: Iterator[tuple[str, Plan]] = ((each.label, each.unpacked()) for each in packed)
    else:
        found = searched(arguments.workloads, arguments.budget)
    rows: list[Row] = []
    for label, plan in found:
        try:
            rows.append(measured(label, plan))
        except BackendError as error:
            rows.append({"workload": label, "launches": plan.launch_count, "note": str(error)})
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "branches.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
