"""Einstein summation as steps of our `einsum`, two operands at a time, from the left."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from ..ir import GraphError

Shape = tuple[int, ...]


@frozen
class EinsumStep:
    """One `einsum` of the vocabulary: labels of both operands as numbers, the result's labels first."""

    left: tuple[int, ...]
    right: tuple[int, ...] | None
    sizes: tuple[int, ...]
    results: int


def einsum_steps(equation: str, shapes: Sequence[Shape]) -> list[EinsumStep]:
    """Return the steps of an equation: the first takes operands 0 and 1, each later one the result so far and the next
    operand.

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
        later = set(output).union(*terms[number + 1 :])
        seen = list(dict.fromkeys(left + (right or [])))
        kept = output if number >= len(terms) - 1 else [label for label in seen if label in later]
        order = [*kept, *(label for label in seen if label not in kept)]
        place = {label: n for n, label in enumerate(order)}
        numbers = None if right is None else tuple(place[label] for label in right)
        steps.append(
            EinsumStep(
                tuple(place[label] for label in left), numbers, tuple(sizes[label] for label in order), len(kept)
            )
        )
        left = kept
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
    wide = 0
    for part, rank in zip(parts, ranks, strict=True):
        head, dots, tail = part.partition("...")
        hidden = rank - len(head) - len(tail)
        if hidden < 0 or (hidden and not dots):
            raise GraphError(f"einsum '{equation}': '{part}' does not fit an operand of {rank} axes")
        wide = max(wide, hidden)
        terms.append([*head, *(f".{n}" for n in reversed(range(hidden))), *tail])
    spread = [f".{n}" for n in reversed(range(wide))]
    if not arrow:
        letters = [c for c in left if c.isalpha()]
        return terms, spread + sorted(c for c in set(letters) if letters.count(c) == 1)
    head, dots, tail = right.partition("...")
    output = [*head, *(spread if dots else []), *tail]
    unknown = [label for label in output if not any(label in term for term in terms)]
    if unknown or len(set(output)) < len(output):
        raise GraphError(f"einsum '{equation}': each label of the result must be one of an operand's, once")
    return terms, output
