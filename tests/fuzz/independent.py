"""Graphs of another project's generator (NNSmith), as PyTorch modules.

PyTorch's results, the imported graph's and those of its kernels are compared.

NNSmith: J. Liu et al., "NNSmith: generating diverse and valid test cases for deep learning compilers", ASPLOS 2023. It
is optional: `pip install nnsmith torch`.
"""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen
from cuts.compile.build import build
from cuts.compile.plan import CompiledPlan
from cuts.frontends.torch.import_context import DTYPES
from cuts.ir.errors import BackendError, CutsError, PassError, UnknownOp, VerifyError
from cuts.ir.evaluation import saturate
from cuts.numerics.comparison import magnitude, relative_error
from cuts.ops import Registry
from torch.utils._python_dispatch import TorchDispatchMode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that it draws no pictures
    from nnsmith.abstract.dtype import DTYPE_GEN_ALL
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize import Model

from .rounding import roundings

#: Nodes of a graph at most, and milliseconds that the solver of shapes may take.
NODES, SOLVING = 8, 4000
#: Error relative to a tensor's magnitude that PyTorch, which rounds every operation, may have against exact arithmetic.
ALLOWED_ERROR = 1e-3
#: Perturbations of the operands for an explanation by rounding.
MOVES = 8


@frozen
class Seen:
    """Outcome of a graph: its operations, and the error.

    `kind` is empty without a finding, "skipped" where there is nothing to compare, "ill-posed" where rounding explains
    the difference.
    """

    operations: tuple[str, ...] = ()
    kind: str = ""
    text: str = ""
    seconds: float = 0.0


class Saturating(TorchDispatchMode):
    """PyTorch with our saturating conversions of floats to integers.

    They make 0 of NaN. PyTorch's own results for numbers outside of the integer type depend on the machine.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = DTYPES.get(kwargs.get("dtype"))
        if func is not torch.ops.aten._to_copy.default or kind is None or not kind.is_int:
            return func(*args, **kwargs)
        if not args[0].is_floating_point():
            return func(*args, **kwargs)
        return torch.from_numpy(np.array(saturate(args[0].double().numpy(), kind)).astype(kind.numpy))


class Plain(torch.nn.Module):
    """Bare instructions of a generated network.

    Its own class watches itself while it runs.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.parts = net.mlist
        self.steps = [(function, arguments, results) for function, arguments, results, _ in net.instructions]
        self.inputs, self.outputs = list(net.ir.input_var()), list(net.ir.leaf_var())

    def forward(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute all results that nothing reads."""
        values = dict(zip(self.inputs, operands, strict=True))
        for function, arguments, results in self.steps:
            made = function(*(values[name] for name in arguments))
            values |= dict(zip(results, made if isinstance(made, (tuple, list)) else [made], strict=True))
        return tuple(values[name] for name in self.outputs)


class Generator:
    """Worker service that draws graphs by seed and checks them."""

    def __init__(self) -> None:
        os.nice(5)
        warnings.simplefilter("ignore")
        self.kind = Model.init("torch", backend_target="cpu")
        self.kind.add_seed_setter()
        self.operators = list(self.kind.operators())
        self.types = [dtype for dtype in DTYPE_GEN_ALL if "complex" not in str(dtype)]

    def check(self, target: str, seed: int) -> Seen:
        """Check the graph of a seed."""
        start = time.monotonic()
        try:
            made = self._draw(seed)
        except Exception as error:  # its own, or its solver's
            return Seen(kind="skipped", text=f"NNSmith: {error}"[:200], seconds=time.monotonic() - start)
        net, operands = made
        names = tuple(type(op).__name__ for _, _, _, op in net.instructions)
        kind, text = self._judge(Plain(net).eval(), operands, target)
        return Seen(names, kind, text[:1500], time.monotonic() - start)

    def _draw(self, seed: int) -> tuple[Any, list[torch.Tensor]]:
        made = model_gen(
            opset=self.operators, method="symbolic-cinit", seed=seed, max_nodes=NODES, timeout_ms=SOLVING,
            max_elem_per_tensor=4000, dtype_choices=self.types,
        )  # fmt: skip
        net = self.kind.from_gir(made.make_concrete()).native_model
        torch.manual_seed(seed)
        return net, list(net.get_random_inps().values())

    def _judge(self, module: Plain, operands: Sequence[torch.Tensor], target: str) -> tuple[str, str]:
        try:
            with torch.no_grad(), Saturating():
                expected = [value.numpy() for value in module(*operands)]
        except RuntimeError as error:
            return "skipped", f"PyTorch: {error}"
        try:
            plan = build(module, tuple(operands), target=target)
            given = dict(zip(plan.inputs, (x.numpy() for x in operands), strict=True))
            exact = plan.reference(given)
        except (UnknownOp, NotImplementedError) as error:
            return "skipped", f"{type(error).__name__}: {error}"
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            refused = isinstance(error, CutsError) and not isinstance(error, (PassError, VerifyError, BackendError))
            kind = "refused" if refused else type(error).__name__
            return kind, f"{os.path.basename(where.filename)}:{where.name}: {error}"
        if text := _difference(exact, expected, module, operands):
            return "import", text
        wrong = [result for result in plan.verify(given) if not result.ok]
        if not wrong:
            return "", ""
        kind = "ill-posed" if _is_explained(plan, given, exact) else "difference"
        return kind, "; ".join(result.text for result in wrong)


def _is_explained(plan: CompiledPlan, given: Mapping[str, Any], exact: Mapping[str, Any]) -> bool:
    """Return whether kernels give, where they are not exact, results of declarations that are evaluated in single
    precision and round the stored values, of these operands or of some that are off by a rounding error: an overflow of
    half precision, or the order of two nearly equal numbers.
    """
    assert plan.plan.model is not None, "a plan that was just built has its model"
    graph = plan.plan.model.graph
    narrow = list(roundings(graph, Registry.builtin(), given, MOVES))
    for name, found in plan.run(given).items():
        truths = (exact[name], *(each[name] for each in narrow))
        near = [relative_error(found, truth, magnitude(exact[name])) for truth in truths]
        if not (np.min(near, axis=0) <= ALLOWED_ERROR).all():
            return False
    return True


def _difference(
    exact: Mapping[str, Any], expected: Sequence[Any], module: Plain, operands: Sequence[torch.Tensor]
) -> str:
    """Return where the imported graph means something else than PyTorch computes, in its precision or in doubles."""
    try:
        wide = [x.double() if x.dtype.is_floating_point else x for x in operands]
        with torch.no_grad(), Saturating():
            doubles = [value.numpy() for value in module.double()(*wide)]
    except RuntimeError:
        doubles = list(expected)
    for (name, found), single, double in zip(exact.items(), expected, doubles, strict=False):
        if found.shape != single.shape:
            return f"{name}: shape {found.shape}, expected {single.shape}"
        truths = (single, _rounded_to(double, found.dtype))
        errors = [relative_error(found, truth, magnitude(truth)) for truth in truths]
        if not (np.minimum(*errors) <= ALLOWED_ERROR).all():
            at = np.unravel_index(int(np.argmax(np.minimum(*errors))), found.shape)
            return f"{name}{[int(n) for n in at]}: found {found[at]}, expected {single[at]} ({double[at]})"
    return ""


def _rounded_to(truth: Any, dtype: np.dtype[Any]) -> Any:
    """Return numbers in which those beyond the range of a type are infinite, as they are where the type holds them."""
    with np.errstate(over="ignore"):
        held = truth.astype(dtype)
    return np.where(np.isinf(held), held.astype(truth.dtype), truth) if truth.dtype.kind == "f" else truth
