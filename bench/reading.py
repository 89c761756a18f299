"""How long models of PyTorch take to be read, each archive by a process of its own.

    python -m cuts.bench.reading [--batch N] [--out FILE] [MODEL ...]

`read s` is the processor's time of `load_model`, `imports s` that of what is imported before. `whole s` is the time of
reading it where PyTorch takes the program apart as a whole, as it does with programs that are involved; `equal` says
whether both give one graph, names and constants included. It needs PyTorch and torchvision, which make the models.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import warnings
from importlib import import_module
from pathlib import Path
from time import process_time
from typing import Any

from cuts.bench.networks.models import APPLICATIONS, Application
from cuts.ir import print_graph

COLUMNS = ("model", "nodes", "imports s", "read s", "whole s", "equal")


def read(path: str, whole: bool) -> dict[str, Any]:
    """Read an archive in this process; return what it took, and a digest of the graph."""
    warnings.simplefilter("ignore")
    before = process_time()
    compile_ = import_module("cuts.compile")
    core: Any = import_module("cuts.frontends.torch.core")
    spec, begun = compile_.load_spec([]), process_time()
    if whole:
        core.piecewise = lambda *_: None
    graph = compile_.load_model(path, spec)
    seconds = process_time() - begun
    digest = hashlib.sha256(print_graph(graph).encode())
    for name in sorted(graph.constants):
        digest.update(graph.constants[name].tobytes())
    return {
        "nodes": len(graph.nodes), "imports s": round(begun - before, 2), "read s": round(seconds, 2),
        "digest": digest.hexdigest(),
    }  # fmt: skip


def row_of(model: Application, batch: int, folder: Path) -> dict[str, Any]:
    """Return what it takes to read a model's archive."""
    export, path = import_module("torch").export, folder / "model.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export.save(export.export(*model.make(batch, False)), path)
    parts, whole = _in_a_process(path), _in_a_process(path, "--whole")
    equal = parts.pop("digest") == whole["digest"]
    return {"model": model.name, **parts, "whole s": whole["read s"], "equal": equal}


def _in_a_process(path: Path, *options: str) -> Any:
    command = [sys.executable, "-m", "cuts.bench.reading", "--read", str(path), *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> int:
    """Print a line for each model, and write all as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="default: all of the evaluation")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the rows here, as JSON")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        print(json.dumps(read(given.read, given.whole)))
        return 0
    rows = []
    print("".join(f"{column:>14}" for column in COLUMNS))
    for model in APPLICATIONS:
        if not given.models or model.name.lower() in map(str.lower, given.models):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(row_of(model, given.batch, Path(folder)))
            print("".join(f"{rows[-1][column]!s:>14}" for column in COLUMNS), flush=True)
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
