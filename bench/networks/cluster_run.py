"""Runs cluster plans of models larger than their memory limit.

The same models run whole in memory for comparison.

    python -m cuts.bench cluster --target cuda                                         # one GPU
    torchrun --nproc-per-node 2 -m cuts.bench cluster --target cuda                    # two: groups, stages
    python -m cuts.bench cluster --small                                               # on a CPU, in seconds

Each case is predicted from rates measured just before, run, and compared with a run in memory: results are equal bit
by bit on one process, and close where gradients are summed in another order. "disk" is the storage rate during the run
over the rate before, with the error of the prediction with the rate during the run.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from attrs import asdict, evolve, frozen
from cuts.backends import find_target
from cuts.bench.tools.records import Row, circumstances, keep_row
from cuts.cluster.kernels import Kernels, compile_kernels
from cuts.cluster.measure import RunPrediction, predict, storage_utilisation
from cuts.cluster.plans import Machine, Transformer
from cuts.cluster.plans.batches import random_batches
from cuts.cluster.plans.plan_file import ClusterPlan
from cuts.cluster.plans.ways import Way, columns
from cuts.cluster.prediction.feasibility import fit
from cuts.cluster.running import Runner

#: Device memory that the capped runs may use, as a part of the model's weights (inference) or weights and state
#: (training).
UNLIMITED_BYTES = 1e12


@frozen
class ClusterCase:
    """Run with its name, model, plan, and plan entirely in memory."""

    name: str
    model: Transformer
    way: Way
    whole: Way
    training: bool
    steps: int


def cases(small: bool, processes: int) -> list[ClusterCase]:
    """Return the runs for a number of processes."""
    hidden, heads, sequence = (128, 4, 32) if small else (2048, 16, 512)
    deep, trained, micro = (6, 4, 1) if small else (20, 12, 2) if processes == 1 else (12, 4, 2)

    def model(name: str, layers: int, batch: int, precision: str = "single") -> Transformer:
        return Transformer(name, layers, hidden, heads, sequence, batch * micro, precision=precision)

    if processes > 1:
        return cases_of_processes(model, deep, trained, micro, processes)
    whole = Way(1, 1, 1, "AR", micro, "weights", "keep")
    back, streamed = evolve(whole, activations="recompute"), Way(1, 1, 1, "PR", micro)
    offload = Way(1, 1, 1, "PR", micro, "nothing", "recompute+offload")
    outputs = Way(1, 1, 1, "PR", micro, "nothing", "offload")
    plain, mixed = model("inference", deep, 4), model("mixed", deep, 8, "mixed")
    sizes = (4, 64, 4, 32, 8) if small else (8, 4096, 32, 2048, 32)
    ranked = Transformer("ranked", *sizes, precision="mixed", vocabulary=97 if small else 50257)
    return [
        ClusterCase("inference PR", plain, streamed, whole, False, 3),
        ClusterCase("inference PR offload", plain, outputs, whole, False, 2),
        ClusterCase("inference AR", plain, Way(1, 1, 1, "AR", micro), whole, False, 1),
        ClusterCase("training PR", model("training", trained, 4), offload, back, True, 2),
        ClusterCase("mixed inference PR", mixed, streamed, whole, False, 3),
        ClusterCase("mixed training PR", model("mixed-training", trained // 2, 4, "mixed"), offload, back, True, 2),
        *(
            ClusterCase(
                f"way {way.policy} {way.micro} {way.resident}", ranked, way, evolve(whole, micro=way.micro), False, 2
            )
            for policy in ("PR", "AR")
            for way in (*(Way(1, 1, 1, policy, count) for count in (1, 2, 4, 8)), Way(1, 1, 1, policy, 2, "weights"))
        ),
    ]


def cases_of_processes(
    model: Callable[..., Transformer], layers: int, trained: int, micro: int, processes: int
) -> list[ClusterCase]:
    """Return the runs for several processes.

    The first four end within 240 s together on two GPUs.
    """
    p = Way(1, 1, processes, "AR", micro, "nothing", "keep")
    group = Way(processes, 1, 1, "PR", micro, "nothing", "recompute+offload")
    parts = Way(1, processes, 1, "PR", micro)
    kept, whole_stages = evolve(parts, resident="weights"), evolve(p, resident="weights")
    whole_groups = evolve(group, policy="AR", resident="weights", activations="recompute")
    split, whole = evolve(parts, activations="recompute+offload"), evolve(kept, policy="AR", activations="recompute")
    shared, staged = model("inference-parts", layers, 8), model("inference", layers, 8)
    trained_stages = evolve(p, resident="gradients")
    turns, stay = evolve(p, policy="PR"), evolve(whole_stages, policy="PR")
    return [
        ClusterCase("inference parts PR", shared, parts, kept, False, 3),
        ClusterCase("inference stages PR", staged, turns, stay, False, 3),
        ClusterCase("training groups PR", model("training", trained, 4 * processes), group, whole_groups, True, 2),
        ClusterCase("training parts PR", model("trained-parts", trained, 8), split, whole, True, 2),
        ClusterCase("training stages AR", model("stages", trained, 8), trained_stages, whole_stages, True, 2),
    ]


def engine_of(way: Way) -> Any:
    """Return the connection of the processes."""
    if way.gpus == 1:
        return None
    from cuts.cluster.torch_engine import TorchEngine

    return lambda device: TorchEngine(device, way.p, way.wp)


def kernels_of(plan: ClusterPlan, target: str, known: dict[Any, Kernels]) -> Kernels:
    """Return a plan's kernels; runs of one shape share them."""
    recompute = plan.way.activations.startswith("recompute") and plan.training
    batch = plan.model.batch * plan.training
    key = (plan.model.precision, plan.way.wp, plan.way.micro, plan.training, batch, recompute)
    if key not in known:
        known[key] = compile_kernels(plan, target)
    return known[key]


