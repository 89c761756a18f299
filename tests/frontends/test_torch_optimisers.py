"""Optimisers of PyTorch: operations on lists of tensors, and compiled steps."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.captured_graph import UncompiledWarning
from cuts.frontends.torch.decompositions.tensor_lists import list_operations
from cuts.tests.needs import needs_opencl


def arguments_of(operation: Any) -> list[Any]:
    """Return example arguments: lists of two elements, or values."""
    generator = torch.Generator().manual_seed(0)

    def value(kind: str) -> Any:
        tensor = torch.rand(3, 3, generator=generator) + 0.5
        known = {"Tensor": tensor, "number": 2.0, "List[number]": [2.0, 3.0], "bool": False}
        if kind == "List[Tensor]":
            return [tensor, torch.rand(3, 3, generator=generator) + 0.5]
        return known.get(kind)

    return [
        torch.tensor(0.5)
        if str(a.type) == "Tensor"
        else a.default_value
        if a.has_default_value()
        else value(str(a.type))
        for a in operation._schema.arguments
        if not a.kwarg_only
    ]


def test_lists_are_decomposed_element_by_element() -> None:
    known = list_operations()
    asked = ("add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv", "sqrt", "neg", "pow", "copy", "norm", "maximum")
    names = {str(operation).split(".")[1] for operation in known}
    assert names.issuperset(f"_foreach_{name}" for name in asked)
    for operation, decomposition in known.items():
        arguments = arguments_of(operation)
        for found, expected in zip(decomposition(*arguments), operation(*arguments), strict=True):
            torch.testing.assert_close(found, expected, equal_nan=True, msg=str(operation))


KINDS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True}, "Adam": {"amsgrad": True}, "AdamW": {}, "ASGD": {}, "RMSprop": {},
}  # fmt: skip


@needs_opencl
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_steps_equal_eager_ones(kind: str) -> None:
    torch._dynamo.reset()
    ways: list[list[Any]] = []
    more = KINDS[kind]
    for compiled in (False, True):
        parameters = [torch.nn.Parameter(torch.linspace(-1, 1, n).view(-1, 4)) for n in (8, 12)]
        optimiser = getattr(torch.optim, kind)(parameters, lr=0.1, weight_decay=0.01, foreach=True, **more)
        step = torch.compile(optimiser.step, backend=cuts_backend) if compiled else optimiser.step
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", UncompiledWarning)
            for _ in range(2):
                for each in parameters:
                    each.grad = each.detach() * 0.5 + 0.1
                step()
        ways.append(parameters)
    for found, expected in zip(*ways, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@needs_opencl
def test_clipped_step_and_mean() -> None:
    """Clipping, step and mean of the parameters are one graph."""
    ways: list[list[Any]] = []
    for compiled in (False, True):
        torch._dynamo.reset()
        parameters = [torch.nn.Parameter(torch.linspace(-1, 1, n).view(-1, 4)) for n in (8, 12)]
        means = [each.detach().clone() for each in parameters]
        optimiser = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)

        def step(parameters: Any = parameters, means: Any = means, optimiser: Any = optimiser) -> None:
            torch.nn.utils.clip_grad_norm_(parameters, 0.1)
            optimiser.step()
            torch._foreach_lerp_(means, [each.detach() for each in parameters], 0.1)

        run = torch.compile(step, backend=cuts_backend) if compiled else step
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", UncompiledWarning)
            for _ in range(2):
                for each in parameters:
                    each.grad = each.detach() * 0.5 + 0.1
                run()
        ways.append([*parameters, *means])
    for found, expected in zip(*ways, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@needs_opencl
def test_parameters_that_share_memory() -> None:
    """They are updated by PyTorch, one after the other."""
    ways: list[list[Any]] = []
    for compiled in (False, True):
        torch._dynamo.reset()
        memory = torch.linspace(-1, 1, 12)
        parameters = [torch.nn.Parameter(each) for each in (memory[:8], memory[4:])]
        optimiser = torch.optim.SGD(parameters, lr=0.1, foreach=True)
        run = torch.compile(optimiser.step, backend=cuts_backend) if compiled else optimiser.step
        for each in parameters:
            each.grad = torch.ones(8)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            run()
        assert any("share memory" in str(each.message) for each in found) == compiled
        ways.append(parameters)
    for one, other in zip(*ways, strict=True):
        torch.testing.assert_close(one, other)
