"""CPU seconds of compilations by stage, without measurements.

    python -m cuts.bench compile_time --out FOLDER ["decoder 2" "wide decoder 36" resnet18 ...] [--precision tf32]

Models are decoders of equal layers with rotary positions, and networks of torchvision. Each process has one processor.
`first` compiles with an empty store, `cubins` also runs the compiler of kernels, `second` finds the plan of such a
process. Where a pack has decisions of the model, workers build its kernels in any case. PyTorch's export does not
count. A row has the least of `--repeats` processes; rows go to `FOLDER/compile_time.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from cuts.bench.networks.models import vision
from cuts.bench.networks.modules import Decoder
from cuts.bench.tools.records import Row, circumstances, write_rows
from cuts.compile import load_model, load_spec
from cuts.ir import PRECISIONS, CutsError, Graph

MODELS = ("decoder 2", "decoder 16", "decoder 36", "decoder 72", "wide decoder 2", "wide decoder 36", "resnet18",
          "densenet121", "efficientnet_v2_s", "swin_t")  # fmt: skip
WAYS = ("first", "cubins", "second")
#: Tokens, width, heads, heads of keys and values, inner width and vocabulary of decoders by name.
DECODERS = {"decoder": (12, 64, 4, 2, 128, 32), "wide decoder": (128, 512, 8, 4, 1408, 2048)}
#: Compiles the graph of a file, and prints the seconds of imports, of the rest, and of each stage as JSON.
PROCESS = """
import json, os, pickle, resource, sys, numpy
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def clock():
    own = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in own)
begin = clock()
from cuts.backends import find_target
from cuts.compile import cached_build, load_spec, plan
from cuts.ir import Budget, CompileOptions
path, precision, way = sys.argv[1:]
cached_build.MIN_CACHED_BUILD_SECONDS = 0.0
if way == "first":
    plan.compile_binaries = lambda compiled, target: ()
with open(path, "rb") as file:
    graph = pickle.load(file)
middle, budget = clock(), Budget.of(None, clock)
options = CompileOptions(precision=precision, begun=budget)
cached_build.build_cached(graph, load_spec(()), find_target("cuda:sm_90"), options)
stages = {name: round(seconds, 4) for name, seconds in budget.spent.items() if seconds >= 0.0005}
print(json.dumps({"import_s": middle - begin, "build_s": clock() - middle, "stages_s": stages}))
"""


def load_graph(name: str) -> Graph:
    """Return the graph of a network of torchvision, or of a decoder."""
    kind, _, layers = name.rpartition(" ")
    if kind not in DECODERS:
        model, inputs = vision(name, 1, False)
        return load_model(model, load_spec(()), args=inputs)
    tokens, *sizes = DECODERS[kind]
    torch.manual_seed(0)
    return load_model(Decoder(int(layers), *sizes).eval(), load_spec(()), args=(torch.randint(sizes[-1], (1, tokens)),))


def measure(name: str, precision: str, repeats: int, ways: list[str]) -> Iterator[Row]:
    """Yield the row of each way, the least of several processes."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "graph")
        path.write_bytes(pickle.dumps(load_graph(name)))
        for way in ways:
            store = "cubins" if way == "second" else way
            runs = [_run(path, precision, way, Path(folder, f"{store} {n}")) for n in range(repeats)]
            best = min(runs, key=lambda run: run["build_s"])
            yield {"suite": "compile_time", "class": way, "name": name, "precision": precision} | best


def _run(path: Path, precision: str, way: str, store: Path) -> Row:
    if way == "second" and not store.exists():
        _run(path, precision, "cubins", store)
    command = [sys.executable, "-c", PROCESS, str(path), precision, way]
    done = subprocess.run(command, env=os.environ | {"CUTS_CACHE_DIR": str(store)}, capture_output=True, text=True)
    if done.returncode:
        raise CutsError(f"the model was not compiled: {done.stderr.strip()[-400:]}")
    found: Row = json.loads(done.stdout)
    return found | {"outside_s": found["build_s"] - sum(found["stages_s"].values())}


def line_of(row: Row) -> str:
    """Return a row as text, its longest stages first."""
    stages = {"outside": row["outside_s"], **row["stages_s"]}
    text = (f"{name} {s:.2f}" for name, s in sorted(stages.items(), key=lambda pair: -pair[1]) if s >= 0.01)
    total = f"import {row['import_s']:.2f}, build {row['build_s']:.2f}"
    return f"{row['name']:<18}{row['class']:<7} {total}: {', '.join(text)}"


def main() -> int:
    """Measure the models asked for."""
    parser = argparse.ArgumentParser(description="CPU seconds of compilations by stage")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="fp32")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("."), metavar="FOLDER")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    rows: list[Row] = []
    for name in options.models:
        for row in measure(name, options.precision, options.repeats, options.ways):
            print(line_of(row), flush=True)
            rows.append(row | circumstances(""))
            write_rows(options.out / "compile_time.json", rows)
    return 0