def folder_of(case: ClusterCase, root: Path, capped: bool) -> Path:
    """Return the folder of a run's files.

    Inference changes nothing, so all of it shares one folder.
    """
    own = case.name.replace(" ", "-") + ("" if capped else "-whole")
    return root / (own if case.training else case.model.name)


def run_once(
    case: ClusterCase, capped: bool, make: Callable[[Path, ClusterPlan, float], Runner], root: Path, machine: Machine
) -> tuple[dict[str, Any], Any]:
    """Run a case, or its in-memory version; return costs and results."""
    way = case.way if capped else case.whole
    need = fit(columns([case.way]), case.model, machine, training=case.training).memory[0]
    cap = float(need) if capped else UNLIMITED_BYTES  # the planner's need of its plan
    folder = folder_of(case, root, capped)
    runner = make(folder, ClusterPlan(case.model, machine, way, case.training), cap)
    found = predict(runner) if capped else None
    outcome = run_steps(runner, case.training, case.steps)
    outcome = weights_of(runner) if case.training else outcome
    row: dict[str, Any] = {"whole_seconds": runner.report.seconds}
    if found:
        weights = case.model.value_bytes * case.model.parameters // (case.way.p * case.way.wp)
        row = predicted_fields(found) | report_fields(runner, found) | {"cap": cap, "weights": weights}
    runner.engine.minimum(0)
    runner.close()
    if case.training and runner.engine.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    runner.engine.minimum(0)
    return row, outcome


def predicted_fields(found: RunPrediction) -> dict[str, Any]:
    """Return the planner's prediction from rates measured here."""
    measured, terms, block = found.machine, dict(found.terms), found.machine.measured[0]
    rates = {"alone": found.reads.alone, "read": measured.storage_read, "write": measured.storage_write}
    kernels = {"forward": block.forward, "backward": block.backward, "link": measured.gpu_link}
    return {"predicted": terms["total"], "terms": terms, "storage": found.storage, **rates, **kernels}


def run_steps(runner: Runner, training: bool, steps: int) -> Any:
    """Run all steps; return inference's first results, if any."""
    if training:
        runner.train(steps)
        return None
    results = [runner.infer(number) for number in range(steps)]
    return results[0]


def report_fields(runner: Runner, found: RunPrediction) -> dict[str, Any]:
    """Return a run's report, and the prediction with its storage rates."""
    report, at_work = runner.report, storage_utilisation(runner, found)
    return {
        "disk": at_work.part if at_work else 1.0,
        "with_disk": at_work.seconds if at_work else found.terms["total"],
        "seconds": report.seconds,
        "taken": fmean(report.seconds),  # of all steps, as the storage's rate is
        "off": fmean(report.seconds) / found.terms["total"] - 1,
        "losses": report.losses,
        "memory": report.memory,
        "read_bytes": report.read_bytes,
        "written_bytes": report.written_bytes,
        "kernels": report.compute / len(report.seconds),
    }


