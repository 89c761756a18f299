"""Exported programs that write to buffers and inputs.

Each program runs three times. Results, inputs that it writes and buffers are compared after each run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cuts
from attrs import frozen
from cuts.tests.needs import needs_opencl

pytestmark = pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides
nn = torch.nn
functional = nn.functional

#: The relative error of a few operations in single precision, each rounded twice.
ROUNDING = 32 * 2.0**-23


class Written(nn.Module):
    """A module of buffers and a function of itself and its inputs."""

    def __init__(self, buffers: dict[str, Any], function: Callable[..., Any], persistent: bool = True) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=persistent)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


@frozen
class Case:
    """Module, its inputs at each of three runs, and written buffers.

    Buffers have their names in a plan.
    """

    make: Callable[[], Any]
    inputs: Callable[[int], tuple[Any, ...]]
    state: tuple[str, ...] = ()


def vector(run: int, *shape: int) -> Any:
    """Return random elements, others for each run."""
    return torch.randn(*(shape or (4,)), generator=torch.Generator().manual_seed(run))


def zeros(*shape: int) -> Any:
    """Return zeros of single precision."""
    return torch.zeros(*(shape or (4,)))


def key_cache(module: Any, x: Any, position: Any) -> Any:
    module.keys.index_copy_(1, position, x)
    return module.keys.sum((1, 2))


def counter(module: Any, x: Any) -> Any:
    module.count.add_(1)
    return x * module.count


def slice_write(module: Any, x: Any) -> Any:
    module.rows[1:3] = x + module.rows[0:2]
    module.rows[:, 0] += 1
    return module.rows * 2


def twice(module: Any, x: Any) -> Any:
    module.a.add_(x)
    before = module.a * 2
    module.a.mul_(before)
    return before


def scatter_write(module: Any, x: Any, at: Any) -> Any:
    module.a.scatter_add_(0, at, x)
    module.b.index_put_((at,), x, accumulate=True)
    module.c.masked_fill_(x > 0, 3.0)
    return module.a + module.b


def shared_memory(module: Any, x: Any) -> Any:
    module.a.add_(x)
    return module.b + 1


def written_view(module: Any, x: Any) -> Any:
    module.b.mul_(2).add_(x[:2])
    return module.a + 1


def one_memory(size: int) -> dict[str, Any]:
    """Return two buffers of one memory, the second of its first elements."""
    whole = torch.ones(4)
    return {"a": whole, "b": whole if size == 4 else whole[:size]}


def copy_to_input(module: Any, x: Any, y: Any) -> Any:
    x.copy_(y * 2)
    return y + 1


def read_and_written(module: Any, x: Any) -> Any:
    module.last.copy_(x)
    return x + module.offset


def assignment(module: Any, x: Any) -> Any:
    module.a = module.a + x
    return module.a


def returned_write(module: Any, x: Any) -> Any:
    return module.a.add_(x)


def exchange(module: Any, x: Any) -> Any:
    a = module.a.clone()
    module.a.copy_(module.b)
    module.b.copy_(a + x)
    return module.a - module.b


def concatenation(module: Any, x: Any) -> Any:
    module.a.add_(x)
    return torch.cat([module.a, x * 2], 1)


def shift(module: Any, x: Any) -> Any:
    module.a.copy_(torch.cat([module.a[1:], x]))
    return module.a.t()


def input_and_state(module: Any, x: Any) -> Any:
    module.a.add_(x)
    x.mul_(module.a)
    return x[1:]


def statistics(module: Any, x: Any) -> Any:
    return functional.batch_norm(x, module.mean, module.var, training=True)


def attribute() -> Any:
    module = Written({}, lambda m, x: m.total.add_(x) * 2)
    module.total = torch.zeros(4)
    return module


def parameter() -> Any:
    module = Written({}, lambda m, x: m.total.add_(x) * 2)
    module.total = nn.Parameter(torch.ones(4), requires_grad=False)
    return module


def one_vector(run: int) -> tuple[Any, ...]:
    """Return one vector as the inputs of a run."""
    return (vector(run),)


CASES = {
    "key cache": Case(
        lambda: Written({"keys": zeros(1, 8, 4)}, key_cache),
        lambda run: (vector(run, 1, 1, 4), torch.tensor([run])), ("keys",)),
    "batch norm": Case(
        lambda: nn.Sequential(nn.Conv1d(3, 3, 1), nn.BatchNorm1d(3)).train(), lambda run: (vector(run, 5, 3, 2),),
        ("1.running_mean", "1.running_var", "1.num_batches_tracked")),
    "statistics alone": Case(
        lambda: Written({"mean": zeros(3), "var": zeros(3) + 1}, statistics), lambda run: (vector(run, 5, 3),),
        ("mean", "var")),
    "counter": Case(lambda: Written({"count": torch.zeros((), dtype=torch.int64)}, counter), one_vector, ("count",)),
    "small counter": Case(
        lambda: Written({"count": torch.tensor(254, dtype=torch.uint8)}, counter), one_vector, ("count",)),
    "input copied": Case(lambda: Written({}, copy_to_input), lambda run: (vector(run), vector(run + 9))),
    "slices": Case(lambda: Written({"rows": zeros(3, 4)}, slice_write), lambda run: (vector(run, 2, 4),), ("rows",)),
    "same memory": Case(lambda: Written(one_memory(4), shared_memory), one_vector, ("a",)),
    "a part of memory": Case(lambda: Written(one_memory(2), shared_memory), one_vector, ("a",)),
    "a view written": Case(lambda: Written(one_memory(2), written_view), one_vector, ("a",)),
    "read and written": Case(
        lambda: Written({"last": zeros(), "offset": zeros() + 3}, read_and_written), one_vector, ("last",)),
    "scatter": Case(
        lambda: Written({"a": zeros(), "b": zeros(), "c": zeros()}, scatter_write),
        lambda run: (vector(run), torch.tensor([0, run, 1, 3])), ("a", "b", "c")),
    "twice": Case(lambda: Written({"a": zeros() + 1}, twice), one_vector, ("a",)),
    "assigned": Case(lambda: Written({"a": zeros()}, assignment), one_vector, ("a",)),
    "returned": Case(lambda: Written({"a": zeros()}, returned_write), one_vector, ("a",)),
    "not persistent": Case(lambda: Written({"a": zeros()}, returned_write, persistent=False), one_vector, ("a",)),
    "exchanged": Case(lambda: Written({"a": zeros(), "b": zeros() + 1}, exchange), one_vector, ("a", "b")),
    "input and state": Case(lambda: Written({"a": zeros() + 1}, input_and_state), one_vector, ("a",)),
    "joined": Case(lambda: Written({"a": zeros(3, 4)}, concatenation), lambda run: (vector(run, 3, 4),), ("a",)),
    "shifted": Case(lambda: Written({"a": zeros(3, 4)}, shift), lambda run: (vector(run, 1, 4),), ("a",)),
    "truth values": Case(
        lambda: Written({"a": torch.zeros(4, dtype=torch.bool)}, lambda m, x: m.a.logical_or_(x > 1) * x), one_vector,
        ("a",)),
    "half": Case(lambda: Written({"a": zeros().half()}, lambda m, x: m.a.add_(x).float() * 2), one_vector, ("a",)),
    "attribute": Case(attribute, one_vector, ("total",)),
    "parameter": Case(parameter, one_vector, ("total",)),
    "nothing returned": Case(lambda: Written({"a": zeros()}, lambda m, x: (m.a.add_(x), None)[1]), one_vector, ("a",)),
    "empty": Case(lambda: Written({"a": zeros(0)}, lambda m, x: (m.a.add_(1), x * 2)[1]), one_vector, ("a",)),
}  # fmt: skip


def check_equal(found: Any, expected: Any) -> None:
    """Check a result against that of the program."""
    expected = np.asarray(expected.detach())
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2.0**-9 if found.dtype == np.float16 else ROUNDING, atol=ROUNDING)


def tensors(results: Any) -> list[Any]:
    """Return the tensors among the results of a program."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]


