"""`cuts plan`: ranks ways to run models larger than GPU memory.

A way may be one to train.

It also runs one of them.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ...cluster import (
    FORMS,
    Answer,
    ClusterPlan,
    RankedWay,
    Ranking,
    Transformer,
    heat_map,
    hugging_face_transformer,
    known_machines,
    known_models,
    load_machine,
    load_transformer,
    rank,
    save_cluster_plan,
    size,
    transformer_text,
    what_if,
)
from ...ir import UsageError
from ..output import console, write_text

_CHOICES = ("dp", "wp", "p", "micro", "policy", "resident", "activations")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts plan`."""
    parser.usage = (
        "cuts plan MODEL CLUSTER [options] | cuts plan hf CONFIG.json [CLUSTER] [options] | "
        "cuts plan run PLAN.json [options] | cuts plan probe [options]"
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="MODEL CLUSTER",
        help="descriptions as TOML files or known names; 'hf' and a config.json; 'run' and a plan; 'probe'",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the best plan as JSON; a description as TOML with 'probe' or 'hf'"
    )
    parser.add_argument(
        "--form", default="corrected", help=f"form of the model: {', '.join(FORMS)} (default corrected)"
    )
    parser.add_argument("--inference", action="store_true", help="plan inference instead of training")
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="ways to show (default 10)")
    parser.add_argument("--what-if", action="store_true", help="say what would hide storage during compute")
    parser.add_argument("--simulate", action="store_true", help="simulate the best way step by step and compare")
    parser.add_argument("--heat-map", metavar="FILE.html", help="write a page of all ways")
    parser.add_argument("--dp", type=int, metavar="N", help="fix the groups with different data")
    parser.add_argument("--wp", type=int, metavar="N", help="fix the GPUs that share a layer")
    parser.add_argument("--p", type=int, metavar="N", help="fix the stages")
    parser.add_argument("--micro", type=int, metavar="N", help="fix the micro-batch, in sequences")
    parser.add_argument("--policy", choices=("PR", "AR"), help="fix the policy: parameter- or activation-resident")
    parser.add_argument(
        "--resident", choices=("nothing", "gradients", "weights", "state"), help="fix what stays in memory"
    )
    parser.add_argument(
        "--activations", choices=("keep", "offload", "recompute", "recompute+offload"), help="fix what becomes of them"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    own = parser.add_argument_group("cuts plan hf")
    own.add_argument("--sequence", type=int, metavar="N", help="tokens of a sequence (default 2048, or all positions)")
    own.add_argument("--batch", type=int, metavar="N", help="sequences of a mini-batch (default 256)")
    run = parser.add_argument_group("cuts plan run, cuts plan probe")
    run.add_argument(
        "--target", default="auto", metavar="TARGET", help="what blocks are compiled for (default: a GPU, else opencl)"
    )
    run.add_argument(
        "--folder", default="model", metavar="DIR", help="where weights and the optimiser's state lie (default model)"
    )
    run.add_argument(
        "--host-folder", metavar="DIR", help="folder in host memory (tmpfs) or on a faster disk for a part of the files"
    )
    run.add_argument("--host-memory", metavar="BYTES", help="bytes that the host folder may take, such as 60G")
    run.add_argument("--memory", metavar="BYTES", help="cap of device memory, such as 512M or 2G (default the plan's)")
    run.add_argument("--steps", type=int, default=1, metavar="N", help="mini-batches to train on (default 1)")
    run.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of weights that are made and of inputs (default 0)"
    )
    run.add_argument(
        "--weights", metavar="PATH", help="a safetensors file, or a folder of some, to make the model's folder from"
    )
    run.add_argument("--tokens", metavar="FILE.npy", help="a row of tokens to run on (default random ones)")
    run.add_argument("--export", metavar="FILE", help="write the model's weights as one safetensors file at the end")


def command(arguments: Namespace) -> int:
    """Rank ways, run a plan or probe this machine.

    Raises `UsageError` for other names than a model and a cluster, and for a limit that is none.
    """
    first, *rest = arguments.inputs
    if first in ("run", "probe") and not Path(first).exists():
        from ..plan_run import probe_command, run_command

        return run_command(arguments, rest) if first == "run" else probe_command(arguments, rest)
    if first == "hf" and not Path(first).exists():
        return _hugging_face_command(arguments, rest)
    if len(arguments.inputs) != 2:
        known = f"known models: {', '.join(known_models())}; known clusters: {', '.join(known_machines())}"
        raise UsageError(f"expected a model and a cluster, found {len(arguments.inputs)} names", hint=known)
    return _rank_command(arguments, load_transformer(first), rest[0])