def run_case(case: ClusterCase, target: str, root: Path, machine: Machine, known: dict[Any, Kernels]) -> dict[str, Any]:
    """Predict, run, and compare with the run that keeps all in memory."""
    begin, batches = time.perf_counter(), batch_source(case)

    def make(folder: Path, plan: ClusterPlan, cap: float) -> Runner:
        kernels, engine = kernels_of(plan, target, known), engine_of(plan.way)
        return Runner(plan, folder, target, memory=cap, engine=engine, kernels=kernels, batches=batches)

    row: dict[str, Any] = {"name": case.name, "training": case.training, "way": asdict(case.way)}
    outcomes = []
    for capped in (True, False):
        found, outcome = run_once(case, capped, make, root, machine)
        row |= found
        outcomes.append(outcome)
        gc.collect()  # the runner's device memory
    mine, whole = outcomes  # stages of two plans may have other layers
    row["difference"] = max((float(np.abs(mine[k] - whole[k]).max()) for k in mine.keys() & whole.keys()), default=0.0)
    return row | {"all": time.perf_counter() - begin}


def batch_source(case: ClusterCase) -> Any:
    """Return random batches, made before the run, equal in every step."""
    make = random_batches(case.model, case.way.micro, 0)
    micros = range(case.model.batch // (case.way.dp * case.way.micro))
    known = {(group, micro): make(0, group, micro) for group in range(case.way.dp) for micro in micros}
    return lambda step, group, micro: known[group, micro]


def weights_of(runner: Runner) -> dict[int, Any]:
    """Return this stage's weights after training."""
    made = runner.store.layout("weights", runner.names[0])
    generation = runner.done % 2
    paths = {layer: runner.store.path("weights", layer, generation) for layer in runner.names}
    return {
        layer: np.fromfile(path, made.dtype.numpy, offset=made.start).astype(np.float32)
        for layer, path in paths.items()
    }


def line(row: Row) -> str:
    """Return a case as a line of text."""
    sizes = f"{row['name']:22}{row['weights'] / 1e9:7.3f} GB in {row['memory'] / 1e9:.3f} of {row['cap'] / 1e9:.3f} GB"
    times = f"predicted {row['predicted']:.3f} s, taken {row['taken']:.3f} ({row['off']:+.1%}, whole"
    disk = f"disk {row['disk']:.2f} ({row['taken'] / row['with_disk'] - 1:+.1%})"
    return f"{sizes}; {times} {min(row['whole_seconds']):.3f}); {disk}; difference {row['difference']:.2g}"


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of runs of cluster plans."""
    parser.add_argument("--target", default="opencl")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU runs in seconds")
    parser.add_argument("--folder", help="where files go (default a temporary folder)")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")
    parser.add_argument("--out", type=Path, metavar="FILE", help="add rows to this file")


def main() -> None:
    """Run the cases for the processes that there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_options(parser)
    parser.add_argument("--seconds", type=float, default=240, help="begin no further case after so many seconds")
    arguments = parser.parse_args()
    processes, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if arguments.target == "cuda" and processes > 1:
        os.environ["CUDA_DEVICE"] = os.environ.get("LOCAL_RANK", "0")  # the device of PyCUDA's context
    machine = Machine("here", 1, processes, 1e13, 1.0, UNLIMITED_BYTES, 1e9, 1e9, 1e11, 1e11)
    root = Path(arguments.folder or os.path.join(tempfile.gettempdir(), f"cuts-cluster-run-{os.getppid()}"))
    begin, facts = time.perf_counter(), circumstances(find_target(arguments.target).name)
    facts |= {"suite": "cluster", "class": f"{processes} process{'es' * (processes > 1)}"}
    known: dict[Any, Kernels] = {}
    for case in cases(arguments.small, processes):
        if arguments.only not in case.name or time.perf_counter() - begin > arguments.seconds:
            continue
        if rank == 0:
            print(f"{time.perf_counter() - begin:6.1f} s: {case.name}", flush=True)
        row = run_case(case, arguments.target, root, machine, known) | facts
        if rank == 0:
            print(line(row), flush=True)
            if arguments.out:
                keep_row(arguments.out, row)
    shutil.rmtree(root, ignore_errors=True) if rank == 0 else None
    if processes > 1:
        import_module("torch.distributed").destroy_process_group()
