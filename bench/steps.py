"""A training step of whole networks as one graph of ours: forward, loss, backward and the optimiser, beside PyTorch's.

    python bench/steps.py mobilenetv2:64 bert-base:16 --budget 60 --out steps.json
    python bench/steps.py --graphs DIR mobilenetv2:64  # only writes graphs, for `cuts tune G.json --spec G.cuts`

Networks are those of the evaluation, strict fp32, without dropout; the loss is cross entropy (of clicks the binary
one), the optimiser gradient descent with momentum. A row has the time of a step, that of PyTorch's step, eager and
compiled, each captured as a CUDA graph, and how far our loss of a few steps is from PyTorch's. Ours comes first, each
of PyTorch's ways in a process of its own, which is ended behind a limit; rows are written as they grow, with the
slowest kernels and what the search rejected. With `--exact` each is compared with float64 besides: its losses, and
every gradient of its first step (`bench/exact.py`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import cuts
import numpy as np
import torch
from cuts.backends import find_target
from cuts.bench.exact import compared, gradients_of
from cuts.bench.exact import text_of as exact_text
from cuts.bench.networks.models import BY_NAME, Application, Made
from cuts.bench.networks.own_steps import batch_of, training_graph
from cuts.bench.networks.torch_calls import graphed, strict, time_calls
from cuts.bench.networks.training import STEPS, step_of
from cuts.bench.records import exit_code, read_rows, write_rows
from cuts.compile import build_graph
from cuts.ir import CompileOptions, CutsError
from cuts.search import summary_values, tuning_session

#: What is trained in which batch, where none is named.
USUAL = ("mobilenetv2:64", "bert-base:16", "densenet-121:32", "inception-v3:32", "bilstm:64", "dlrm:2048")
#: What is kept of a launch's record.
KEPT = ("members", "bound", "estimate", "measured", "parameters", "form")
#: PyTorch's ways, by the name of their columns.
PEERS = {"eager": "PyTorch", "compiled": "torch.compile"}
#: Frames of a sequence, and the cells of each direction.
FRAMES, CELLS = 100, 512


class BiLSTM(torch.nn.Module):
    """One bidirectional layer of LSTM cells over frames [T, N, C]: the states of both directions."""

    def __init__(self, cells: int) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(cells, cells, bidirectional=True)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Return the states of each step."""
        states: torch.Tensor = self.layer(frames)[0]
        return states


def sequences(batch: int, small: bool) -> Made:
    """Return a bidirectional LSTM, and frames."""
    torch.manual_seed(0)
    frames, cells = (5, 8) if small else (FRAMES, CELLS)
    return BiLSTM(cells).eval(), (torch.randn(frames, batch, cells),)


NETWORKS: Mapping[str, Application] = {
    **BY_NAME,
    "bilstm": Application("biLSTM", "RNN", sequences, (1, 64), 64),
}


def ours(made: Made, budget: float, target: str, kept: Path | None = None) -> Iterator[dict[str, Any]]:
    """Search for the plan of a step and time it, and yield what is known then; without a budget nothing is searched
    for. The gradients of the first step are `kept` in a file where one is named.
    """
    begin = perf_counter()
    training = training_graph(made)
    yield {"import": perf_counter() - begin, "nodes": len(training.graph.nodes)}
    begin = perf_counter()
    row: dict[str, Any] = {}
    options = CompileOptions(budget=budget or None)
    if budget:
        with tuning_session(find_target(target), budget=options.begin(), quiet=True) as selector:
            plan = build_graph(training.graph, training.spec, selector.target, options, selector)
            row["search"] = summary_values(selector)
            row["stages"] = {stage: round(seconds, 2) for stage, seconds in selector.budget.spent.items()}
    else:
        plan = build_graph(training.graph, training.spec, find_target(target), options)
    row |= {"budget": budget, "seconds": perf_counter() - begin, "complete": plan.complete}
    yield row | {"launches": plan.plan.launch_count, "kernels": len(plan.kernels), "arena": plan.plan.arena}
    yield {"losses": list(training.run([batch_of(training, made)] * STEPS, plan, progress=False).losses)}
    if kept is not None:
        found: dict[str, Any] = dict(gradients_of(training, plan, batch_of(training, made)))
        np.savez(kept, **found)
    timed = plan.session.time_compute(warmup=3, repeats=20)
    yield {"ms": timed.median * 1e3, "spread": timed.spread}
    yield {"slowest": slowest(plan)}


def slowest(plan: cuts.CompiledPlan, count: int = 24) -> list[dict[str, Any]]:
    """Return the kernels that take longest in all their launches: how many there are, what one takes among the others
    and was measured to take, its bound and its schedule.
    """
    times = plan.session.time_steps(repeats=5)
    rows: dict[int, dict[str, Any]] = {}
    for group, step, timed in zip(plan.plan.groups, plan.plan.steps, times, strict=True):
        known = {name: group.get(name) for name in KEPT}
        row = rows.setdefault(step.kernel, {"us": 0.0, "launches": 0, "nodes": str(group.get("nodes")), **known})
        row |= {"us": row["us"] + timed.median * 1e6, "launches": row["launches"] + 1}
    return sorted(rows.values(), key=lambda row: -row["us"])[:count]