def _hugging_face_command(arguments: Namespace, names: list[str]) -> int:
    """Describe a configuration's model; with a cluster, rank its ways."""
    if len(names) not in (1, 2):
        raise UsageError(
            f"expected a configuration and perhaps a cluster, found {len(names)} names",
            hint="cuts plan hf config.json cluster.toml",
        )
    for name in ("sequence", "batch"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            raise UsageError(f"--{name}: expected a number above 0, found {getattr(arguments, name)}")
    model, notes = hugging_face_transformer(names[0], sequence=arguments.sequence, batch=arguments.batch)
    for note in notes:
        console.note(f"cuts: warning: {note}")
    if len(names) == 2:
        return _rank_command(arguments, model, names[1])
    text = transformer_text(model, f"From {Path(names[0]).name} of a Hugging Face model.")
    if arguments.output:
        write_text(Path(arguments.output), text)
        print(f"wrote {arguments.output}")
    else:
        print(text, end="")
    return 0


def _rank_command(arguments: Namespace, model: Transformer, cluster: str) -> int:
    machine = load_machine(cluster)
    if arguments.limit < 1:
        raise UsageError(f"--limit: expected a number above 0, found {arguments.limit}")
    only = {name: getattr(arguments, name) for name in _CHOICES if getattr(arguments, name) is not None}
    training = not arguments.inference
    found = rank(model, machine, form=arguments.form, training=training, limit=arguments.limit, only=only)
    best = found.ranked[0]
    answer = what_if(model, machine, best.way, training=training) if arguments.what_if else None
    simulated = _simulate(found) if arguments.simulate else None
    if arguments.output:
        save_cluster_plan(ClusterPlan(model, machine, best.way, training, best.terms), arguments.output)
    if arguments.heat_map:
        write_text(Path(arguments.heat_map), heat_map(found))
    if arguments.json:
        console.print_json(_values(found, answer, simulated))
        return 0
    _show(found)
    for line in (answer.lines(machine) if answer else []) + ([_simulation_line(best, simulated)] if simulated else []):
        print(line)
    return 0


def _simulate(found: Ranking) -> dict[str, float]:
    from ...cluster import simulate

    result = simulate(found.model, found.machine, found.ranked[0].way, training=found.training)
    return {"seconds": result.seconds, "idle": result.idle, "tasks": result.tasks}


def _simulation_line(best: RankedWay, simulated: dict[str, float]) -> str:
    off = best.seconds / simulated["seconds"] - 1
    waits = f"compute waits {simulated['idle']:.1%} of the passes"
    return f"simulated: {console.seconds(simulated['seconds'])} (closed form {off:+.1%}), {waits}"


def _show(found: Ranking) -> None:
    kind = "training" if found.training else "inference"
    columns = [
        "#",
        "DP",
        "WP",
        "P",
        "policy",
        "micro",
        "resident",
        "activations",
        "time",
        "compute",
        "storage",
        "GPU to GPU",
        "optimiser",
    ]
    columns += ["bubble", "memory", "storage used", "binds"]
    rows = [[number, *_row(each)] for number, each in enumerate(found.ranked, 1)]
    size_text = f"{found.model.parameters / 1e9:.3g}B parameters"
    title = f"{found.model.name} ({size_text}) on {found.machine.name}: {kind}, form {found.form}"
    console.output_console().print(console.table(title, columns, rows))
    print(f"{found.feasible} of {found.considered} ways fit; layer times: {found.ranked[0].times}")
    for kind, count, example in found.rejected:
        print(f"rejected, {kind}: {count} ways; the nearest: {example}")


def _row(each: RankedWay) -> list[object]:
    way, terms = each.way, each.terms
    gpu = terms["wp"] + terms["dp"] + terms["pipeline"]
    times = [
        console.seconds(t)
        for t in (each.seconds, terms["compute"], terms["storage"], gpu, terms["optimiser"], terms["bubble"])
    ]
    space = [size(each.memory), size(each.storage)]
    return [way.dp, way.wp, way.p, way.policy, way.micro, way.resident, way.activations, *times, *space, each.binding]


def _values(found: Ranking, answer: Answer | None, simulated: dict[str, float] | None) -> dict[str, object]:
    from attrs import asdict

    plans = [
        {
            "way": asdict(r.way),
            "seconds": r.seconds,
            "binding": r.binding,
            "terms": dict(r.terms),
            "memory": r.memory,
            "storage": r.storage,
        }
        for r in found.ranked
    ]
    values: dict[str, object] = {
        "model": found.model.name,
        "parameters": found.model.parameters,
        "cluster": found.machine.name,
        "form": found.form,
        "training": found.training,
        "considered": found.considered,
        "feasible": found.feasible,
        "times": found.ranked[0].times,
        "plans": plans,
        "rejected": [{"reason": k, "ways": n, "example": e} for k, n, e in found.rejected],
    }
    if answer:
        values["what_if"] = asdict(answer) | {"hidden": answer.hidden}
    return values | ({"simulated": simulated} if simulated else {})
