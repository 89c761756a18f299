"""Kernels of all launches: lowered to blocks, extracted to threads, printed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from attrs import evolve

from ..ir import HorizontalKernel, KernelFunction, naming_faults, quote
from .assemble import launch_facts
from .context import CompileContext
from .costs import Keys
from .fusion import Group
from .instructions import select_instructions
from .lowering import extract, lower
from .results import Launches, LaunchKernels, kernel_key

T = TypeVar("T")
S = TypeVar("S")


def lower_blocks(previous: Launches, context: CompileContext) -> LaunchKernels:
    """Return the block-level kernels that no other process has built."""
    scheduled, target = previous.scheduled, context.target
    views, unique = scheduled.partition.views, scheduled.partition.unique
    launches = {_keys(launch, previous): launch for launch in previous.launches}
    built = _built_functions(launches, previous, context)
    needed = {key for keys in launches if keys not in built for key in keys}
    rest = {key: group for key, group in unique.items() if key in needed}
    blocks = _map_kernels(
        rest, lambda key, g: lower(g.form, scheduled.chosen[key].schedule, g.storages(views), target), previous
    )
    return LaunchKernels(previous, built, blocks)


def _keys(launch: Sequence[Group], launches: Launches) -> Keys:
    return tuple(kernel_key(group, launches.scheduled.partition.views) for group in launch)


def _built_functions(
    launches: Mapping[Keys, Sequence[Group]], previous: Launches, context: CompileContext
) -> Mapping[Keys, KernelFunction]:
    """Return kernels that others have built or build now; none where the options show or verify stages."""
    if context.options.verifies_stages or context.options.shows:
        return {}
    chosen, views = previous.scheduled.chosen, previous.scheduled.partition.views
    members = {
        keys: [(g.form, g.storages(views), chosen[key]) for g, key in zip(launch, keys, strict=True)]
        for keys, launch in launches.items()
    }
    return context.executor.build(members)


def extract_threads(previous: LaunchKernels, context: CompileContext) -> LaunchKernels:
    """Return the thread-level kernel of each distinct kernel."""
    threads = _map_kernels(previous.blocks, lambda _, kernel: extract(kernel), previous.launches)
    return evolve(previous, threads=threads)


def select_kernels(previous: LaunchKernels, context: CompileContext) -> LaunchKernels:
    """Return the thread-level kernels over the instructions of the target's dialect."""
    dialect = context.target.dialect
    threads = _map_kernels(previous.threads, lambda _, kernel: select_instructions(kernel, dialect), previous.launches)
    return evolve(previous, threads=threads)


def emit_sources(previous: LaunchKernels, context: CompileContext) -> LaunchKernels:
    """Return the source of each distinct launch, those of one kernel first.

    Names are made of this graph's operations; `FusedGroup.operations` may be those of an equal group of another one.
    """
    launches, partition = previous.launches, previous.launches.scheduled.partition
    wanted = dict.fromkeys(_keys(launch, launches) for launch in launches.launches)
    alone = [(key,) for key in partition.unique if (key,) in wanted]
    together = [keys for keys in wanted if len(keys) > 1]
    ops = {unit.name: unit.op for unit in partition.views.programs.every_unit}
    operations = {key: [ops[name] for name in group.units] for key, group in partition.unique.items()}
    functions = {
        keys: _source(keys, previous, context).with_label(op for key in keys for op in operations[key])
        for keys in (*alone, *together)
    }
    return evolve(previous, functions=functions)


def _source(keys: Keys, previous: LaunchKernels, context: CompileContext) -> KernelFunction:
    facts = launch_facts([previous.launches.scheduled.chosen[key] for key in keys], context.target)
    if keys in previous.built:
        return evolve(previous.built[keys], info=dict(facts))
    kernels = tuple(previous.threads[key] for key in keys)
    kernel = kernels[0] if len(kernels) == 1 else HorizontalKernel(kernels)
    with naming_faults(_fault_place(keys, previous.launches)):
        return context.emit(kernel, context.target.dialect, facts)


def _map_kernels(
    values: Mapping[Hashable, S], step: Callable[[Hashable, S], T], launches: Launches
) -> dict[Hashable, T]:
    """Apply a step to each distinct kernel; a fault names the nodes that the kernel computes."""
    found: dict[Hashable, T] = {}
    for key, value in values.items():
        with naming_faults(_fault_place((key,), launches)):
            found[key] = step(key, value)
    return found


def _fault_place(keys: Keys, launches: Launches) -> str:
    """Return the units that a launch computes, as the place of a fault."""
    unique = launches.scheduled.partition.unique
    return f"units {', '.join(quote(unit) for key in keys for unit in unique[key].units)}"
