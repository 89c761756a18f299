"""Dialect: the texts in which a source language differs."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping

from attrs import field, frozen

from ....ir import DType, Index, SharedMatrixLayout
from .atomic_text import Atomics
from .vectors import Vectors


@frozen(kw_only=True)
class Dialect:
    """One source language.

    `types` names register types, `storage` the types of memory elements where they differ. `load`/`store` convert
    between the two for types that need it ({p} pointer, {i} element, {v} value), and `round` rounds a value in a
    register to its type; `shared_bits` names the substitutes of memory types that no shared variable may have.
    `vectors` has the vector accesses of element types, `instructions` the text of the rows of `ir.INSTRUCTIONS`.
    `spaces` qualifies pointers to memory of a kind, `warp` is the number of lanes that exchange values by `shuffle`, or
    read that of a thread by `shuffle_from`. `meeting_counter` is the type of a loop's counter where threads synchronise
    in the loop, `meeting_end` the text after every condition on the block where they synchronise under one of them,
    `begin` the helper that a kernel calls first, `cluster` the attribute of thread block clusters; where it is empty,
    one block has the threads of all of them. `map_parameter` declares a tensor map; where it is empty there are
    none, and pointers take their places. Other fields are text templates, `member_...` those of kernels that
    share a launch; `math_suffix` is appended to the math functions of f32. `register_load` reads 32 bits of adjacent
    elements at once. A matrix instruction gets registers of its C as `atom_result`; where lanes synchronise for it
    (`atoms_meet`), they use `atom_scratch`.
    """

    name: str
    prologue: str = ""
    helpers: Mapping[str, str]
    kernel: str
    begin: str = ""
    pointer: str
    map_parameter: str = ""
    shared: str
    shared_pool: str = ""
    shared_part: str
    member_pool: str
    member_part: str
    member_pointer: str
    shared_bits: Mapping[str, str] = field(factory=dict)
    static_shared: int
    barrier: str
    meeting_counter: str
    meeting_end: str = ""
    cluster: str = ""
    block_index: str
    thread_index: str
    base: str = ""
    constant: str
    unroll: str = ""
    unroll_by: str = ""
    restrict_: str
    math_suffix: str = ""
    types: Mapping[str, str]
    storage: Mapping[str, str]
    spaces: Mapping[str, str]
    load: Mapping[str, str]
    store: Mapping[str, str]
    round: Mapping[str, str]
    vectors: Mapping[str, Vectors]
    instructions: Mapping[str, str]
    commit: str = ""
    wait: str = ""
    shuffle: str = ""
    shuffle_from: str = ""
    warp: int
    atomics: Atomics
    register_load: str
    atom_result: str
    atom_scratch: str = ""
    atoms_meet: bool
    fences: Mapping[str, str] = field(factory=dict)
    exchange: str
    product_wait: str = ""
    product_wait_after: str = ""
    pin: str = ""
    shared_matrix: Callable[[SharedMatrixLayout, str, Index], str]

    def helpers_of(self, used: Container[str]) -> str:
        """Return the helpers that a kernel uses, directly and indirectly."""
        wanted: set[str] = set()
        for name, text in reversed([*self.helpers.items()]):
            if name in used or name in wanted:
                wanted |= {name, *_HELPER.findall(text)}
        return "".join(f"{text}\n" for name, text in self.helpers.items() if name in wanted)

    def type(self, dtype: DType) -> str:
        """Register type of an element type."""
        return self.types[dtype.value]

    def memory_type(self, dtype: DType) -> str:
        """Type of an element in memory."""
        return self.storage.get(dtype.value, self.types[dtype.value])

    def math(self, text: str, dtype: DType) -> str:
        """Name math functions for the operands' type."""
        if self.math_suffix and dtype.arithmetic is DType.F32:
            return _MATH.sub(lambda m: f"{m.group(1)}{self.math_suffix}(", text)
        return text


_NAMES = (
    "exp expm1 log log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc lgamma atan2 hypot copysign nextafter floor ceil trunc rint pow fmod fabs"
)


_HELPER = re.compile(r"\bcuts_\w+")


_MATH = re.compile(r"\b(" + "|".join(_NAMES.split()) + r")\(")
