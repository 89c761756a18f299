"""Tables of BigCuts (chapter 4 and section 5.2 of the DeepCuts thesis).

Rows are computed by the planner, so that a test compares each table with its command; only runs have times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from attrs import evolve
from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.records import Row
from cuts.cluster.planning import FORMS, rank
from cuts.cluster.plans import known_machines, load_machine, load_transformer

from .registry import PaperTable, find_table, stamp_rows
from .table_5_6 import BLOCKS, block_models, printed_table, reproduce

# ---- Table 5.5


def _clusters() -> Iterator[tuple[str, dict[str, Any]]]:
    names = ("nodes", "gpus", "peak", "memory", "storage_read", "gpu_link", "node_link")
    for name in known_machines():
        machine = load_machine(name)
        yield name, {each: getattr(machine, each) for each in names}


def _clusters_text(rows: Sequence[Row]) -> str:
    heads = ("cluster", "nodes", "GPUs a node", "peak, TFLOP/s", "GPU memory, GB", "storage of a GPU, GB/s")
    lines = [
        [
            *(row["name"], row["nodes"], row["gpus"], f"{row['peak'] / 1e12:g}"),
            *(f"{row[each] / 1e9:g}" for each in ("memory", "storage_read", "gpu_link", "node_link")),
        ]
        for row in rows
    ]
    return markdown_table([*heads, "between GPUs, GB/s", "between nodes, GB/s"], lines)


# ---- Table 5.6


def _cells() -> Iterator[tuple[str, dict[str, Any]]]:
    for cell in reproduce():
        place = {"block": cell.block, "policy": cell.policy, "way": [cell.dp, cell.wp, cell.p]}
        yield cell.name, {**place, "printed": cell.printed, "computed": round(cell.computed, 4)}


def _cells_text(rows: Sequence[Row]) -> str:
    """Return a table a model; a star marks differences above 1 %."""
    found = {(row["block"], row["policy"], tuple(row["way"])): row for row in rows}
    texts = []
    for model in dict.fromkeys(block.rpartition(" ")[0] for block in BLOCKS):
        columns = [(b, policy) for b in BLOCKS if b.startswith(model) for policy in ("PR", "AR")]
        lines = [
            [way, *(_cell_text(found.get((block, policy, way))) for block, policy in columns)]
            for way in printed_table()["GPT-3 A PR"]
        ]
        texts.append(markdown_table(["(DP, WP, P)", *(f"{block} {policy}" for block, policy in columns)], lines))
    return "\n\n".join(texts)


def _cell_text(row: Row | None) -> str | None:
    if row is None:
        return None
    star = " *" if abs(row["computed"] / row["printed"] - 1) > 0.01 else ""
    return f"{row['printed']:g} / {row['computed']:.2f}{star}"


# ---- best ways by form


def _policies() -> Iterator[tuple[str, dict[str, Any]]]:
    for block, (name, *_) in BLOCKS.items():
        thesis, machine = block_models(block)
        for form in FORMS:
            model = load_transformer(name) if form == "corrected" else thesis
            for policy in ("PR", "AR"):
                best = rank(model, machine, form=form, limit=1, only={"policy": policy}).ranked[0]
                way = best.way
                fields = {"block": block, "form": form, "policy": policy, "way": [way.dp, way.wp, way.p]}
                yield f"{block}, {form}, {policy}", {**fields, "micro": way.micro, "seconds": best.seconds}


def _policies_text(rows: Sequence[Row]) -> str:
    lines = []
    for key in dict.fromkeys((row["block"], row["form"]) for row in rows):
        own = {row["policy"]: row for row in rows if (row["block"], row["form"]) == key}
        texts = [f"({', '.join(map(str, row['way']))}) {row['seconds']:,.0f} s" for row in own.values()]
        lines.append([*key, *texts, min(own, key=lambda policy: own[policy]["seconds"])])
    return markdown_table(["block", "form", *(f"{policy}: (DP, WP, P)" for policy in ("PR", "AR")), "best"], lines)


# ---- Figure 5.4


def _inference() -> Iterator[tuple[str, dict[str, Any]]]:
    model, machine = evolve(load_transformer("gpt3-6.7b"), batch=800), load_machine("cluster-c")
    for form in FORMS:
        only = {"micro": 8} if form == "corrected" else {}
        ways: dict[tuple[object, ...], float] = {}
        for each in rank(model, machine, form=form, training=False, limit=1000, only=only).ranked:
            way = each.way
            ways.setdefault((way.policy, way.dp, way.wp, way.p), each.seconds)
        for place, (key, seconds) in enumerate(list(ways.items())[:10], 1):
            policy, *numbers = key
            yield f"{form} {place}", {"form": form, "policy": policy, "way": numbers, "seconds": seconds}


def _inference_text(rows: Sequence[Row]) -> str:
    columns = [[row for row in rows if row["form"] == form] for form in FORMS]
    lines = [
        [place, *(f"{r['policy']} ({', '.join(map(str, r['way']))}) {r['seconds']:.4g} s" for r in ranked)]
        for place, ranked in enumerate(zip(*columns, strict=True), 1)
    ]
    return markdown_table(["place", *FORMS], lines)


# ---- runs


def _times(row: Row, *keys: str) -> tuple[str, ...]:
    """Return the mean measured time, as the storage's rate is of all steps, and its errors from predictions."""
    taken = fmean(row["seconds"])
    return f"{taken:.3g}", *(f"{taken / row[key] - 1:+.1%}" for key in keys)


