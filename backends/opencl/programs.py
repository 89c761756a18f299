"""Kernels compiled together: one program with shared helpers.

Starting the compiler takes longer than compiling a kernel does, so kernels share a program where they can.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attrs import define, field

from ...ir import KernelFunction

_KERNEL = re.compile(r"^.*\b(?:__kernel\b|kernel\s+void\b)", re.MULTILINE)
#: Name of a definition: a macro, a function, or a table.
_NAME = re.compile(r"^#\s*define\s+(\w+)|\b(?!__attribute__)(\w+)\s*[(\[]")


@define
class KernelProgram:
    """Kernels with different names, and their definitions by name.

    A definition follows those that it uses.
    """

    definitions: dict[str, str] = field(factory=dict)
    kernels: dict[str, KernelFunction] = field(factory=dict)

    def take(self, kernel: KernelFunction) -> bool:
        """Add a kernel and return True, unless definitions conflict."""
        own = dict(_definitions(_prologue(kernel.source)))
        if kernel.name in self.kernels or any(self.definitions.get(name, text) != text for name, text in own.items()):
            return False
        self.definitions |= own
        self.kernels[kernel.name] = kernel
        return True

    @property
    def source(self) -> str:
        """Text of the program."""
        bodies = (k.source[len(_prologue(k.source)) :] for k in self.kernels.values())
        return "\n".join([*self.definitions.values(), *bodies])


def programs_of(kernels: Sequence[KernelFunction]) -> list[KernelProgram]:
    """Divide kernels into programs, as few as their names and definitions allow."""
    found: list[KernelProgram] = []
    for kernel in kernels:
        if not any(program.take(kernel) for program in found):
            found.append(KernelProgram())
            found[-1].take(kernel)
    return found


def _prologue(source: str) -> str:
    """Return the text before the first kernel: pragmas, helper functions, tables."""
    match = _KERNEL.search(source)
    return source[: match.start()] if match else ""


def _definitions(prologue: str) -> Iterator[tuple[str, str]]:
    """Yield the definitions of a prologue with their names; one without a name has its text as name."""
    lines: list[str] = []
    depth = conditions = 0
    for line in prologue.splitlines():
        lines.append(line)
        depth += line.count("{") - line.count("}")
        word = line.split()[:1]
        conditions += (word in (["#if"], ["#ifdef"], ["#ifndef"])) - (word == ["#endif"])
        if depth or conditions or line.endswith("\\") or not "".join(lines).strip():
            continue
        if lines[0].startswith("#") or line.rstrip().endswith(("}", ";")):
            text = "\n".join(lines)
            name = None if lines[0].startswith("#if") else _NAME.search(text)
            yield (name.group(1) or name.group(2)) if name else text, text
            lines = []
    if lines:
        yield "\n".join(lines), "\n".join(lines)
