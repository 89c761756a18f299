"""Inference and training of models beyond the memory of one GPU.

    python -m cuts.bench beyond --target cuda --folder /data/model --host-folder /dev/shm/model --host-memory 90G
    python -m cuts.bench beyond --small                                  # on a CPU, in a minute

Cases: `inference` of 30 B parameters in bf16, `training` of 6 B with Adam in mixed precision (30 bytes a parameter:
weights and optimiser state in two generations, gradients). The planner chooses the way for the measured rates and a
limit of device memory that is `--share` of weights, or of weights, gradients and state in one generation. Training is
killed in its second step, started again, and compared with an uninterrupted run of the same steps; `--no-kill` leaves
that out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, frozen
from cuts.backends import find_target
from cuts.bench.tools.records import circumstances, keep_row
from cuts.cli.plan_run import size_of
from cuts.cluster import ClusterPlan, Runner, load_cluster_plan, predict, rank, save_cluster_plan
from cuts.cluster.graphs import initial_weights, layer_kind
from cuts.cluster.plans import Machine, Transformer
from cuts.ir import Array, UsageError

from .cluster_run import add_run_options, predicted_fields, report_fields, run_steps

#: Micro-batches of a mini-batch.
MICRO_BATCHES = 8
#: Sequences of a micro-batch.
MICRO = {"inference": 4, "training": 2}


@frozen
class BeyondCase:
    """Run of a model: its name, model, and steps."""

    name: str
    model: Transformer
    steps: int

    @property
    def training(self) -> bool:
        """Return whether the model is trained."""
        return self.name == "training"

    @property
    def step_bytes(self) -> int:
        """Bytes of weights, in training of gradients and state too."""
        each = self.model.value_bytes * (2 if self.training else 1) + self.model.state_bytes * self.training
        return self.model.parameters * each


def cases(small: bool) -> list[BeyondCase]:
    """Return both cases, in sizes of one GPU or of a CPU."""
    if small:
        sizes: dict[str, Any] = {"hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 97, "precision": "single"}
        large, trained = {"layers": 48, **sizes}, {"layers": 16, **sizes}
    else:
        large = {"layers": 48, "hidden": 7168, "heads": 56, "sequence": 2048, "vocabulary": 50257}
        trained = {"layers": 28, "hidden": 4096, "heads": 32, "sequence": 2048, "vocabulary": 50257}
    return [
        BeyondCase("inference", Transformer("30B", batch=MICRO_BATCHES * MICRO["inference"], **large), 2),
        BeyondCase("training", Transformer("6B", batch=MICRO_BATCHES * MICRO["training"], **trained), 3),
    ]


def repeated_weights(model: Transformer) -> Callable[[int], dict[str, Array]]:
    """Return weights that layers of a kind share.

    So large folders are filled in minutes.
    """
    known: dict[str, dict[str, Array]] = {}

    def weights(layer: int) -> dict[str, Array]:
        kind = layer_kind(model, layer)
        if kind not in known:
            made = initial_weights(model, layer, 0)
            known[kind] = {name: array.astype(model.dtype.numpy) for name, array in made.items()}
        return known[kind]

    return weights


def plan_of(case: BeyondCase, share: float, target: str) -> ClusterPlan:
    """Return the best plan for a memory limit.

    Rates are those of a usual host; the run measures its own.
    """
    peak = 1e10 if find_target(target).dialect == "opencl" else 989e12
    memory = share * case.step_bytes
    machine = Machine("here", 1, 1, peak, 0.4, memory, 10e9, 5e9, 1e11, 1e11)
    only: dict[str, int | str] = {"micro": MICRO[case.name], "resident": "nothing"}
    found = rank(case.model, machine, training=case.training, limit=1, only=only).ranked[0]
    return ClusterPlan(case.model, evolve(machine, memory=memory), found.way, case.training, found.terms)


def open_runner(plan: ClusterPlan, folder: Path, options: argparse.Namespace) -> Runner:
    """Return a runner over the disk and, if asked for, host memory."""
    host = None
    if options.host_folder:
        host = (Path(options.host_folder) / folder.name, size_of(options.host_memory, "--host-memory"))
    return Runner(plan, folder, options.target, host=host, weights=repeated_weights(plan.model))


def run_case(case: BeyondCase, root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Predict, run and compare one case."""
    plan, folder = plan_of(case, options.share, options.target), root / case.name
    begin = time.perf_counter()
    runner = open_runner(plan, folder, options)
    filled = time.perf_counter() - begin
    try:
        predicted = predict(runner)
        run_steps(runner, case.training, case.steps)
        row = predicted_fields(predicted) | report_fields(runner, predicted)
    finally:
        runner.close()
    row |= {
        "name": case.name, "parameters": case.model.parameters, "bytes": case.step_bytes, "way": asdict(plan.way),
        "limit": plan.machine.memory, "filled_seconds": filled,
        "host_layers": len(runner.store.host.layers) if runner.store.host else 0,
    }  # fmt: skip
    remove_files(folder, options)
    if case.training and not options.no_kill:
        after = losses_after_kill(case, plan, root, options)
        row |= {"losses_after_a_kill": after, "resumes": after == row["losses"][-len(after) :]}
    return row


