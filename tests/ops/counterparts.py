"""Counterparts of the vocabulary's operations in other libraries: a second opinion.

A counterpart has never seen a declaration. It takes the attributes of an instance and its operands, floats in double
precision, and returns a result or several; None where the library has no such use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import frozen

from ..fuzz.sweep.oracles import ORACLES, second_opinion
from .counterparts_factorisation import FACTORISATIONS, dominate
from .counterparts_indexed import COUNTS
from .counterparts_sampling import SAMPLING, onnxruntime, torchvision
from .counterparts_special import SPECIAL
from .counterparts_torch import TORCH, Array, Attributes, Counterpart, torch
from .counterparts_training import TRAINING
from .counterparts_windows import WINDOWS

#: Operations that no other library has, and why.
WITHOUT: dict[str, str] = {
    "scaled_matmul": "PyTorch rounds its results to bf16; `tests/frontends/test_float8_models.py` has exact products.",
    **{f"{kind}_{step}": f"A step of {name}, which libraries have only as a whole; the algorithm is held against conv."
       for kind, name in (("winograd", "Winograd's algorithm"), ("line", "Winograd's algorithm along a line"),
                          ("fourier", "convolution by Fourier transforms"))
       for step in ("input", "filter", "output")},
    **dict.fromkeys(("chirp", "chirp_in", "chirp_product", "chirp_out"),
                    "A step of Fourier transforms by chirps; `tests/kernels/test_fourier_passes.py` has the whole."),
    **dict.fromkeys(("attention_state", "attention_scores_gradient"),
                    "A step of training; `tests/frontends/test_torch_attention.py` has the gradients in whole."),
    **dict.fromkeys(("sort_keys", "radix_pass", "radix_numbers"),
                    "A step of long sorts; `tests/kernels/test_selection.py` has the whole."),
    **dict.fromkeys(("twiddle", "half_columns", "half_frequencies"),
                    "A step of long Fourier transforms; `tests/kernels/test_fourier_passes.py` has the whole."),
    "joined_filters": "A step of grouped convolution; `tests/fusion/test_algorithms.py` has the whole.",
    "octave_conv": "No library has octave convolution as one operation.",
    "dropout_training": "Its random numbers are a hash of its own; other generators give other numbers.",
    "dequantize": "Libraries compute it in the single precision that the declaration states; a table of exact values is"
                  " in the tests of ONNX.",
    "tensor_scatter": "The released ONNX Runtime has no kernel of it; ONNX's own evaluator is held against it.",
}  # fmt: skip


@frozen
class Departure:
    """Intended difference from a counterpart, with its reason and excluded values."""

    allowed: Callable[[Array, Array], Array]
    reason: str
    without: frozenset[str] = frozenset()


def _infinite(ours: Array, theirs: Array) -> Array:
    return np.asarray(~np.isfinite(ours) & ~np.isfinite(theirs))


def _agree_rounded(ours: Array, theirs: Array) -> Array:
    """Return where results differ by a rounding of the largest, or both overflow."""
    with np.errstate(all="ignore"):
        largest = np.abs(theirs[np.isfinite(theirs)]).max(initial=1.0)
        return _infinite(ours, theirs) | (np.abs(ours - theirs) <= 1e-6 * largest)


def _agree_factored(ours: Array, theirs: Array) -> Array:
    with np.errstate(all="ignore"):
        largest = np.abs(theirs[np.isfinite(theirs)]).max(initial=1.0)
        return _infinite(ours, theirs) | (np.abs(ours - theirs) <= 1e-12 * largest)


def _agree_cancelled(ours: Array, theirs: Array) -> Array:
    return np.asarray(_agree_factored(ours, theirs) | np.isnan(theirs))


_FACTORED_RESULTS = Departure(
    _agree_factored,
    "PyTorch factors x * a + (b - mean * a), so an infinity may meet its opposite there, and products overflow.",
    frozenset(("ends", "paired")),
)
#: Differences that are meant, by operation.
DEPARTURES: dict[str, Departure] = {
    **dict.fromkeys(("batch_norm", "batch_norm_training", "group_norm", "instance_norm"), _FACTORED_RESULTS),
    "conv_transpose": Departure(
        lambda ours, theirs: np.isnan(ours), "A tap of a filter that meets no element meets a zero, as padding is."
    ),
    **dict.fromkeys(
        ("digamma", "lgamma", "polygamma"),
        Departure(_agree_cancelled, "Near their zeros these are differences of nearly equal numbers."),
    ),
    "bessel_i": Departure(
        lambda ours, theirs: np.isnan(theirs), "PyTorch multiplies zero by infinity where the argument is infinite."
    ),
    "gelu": Departure(_agree_cancelled, "PyTorch's 1 + tanh(u) loses the digits that 1 / (1 + exp(-2 * u)) keeps."),
    "gelu_grad": Departure(_agree_cancelled, "PyTorch multiplies an infinite slope by zero, and cancels as in gelu."),
    "adam": Departure(
        _infinite,
        "PyTorch adds (g - m) * (1 - beta) to m, so an infinity may meet its opposite there, and steps overflow.",
        frozenset(("ends", "paired", "lonely")),
    ),
    "roi_align_adaptive": Departure(
        lambda ours, theirs: np.isnan(ours), "PyTorch makes an integer of a bin that is no number, as C leaves it open."
    ),
    "rotary": Departure(
        _agree_rounded,
        "ONNX Runtime computes in single precision, where products overflow and cancel.",
        frozenset(("ends", "paired")),
    ),
    "sgd_momentum": Departure(
        _agree_factored, "PyTorch adds momentum to the step in another order.", frozenset(("ends", "paired"))
    ),
    "bce_with_logits": Departure(
        _agree_factored, "PyTorch takes the logarithm of the logistic function off a score, which cancels."
    ),
    "resize_linear": Departure(_infinite, "PyTorch multiplies by a neighbour's weight of zero; here it is not read."),
}
#: Operations whose differences are known faults: the reason of each, until it is mended.
PENDING: dict[str, str] = {}
#: Operations whose counterpart computes in single precision.
SINGLE = frozenset(("shrink", "thresholded_relu", "rotary"))


def missing_requirement(op: str) -> str:
    """Return the reason against calling a counterpart; empty without one."""
    if op in ("deform_conv", "roi_align", "roi_align_adaptive") and torchvision is None:
        return "torchvision is not installed"
    if op in (*SINGLE, "reverse_sequence") and onnxruntime is None:
        return "ONNX Runtime is not installed"
    if op in OWN:
        return "" if torch is not None else "PyTorch is not installed"
    return ""


#: Counterparts that take floats in double precision; NumPy's are those of the sweep.
OWN: dict[str, Counterpart] = {**COUNTS, **FACTORISATIONS, **SAMPLING, **SPECIAL, **TORCH, **WINDOWS, **TRAINING}
#: The table; where PyTorch and NumPy both have an operation, PyTorch's own function counts.
COUNTERPARTS: dict[str, Counterpart] = {**ORACLES, **OWN}


def opinion(op: str, attributes: Attributes, operands: list[Array | None]) -> list[Array] | None:
    """Return an operation's results by its counterpart, or None without one."""
    operands = [None if o is None else np.asarray(o) for o in operands]
    if op not in OWN:
        return second_opinion(op, attributes, operands)
    wide = [o.astype(np.float64) if o is not None and o.dtype.kind not in "iub" else o for o in operands]
    with np.errstate(all="ignore"):
        found: Any = COUNTERPARTS[op](attributes, *wide)
    if found is None:
        return None
    return [np.asarray(r) for r in (found if isinstance(found, tuple) else (found,))]


