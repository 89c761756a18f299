"""Plan cache: a model that was compiled before needs no second search.

It holds plans of finished searches, and plans of the PyTorch entry point and of `cuts.build`, which a later process
requests with the same options. The key covers everything that a plan follows from: the graph with its weights, the
declarations, the target, the machine, the settings of the search, and the compiler's sources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from ...backends.library import installed_libraries
from ...ir import BOUND_PRUNING, Array, CompileOptions, CutsError, Graph, Target, print_graph, processor_count
from ...runtime import plan_content, plan_of_files, save_plan, write_document
from ...search import known_answers, machine_of
from ...store import EntryStore, Facts, Key, cache_root, create_private_folder, digest, digest_parts, field_facts
from ..loading import Spec
from ..plan import CompiledPlan, compile_binaries

if TYPE_CHECKING:
    from ...search import Settings, TuningSession


@frozen
class PlanCache:
    """Key of one plan in the store."""

    key: Key
    target: Target

    @classmethod
    def of(
        cls, graph: Graph, spec: Spec, target: Target, options: CompileOptions, session: TuningSession
    ) -> PlanCache | None:
        """Return the key of a search's plan.

        None where caching is off, or where the passes run for their printed output.
        """
        watched = session.audit or options.print_after or options.dump
        if cache_root() is None or watched or session.database.path is None:
            return None
        return cls(plan_key(graph, spec, target, options, session.settings), target)

    @classmethod
    def of_options(
        cls, graph: Graph, spec: Spec, target: Target, options: CompileOptions, *wishes: object
    ) -> PlanCache | None:
        """Return the key of the plan for given options, budget included.

        The search may be finished or not. None where caching is off.
        """
        if cache_root() is None:
            return None
        return cls(_key(graph, spec, target, options, budget=options.budget, wishes=repr(wishes)), target)

    def find(self) -> CompiledPlan | None:
        """Return the cached plan."""
        return find_plan(self.key.name, self.target)

    def save(self, made: CompiledPlan) -> None:
        """Save a plan as it is now."""
        files, document = plan_content(made.plan)
        store = EntryStore.open()
        content = files | {"plan.json": write_document(document)}
        store.put_later(self.key, lambda: content, sum(map(len, files.values())))
        made.cache_name = self.key.name


def plan_key(graph: Graph, spec: Spec, target: Target, options: CompileOptions, settings: Settings) -> Key:
    """Return the key of everything that a tuned plan depends on."""
    libraries = installed_libraries() if settings.libraries else ()
    return _key(graph, spec, target, options, settings=field_facts(settings), libraries=repr(libraries))


def _key(graph: Graph, spec: Spec, target: Target, options: CompileOptions, **wishes: object) -> Key:
    asked = {name: getattr(options, name) for name in ("mode", "precision", "debug", "memory", "deterministic")}
    asked |= {} if options.pruning == BOUND_PRUNING else {"pruning": repr(options.pruning)}
    content = {
        "graph": digest(print_graph(graph)),
        "declarations": digest(repr(sorted(spec.texts.items()))),
        "weights": digest_parts(_weights(graph)),
    }
    return Key("plan", content, target_facts(target), asked | wishes, graph.name)


def target_facts(target: Target) -> Facts:
    """Return the facts of a target that every plan depends on."""
    return {**field_facts(target), "machine": machine_of(target)}


def decisions_digest(target: Target, options: CompileOptions) -> str:
    """Return a digest of all decisions that a compilation may replay."""
    return digest(repr(known_answers(target))) if may_replay(target, options) else ""


def may_replay(target: Target, options: CompileOptions) -> bool:
    """Return whether a compilation may replay decisions.

    It may for a GPU, where results are cached.
    """
    passes = options.shows or options.debug
    return target.lockstep and not target.on_host and not passes and cache_root() is not None


def find_plan(name: str, target: Target) -> CompiledPlan | None:
    """Return the plan of a name; an unreadable one is set aside."""
    store = EntryStore.open()
    if (files := store.read("plan", name)) is None:
        return None
    try:
        plan = plan_of_files(files, name)
        return CompiledPlan(plan, compile_binaries(plan, target), cache_name=name)
    except CutsError as error:
        store.set_aside("plan", name, error.message)
        return None


def save_wrong_plan(made: CompiledPlan) -> Path | None:
    """Save a plan with wrong results in a separate folder, for diagnosis.

    Returns that folder; None where it cannot be saved.
    """
    root = cache_root()
    folder = root and create_private_folder(root / "wrong")
    if folder is None:
        return None
    place = folder / digest_parts([made.name, *(kernel.source for kernel in made.kernels)])
    try:
        save_plan(made.plan, place)
    except CutsError:
        return None
    return place


def _weights(graph: Graph) -> Iterator[str | bytes]:
    """Yield the facts that identify weights; all cores compute digests of hundreds of megabytes."""
    state = {f"state {name}": tensor.initial for name, tensor in graph.interface.state.items()}
    named = sorted({**graph.constants, **state}.items())
    with ThreadPoolExecutor(processor_count()) as pool:
        for (name, array), found in zip(named, pool.map(_digest, (array for _, array in named)), strict=True):
            yield f"{name} {array.dtype.str} {array.shape}"
            yield found


def _digest(array: Array) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()
