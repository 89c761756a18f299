"""Constants that stay packed, and operations that widen them in their readers.

    const %q: i8[4096, 4096], %s: f32[4096]        is left as it is: a constant %w has four times the bytes,
    %w: f32[4096, 4096] = dequantize(%q, %s)       and the product computes its elements as it fetches them
    %y: f32[1, 4096] = matmul(%x, %w)

Operations widen constants where all are pointwise, few instructions long, and leave more bytes than they read, because
the numbers that they read have at most two bytes each. A chain of them (a conversion, a subtraction, a product, a
transposition) counts from the constants at its beginning. An operation of widened values that is no such operation, for
instance a sum, has a constant result, computed from them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from ...ir import Array, Statement, TensorType
from ..statements import issue_slots

#: Least bytes of a result that may stay packed.
MIN_BYTES = 1 << 12
#: Most bytes of a packed number, and most issue slots between it and its reader: a product computes an operand of so
#: many again for each fetch.
MAX_NUMBER_BYTES, MAX_ISSUE_SLOTS = 2, 16


@frozen
class Widened:
    """Value computed from constants.

    `sources` are their names, `slots` the issue slots of an element; `compute` returns arrays.
    """

    sources: frozenset[str]
    slots: int
    compute: Callable[[], Mapping[str, Array]]


@define
class PackedConstants:
    """Known values of a graph: `constants`, and values `widened` from them.

    Arrays of the latter are computed on demand.
    """

    constants: dict[str, Array]
    types: Mapping[str, TensorType]
    widened: dict[str, Widened] = field(factory=dict)
    computed: dict[str, Array] = field(factory=dict)

    def knows(self, tensors: Collection[str]) -> bool:
        """Return whether all tensors are constants or widened constants."""
        return all(t in self.constants or t in self.widened for t in tensors)

    def array(self, tensor: str) -> Array:
        """Return the elements of a known tensor."""
        if tensor in self.constants:
            return self.constants[tensor]
        if tensor not in self.computed:
            self.computed.update(self.widened[tensor].compute())
        return self.computed[tensor]

    def widen(
        self,
        statements: Sequence[Statement],
        reads: Collection[str],
        writes: Collection[str],
        compute: Callable[[], Mapping[str, Array]],
    ) -> bool:
        """Record the results of statements that widen constants; return whether they do.

        `reads` are known tensors.
        """
        sources, slots = set[str](), issue_slots(*(s.body for s in statements))
        for tensor in reads:
            widened = self.widened.get(tensor)
            sources |= widened.sources if widened else {tensor}
            slots += widened.slots if widened else 0
        results = [self.types[t] for t in writes]
        bytes_after = sum(t.nbytes for t in results)
        packed = [self.types[t] for t in sources if _holds_numbers(self.types[t])]
        wider = sum(t.nbytes for t in packed) * 8 >= sum(t.size for t in results)
        wider = wider and all(any(t.dtype.size > p.dtype.size for p in packed) for t in results)
        found = (
            wider
            and MIN_BYTES <= bytes_after > sum(self.types[t].nbytes for t in sources)
            and slots <= MAX_ISSUE_SLOTS
            and all(s.is_pointwise and s.step is None for s in statements)
            and not all(self._is_repeated(t) for t in sources)
        )
        if found:
            self.widened.update(dict.fromkeys(writes, Widened(frozenset(sources), slots, compute)))
        return found

    def _is_repeated(self, tensor: str) -> bool:
        """Return whether a constant is one number: its reader takes the widened number."""
        values = self.constants[tensor]
        return values.size > 0 and repeated_number(values) is not None


def repeated_number(values: Array) -> Any:
    """Return the number that all elements are, else None."""
    first = values.flat[0]
    return first.item() if values.flat[-1] == first and bool((values == first).all()) else None


def _holds_numbers(type_: TensorType) -> bool:
    return type_.dtype.size <= MAX_NUMBER_BYTES and (type_.dtype.is_float or type_.dtype.is_int)
