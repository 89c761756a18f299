"""Networks by precision policy on a GPU, tuned for a budget.

PyTorch runs in the same precision.

    python -m cuts.bench policies --out FOLDER [--only resnet50:64:tf32 ...] [--budget 60] [--compile]

A case is `network:batch:policy`, or `network:batch` for each policy of `--precision`. PyTorch runs as a captured graph,
channels first and last, with `--compile` compiled too; the best counts, `--alone` leaves PyTorch out. Inputs and
weights are random, and batch norms have the statistics of random images. Rows go to `FOLDER/networks.json`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import cuts
from attrs import asdict, frozen
from cuts.backends import find_target
from cuts.bench.tools.records import circumstances, write_rows
from cuts.compile import CompiledPlan, load_model, load_spec
from cuts.compile.driver import tune_graph
from cuts.ir.machine import PRECISIONS, PrecisionName
from cuts.search import tuning_session

from .models import fit_norms
from .peer_calls import capture_graph, error_of, first, time_calls

#: Networks of torchvision, and the encoder of BERT-base over 128 tokens, without its embeddings.
NETWORKS = ("resnet50", "mobilenet_v2", "encoder")


@frozen
class Outcome:
    """Row of one case.

    It holds milliseconds of ours and of the best peer, seconds of tuning, and for both the greatest error of an output
    relative to the largest in double precision.
    """

    network: str
    batch: int
    precision: PrecisionName
    ours: float
    peer: float
    peer_name: str
    tuning: float
    launches: int
    error: float
    peer_error: float


def network(name: str, batch: int, torch: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a network in evaluation mode on the CPU, and random inputs."""
    torch.manual_seed(0)
    if name == "encoder":
        torch.backends.mha.set_fastpath_enabled(False)  # which no export can follow
        layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
        return torch.nn.TransformerEncoder(layer, 12).eval(), (torch.randn(batch, 128, 768),)
    model = getattr(import_module("torchvision.models"), name)(weights=None)
    images = torch.randn(batch, 3, 224, 224)
    return fit_norms(model, images, torch), (images,)


def peers(torch: Any, model: Any, inputs: tuple[Any, ...], policy: str, compiled: bool) -> Iterator[tuple[str, Any]]:
    """Yield calls of PyTorch in a precision, by name."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = policy == "tf32"
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(policy)
    torch.backends.cudnn.benchmark = True
    for layout in ("first", "last") if inputs[0].dim() == 4 else ("first",):
        form = torch.channels_last if layout == "last" else torch.contiguous_format
        there = model.to("cuda", memory_format=form) if inputs[0].dim() == 4 else model.to("cuda")
        given = tuple(x.to("cuda", memory_format=form) if x.dim() == 4 else x.to("cuda") for x in inputs)
        every = {"eager": there}
        if compiled:
            every["compiled"] = torch.compile(there)
        for name, call in every.items():

            def run(call: Any = call, given: tuple[Any, ...] = given) -> Any:
                with torch.no_grad(), torch.autocast("cuda", half or torch.float16, enabled=half is not None):
                    return call(*given)

            yield f"{name}, channels {layout}", run


def tune_network(program: Any, policy: PrecisionName, budget: float) -> CompiledPlan:
    """Return the plan of a search within a budget."""
    target, spec = find_target("cuda"), load_spec([])
    graph = load_model(program, spec, None, ())
    with tuning_session(target, budget=budget) as selector:
        return tune_graph(graph, spec, target, cuts.ir.CompileOptions(precision=policy, budget=budget), selector)


def measure(case: tuple[str, int, PrecisionName], budget: float, compiled: bool, alone: bool, torch: Any) -> Outcome:
    """Tune and time one case and PyTorch."""
    name, batch, policy = case
    model, inputs = network(name, batch, torch)
    with torch.no_grad():
        exact = first(model.double()(*(x.double() if x.is_floating_point() else x for x in inputs)))
    model = model.float()
    start = perf_counter()
    plan = tune_network(torch.export.export(model, inputs), policy, budget)
    tuning = perf_counter() - start
    feeds = {n: x.numpy() for n, x in zip(plan.inputs, inputs, strict=True)}
    found = torch.from_numpy(next(iter(plan.run(feeds).values())))
    ours = plan.session.time_compute(warmup=3, repeats=50).median * 1e3
    best, best_name, worst = float("inf"), "", 0.0
    for peer, run in peers(torch, model, inputs, policy, compiled) if not alone else ():
        taken = time_calls(torch, capture_graph(torch, run)).ms
        if taken < best:
            best, best_name, worst = taken, peer, error_of(first(run()), exact)
    return Outcome(
        name, batch, policy, ours, best, best_name, tuning, len(plan.plan.steps), error_of(found, exact), worst
    )


def parse_cases(text: str, precisions: Sequence[str]) -> Iterator[tuple[str, int, PrecisionName]]:
    """Read `network:batch:policy`, or `network:batch` for all precisions."""
    name, _, rest = text.partition(":")
    batch, _, policy = rest.partition(":")
    policies = (policy,) if policy else tuple(precisions)
    if name not in NETWORKS or not batch.isdigit() or not set(policies) <= set(PRECISIONS):
        known = f"networks are {', '.join(NETWORKS)}, policies {', '.join(PRECISIONS)}"
        raise SystemExit(f"{text}: expected network:batch:policy; {known}")
    for each in policies:
        yield name, int(batch), PRECISIONS[each].name


def table(rows: list[Outcome]) -> str:
    """Return rows as text."""
    head = f"{'network':<13}{'batch':>6} {'policy':<8}{'ms':>9}{'peer ms':>9}{'ratio':>7}{'tuning s':>10}"
    lines = [head + f"{'launches':>10}{'error':>10}{'peer':>10}  best peer"]
    for r in rows:
        ratio = r.peer / r.ours
        lines.append(
            f"{r.network:<13}{r.batch:>6} {r.precision:<8}{r.ours:>9.3f}{r.peer:>9.3f}{ratio:>7.2f}{r.tuning:>10.1f}"
            f"{r.launches:>10}{r.error:>10.1e}{r.peer_error:>10.1e}  {r.peer_name}"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure the cases asked for."""
    parser = argparse.ArgumentParser(description="whole networks by precision policy, beside PyTorch")
    parser.add_argument("--only", nargs="+", default=["resnet50:64:tf32", "resnet50:64:fp16", "resnet50:1:fp16"])
    parser.add_argument(
        "--precision", nargs="+", choices=tuple(PRECISIONS), default=["fp32"], help="of cases that name none"
    )
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help="of tuning, for each case")
    parser.add_argument("--compile", action="store_true", help="let PyTorch compile, too")
    parser.add_argument("--alone", action="store_true", help="leave PyTorch out")
    parser.add_argument("--out", type=Path, default=Path("."), metavar="FOLDER")
    arguments = parser.parse_args()
    torch = import_module("torch")
    rows: list[Outcome] = []
    facts = circumstances(torch.cuda.get_device_name())
    cases = [case for text in arguments.only for case in parse_cases(text, arguments.precision)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for case in cases:
        try:
            rows.append(measure(case, arguments.budget, arguments.compile, arguments.alone, torch))
        except (RuntimeError, cuts.ir.CutsError) as error:
            print(f"{':'.join(map(str, case))}: {str(error)[:300]}", file=sys.stderr)
            continue
        write_rows(arguments.out / "networks.json", [asdict(r) | facts for r in rows])
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    print(table(rows))
    return 0 if len(rows) == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