# ---- operands that a counterpart takes


def _classes(arrays: dict[str, Array], attributes: Attributes) -> None:
    """Move targets into the range of classes; some are ignored."""
    target, classes = arrays["target"], max(arrays["x"].shape[1], 1)
    target[...] = target % classes
    target.reshape(-1)[:1] = attributes["ignore_index"]


def _probabilities(*names: str) -> Callable[[dict[str, Array], Attributes], None]:
    def apply(arrays: dict[str, Array], attributes: Attributes) -> None:
        for name in names:
            with np.errstate(all="ignore"):
                wide = 1 / (1 + np.exp(-arrays[name].astype(np.float64)))
            arrays[name] = np.asarray(wide).astype(arrays[name].dtype)

    return apply


def _fractions(name: str) -> Callable[[dict[str, Array], Attributes], None]:
    """Keep offsets from 0 to below 1, where the type has such numbers."""

    def apply(arrays: dict[str, Array], attributes: Attributes) -> None:
        wide = np.nan_to_num(arrays[name].astype(np.float64))
        arrays[name] = np.asarray(np.floor(np.abs(wide) % 1 * 32) / 32).astype(arrays[name].dtype)

    return apply


def _positive(*names: str) -> Callable[[dict[str, Array], Attributes], None]:
    def apply(arrays: dict[str, Array], attributes: Attributes) -> None:
        arrays.update({name: np.abs(arrays[name]) for name in names})

    return apply


def _lengths(arrays: dict[str, Array], attributes: Attributes) -> None:
    """Let bags end anywhere, empty ones among them."""
    if "lengths" in arrays:
        arrays["lengths"] = arrays["lengths"] % (arrays["indices"].shape[1] + 1)


def _distinct(arrays: dict[str, Array], attributes: Attributes) -> None:
    places = arrays["indices"]
    arrays["indices"] = np.arange(places.size)[::-1].reshape(places.shape).astype(places.dtype)


def _count_indices(arrays: dict[str, Array], attributes: Attributes) -> None:
    _positive("rate", "v")(arrays, attributes)
    arrays["step"] = np.asarray(3).astype(arrays["step"].dtype)


def _finite_scores(arrays: dict[str, Array], attributes: Attributes) -> None:
    """Keep scores finite where no mask hides them: PyTorch's kernels differ on a row of infinite scores."""
    for name in ("q", "k") if "mask" not in arrays else ():
        limit = 10.0  # small enough for scores in half precision
        arrays[name][...] = np.clip(np.nan_to_num(arrays[name].astype(np.float64)), -limit, limit)


#: Changes that make operands of any values ones that the counterpart has a meaning for.
PREPARATIONS: dict[str, Callable[[dict[str, Array], Attributes], None]] = {
    **dict.fromkeys(("nll_loss", "cross_entropy"), _classes), "bce_loss": _probabilities("x", "target"),
    "sigmoid_grad": _probabilities("y"), "embedding_bag": _lengths, "max_unpool": _distinct, "adam": _count_indices,
    "sgd": _positive("rate"), "sgd_momentum": _positive("rate"), "quantize": _positive("scale"),
    **dict.fromkeys(("solve_triangular", "cholesky"), dominate),
    "fractional_max_pool": _fractions("offsets"), "batch_norm": _positive("var"), "attention": _finite_scores,
}  # fmt: skip