def check(plan: Any, program: Any, case: Case) -> None:
    """Run a plan and its program three times, and compare effects."""
    module = program.module()
    for run in range(3):
        given = case.inputs(run)
        found = plan.run({name: x.numpy().copy() for name, x in zip(plan.inputs, given, strict=True)})
        expected = tensors(module(*given))
        updated = [n for n in found if n.endswith(".updated")]
        results = [found[n] for n in plan.outputs if n not in updated]
        assert len(results) == len(expected)
        for ours, theirs in zip(results, expected, strict=True):
            check_equal(ours, theirs)
        before = case.inputs(run)
        changed = [n for n, x, old in zip(plan.inputs, given, before, strict=True) if not torch.equal(x, old)]
        assert updated == [f"{n}.updated" for n in changed]
        for name, x in zip(plan.inputs, given, strict=True):
            if name in changed:
                check_equal(found[f"{name}.updated"], x)
        state = plan.state
        assert set(state) == set(case.state)
        for name, value in state.items():
            check_equal(value, _attribute_of(module, name))


def _attribute_of(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


@pytest.mark.parametrize("name", CASES)
def test_three_runs_are_those_of_the_program(name: str) -> None:
    case = CASES[name]
    program = torch.export.export(case.make(), case.inputs(0))
    check(cuts.build(program, target="reference"), program, case)


@needs_opencl
@pytest.mark.parametrize("name", CASES)
def test_so_are_three_runs_of_kernels(name: str) -> None:
    case = CASES[name]
    program = torch.export.export(case.make(), case.inputs(0))
    check(cuts.build(program, target="opencl"), program, case)


def test_results_that_are_no_tensors_are_kept() -> None:
    constant = torch.arange(3.0)

    def nested_results(module: Any, x: Any) -> Any:
        y = x + 1
        return {"a": x, "b": (y, None, 3, "text", True), "c": [y, module.a, x.shape[0], -0.5, y * 2]}

    plan = cuts.build(Written({"a": constant}, nested_results), (vector(0),), "reference")
    found = list(plan.run({next(iter(plan.inputs)): vector(0).numpy()}).values())
    x = vector(0).numpy()
    expected = [x, x + 1, None, 3, "text", True, x + 1, constant.numpy(), 4, -0.5, 2 * (x + 1)]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert type(ours) is type(theirs)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: None, "returns no tensor and writes none"),
        (lambda m, x: (3, "text"), "returns no tensor and writes none"),
        (lambda m, x: (x + 1, x.sum().item()), "is not supported"),
        (lambda m, x: (m.complex.add_(x), x)[1], "input 'b_complex': element type torch.complex64"),
    ],
)
def test_other_results_and_state_are_refused(function: Any, message: str) -> None:
    module = Written({"complex": torch.zeros(4, dtype=torch.complex64)}, function)
    with pytest.raises(cuts.CutsError, match=message):
        cuts.build(torch.export.export(module, (vector(0),)), target="reference")