def _runs_text(rows: Sequence[Row]) -> str:
    """Return the runs on two GPUs."""
    lines = []
    for row in rows:
        taken, off, rest = _times(row, "predicted", "with_disk")
        facts = (row["name"], row["way"]["policy"], f"{row['predicted']:.3g}", taken, off, f"{row['disk']:.2f}")
        lines.append([*facts, f"{row['with_disk']:.3g}", rest])
    heads = ["case", "policy", "predicted, s", "measured, s", "error", "storage", "predicted with it, s"]
    return markdown_table([*heads, "error"], lines)


def _beyond_text(rows: Sequence[Row]) -> str:
    """Return runs under a limit of device memory, beside a peer that offloads."""
    lines = []
    for row in rows:
        sizes = (f"{row[key] / 1e9:.1f}" for key in ("bytes", "limit", "memory"))
        peer = row.get("fsdp2_seconds")
        times = _times(row, "predicted", "with_disk")
        lines.append([row["name"], *sizes, f"{row['predicted']:.3g}", *times, None if peer is None else f"{peer:.3g}"])
    heads = ["case", "model, GB", "limit", "used", "predicted, s", "measured, s", "error", "with its rate"]
    return markdown_table([*heads, "FSDP2, s"], lines)


def _ways_text(rows: Sequence[Row]) -> str:
    """Return ways of one model on one GPU in the order of their times."""
    ordered = sorted(rows, key=lambda row: fmean(row["seconds"]))
    predicted = sorted(row["predicted"] for row in rows)
    lines = [
        [f"{row['way']['policy']}, micro-batches of {row['way']['micro']}", row["way"]["resident"],
         f"{row['predicted']:.3g}", *_times(row, "predicted"), place, 1 + predicted.index(row["predicted"])]
        for place, row in enumerate(ordered, 1)
    ]  # fmt: skip
    return markdown_table(["way", "resident", "predicted, s", "measured, s", "error", "place", "predicted"], lines)


#: The evaluation of DeepCuts by its numbers in the thesis.
DEEPCUTS_TABLES = {
    "5.3": "11", "5.4": "12", "figure-5.1": "figure-5", "figure-5.2": "figure-6", "figure-5.3": "figure-7"
}  # fmt: skip
TABLES = (
    PaperTable(
        "5.5", "clusters", _clusters_text, known_machines, lambda request: stamp_rows("5.5", request, _clusters())
    ),
    PaperTable(
        "5.6", "printed and computed values of Table 5.6; a star marks a difference of more than 1 %", _cells_text,
        lambda: [cell.name for cell in reproduce()], lambda request: stamp_rows("5.6", request, _cells()),
    ),
    PaperTable(
        "policies", "best way of each policy, by form of the model", _policies_text,
        lambda: [f"{block}, {form}, {policy}" for block in BLOCKS for form in FORMS for policy in ("PR", "AR")],
        lambda request: stamp_rows("policies", request, _policies()),
    ),
    PaperTable(
        "figure-5.4", "ten best ways of GPT-3 6.7B, inference of 100 micro-batches on cluster C", _inference_text,
        lambda: [f"{form} {place}" for form in FORMS for place in range(1, 11)],
        lambda request: stamp_rows("figure-5.4", request, _inference()),
    ),
    PaperTable(
        "runs", "two GPUs: error of the prediction, and with the storage's rate during the run", _runs_text,
        file="cluster.json", command="torchrun --nproc-per-node 2 -m cuts.bench cluster",
    ),
    PaperTable(
        "beyond", "models beyond a limit of device memory, with their layers in host memory", _beyond_text,
        command="python -m cuts.bench beyond --target cuda --host-folder /dev/shm/model --out "
        "bench/results/paper/bigcuts-beyond.json",
    ),
    PaperTable(
        "ways", "ways of inference on one GPU, in the order of their times", _ways_text,
        command="python -m cuts.bench cluster --target cuda --only way --out bench/results/paper/bigcuts-ways.json",
    ),
    *(evolve(find_table("deepcuts", number), number=thesis) for thesis, number in DEEPCUTS_TABLES.items()),
)  # fmt: skip
