"""`cuts plan run`, `cuts plan probe`: run a plan, measure its machine."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from attrs import asdict

from ..cluster import (
    ClusterPlan,
    Report,
    Runner,
    RunPrediction,
    StorageUtilisation,
    TensorCheckpoint,
    connect,
    load_cluster_plan,
    load_tokens,
    machine_text,
    predict,
    probe_machine,
    storage_utilisation,
    write_checkpoint,
)
from ..ir import UsageError
from .output import console, write_text

_UNITS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def size_of(text: str, option: str = "--memory") -> float:
    """Return a number of bytes from a text such as 512M.

    Raises `UsageError` for another text.
    """
    unit = _UNITS.get(text[-1:].upper(), 1.0)
    try:
        value = float(text[:-1] if text[-1:].upper() in _UNITS else text) * unit
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{option}: expected a size such as 512M or 2G, found '{text}'")
    return value


def run_command(arguments: Namespace, names: list[str]) -> int:
    """Run a plan: predict, run, compare.

    Raises `UsageError` for other than one plan, and for no steps.
    """
    if len(names) != 1:
        raise UsageError(f"expected one plan, found {len(names)}", hint="cuts plan run PLAN.json")
    if arguments.steps < 1:
        raise UsageError(f"--steps: expected a number above 0, found {arguments.steps}")
    plan = load_cluster_plan(names[0])
    memory = size_of(arguments.memory) if arguments.memory else None
    weights = TensorCheckpoint(arguments.weights) if arguments.weights else None
    batches = load_tokens(arguments.tokens, plan.model, plan.way.micro, plan.way.dp) if arguments.tokens else None
    runner = Runner(
        plan,
        arguments.folder,
        arguments.target,
        memory=memory,
        engine=connect(plan.way),
        batches=batches,
        seed=arguments.seed,
        host=_host_folder(arguments),
        weights=(lambda layer: weights.layer(plan.model, layer)) if weights else None,
    )
    try:
        predicted = predict(runner)
        outputs = None
        if plan.training:
            runner.train(arguments.steps)
        else:
            outputs = [runner.infer(number) for number in range(arguments.steps)]
        if arguments.export:
            _export(arguments.export, runner)
        values = _values(plan, runner, predicted, storage_utilisation(runner, predicted))
        if outputs is not None:
            values["outputs"] = sum(len(each) for each in outputs)
    finally:
        runner.close()
    if runner.engine.rank == 0:
        console.print_json(values) if arguments.json else _show(values, runner.report)
    return 0


def _host_folder(arguments: Namespace) -> tuple[str, float] | None:
    """Return the second folder and its bytes.

    Raises `UsageError` for one without the other.
    """
    if not arguments.host_folder and not arguments.host_memory:
        return None
    if not arguments.host_folder or not arguments.host_memory:
        raise UsageError(
            "expected --host-folder and --host-memory together, found one",
            hint="--host-folder /dev/shm/model --host-memory 60G",
        )
    return arguments.host_folder, size_of(arguments.host_memory, "--host-memory")


def _export(path: str, runner: Runner) -> None:
    """Write the weights of the last step as one safetensors file.

    Raises `UsageError` where no process has all layers whole.
    """
    way, store = runner.way, runner.store
    if way.p > 1 or way.wp > 1:
        raise UsageError(f"--export: expected one process a group, found {way.p} stages of {way.wp} GPUs")
    if runner.engine.rank == 0:
        layers = ((layer, store.parameters(layer, runner.done % 2)) for layer in runner.names)
        write_checkpoint(path, runner.model, layers)


def _values(
    plan: ClusterPlan, runner: Runner, predicted: RunPrediction, at_work: StorageUtilisation | None
) -> dict[str, object]:
    report, machine = runner.report, predicted.machine
    return {
        "model": plan.model.name,
        "way": asdict(plan.way),
        "training": plan.training,
        "predicted": predicted.terms["total"],
        "terms": dict(predicted.terms),
        "storage": predicted.storage,
        "read": machine.storage_read,
        "write": machine.storage_write,
        "seconds": report.seconds,
        "losses": report.losses,
        "first_step": report.first_step,
        "memory": report.memory,
        "cap": runner.arena.cap,
        "model_bytes": plan.model.value_bytes * plan.model.parameters,
        "read_bytes": report.read_bytes,
        "written_bytes": report.written_bytes,
        "compute_seconds": report.compute,
        "exchange_seconds": report.exchange,
        "waiting_seconds": report.waiting,
        "storage_seconds": report.storage,
        "storage_at_work": asdict(at_work) if at_work else None,
    }


def _show(values: dict[str, object], report: Report) -> None:
    print(f"{values['model']}: {len(report.seconds)} mini-batches, from number {report.first_step}")
    for number, seconds in enumerate(report.seconds):
        loss = f", loss {report.losses[number]:.6g}" if report.losses else ""
        off = seconds / float(values["predicted"]) - 1  # type: ignore[arg-type]
        print(
            f"  {console.seconds(seconds)} ({off:+.1%} of the predicted {console.seconds(values['predicted'])}){loss}"
        )
    if count := len(report.seconds):
        kernels, sums, waits, busy = (
            console.seconds(each / count) for each in (report.compute, report.exchange, report.waiting, report.storage)
        )
        print(
            f"kernels {kernels}, sums over a layer's GPUs {sums}, waiting for storage {waits}, storage at work {busy}"
        )
    for line in values["storage"]:  # type: ignore[attr-defined]
        print(line)
    if at_work := values["storage_at_work"]:
        part, later = at_work["part"], console.seconds(at_work["seconds"])  # type: ignore[index]
        print(f"while the plan ran it gave {part:.2f} of that, with which {later} are predicted")
    memory, cap, size = (float(values[name]) / 1e6 for name in ("memory", "cap", "model_bytes"))  # type: ignore[arg-type]
    print(f"device memory {memory:.1f} MB of at most {cap:.1f} MB; the model's weights are {size:.1f} MB")


def probe_command(arguments: Namespace, names: list[str]) -> int:
    """Measure this machine's bandwidths and write them as a cluster's description.

    Raises `UsageError` for names beside the options.
    """
    if names:
        raise UsageError(
            f"expected no further names, found '{names[0]}'", hint="cuts plan probe -o machine.toml --folder DIR"
        )
    machine, comment = probe_machine(arguments.target, arguments.folder)
    if arguments.json:
        console.print_json(asdict(machine))
    elif arguments.output:
        write_text(Path(arguments.output), machine_text(machine, comment))
        print(f"wrote {arguments.output}")
    else:
        print(machine_text(machine, comment), end="")
    return 0