def test_memory_that_no_buffer_covers_is_refused() -> None:
    whole = torch.zeros(6)
    module = Written({"a": whole[:4], "b": whole[2:]}, shared_memory)
    with pytest.raises(cuts.CutsError, match="buffers 'a' and 'b' share memory that neither covers"):
        cuts.build(torch.export.export(module, (vector(0),)), target="reference")


def test_a_module_keeps_the_values_of_its_buffers() -> None:
    module = Written({"keys": zeros(1, 8, 4)}, key_cache)
    given = (torch.ones(1, 1, 4), torch.tensor([0]))
    plan = cuts.build(module, given, "reference")
    module.keys.add_(1)
    names = list(plan.inputs)
    found = [plan.run(dict(zip(names, (given[0].numpy(), [n]), strict=True))) for n in range(3)]
    assert [float(next(iter(each.values()))[0]) for each in found] == [4, 8, 12]
    assert float(module.keys.sum()) == 32


def test_gradients_of_a_program_are_results() -> None:
    experimental = pytest.importorskip("torch.export.experimental")

    class Loss(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return self.layer(x).square().sum()

    module, x = Loss(), vector(0, 2, 4)
    program = experimental._export_forward_backward(torch.export.export(module, (x,)))
    found = cuts.build(program, target="reference").run({"x": x.numpy()})
    module(x).backward()
    check_equal(found["layer.weight.gradient"], module.layer.weight.grad)
    check_equal(found["layer.bias.gradient"], module.layer.bias.grad)
