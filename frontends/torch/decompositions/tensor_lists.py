"""Operations on lists of tensors: one operation for each element.

Optimisers call them:

    _foreach_addcmul(x, y, z, v)   ->   [addcmul(x[n], y[n], z[n], value=v) for n < len(x)]

The operation of an element is that overload of the name whose arguments have the types of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

_PREFIX = "_foreach_"
#: Operations of elements by other names.
_NAMES = {"norm": ("linalg_vector_norm",), "maximum": ("maximum", "clamp_min"), "minimum": ("minimum", "clamp_max")}


@cache
def list_operations() -> dict[Any, Callable[..., list[Any]]]:
    """Return the decompositions of operations on lists."""
    return dict(_decompositions())


def _decompositions() -> Iterator[tuple[Any, Callable[..., list[Any]]]]:
    names = (name.removeprefix("aten::").split(".")[0] for name in torch._C._dispatch_get_all_op_names())
    for name in dict.fromkeys(each for each in names if each.startswith(_PREFIX) and not each.endswith("_")):
        packet, plain = getattr(torch.ops.aten, name), name.removeprefix(_PREFIX)
        single = [each for n in _NAMES.get(plain, (plain,)) for each in _overloads(getattr(torch.ops.aten, n, None))]
        for operation in (getattr(packet, overload) for overload in packet.overloads()):
            found = next(filter(None, (_elementwise(operation, each) for each in single)), None)
            if found is not None:
                yield operation, found


def _overloads(packet: Any) -> Sequence[Any]:
    return () if packet is None else [getattr(packet, overload) for overload in packet.overloads()]


def _elementwise(operation: Any, single: Any) -> Callable[..., list[Any]] | None:
    """Return an operation on lists as operations on their elements, where these have the types of `single`."""
    given, wanted = operation._schema.arguments, single._schema.arguments
    if any(argument.is_out for argument in (*given, *wanted)):
        return None
    positional = [argument for argument in wanted if not argument.kwarg_only]
    named = [argument for argument in wanted if argument.kwarg_only]
    needed = sum(not argument.has_default_value() for argument in positional)
    same = 0
    while same < min(len(given), len(positional)) and _element_type(given[same]) == str(positional[same].type):
        same += 1
    rest = given[same:]
    if same < needed or [_element_type(each) for each in rest] != [str(each.type) for each in named[: len(rest)]]:
        return None

    def decomposition(*values: Any, **options: Any) -> list[Any]:
        all_values = [*values, *(options.get(a.name, a.default_value) for a in given[len(values) :])]
        is_list = [_is_list(argument) for argument in given]
        count = next(len(value) for value, several in zip(all_values, is_list, strict=True) if several)
        found = []
        for n in range(count):
            own = [value[n] if several else value for value, several in zip(all_values, is_list, strict=True)]
            found.append(single(*own[:same], **{a.name: v for a, v in zip(named, own[same:], strict=False)}))
        return found

    return decomposition


def _is_list(argument: Any) -> bool:
    return str(argument.type) in ("List[Tensor]", "List[number]")


def _element_type(argument: Any) -> str:
    return str(argument.type)[5:-1] if _is_list(argument) else str(argument.type)
