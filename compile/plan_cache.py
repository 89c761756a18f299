"""Plans of models, kept so that the same model needs no second search and no second compilation: those that were tuned
to the end, and those of PyTorch's door, which a later process asks for with the same wishes.

A plan is found by everything it was made from: the graph with its weights, the declarations, the target, the machine,
the settings of the search, and this very version of the compiler. The newest plans are kept, up to a size.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stat import S_ISDIR

import numpy as np
from attrs import frozen

from ..backends import cache_key, cache_root, compiler_digest, file_size, private_folder
from ..backends.library import installed_libraries
from ..ir import Array, CompileOptions, CutsError, Graph, Target, cores, print_graph
from ..runtime import load_plan, save_plan
from ..search import MeasuredSelector, machine_of
from .loading import Spec
from .plan import CompiledPlan, compile_binaries

#: Bytes of all kept plans together.
LIMIT = 4 << 30


@frozen
class PlanCache:
    """Where the plan of one search is kept."""

    folder: Path
    key: str
    target: Target

    @classmethod
    def of(
        cls, graph: Graph, spec: Spec, target: Target, options: CompileOptions, selector: MeasuredSelector
    ) -> PlanCache | None:
        """Return where a search's plan is kept; None where caching is off, or where the passes are wanted for what they
        print.
        """
        folder = _folder()
        watched = selector.audit or options.print_after or options.dump
        if folder is None or watched or selector.tuner.resources.database.path is None:
            return None
        return cls(folder, plan_key(graph, spec, target, options, selector), target)

    @classmethod
    def of_wishes(
        cls, graph: Graph, spec: Spec, target: Target, options: CompileOptions, *wishes: object
    ) -> PlanCache | None:
        """Return where the plan of what somebody asked for is kept, budget included, whether its search came to an end
        or not; None where caching is off.
        """
        folder = _folder()
        asked = (options.mode, options.precision, *map(repr, (options.debug, options.budget, options.memory, *wishes)))
        return None if folder is None else cls(folder, cache_key([*_facts(graph, spec, target), *asked]), target)

    def find(self) -> CompiledPlan | None:
        """Return the kept plan; one that is damaged or of another version is deleted."""
        place = self.folder / self.key
        if not place.exists():
            return None
        try:
            plan = load_plan(place)
            place.touch()
            return CompiledPlan(plan, compile_binaries(plan, self.target), kept=place)
        except CutsError:
            shutil.rmtree(place, ignore_errors=True)
            return None

    def keep(self, made: CompiledPlan) -> None:
        """Keep a plan, and drop the oldest ones beyond the limit."""
        save_plan(made.plan, self.folder / self.key)
        made.kept = self.folder / self.key
        _trim(self.folder)


def plan_key(graph: Graph, spec: Spec, target: Target, options: CompileOptions, selector: MeasuredSelector) -> str:
    """Return the key of everything that a tuned plan depends on."""
    libraries = installed_libraries() if selector.settings.libraries else ()
    asked = (options.mode, options.precision, *map(repr, (options.debug, options.memory, selector.settings, libraries)))
    return cache_key([*_facts(graph, spec, target), *asked])


def _facts(graph: Graph, spec: Spec, target: Target) -> Iterator[str | bytes]:
    """Yield what every plan depends on."""
    yield from target_facts(target)
    yield print_graph(graph)
    yield repr(sorted(spec.texts.items()))
    yield from _weights(graph)


def target_facts(target: Target) -> Iterator[str]:
    """Yield what every plan for a target depends on, whatever it computes."""
    yield compiler_digest()
    yield repr(target)
    yield repr(sorted(machine_of(target).items()))


def find_plan(name: str, target: Target) -> CompiledPlan | None:
    """Return the plan that is kept under a name."""
    folder = _folder()
    return None if folder is None else PlanCache(folder, name, target).find()


def keep_wrong(made: CompiledPlan) -> Path | None:
    """Keep a plan that computes wrong results apart, for whoever looks for the reason; return its folder, nothing where
    it cannot be kept.
    """
    folder = _folder()
    if folder is None:
        return None
    place = folder / f"wrong-{cache_key([made.name, *(kernel.source for kernel in made.kernels)])}"
    try:
        save_plan(made.plan, place)
        _trim(folder)
    except CutsError:
        return None
    return place


def _weights(graph: Graph) -> Iterator[str | bytes]:
    """Yield what tells weights from others; digests of hundreds of megabytes are computed by all cores."""
    state = {f"state {name}": tensor.initial for name, tensor in graph.interface.state.items()}
    named = sorted({**graph.constants, **state}.items())
    with ThreadPoolExecutor(cores()) as pool:
        for (name, array), digest in zip(named, pool.map(_digest, (array for _, array in named)), strict=True):
            yield f"{name} {array.dtype.str} {array.shape}"
            yield digest


def _digest(array: Array) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


def _folder() -> Path | None:
    root = cache_root()
    return None if root is None else private_folder(root / "plans")


def _plans(folder: Path) -> list[Path]:
    """Return the kept plans, the newest first; other processes add and delete some meanwhile."""
    found = []
    for path in folder.iterdir():
        try:
            status = path.stat()
        except OSError:
            continue
        found += [(-status.st_mtime, path)] if S_ISDIR(status.st_mode) else []
    return [path for _, path in sorted(found)]


def _size(plan: Path) -> int:
    return sum(file_size(Path(place, name)) for place, _, names in os.walk(plan) for name in names)


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
