"""cuBLASLt as a peer: of the plans that its heuristics propose for a product of matrices, the fastest.

`nvmath-python` plans, times and runs it on PyTorch's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from cuts.bench.shapes import Case
from cuts.ir.errors import BackendError

#: Plans that the heuristics are asked for, and runs of each.
PLANS, RUNS = 32, 10
#: How the policies of f32 multiply; half types are multiplied as they are, and added up in f32.
_COMPUTED = {"fp32": "COMPUTE_32F_PEDANTIC", "fp32x3": "COMPUTE_32F_PEDANTIC", "tf32": "COMPUTE_32F_FAST_TF32"}

#: Operations that are a product of two matrices: the two, from the inputs of a case.
_FACTORS: Mapping[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "matmul": lambda a, b: (a, b),
    "gemm": lambda a, b: (a, b.T),  # weights of a dense layer, stored as frameworks do
}


def is_product(case: Case) -> bool:
    """Whether a case is one product of matrices."""
    return len(case.nodes) == 1 and case.nodes[0][0] in _FACTORS


def best_product(case: Case, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return a function of a case's inputs that multiplies them by the fastest plan, which is found on the given ones.

    Raises `BackendError` where nvmath-python is not installed, or has no plan.
    """
    factors = _FACTORS[case.nodes[0][0]]
    try:
        advanced: Any = import_module("nvmath.linalg.advanced")
        kind = advanced.MatmulComputeType[_COMPUTED.get(case.precision, "COMPUTE_32F")]
        product = advanced.Matmul(*factors(*inputs), options={"compute_type": kind})
        product.plan(preferences={"limit": PLANS})
        product.autotune(iterations=RUNS)
    except Exception as error:  # besides ImportError, nvmath raises errors of its own
        raise BackendError(f"cuBLASLt cannot be used: {error}", hint="pip install nvmath-python") from error

    def run(*given: Any) -> Any:
        a, b = factors(*given)
        product.reset_operands(a=a, b=b)
        return product.execute()

    return run
