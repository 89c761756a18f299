"""Emission of kernels as source and launchable functions (DeepCuts section 6.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from ...ir import WAITING_SUFFIX, Argument, DType, HorizontalKernel, Kernel, KernelFunction
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

    Several share a launch. Its name is a digest of its text, so equal kernels are equal.
    """
    dialect = DIALECTS[dialect_name]
    members = (kernel,) if isinstance(kernel, Kernel) else kernel.kernels
    if isinstance(kernel, HorizontalKernel):
        arguments, tables = kernel_arguments(kernel, _arguments)
        body, used = kernel_body(kernel, dialect, _arguments, _dynamic(kernel, dialect))
    else:
        arguments, tables = _arguments(kernel), dict(kernel.tables)
        body, used = _body(kernel, dialect, arguments)
    if dialect.begin:
        body, used = f"  {dialect.begin}();\n{body}", used | {dialect.begin}
    least = min(member.min_blocks for member in members)
    head = _head(kernel.threads, least, dialect, arguments)
    digest = hashlib.sha256((head + body).encode()).hexdigest()[:16]
    name = f"cuts_{digest}{WAITING_SUFFIX if dialect.begin else ''}"
    combining, more = combining_helpers(used, dialect)
    source = (
        f"{dialect.prologue}{dialect.helpers_of(used | more)}{combining}{head.replace(_NAME, name)} {{\n{body}\n}}\n"
    )
    return KernelFunction(
        name=name,
        dialect=dialect.name,
        source=source,
        grid=(kernel.blocks, 1, 1),
        block=(kernel.threads, 1, 1),
        arguments=arguments,
        shared_bytes=kernel.shared_bytes - _dynamic(kernel, dialect),
        dynamic_shared=_dynamic(kernel, dialect),
        tables=tables,
        info=dict(info or {}),
    )


_NAME = "CUTS_KERNEL_NAME"


def _arguments(kernel: Kernel) -> tuple[Argument, ...]:
    """Return the parameters in order: written tensors, read tensors, tables."""
    written = [Argument(t, kernel.dtypes[t], True) for t in kernel.writes]
    read = [Argument(t, kernel.dtypes[t], False) for t in kernel.reads if t not in kernel.writes]
    return (*written, *read, *(Argument(t, DType.I32, False, table=True) for t in kernel.tables))


def _head(threads: int, min_blocks: int, dialect: Dialect, arguments: tuple[Argument, ...]) -> str:
    params = [
        dialect.pointer.format(const="" if a.written else "const ", type=dialect.memory_type(a.dtype), name=f"p{n}")
        for n, a in enumerate(arguments)
    ]
    least = f", {min_blocks}" if min_blocks else ""
    return dialect.kernel.format(threads=threads, min_blocks=least, name=_NAME, params=", ".join(params))


def _body(kernel: Kernel, dialect: Dialect, arguments: tuple[Argument, ...]) -> tuple[str, frozenset[str]]:
    """Return the text of a kernel's body, and the names that it uses."""
    pointers = {a.tensor: PointerName(f"p{n}", a.dtype) for n, a in enumerate(arguments)}
    text = body_text(kernel, dialect, pointers, dialect.block_index)
    head = Writer(dialect, depth=1)
    if dialect.base:
        for number in range(len(arguments)):
            head.line(dialect.base.format(name=f"p{number}"))
    head.lines += text.constants
    scratch = [dialect.atom_scratch.format(count=text.words)] if text.words else []
    for line in (*scratch, *declare_shared(text.shared, dialect, _dynamic(kernel, dialect))):
        head.line(line)
    return "\n".join([*head.lines, *text.lines]), text.used | head.used


def _dynamic(kernel: Kernel | HorizontalKernel, dialect: Dialect) -> int:
    """Return the dynamic shared bytes: all of them where they exceed the limit of a declaration, else none."""
    return kernel.shared_bytes if dialect.shared_pool and kernel.shared_bytes > dialect.static_shared else 0
