"""Kernels that ask the L2 cache for what a later launch reads: a change of the text that was measured, made at the end.

The reads of a block are shared out: each of its grid asks for a part, by one instruction of one thread, and nobody
waits for what was asked for. Only what no kernel writes may be asked for, as constants are.
"""

from __future__ import annotations

import hashlib
from math import prod

from attrs import evolve

from ...ir import WAITING, Argument, DType, KernelFunction
from .dialects import DIALECTS

#: Bytes of a line of the cache: shares are whole lines.
LINE = 128
#: Bytes that a pointer and an offset of 32 bits may reach.
MOST = 1 << 31


def asking_ahead(kernel: KernelFunction, dtype: DType, nbytes: int) -> KernelFunction | None:
    """Return a kernel that does as another does, and asks for that many bytes of the tensor which is its last argument;
    nothing where its text has no place for that.
    """
    dialect = DIALECTS.get(kernel.dialect)
    if dialect is None or not dialect.ahead or not 0 < nbytes < MOST:
        return None
    number, blocks = len(kernel.arguments), prod(kernel.grid)
    params = ", ".join(
        dialect.pointer.format(const="" if a.written else "const ", type=dialect.memory_type(a.dtype), name=f"p{n}")
        for n, a in enumerate(kernel.arguments)
    )
    begin = f") {{\n  {dialect.begin}();\n"
    head = f" {kernel.name}({params}{begin}"
    if not blocks or kernel.source.count(head) != 1:
        return None
    share, size = -(-nbytes // (blocks * LINE)) * LINE, nbytes // 16 * 16
    call = f"  {dialect.ahead}(p{number}, {share}u, {size}u);\n"
    digest = hashlib.sha256((kernel.source + call).encode()).hexdigest()[:16]
    name = f"cuts_{digest}{WAITING}"
    asked = dialect.ahead_pointer.format(name=f"p{number}")
    before, behind = kernel.source.split(head)
    first, separator, entry = before.rpartition("\n")
    entry = f"{dialect.helpers[dialect.ahead]}\n{entry} {name}({params}, {asked}{begin}{call}"
    arguments = (*kernel.arguments, Argument(f"ahead{number}", dtype, False))
    return evolve(kernel, name=name, source=f"{first}{separator}{entry}{behind}", arguments=arguments)
