"""Compile time of a model without tuning, by pass.

    python -m cuts.bench compile [MODEL] [--shape x=1x3x48x192] [--target cuda:h200] [--profile N]

One core, no caches; `cpu` is processor time, which other load does not change. The output has seconds per pass, seconds
of the compiler of kernels (NVRTC or nvcc), and with `--profile` the N slowest functions. The text-direction classifier
should take at most 20 s.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from cuts.backends.cuda.compile import compile_kernel, toolchains
from cuts.backends.devices import find_target
from cuts.compile.driver import compile_model
from cuts.compile.loading import load_model, load_spec
from cuts.ir.compiled import CompiledGraph, CompileOptions
from cuts.ir.machine import Target


class Stopwatch:
    """Record of each pass's duration, by notes of its end."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def __call__(self, name: str, text: str = "") -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = time.perf_counter()


class _Silent(CompileOptions):
    """Options that tell of every pass without printing any IR, which would take longer than the pass."""

    def after(self, name: str, show: object) -> None:
        self.callback(name, "")


def default_model() -> Path:
    """Return the text-direction classifier that the package rapidocr brings."""
    package = find_spec("rapidocr")
    if package is None or package.origin is None:
        sys.exit("name a model, or install rapidocr, which brings the default one")
    return Path(package.origin).parent / "models" / "ch_ppocr_mobile_v2.0_cls_mobile.onnx"


def compile_once(options: argparse.Namespace, target: Target, watch: Stopwatch) -> CompiledGraph:
    """Load and compile the model, without compiling kernels."""
    spec = load_spec([])
    shapes = {name: tuple(map(int, dims.split("x"))) for name, _, dims in (s.partition("=") for s in options.shape)}
    graph = load_model(options.model or default_model(), spec, shapes)
    watch("load")
    return compile_model(graph, spec, target, _Silent(mode=options.mode, callback=watch))


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--shape", action="append", metavar="NAME=1x3x48x192")
    parser.add_argument("--target", default="cuda:h200")
    parser.add_argument("--mode", default="mixed", choices=("no-fusion", "fusion", "mixed"))
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="list the N functions that took most")
    options = parser.parse_args(argv)
    options.shape = options.shape or ([] if options.model else ["x=1x3x48x192"])
    return options


def main() -> None:
    """Compile and print one JSON object."""
    options = arguments()
    os.environ["CUTS_NO_CACHE"] = "1"
    target, watch, profile = find_target(options.target), Stopwatch(), cProfile.Profile()
    start, now = time.perf_counter(), os.times()
    before = now.user + now.system + now.children_user + now.children_system
    if options.profile:
        profile.enable()
    compiled = compile_once(options, target, watch)
    profile.disable()
    passes = time.perf_counter() - start
    if target.dialect == "cuda" and toolchains():
        for source in {kernel.source: kernel for kernel in compiled.kernels}.values():
            compile_kernel(source, target.arch)
        watch(f"{toolchains()[0].name}, one after another")
    spent = os.times()
    cpu = spent.user + spent.system + spent.children_user + spent.children_system - before
    found = {name: round(seconds, 3) for name, seconds in watch.seconds.items()}
    print(json.dumps({"target": target.name, "kernels": len(compiled.kernels), "steps": len(compiled.steps),
                      "passes": round(passes, 2), "total": round(time.perf_counter() - start, 2), "cpu": round(cpu, 2),
                      "seconds": found}, indent=1))  # fmt: skip
    if options.profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(options.profile)


if __name__ == "__main__":
    main()
