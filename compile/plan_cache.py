"""Plan cache: a model that was compiled before needs no second search.

It holds plans of finished searches, and plans of the PyTorch entry point, which a later process requests with the same
options.

The key covers everything that a plan is made from: the graph with its weights, the declarations, the target, the
machine, the settings of the search, and the compiler's version. The newest plans stay, up to a size.
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

from ..backends import cache_key, cache_root, compiler_digest, create_private_folder, file_size
from ..backends.library import installed_libraries
from ..ir import Array, CompileOptions, CutsError, Graph, Target, print_graph, processor_count
from ..runtime import load_plan, save_plan
from ..search import MeasuredSelector, machine_of
from .loading import Spec
from .plan import CompiledPlan, compile_binaries

#: Bytes of all cached plans together.
MAX_CACHED_BYTES = 4 << 30


@frozen
class PlanCache:
    """Location of one search's cached plan."""

    folder: Path
    key: str
    target: Target

    @classmethod
    def of(
        cls, graph: Graph, spec: Spec, target: Target, options: CompileOptions, selector: MeasuredSelector
    ) -> PlanCache | None:
        """Return the location of a search's plan.

        None where caching is off, or where the passes run for their printed output.
        """
        folder = _folder()
        watched = selector.audit or options.print_after or options.dump
        if folder is None or watched or selector.tuner.resources.database.path is None:
            return None
        return cls(folder, plan_key(graph, spec, target, options, selector), target)

    @classmethod
    def of_options(
        cls, graph: Graph, spec: Spec, target: Target, options: CompileOptions, *wishes: object
    ) -> PlanCache | None:
        """Return the location of the plan for given options, budget included.

        The search may be finished or not. None where caching is off.
        """
        folder = _folder()
        asked = (options.mode, options.precision, *map(repr, (options.debug, options.budget, options.memory, *wishes)))
        return None if folder is None else cls(folder, cache_key([*_facts(graph, spec, target), *asked]), target)

    def find(self) -> CompiledPlan | None:
        """Return the cached plan.

        One that is damaged or of another version is deleted.
        """
        place = self.folder / self.key
        if not place.exists():
            return None
        try:
            plan = load_plan(place)
            place.touch()
            return CompiledPlan(plan, compile_binaries(plan, self.target), cache_folder=place)
        except CutsError:
            shutil.rmtree(place, ignore_errors=True)
            return None

    def save(self, made: CompiledPlan) -> None:
        """Save a plan, and delete the oldest ones beyond the limit."""
        save_plan(made.plan, self.folder / self.key)
        made.cache_folder = self.folder / self.key
        _trim(self.folder)


def plan_key(graph: Graph, spec: Spec, target: Target, options: CompileOptions, selector: MeasuredSelector) -> str:
    """Return the key of everything that a tuned plan depends on."""
    libraries = installed_libraries() if selector.settings.libraries else ()
    asked = (options.mode, options.precision, *map(repr, (options.debug, options.memory, selector.settings, libraries)))
    return cache_key([*_facts(graph, spec, target), *asked])


def _facts(graph: Graph, spec: Spec, target: Target) -> Iterator[str | bytes]:
    """Yield the facts that every plan depends on."""
    yield from target_facts(target)
    yield print_graph(graph)
    yield repr(sorted(spec.texts.items()))
    yield from _weights(graph)


def target_facts(target: Target) -> Iterator[str]:
    """Yield the facts that every plan for a target depends on."""
    yield compiler_digest()
    yield repr(target)
    yield repr(sorted(machine_of(target).items()))


def find_plan(name: str, target: Target) -> CompiledPlan | None:
    """Return the plan that is cached under a name."""
    folder = _folder()
    return None if folder is None else PlanCache(folder, name, target).find()


def save_wrong_plan(made: CompiledPlan) -> Path | None:
    """Save a plan with wrong results in a separate folder, for diagnosis.

    Returns that folder; None where it cannot be saved.
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
    """Yield the facts that identify weights; all cores compute digests of hundreds of megabytes."""
    state = {f"state {name}": tensor.initial for name, tensor in graph.interface.state.items()}
    named = sorted({**graph.constants, **state}.items())
    with ThreadPoolExecutor(processor_count()) as pool:
        for (name, array), digest in zip(named, pool.map(_digest, (array for _, array in named)), strict=True):
            yield f"{name} {array.dtype.str} {array.shape}"
            yield digest


def _digest(array: Array) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


def _folder() -> Path | None:
    root = cache_root()
    return None if root is None else create_private_folder(root / "plans")


def _plans(folder: Path) -> list[Path]:
    """Return the cached plans, the newest first; other processes may add and delete some meanwhile."""
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
        if total > MAX_CACHED_BYTES and number:
            shutil.rmtree(plan, ignore_errors=True)


def plans_info() -> dict[str, int]:
    """Return the number of cached plans, and their bytes."""
    folder = _folder()
    plans = [] if folder is None else _plans(folder)
    return {"plans": len(plans), "bytes": sum(map(_size, plans))}


def clear_plans() -> int:
    """Delete all cached plans and return their number."""
    folder = _folder()
    plans = [] if folder is None else _plans(folder)
    for plan in plans:
        shutil.rmtree(plan, ignore_errors=True)
    return len(plans)
