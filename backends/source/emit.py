"""Emission of kernels as source and launchable functions (DeepCuts section 6.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from attrs import evolve

from ...ir import (
    WAITING_SUFFIX,
    Argument,
    HorizontalKernel,
    InternalError,
    Kernel,
    KernelFunction,
    SharedBuffer,
    indirects,
    phases,
    post_order,
)
from ...ir.dfg import buffer_accesses, own_indices
from .atomics import combining_helpers
from .body import body_text, declare_shared
from .dialect import DIALECTS, Dialect
from .horizontal_kernel import kernel_arguments, kernel_body
from .index_ctext import PointerName
from .scope import Writer


def emit(
    kernel: Kernel | HorizontalKernel, dialect_name: str, info: Mapping[str, object] | None = None
) -> KernelFunction:
    """Return the function of an extracted kernel, or of several.

    Several share a launch. Its name is a digest of its text, so equal kernels are equal; `with_label` adds operations.
    Raises `InternalError` where kernels cannot share one.
    """
    dialect = DIALECTS[dialect_name]
    if isinstance(kernel, Kernel) and not dialect.cluster:
        kernel = _single_block(kernel)
    members = (kernel,) if isinstance(kernel, Kernel) else kernel.kernels
    if isinstance(kernel, HorizontalKernel):
        if not kernel.legal:
            raise InternalError("kernels with clusters, tensor maps or unequal barriers share a launch")
        arguments = kernel_arguments(kernel, _arguments)
        body, used = kernel_body(kernel, dialect, _arguments, _dynamic(kernel, dialect))
    else:
        arguments = _arguments(kernel)
        body, used = _body(kernel, dialect, arguments)
    if dialect.begin:
        body, used = f"  {dialect.begin}();\n{body}", used | {dialect.begin}
    least = min(member.min_blocks for member in members)
    alone = isinstance(kernel, HorizontalKernel) or not dialect.map_parameter
    threads = kernel.threads if alone else kernel.launched_threads
    cluster = 1 if isinstance(kernel, HorizontalKernel) else kernel.cluster
    spread = cluster if dialect.cluster else 1
    head = _head(threads * cluster // spread, least, dialect, arguments, spread)
    maps = "".join(repr(argument.map) for argument in arguments if argument.map)
    digest = hashlib.sha256((head + body + maps).encode()).hexdigest()[:16]
    name = f"cuts_{digest}{WAITING_SUFFIX if dialect.begin else ''}"
    combining, more = combining_helpers(used, dialect)
    source = (
        f"{dialect.prologue}{dialect.helpers_of(used | more)}{combining}{head.replace(_NAME, name)} {{\n{body}\n}}\n"
    )
    return KernelFunction(
        name=name,
        dialect=dialect.name,
        source=source,
        grid=(_launched_blocks(kernel) * spread // cluster, 1, 1),
        block=(threads * cluster // spread, 1, 1),
        arguments=arguments,
        shared_bytes=kernel.shared_bytes - _dynamic(kernel, dialect),
        dynamic_shared=_dynamic(kernel, dialect),
        info=dict(info or {}),
    )


_NAME = "CUTS_KERNEL_NAME"
#: The shared buffer of reductions across lanes.
LANE_SCRATCH = "lanes"


def _arguments(kernel: Kernel) -> tuple[Argument, ...]:
    """Return the parameters in order: tensor maps, written tensors, read tensors."""
    maps = [Argument(m.tensor, m.dtype, False, map=m) for m in kernel.maps]
    written = [Argument(t, kernel.dtypes[t], True) for t in kernel.writes]
    mapped = {m.tensor for m in kernel.maps} - (_loaded_tensors(kernel) if maps else set())
    read = [Argument(t, kernel.dtypes[t], False) for t in kernel.reads if t not in kernel.writes and t not in mapped]
    return (*maps, *written, *read)


def _loaded_tensors(kernel: Kernel) -> set[str]:
    """Return the tensors that threads read by their addresses."""
    nodes = post_order(root for phase in phases(kernel.items) for root in phase.roots)
    found = set[str]()
    for node in nodes:
        found |= {a.buffer for a in buffer_accesses(node) if a.space == "global"}
        found |= {i.tensor for index in own_indices(node) for i in indirects(index) if not i.held}
    return found


def _launched_blocks(kernel: Kernel | HorizontalKernel) -> int:
    return kernel.blocks if isinstance(kernel, HorizontalKernel) else kernel.launched or kernel.blocks


def _blocks_memory(
    kernel: Kernel, shared: Sequence[SharedBuffer], dialect: Dialect
) -> tuple[Sequence[SharedBuffer], list[str]]:
    """Return a kernel's shared memory, and pointers to that of each block of a cluster where one block has all of it.

    All of them use the scratch of lanes together.
    """
    if kernel.cluster == 1 or dialect.cluster:
        return shared, []
    own = [b for b in shared if b.name != LANE_SCRATCH]
    block, names, lines = f"{dialect.thread_index} / {kernel.threads}", {b.name: f"{b.name}_blocks" for b in own}, []
    for buffer in own:
        kind, each = dialect.memory_type(buffer.dtype), buffer.elements // kernel.cluster
        first = f"{names[buffer.name]} + {block} * {each}"
        lines.append(f"{dialect.spaces['shared']}{kind}* const {buffer.name} = {first};")
    return [evolve(b, name=names.get(b.name, b.name)) for b in shared], lines


def _single_block(kernel: Kernel) -> Kernel:
    """Return a kernel whose block has the threads of a cluster, with the shared memory of all its blocks."""
    return evolve(kernel, shared=tuple(evolve(b, elements=b.elements * kernel.cluster) for b in kernel.shared))


def _head(threads: int, min_blocks: int, dialect: Dialect, arguments: tuple[Argument, ...], cluster: int = 1) -> str:
    params = [_parameter(argument, f"p{n}", dialect) for n, argument in enumerate(arguments)]
    least = f", {min_blocks}" if min_blocks else ""
    attribute = dialect.cluster.format(blocks=cluster) if cluster > 1 else ""
    return dialect.kernel.format(
        threads=threads, min_blocks=least, name=_NAME, params=", ".join(params), cluster=attribute
    )


def _parameter(argument: Argument, name: str, dialect: Dialect) -> str:
    if argument.map is not None and dialect.map_parameter:
        return dialect.map_parameter.format(name=name)
    const = "" if argument.written else "const "
    return dialect.pointer.format(const=const, type=dialect.memory_type(argument.dtype), name=name)


def _body(kernel: Kernel, dialect: Dialect, arguments: tuple[Argument, ...]) -> tuple[str, frozenset[str]]:
    """Return the text of a kernel's body, and the names that it uses."""
    pointers = {a.tensor: PointerName(f"p{n}", a.dtype) for n, a in enumerate(arguments) if a.map is None}
    maps = {a.map.name: f"p{n}" for n, a in enumerate(arguments) if a.map is not None}
    text = body_text(kernel, dialect, pointers, dialect.block_index, maps=maps)
    head = Writer(dialect, depth=1)
    if dialect.base:
        for number in range(len(arguments)):
            head.line(dialect.base.format(name=f"p{number}"))
    head.lines += text.constants
    scratch = [dialect.atom_scratch.format(count=text.words)] if text.words else []
    shared, own = _blocks_memory(kernel, text.shared, dialect)
    for line in (*scratch, *declare_shared(shared, dialect, _dynamic(kernel, dialect)), *own):
        head.line(line)
    return "\n".join([*head.lines, *text.lines]), text.used | head.used


def _dynamic(kernel: Kernel | HorizontalKernel, dialect: Dialect) -> int:
    """Return the dynamic shared bytes: all of them where they exceed the limit of a declaration, else none."""
    return kernel.shared_bytes if dialect.shared_pool and kernel.shared_bytes > dialect.static_shared else 0
