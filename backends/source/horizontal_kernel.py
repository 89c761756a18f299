"""Kernels that share a launch, as one text.

The grid is divided by block index.

Equal members are written once: a block looks up its member and selects the pointers of it. Different members are under
conditions that are uniform in a block, so that they may synchronise at barriers. Shared memory is one pool with the
buffers of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from attrs import evolve, frozen

from ...ir import Argument, HorizontalKernel, Kernel, SharedBuffer, has_synchronisation, member_name
from .body import BodyText, aligned_first, alignment, body_text
from .dialect import Dialect
from .index_ctext import PointerName
from .scope import Writer

#: Returns the parameters of a single kernel.
Arguments = Callable[[Kernel], tuple[Argument, ...]]


@frozen
class _Run:
    """Adjacent equal members: their kernel, the number of the first, their count, the first block, and the number of
    their first parameter.
    """

    kernel: Kernel
    member: int
    count: int
    block: int
    parameter: int


def kernel_arguments(bundle: HorizontalKernel, of: Arguments) -> tuple[Argument, ...]:
    """Return the parameters of a bundle, member after member."""
    return tuple(
        evolve(a, tensor=member_name(number, a.tensor))
        for number, kernel in enumerate(bundle.kernels)
        for a in of(kernel)
    )


def kernel_body(bundle: HorizontalKernel, dialect: Dialect, of: Arguments, dynamic: int) -> tuple[str, frozenset[str]]:
    """Return the text of a bundle's body, and its used names.

    `dynamic` is the size of the dynamic pool of shared memory, 0 where it is declared.
    """
    head, inner = Writer(dialect, depth=1), Writer(dialect, depth=1)
    runs, texts = [*_runs(bundle, of)], []
    waits = any(has_synchronisation(kernel.items) for kernel in bundle.kernels)
    for run in runs:
        texts.append(_run_text(run, bundle, dialect, of, inner))
        if waits and len(runs) > 1 and dialect.meeting_end:
            inner.line(dialect.meeting_end)
    if dialect.base:
        for number in range(len(kernel_arguments(bundle, of))):
            head.line(dialect.base.format(name=f"p{number}"))
    for line in (line for text in texts for line in text.constants):
        head.line(line.strip())
    if words := max(text.words for text in texts):
        head.line(dialect.atom_scratch.format(count=words))
    if size := max(sum(b.nbytes for b in text.shared) for text in texts):
        align = alignment(b for text in texts for b in text.shared)
        head.line((dialect.shared_pool if dynamic else dialect.member_pool).format(count=size, align=align))
    head.line(f"const int whole = {dialect.block_index};")
    used = frozenset().union(head.used, inner.used, *(text.used for text in texts))
    return "\n".join([*head.lines, *inner.lines]), used


def _runs(bundle: HorizontalKernel, of: Arguments) -> Iterator[_Run]:
    """Yield the runs of equal members."""
    member = block = parameter = 0
    for kernel, equal in groupby(bundle.kernels):
        count = len(list(equal))
        yield _Run(kernel, member, count, block, parameter)
        member, block = member + count, block + count * kernel.blocks
        parameter += count * len(of(kernel))


def _run_text(run: _Run, bundle: HorizontalKernel, dialect: Dialect, of: Arguments, out: Writer) -> BodyText:
    """Write the statements of a run's blocks, and return the parts that precede all runs."""
    own = of(run.kernel)
    prefix = f"m{run.member}p"
    pointers = {a.tensor: PointerName(f"{prefix}{n}", a.dtype) for n, a in enumerate(own)}
    block = f"whole - {run.block}" if run.block else "whole"
    if run.count > 1:
        block = f"({block}) % {run.kernel.blocks}"
    text = body_text(run.kernel, dialect, pointers, block, f"m{run.member}k")
    conditions = [f"whole >= {run.block}"] if run.block else []
    end = run.block + run.count * run.kernel.blocks
    conditions += [f"whole < {end}"] if end < bundle.blocks else []
    if run.kernel.threads < bundle.threads:
        conditions.append(f"{dialect.thread_index} < {run.kernel.threads}")
    with out.block(f"if ({' && '.join(conditions)})" if conditions else ""):
        if run.count > 1:
            out.line(f"const int which = (whole - {run.block}) / {run.kernel.blocks};")
        for number, argument in enumerate(own):
            out.line(_select_pointer(run, number, own, dialect, f"{prefix}{number}", argument))
        for line in _declarations(text.shared, dialect):
            out.line(line)
        out.lines += [f"  {line}" for line in text.lines]
    return text


def _select_pointer(
    run: _Run, number: int, own: Sequence[Argument], dialect: Dialect, name: str, argument: Argument
) -> str:
    """Return the declaration of a member's pointer, which selects the parameter of this block's member."""
    every = [f"p{run.parameter + member * len(own) + number}" for member in range(run.count)]
    value = "".join(f"which == {n} ? {p} : " for n, p in enumerate(every[:-1])) + every[-1]
    kind = "" if argument.written else "const "
    return dialect.member_pointer.format(const=kind, type=dialect.memory_type(argument.dtype), name=name, value=value)


def _declarations(buffers: Sequence[SharedBuffer], dialect: Dialect) -> Iterator[str]:
    """Yield the declarations of a member's shared buffers, adjacent in the pool."""
    offset = 0
    for buffer in aligned_first(buffers):
        yield dialect.member_part.format(type=dialect.memory_type(buffer.dtype), name=buffer.name, offset=offset)
        offset += buffer.nbytes