def remove_files(folder: Path, options: argparse.Namespace) -> None:
    """Delete a run's files on the disk and in host memory."""
    shutil.rmtree(folder, ignore_errors=True)
    if options.host_folder:
        shutil.rmtree(Path(options.host_folder) / folder.name, ignore_errors=True)


def losses_after_kill(case: BeyondCase, plan: ClusterPlan, root: Path, options: argparse.Namespace) -> list[float]:
    """Kill a run in its second step and start it again.

    Return the losses of the remaining steps.
    """
    folder, file = root / case.name, root / "plan.json"
    save_cluster_plan(plan, file)
    command = [sys.executable, "-m", "cuts.bench", "beyond", "--child", str(file), "--target", options.target]
    command += ["--folder", str(folder)]
    if options.host_folder:
        command += ["--host-folder", options.host_folder, "--host-memory", options.host_memory]
    child = subprocess.Popen(command)
    progress = folder / "progress-0.json"
    while child.poll() is None and not progress.exists():
        time.sleep(0.05)
    time.sleep(options.kill_after)
    child.send_signal(signal.SIGKILL)
    child.wait()
    runner = open_runner(plan, folder, options)
    try:
        found = runner.train(case.steps).losses
    finally:
        runner.close()
    remove_files(folder, options)
    return found


def run_child(options: argparse.Namespace) -> int:
    """Train until a signal ends the process."""
    runner = open_runner(load_cluster_plan(options.child), Path(options.folder), options)
    runner.train(10**6)
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_options(parser)
    parser.add_argument("--host-folder", help="folder in host memory, such as /dev/shm/model")
    parser.add_argument("--host-memory", default="90G", help="bytes that it may take (default 90G)")
    parser.add_argument("--share", type=float, default=2 / 3, help="device memory over the model's bytes (default 2/3)")
    parser.add_argument("--no-kill", action="store_true", help="leave out the killed run")
    parser.add_argument("--kill-after", type=float, default=0.1, metavar="SECONDS", help="after the first step")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_all(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the row of each case.

    Raises `UsageError` where the disk and host memory have too little room.
    """
    root = Path(options.folder or tempfile.mkdtemp(prefix="cuts-beyond-"))
    root.mkdir(parents=True, exist_ok=True)
    for case in cases(options.small):
        if options.only in case.name:
            needs = case.model.parameters * ((2 * (2 + 12) + 2) if case.training else case.model.value_bytes)
            room = shutil.disk_usage(root).free + (size_of(options.host_memory) if options.host_folder else 0)
            if needs > room:
                raise UsageError(f"{case.name}: expected {needs / 1e9:.0f} GB of room, found {room / 1e9:.0f} GB")
            yield {**run_case(case, root, options), **circumstances(find_target(options.target).name)}


def main() -> int:
    """Run the cases and print their rows."""
    options = parse_arguments()
    if options.child:
        return run_child(options)
    resumes = True
    for row in run_all(options):
        if options.out:
            keep_row(options.out, row | {"suite": "beyond", "class": "beyond"})
        print(json.dumps(row, indent=1), flush=True)
        resumes = resumes and row.get("resumes", True)
    return 0 if resumes else 1
