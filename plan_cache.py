"""Plans of models that were tuned to the end, kept so that the same model needs no second search and no second compilation.

A plan is found by everything it was made from: the graph with its weights, the declarations, the target, the machine, the settings of the
search, and this very version of the compiler. The newest plans are kept, up to a size.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from .backends.cache import cache_key, cache_root, private_folder
from .driver import CompiledPlan, Spec, compile_binaries, compile_model, plan_of
from .ir.compiled import CompileOptions
from .ir.errors import CutsError
from .ir.graph import Graph
from .ir.graph_text import print_graph
from .ir.target import Target
from .runtime.plan_file import load_plan, save_plan
from .search.problem import machine_of
from .search.selector import MeasuredSelector
from .search.substitute import with_libraries

#: Bytes of all kept plans together.
LIMIT = 4 << 30


def tuned_plan(graph: Graph, spec: Spec, target: Target, options: CompileOptions, selector: MeasuredSelector) -> CompiledPlan:
    """Return the plan of an earlier search to the end, else search and keep the plan if the search came to its end."""
    folder = _folder()
    if (
        folder is None
        or selector.tuner.resources.database.path is None
        or selector.audit
        or options.print_after
        or options.stop_after
        or options.dump
    ):
        return _made(graph, spec, target, options, selector)
    place = folder / plan_key(graph, spec, target, options, selector)
    if place.exists():
        try:
            plan = load_plan(place)
            place.touch()
            selector.cached = True
            return CompiledPlan(plan, compile_binaries(plan, target))
        except CutsError:
            shutil.rmtree(place, ignore_errors=True)  # damaged, or of another version
    made = _made(graph, spec, target, options, selector)
    if made.complete:
        save_plan(made.plan, place)
        _trim(folder)
    return made


def _made(graph: Graph, spec: Spec, target: Target, options: CompileOptions, selector: MeasuredSelector) -> CompiledPlan:
    compiled = compile_model(graph, spec, target, options, selector)
    return plan_of(with_libraries(compiled, selector), graph, spec, target)


def plan_key(graph: Graph, spec: Spec, target: Target, options: CompileOptions, selector: MeasuredSelector) -> str:
    """Return the key of everything that a tuned plan depends on."""
    facts = (
        compiler_digest(),
        print_graph(graph),
        repr(sorted(spec.texts.items())),
        repr(target),
        repr(sorted(machine_of(target).items())),
    )
    return cache_key([*facts, options.mode, repr(options.debug), repr(selector.settings), *_weights(graph)])


@cache
def compiler_digest() -> str:
    """Return a digest of this version of the compiler: its sources and declarations."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for folder in (".", "ir", "ops", "passes", "backends", "backends/targets", "search", "runtime", "spec"):
        for path in sorted(p for p in (root / folder).iterdir() if p.suffix in (".py", ".cuts", ".lark", ".toml")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _weights(graph: Graph) -> Iterator[str | bytes]:
    for name, array in sorted(graph.constants.items()):
        yield f"{name} {array.dtype.str} {array.shape}"
        yield hashlib.sha256(np.ascontiguousarray(array).data.cast("B") if array.size else b"").digest()


def _folder() -> Path | None:
    root = cache_root()
    return None if root is None else private_folder(root / "plans")


def _plans(folder: Path) -> list[Path]:
    """Return the kept plans, the newest first."""
    return sorted((p for p in folder.iterdir() if p.is_dir()), key=lambda p: -p.stat().st_mtime)


def _size(plan: Path) -> int:
    return sum(p.stat().st_size for p in plan.rglob("*") if p.is_file())


def _trim(folder: Path) -> None:
    """Delete the oldest plans until the rest is within the limit; the newest one stays."""
    total = 0
    for number, plan in enumerate(_plans(folder)):
        total += _size(plan)
        if total > LIMIT and number:
            shutil.rmtree(plan, ignore_errors=True)


def plans_info() -> dict[str, int]:
    """Return how many plans are kept, and their bytes."""
    folder = _folder()
    plans = [] if folder is None else _plans(folder)
    return {"plans": len(plans), "bytes": sum(map(_size, plans))}


def clear_plans() -> int:
    """Delete all kept plans and return how many there were."""
    folder = _folder()
    plans = [] if folder is None else _plans(folder)
    for plan in plans:
        shutil.rmtree(plan, ignore_errors=True)
    return len(plans)
