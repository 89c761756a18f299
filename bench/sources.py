"""Digests of every kernel that models and operations compile to: whether a change of the compiler changed its output.

Run it before and after a change:

    python bench/sources.py --out before.json
    python bench/sources.py --out after.json --against before.json

Graphs are the models of the test suite (`--model NAME` picks some) and one graph of a use of every operation, with and
without gradients; each is compiled for every target given, without measuring. A digest covers a kernel's source, grid
and block. The exit code is 1 where a graph compiles to other kernels than before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cuts.backends import find_target
from cuts.compile import Spec, compile_model, load_model, load_spec
from cuts.ir import CompileOptions, Graph
from cuts.tests import operations
from cuts.tests.models import REAL
from cuts.tests.operations_graph import bench_of


def graphs(models: list[str]) -> Iterator[tuple[str, Graph, Spec]]:
    """Yield named graphs with the vocabulary that each is written in."""
    uses = [*operations.DIFFERENTIABLE, *operations.SCALAR, *operations.FLAT]
    for backward in (False, True):
        made = bench_of(uses, backward)
        yield f"operations{', gradients' * backward}", made.graph, made.spec
    spec = load_spec([])
    for name in models:
        real = REAL[name]
        yield name, load_model(str(real.fetch()), spec, real.shapes), spec


def digests(graph: Graph, spec: Spec, target: str) -> list[str]:
    """Return a digest of each kernel of a graph, in launch order of their first uses."""
    compiled = compile_model(graph, spec, find_target(target), CompileOptions())
    texts = (f"{kernel.source}{kernel.grid}{kernel.block}" for kernel in compiled.kernels)
    return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]


def main() -> int:
    """Compile everything, write the digests, and compare them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the digests as JSON")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with digests written before")
    parser.add_argument("--model", action="append", choices=sorted(REAL), metavar="NAME", help="only these models")
    parser.add_argument("--target", action="append", metavar="TARGET", help="default: cuda:sm_90 and opencl")
    given = parser.parse_args()
    os.environ["CUTS_NO_CACHE"] = "1"
    found: dict[str, list[str]] = {}
    for name, graph, spec in graphs(given.model or sorted(REAL)):
        for target in given.target or ["cuda:sm_90", "opencl"]:
            start = time.perf_counter()
            found[f"{target} {name}"] = digests(graph, spec, target)
            kernels = len(found[f"{target} {name}"])
            print(f"{target} {name}: {kernels} kernels in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    if given.out:
        given.out.write_text(json.dumps(found, indent=0), encoding="utf-8")
    before = json.loads(given.against.read_text(encoding="utf-8")) if given.against else {}
    changed = [name for name in found if name in before and before[name] != found[name]]
    total = sum(map(len, found.values()))
    compared = f"; {len(changed)} of {len(before)} graphs changed: {', '.join(changed) or 'none'}" if before else ""
    print(f"{total} kernels of {len(found)} graphs and targets{compared}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
