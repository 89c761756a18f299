"""Einstein summation as steps of the vocabulary's `einsum`.

Each step takes two operands, from the left.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from ..ir import GraphError

Shape = tuple[int, ...]


@frozen
class EinsumStep:
    """One binary `einsum` of the vocabulary, with numbered labels.

    The labels of the result come first.
    """

    left: tuple[int, ...]
    right: tuple[int, ...] | None
    sizes: tuple[int, ...]
    results: int


def einsum_steps(equation: str, shapes: Sequence[Shape]) -> list[EinsumStep]:
    """Return the binary steps of an equation.

    The first step takes operands 0 and 1, each later one the intermediate result and the next operand.

    Raises `GraphError` where a label stands for two sizes.
    """
    terms, output = _parse(equation, [len(s) for s in shapes])
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, size in zip(term, shape, strict=True):
            known = sizes.setdefault(label, size)
            if size != 1 and known not in (1, size):
                raise GraphError(f"einsum '{equation}': label {label!r} stands for {known} and {size}")
            sizes[label] = size if known == 1 else known
    steps = []
    left = terms[0]
    for number in range(1, max(len(terms), 2)):
        right = terms[number] if number < len(terms) else None
        still_read = set(output).union(*terms[number + 1 :])
        seen = list(dict.fromkeys(left + (right or [])))
        remaining = output if number >= len(terms) - 1 else [label for label in seen if label in still_read]
        order = [*remaining, *(label for label in seen if label not in remaining)]
        place = {label: n for n, label in enumerate(order)}
        numbers = None if right is None else tuple(place[label] for label in right)
        steps.append(
            EinsumStep(
                tuple(place[label] for label in left), numbers, tuple(sizes[label] for label in order), len(remaining)
            )
        )
        left = remaining
    return steps


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Return the labels of each operand and of the result; an ellipsis becomes labels `.0`, `.1`, ... counted from the
    last axis.
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise GraphError(f"einsum '{equation}': expected {len(parts)} operands, found {len(ranks)}")
    terms: list[list[str]] = []
    ellipsis_rank = 0
    for part, rank in zip(parts, ranks, strict=True):
        head, dots, tail = part.partition("...")
        ellipsis_axes = rank - len(head) - len(tail)
        if ellipsis_axes < 0 or (ellipsis_axes and not dots):
            raise GraphError(f"einsum '{equation}': '{part}' does not fit an operand of {rank} axes")
        ellipsis_rank = max(ellipsis_rank, ellipsis_axes)
        terms.append([*head, *(f".{n}" for n in reversed(range(ellipsis_axes))), *tail])
    ellipsis_labels = [f".{n}" for n in reversed(range(ellipsis_rank))]
    if not arrow:
        letters = [c for c in left if c.isalpha()]
        return terms, ellipsis_labels + sorted(c for c in set(letters) if letters.count(c) == 1)
    head, dots, tail = right.partition("...")
    output = [*head, *(ellipsis_labels if dots else []), *tail]
    unknown = [label for label in output if not any(label in term for term in terms)]
    if unknown or len(set(output)) < len(output):
        raise GraphError(f"einsum '{equation}': each label of the result must be one of an operand's, once")
    return terms, output
