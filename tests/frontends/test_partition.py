"""Partition of graphs around foreign operations: few, large, convex stages."""

from __future__ import annotations

from cuts.frontends.partition import MIN_WORK, PartitionedOperation, partition
from cuts.frontends.partition import PartitionedOperation as op
from cuts.frontends.partition import PartitionStage as stage
from hypothesis import given
from hypothesis import strategies as st


def chain(sides: str, work: int = 2) -> list[PartitionedOperation]:
    """Return operations that read one another: F is foreign, v a view."""
    return [
        op((n - 1,) if n else (), side == "F", 0 if side == "v" else work, 4, n == len(sides) - 1)
        for n, side in enumerate(sides)
    ]


def sides(text: str) -> list[tuple[str, str]]:
    """Return the stages of a chain as text."""
    return [("".join(text[n] for n in s.part), "".join(text[n] for n in s.foreign)) for s in partition(chain(text))]


def test_a_chain_is_cut_at_foreign_operations() -> None:
    assert sides("abc") == [("abc", "")]
    assert sides("abFcd") == [("ab", "F"), ("cd", "")]
    assert sides("aFFbFc") == [("a", "FF"), ("b", "F"), ("c", "")]
    assert sides("FaF") == [("", "F"), ("a", "F")]


def test_views_make_no_stage() -> None:
    assert sides("aFvFb") == [("a", "FvF"), ("b", "")]
    assert sides("vFa") == [("", "vF"), ("a", "")]
    assert sides("aFv") == [("a", "Fv")]
    assert sides("avFvb") == [("av", "F"), ("vb", "")]
    assert [s.part for s in partition(chain("aF", work=1))] == [()]


def test_a_light_branch_joins_foreign_readers() -> None:
    # F, view, heavy reader of the view, F reader of the view, heavy reader of both
    operations = [
        op((), True), op((0,), work=0), op((1,), work=5),
        op((1,), True), op((2, 3), work=5, returned=True),
    ]  # fmt: skip
    assert partition(operations) == (stage((), (0, 1, 3)), stage((2, 4), ()))


def test_parallel_branches_share_a_stage() -> None:
    operations = [
        op((), work=2), op((), work=2), op((0,), True), op((1,), True),
        op((2,), work=2, returned=True), op((3,), work=2, returned=True),
    ]  # fmt: skip
    assert partition(operations) == (stage((0, 1), (2, 3)), stage((4, 5), ()))


def test_an_operation_is_computed_beside_its_reader() -> None:
    """Delay an operation whose operand crosses anyway."""
    operations = [
        op((), work=2, nbytes=8), op((0,), True, nbytes=8), op((0,), work=2, nbytes=8),
        op((1, 2), work=2, nbytes=8, returned=True),
    ]  # fmt: skip
    assert partition(operations) == (stage((0,), (1,)), stage((2, 3), ()))
    operations = [  # a smaller result crosses where its operand would have to otherwise
        op((), work=2, nbytes=8), op((0,), work=2, nbytes=2), op((1,), True, nbytes=2),
        op((0,), work=2, nbytes=4), op((2, 3), work=2, nbytes=8, returned=True),
    ]  # fmt: skip
    assert partition(operations) == (stage((0, 1, 3), (2,)), stage((4,), ()))


def test_foreign_operations_keep_a_given_order() -> None:
    operations = [
        op((), work=2), op((0,), True), op((), True, after=(1,)),
        op((1, 2), work=2, returned=True),
    ]  # fmt: skip
    assert partition(operations) == (stage((0,), (1, 2)), stage((3,), ()))


@st.composite
def graphs(draw: st.DrawFn) -> list[PartitionedOperation]:
    """Draw operations that read earlier ones."""
    found: list[PartitionedOperation] = []
    for number in range(draw(st.integers(1, 24))):
        reads = draw(st.lists(st.integers(max(0, number - 6), number - 1), max_size=3)) if number else []
        foreign, work = draw(st.integers(0, 3)) == 0, draw(st.integers(0, 2))
        found.append(op(tuple(reads), foreign, work, draw(st.integers(0, 9)), draw(st.integers(0, 5)) == 0))
    return found


@given(graphs())
def test_stages_run_in_order_and_are_worth_compiling(operations: list[PartitionedOperation]) -> None:
    stages = partition(operations)
    done: set[int] = set()
    for number, found in enumerate(stages):
        for group in (found.part, found.foreign):
            for each in group:
                assert set(operations[each].reads) <= done | set(group[: group.index(each)])
            done |= set(group)
        assert not any(operations[each].foreign for each in found.part)
        assert not found.part or sum(operations[each].work for each in found.part) >= MIN_WORK
        assert found.part or number == 0
    assert len(done) == len(operations)
    # the longest alternation of compiled and foreign operations bounds the number of parts
    level: list[int] = []
    for operation in operations:
        level.append(
            max((level[r] + (operations[r].foreign and not operation.foreign) for r in operation.reads), default=0)
        )
    assert sum(bool(each.part) for each in stages) <= max(level) + 1