def peer(made: Made, way: str) -> dict[str, Any]:
    """Time PyTorch's step, eager or compiled; the eager one has losses and the most memory, too."""
    strict(torch)
    begin = perf_counter()
    step = step_of(torch, made, PEERS[way], 0)
    losses = [float(step()) for _ in range(STEPS)]
    row: dict[str, Any] = {"torch_losses": losses, "torch_peak": torch.cuda.max_memory_allocated()}
    seconds = {f"{way}_seconds": perf_counter() - begin}
    return (row if way == "eager" else {}) | seconds | {f"{way}_ms": time_calls(torch, graphed(torch, step)).ms}


def peers(text: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what PyTorch's ways take, each in a process of its own, which a limit ends."""
    for way in PEERS if options.compile else ("eager",):
        call = [sys.executable, __file__, text, "--peer", way, *(["--small"] if options.small else [])]
        try:
            said = subprocess.run(call, stdout=subprocess.PIPE, timeout=options.peer_limit, check=True, text=True)
            yield json.loads(said.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            yield {f"{way}_failure": f"not done within {options.peer_limit:g} s"}
        except subprocess.CalledProcessError as error:
            yield {f"{way}_failure": f"ended with {error.returncode}"}


def against_float64(text: str, kept: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return how far losses and gradients are from float64, in a process of its own, which a limit ends."""
    call = [sys.executable, __file__, text, "--gradients", str(kept), *(["--small"] if options.small else [])]
    try:
        said = subprocess.run(call, stdout=subprocess.PIPE, timeout=options.peer_limit, check=True, text=True)
        return dict(json.loads(said.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"exact_failure": f"not done within {options.peer_limit:g} s"}
    except subprocess.CalledProcessError as error:
        return {"exact_failure": f"ended with {error.returncode}"}


def text_of(row: Mapping[str, Any]) -> str:
    """Return a row as a line of a table, and one about float64 where it was compared with that."""
    if "failure" in row or "ms" not in row:
        return f"{row['network']:<20} failed: {row.get('failure', 'not timed')}"
    best = min((row[key] for key in ("eager_ms", "compiled_ms") if key in row), default=float("nan"))
    far = max(
        (abs(a - b) / abs(b) for a, b in zip(row["losses"], row.get("torch_losses", ()), strict=False)), default=0
    )
    exact = exact_text(row)
    return (
        f"{row['network']:<20}{row['ms']:>9.2f} ms  eager {row.get('eager_ms', float('nan')):>8.2f}"
        f"  compiled {row.get('compiled_ms', float('nan')):>8.2f}  {best / row['ms']:>5.2f}x"
        f"  loss off {far:.1e}  search {row['seconds']:>6.1f} s  arena {row['arena'] / 2**20:>8.0f} MiB"
        f" ({row['arena'] / row.get('torch_peak', float('nan')):.2f} of PyTorch's peak)"
    ) + (f"\n{exact}" if exact else "")


def made_of(text: str, small: bool) -> Made:
    """Return a network, and inputs of a batch."""
    name, _, batch = text.partition(":")
    return NETWORKS[name].make(int(batch or NETWORKS[name].training), small)


def measured(text: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what becomes known of a network and a batch."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "gradients.npz"
        try:
            yield from ours(
                made_of(text, options.small), options.budget, options.target, kept if options.exact else None
            )
        except (RuntimeError, CutsError) as error:  # of one network; the others go on
            yield {"failure": (str(error).splitlines() or [type(error).__name__])[0][:300]}
        if kept.exists():
            yield against_float64(text, kept, options)
    if options.peers:
        yield from peers(text, options)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(USUAL), metavar="NAME:BATCH")
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help="of each search; 0: none")
    parser.add_argument("--target", default="cuda", metavar="TARGET", help="what ours runs on (default cuda)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where rows are kept as JSON")
    parser.add_argument("--graphs", type=Path, metavar="DIR", help="only write the training graphs")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave PyTorch out")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    parser.add_argument("--peer-limit", type=float, default=120.0, metavar="SECONDS", help="of each (default 120)")
    parser.add_argument("--peer", choices=PEERS, help="only time one of PyTorch's ways, and print it as JSON")
    parser.add_argument("--exact", action="store_true", help="compare losses and gradients with PyTorch's in float64")
    parser.add_argument("--gradients", type=Path, metavar="FILE", help="only compare gradients in a file, print JSON")
    parser.add_argument("--small", action="store_true", help="the same layers over less")
    return parser.parse_args()


def main() -> int:
    """Measure, or write graphs; 1 where a row failed."""
    options, failed = arguments(), 0
    for text in options.networks:
        if options.peer:
            print(json.dumps(peer(made_of(text, options.small), options.peer)))
            continue
        if options.gradients:
            with np.load(options.gradients) as ours_found:
                print(json.dumps(compared(dict(ours_found), made_of(text, options.small), STEPS)))
            continue
        if options.graphs:
            training_graph(made_of(text, options.small)).save(options.graphs / f"{text.partition(':')[0]}.json")
            continue
        row: dict[str, Any] = {"network": text}
        before = read_rows(options.out) if options.out and options.out.exists() else []
        for more in measured(text, options):
            row |= more
            if options.out:
                write_rows(options.out, [*before, row])
        failed += "failure" in row
        print(text_of(row), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(exit_code(main))
