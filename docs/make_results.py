"""Writes `docs/results.md`, the tables of all results: `python docs/make_results.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

from attrs import define, field
from cuts.bench.__main__ import COMMANDS
from cuts.bench.networks import tables
from cuts.bench.networks.door import calls_table
from cuts.bench.networks.systems import OURS
from cuts.bench.paper import DOCUMENTS, read_table, tables_of
from cuts.bench.paper.command import coverage
from cuts.bench.tools.audit import table as audit_table
from cuts.bench.tools.breadth_tables import families
from cuts.bench.tools.goals import figure, goals_table
from cuts.bench.tools.markdown import digits, markdown_table
from cuts.bench.tools.records import RESULTS, Row, is_stale, read_rows
from cuts.bench.training.tables import steps_table
from cuts.latency.dataset import GAP_NETWORKS

DOCUMENT = Path(__file__).parent / "results.md"
WIDTH = 120

HEAD = """# Results

`python docs/make_results.py` writes this page from `bench/results`. The last column of a table names the
[circumstances](#circumstances) of a row: device, date and versions. Tables omit rows that `python -m cuts.bench stale
FILE` has marked as older than their kernels; `paper` names the commits of a table's rows and the kernel
sources of our times. *Speed* is the time of the fastest peer over the time of `cuts`, *share* the rate at which
operands and results move over that of a copy. Errors are relative to float64.

## Measure

`python -m cuts.bench NAME --help` explains each measurement. A call adds the missing rows to its file until
`--limit` seconds are over, `--table` prints the file, and `--again` measures known rows again.

{commands}

`cuts device --calibrate` measures the ceilings of the device first, from which lower bounds are computed. `cuts` tunes
as `cuts tune` does, within the budget of the row. Peers run in the same precision: PyTorch (cuDNN in benchmark mode,
cuBLAS; in strict fp32 without TF32), the fastest cuBLASLt and cuDNN plans for single operations, and `torch.compile`,
each as a captured CUDA graph. Operations are timed with a cold L2 cache: each contender alternates over sets of tensors
of four times the cache, and the median of alternating rounds counts. Models have random weights and inputs. TVM (a
wheel of 100 MB), TensorRT (PyPI has stubs only) and FlexTensor (no package) could not be installed beside the GPU: they
have no rows.

"""
#: Fields of the versions, and their short names.
PACKAGES = {
    "torch": "PyTorch",
    "nvidia-cudnn-cu13": "cuDNN",
    "nvidia-cublas": "cuBLAS",
    "nvidia-cuda-nvrtc": "NVRTC",
    "pycuda": "PyCUDA",
    "cuda-bindings": "CUDA bindings",
}


@define
class Circumstances:
    """Numbers of the devices, dates and versions that rows were measured with."""

    found: dict[tuple[str, str, str], int] = field(factory=dict)

    def number(self, row: Mapping[str, Any]) -> int:
        """Return the number of a row's circumstances."""
        versions = row.get("versions") or {}
        text = ", ".join(f"{short} {versions[name]}" for name, short in PACKAGES.items() if name in versions)
        key = (row.get("device") or row.get("gpu") or "", (row.get("date") or "")[:10], text)
        return self.found.setdefault(key, len(self.found) + 1)

    def numbers(self, rows: Iterable[Mapping[str, Any]]) -> str:
        """Return the numbers of several rows."""
        return ", ".join(map(str, sorted({self.number(row) for row in rows})))

    def table(self) -> str:
        """Return the table of all circumstances."""
        return markdown_table(["no.", "device", "date", "versions"], ([n, *key] for key, n in self.found.items()))


def fresh(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """Return rows of present kernels, and the number of others."""
    kept = [row for row in rows if not is_stale(row)]
    older = len(rows) - len(kept)
    return kept, f"{older} rows of older kernels are omitted." if older else ""


def networks(known: Circumstances, name: str) -> Iterator[str]:
    """Yield the evaluation of DeepCuts, section 7, on one device."""
    rows, older = fresh(read_rows(RESULTS / name))
    yield from map(wrap_text, tables.all_tables(rows, known.numbers))
    if older:
        yield older


def policies(known: Circumstances, name: str) -> Iterator[str]:
    """Yield networks in other precisions than strict fp32, a line a workload."""
    rows, _ = fresh([row for row in read_rows(RESULTS / name) if row["precision"] != "fp32" and "ms" in row])
    lines: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = tuple(row[each] for each in ("model", "task", "batch", "precision", "device"))
        line = lines.setdefault(key, {**row, "cuts_ms": None, "peers": {}})
        if row["system"] == OURS[0]:
            line |= {**row, "peers": line["peers"]}
        elif row["system"] not in OURS:
            line["peers"][row["system"]] = row["ms"]
    yield from rows_table(known, list(lines.values()))


def operations(known: Circumstances, *names: str) -> Iterator[str]:
    """Yield single operations beside libraries."""
    rows, older = fresh([row for name in names for row in read_rows(RESULTS / name)])
    rows = [row for row in rows if row.get("cuts_ms") is not None]
    if goals := goals_table(rows):
        yield goals
    yield from rows_table(known, rows)
    if older:
        yield older


def rows_table(known: Circumstances, rows: Sequence[Row]) -> Iterator[str]:
    """Yield rows of the common schema with the time of each peer."""
    if not rows:
        return
    peers = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    heads = ["class", "name", "batch", "precision", "cuts, ms", *(f"{p}, ms" for p in peers), "speed", "share", "error"]
    yield markdown_table(
        [*heads, "budget, s", "no."],
        (
            [
                *(row["class"], row["name"], row["batch"], row["precision"], digits(row["cuts_ms"])),
                *(digits(row["peers"].get(p)) for p in peers),
                *(digits(figure(row, each)) for each in ("speed", "share")),
                None if row["error"] is None else f"{row['error']:.0e}",
                row["budget_s"],
                known.number(row),
            ]
            for row in sorted(rows, key=lambda r: (r["class"], r["precision"], r["batch"], r["name"]))
        ),
    )


def vocabulary(known: Circumstances, *names: str) -> Iterator[str]:
    """Yield operations of the vocabulary and gradients, by family and row."""
    rows, older = fresh([row for name in names for row in read_rows(RESULTS / name)])
    kinds = [(row["device"], "tuned" if row["budget_s"] else "not tuned") for row in rows]
    for kind in dict.fromkeys(kinds):
        yield f"{', '.join(kind)}:\n\n{families([row for row, each in zip(rows, kinds, strict=True) if each == kind])}"
    yield from rows_table(known, rows)
    if older:
        yield older


def calls(known: Circumstances, name: str) -> Iterator[str]:
    """Yield calls through `torch.compile`."""
    rows, older = fresh(read_rows(RESULTS / name))
    yield (
        "Milliseconds: `wall` of a call in a sequence of calls, `waited` of a call that is waited for, `returned`\n"
        "until the call returns, `plan` of the plan on the GPU. `cuts` has parameters as inputs, `frozen` as\n"
        "constants; `nothing` is a backend that computes nothing."
    )
    if rows:
        yield calls_table(rows, known.number)
    if older:
        yield older


def decoders(known: Circumstances, name: str) -> Iterator[str]:
    """Yield tokens and prompts of decoders."""
    rows, older = fresh(read_rows(RESULTS / name))
    lines = [
        [
            *(row["name"], row["batch"], row["class"], digits(row["ms"])),
            *(digits(row.get("share")), digits(row["compiling"]), known.number(row)),
        ]
        for row in rows
    ]
    yield markdown_table(["decoder, task", "batch", "system", "ms", "share", "compilation, s", "no."], lines)
    if older:
        yield older


def training_steps(known: Circumstances, name: str) -> Iterator[str]:
    """Yield steps of training through `torch.compile`."""
    rows, older = fresh(read_rows(RESULTS / name))
    yield from steps_table(rows, known.numbers).split("\n\n")
    if older:
        yield older


def audit(known: Circumstances, name: str) -> Iterator[str]:
    """Yield random points of schedule spaces against the chosen ones."""
    rows, older = fresh(read_rows(RESULTS / name))
    yield (
        "Points of a space are timed beside the choice of `cuts tune`. *Lost by proof* counts points that are faster\n"
        "than the choice although their lower bound discards them, *missed* faster points that were not proposed."
    )
    if rows:
        yield from map(wrap_text, audit_table(rows, known.number).split("\n\n"))
    if older:
        yield older


def cluster(known: Circumstances, *names: str) -> Iterator[str]:
    """Yield runs of cluster plans: predicted and measured seconds."""
    rows = [row for name in names for row in read_rows(RESULTS / name)]
    heads = ["case", "DP, WP, P", "policy", "weights, GB", "memory, GB", "limit, GB", "predicted, s", "measured, s"]
    yield markdown_table(
        [*heads, "error", "storage", "error with it", "no."],
        (
            [
                *(row["name"], "{dp}, {wp}, {p}".format(**row["way"]), row["way"]["policy"]),
                *(digits(row[each] / 1e9) for each in ("weights", "memory", "cap")),
                *(digits(row["predicted"]), digits(taken), f"{taken / row['predicted'] - 1:+.1%}"),
                *((f"{row['disk']:.2f}", f"{taken / row['with_disk'] - 1:+.1%}") if "disk" in row else (None, None)),
                known.number(row),
            ]
            for row in rows
            for taken in [fmean(row["seconds"])]
        ),
    )


def latency_models(known: Circumstances, name: str) -> Iterator[str]:
    """Yield the accuracy of latency models: layers, networks, plans of `cuts`."""
    values = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    for precision in ("fp32", "tf32"):
        lines = []
        for label, row in values[precision]["layers"].items():
            shares = (percent(row[key]) for key in ("within", "within_5"))
            errors = (percent(row[key]) for key in ("median", "p90"))
            right = percent(row["right"]) if "right" in row else None
            lines.append([label, row["count"], *shares, f"{row['rmse']:.3f}", *errors, right])
        heads = ["rows", "within 10 %", "within 5 %", "RMSE, ms", "median", "p90", "kernels right"]
        yield f"Held-out layers, {precision}:\n\n{markdown_table(['model', *heads], lines)}"
    kinds = [(precision, batch) for precision in ("fp32", "tf32") for batch in (16, 1)]
    columns = [values[precision][f"networks, batch {batch}"] for precision, batch in kinds]
    lines = [
        [
            f"{label} (training set)" if label in GAP_NETWORKS else label,
            *(prediction(column[label]) for column in columns),
        ]
        for label in columns[0]
    ]
    held = [{label: row for label, row in column.items() if label not in GAP_NETWORKS} for column in columns]
    lines.append(["within 10 %", *(close(column) for column in held)])
    heads = [f"{precision}, batch {batch}" for precision, batch in kinds]
    yield f"Networks: measured and predicted milliseconds, error:\n\n{markdown_table(['network', *heads], lines)}"
    rows = values["fp32"]["plans of cuts"]
    lines = [*([label, prediction(row)] for label, row in rows.items()), ["within 10 %", close(rows)]]
    yield markdown_table(["tuned plan", "measured and predicted milliseconds, error"], lines)


def paper_tables(known: Circumstances, *_: str) -> Iterator[str]:
    """Yield parts of the evaluations, and tables with rows of their own."""
    yield coverage()
    for document in DOCUMENTS:
        for table in tables_of(document).values():
            if table.path(document).parent.name == "paper" and (rows := read_table(document, table)):
                numbers = known.numbers(rows)
                head = f"`{document} --table {table.number}`: {table.title} (circumstances: {numbers})."
                yield f"{wrap_text(head)}\n\n{table.text(rows)}"


def percent(value: float) -> str:
    """Return a share in percent."""
    return f"{100 * value:.1f} %"


def prediction(row: Mapping[str, float]) -> str:
    """Return measured and predicted milliseconds, and the error."""
    return f"{row['measured']:.2f}, {row['predicted']:.2f}, {100 * row['off']:+.1f} %"


def close(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return the number of predictions within 10 %, of all."""
    return f"{sum(abs(row['off']) <= 0.1 for row in rows.values())} of {len(rows)}"


def tests(known: Circumstances, *_: str) -> Iterator[str]:
    """Yield runs of the fuzzer, the sweep and planted bugs."""
    runs = {name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in ("fuzz", "sweep")}
    fuzz = [
        [
            run["generator"],
            run["device"],
            run["graphs"],
            run.get("nodes"),
            run.get("kernels"),
            sum_of(run.get("findings")),
        ]
        for run in runs["fuzz"]["runs"]
    ]
    heads = ["generator", "device", "graphs", "nodes", "kernels", "findings"]
    yield f"Random graphs (`tests/fuzz`):\n\n{markdown_table(heads, fuzz)}"
    names = ("operations", "cases", "elements", "kernels", "differences")
    sweep = [[run.get("device") or run["target"], *(run[name] for name in names)] for run in runs["sweep"]["runs"]]
    yield f"Sweep of operations (`tests/fuzz/sweep`):\n\n{markdown_table(['device', *names], sweep)}"
    bugs = json.loads((RESULTS / "planted.json").read_text(encoding="utf-8"))["bugs"]
    areas = sorted({bug["area"] for bug in bugs})
    counts = ((area, [bug["caught"] for bug in bugs if bug["area"] == area]) for area in areas)
    lines = [[area, len(caught), sum(caught)] for area, caught in counts]
    lines.append(["all", len(bugs), sum(bug["caught"] for bug in bugs)])
    yield f"Planted bugs (`tests/fuzz/planted_bugs.py`):\n\n{markdown_table(['area', 'planted', 'caught'], lines)}"


def sum_of(findings: Mapping[str, int] | None) -> int | None:
    """Return the number of findings; nothing where none are listed."""
    return None if findings is None else sum(findings.values())


def wrap_text(text: str) -> str:
    """Return a sentence in lines of a document; tables stay."""
    return text if "\n" in text else fill(text, WIDTH, break_on_hyphens=False)


Section = Callable[..., Iterator[str]]
#: Title, function and files of each section.
SECTIONS: tuple[tuple[str, Section, tuple[str, ...]], ...] = (
    ("Networks, H200", networks, ("evaluation.json",)),
    ("Networks, H100", networks, ("evaluation_h100.json",)),
    ("Networks by precision policy", policies, ("evaluation.json",)),
    ("Calls through `torch.compile`", calls, ("door.json",)),
    ("Training steps", training_steps, ("steps.json",)),
    ("Decoders", decoders, ("llm.json",)),
    ("Single operations", operations, ("ops.json", "ops_bf16.json", "ops_fp16.json")),
    ("Routines of vendors", operations, ("routines.json",)),
    (
        "Operations of the vocabulary",
        vocabulary,
        ("breadth.json", "breadth_untuned.json", "breadth_h100.json", "gradient_rows.json"),
    ),
    ("Audit of pruning", audit, ("audit.json",)),
    ("Latency models", latency_models, ("latency.json",)),
    ("Cluster plans", cluster, ("cluster.json",)),
    ("Tables of the documents", paper_tables, ()),
    ("Tests", tests, ("fuzz.json", "sweep.json", "planted.json")),
)
#: Sections with a text of their own before the tables.
TEXTS = {
    "Networks, H200": (
        "The evaluation of DeepCuts (section 7): the models of Table 10 in strict fp32. Times are milliseconds; peers\n"
        "are captured CUDA graphs.\n\n![Speed-ups over graphed PyTorch](evaluation.svg)"
    ),
    "Operations of the vocabulary": (
        "Targets of a list: a mean speed of 1.8 (aim 2.2), 99 % of the rows at 0.8 or more, none below 0.5."
    ),
    "Training steps": (
        "Whole steps, Python included: forward pass, loss, backward pass and fused gradient descent with momentum.\n"
        "`bf16` is autocast, whose peer is Inductor; `fp32` is strict, and its peer the fastest. `cuts` is not tuned.\n"
        "*Peak ratio* is our peak memory over that of Inductor."
    ),
    "Decoders": (
        "Decoders of transformers with random weights, bf16, untuned, as CUDA graphs: a token after 1,536 others, or\n"
        "a prompt. *Share* is that of a copy's bandwidth, for the bytes of weights and cache."
    ),
    "Cluster plans": (
        "[Cluster](cluster.md) explains the model. The limit stands for a smaller device memory. Times are means of\n"
        "all steps; *storage* is its rate during these over the rate before, from which the prediction was made."
    ),
    "Latency models": "[Latency](latency.md) explains the models, the baselines and the data. One NVIDIA H200.",
    "Tables of the documents": (
        "`python -m cuts.bench paper DOCUMENT --table N` makes and prints each table, `--coverage` the parts of the\n"
        "evaluations: *whole*, or *explained* by a note."
    ),
    "Tests": "[Testing](testing.md) explains these runs.",
}


def document() -> str:
    """Return the whole document."""
    known = Circumstances()
    commands = markdown_table(
        ["`python -m cuts.bench`", "measurement"], ([f"`{n}`", says] for n, (_, says) in COMMANDS.items())
    )
    parts = [HEAD.format(commands=commands).rstrip()]
    for title, section, listed in SECTIONS:
        names = [name for name in listed if (RESULTS / name).exists()]
        found = [*([TEXTS[title]] if title in TEXTS else []), *section(known, *names)]
        files = ", ".join(f"`bench/results/{name}`" for name in names)
        parts += [f"## {title}", *found, *([fill(f"Rows: {files}.", 120, break_on_hyphens=False)] if files else [])]
    return "\n\n".join([*parts, "## Circumstances", known.table()]) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
