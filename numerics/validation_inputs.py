"""Validation inputs: random inputs of a network with informative results.

Informative results are finite and not constant. Sums of products of standard normal numbers grow from layer to layer
where weights are inputs too, as those of a training step are; logarithms and roots are NaN on half of them. So inputs
of sums of products are scaled by the number of their terms, and where outputs are not informative all the same, another
distribution is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, prod

import numpy as np
from attrs import frozen

from ..ir import Array, Graph, Program, Read, TensorType, reads, sums_products
from ..ops import Instances
from .random_numbers import MIN_MAGNITUDE, PERIOD, product_scale


@frozen
class Distribution:
    """Distribution of random inputs.

    Numbers are normal; inputs of at most `positive` dims are positive; `factor` multiplies all.
    """

    max_positive_rank: float = -1
    factor: float = 1.0

    def scale(self, scale: float) -> float:
        """Return the factor of numbers with a given scale.

        Sums of positive numbers grow with their count, others with its square root.
        """
        return self.factor * (scale**2 if self.max_positive_rank == inf else scale)


#: Distributions in the order in which they are tried. Positive vectors have roots and logarithms, as variances must;
#: all-positive inputs avoid poles, and small ones do not overflow half types.
DISTRIBUTIONS = (Distribution(), Distribution(1), Distribution(inf), Distribution(factor=0.125), Distribution(1, 0.125))


def draw_inputs(
    types: Mapping[str, TensorType], scales: Mapping[str, float], distribution: Distribution
) -> dict[str, Array]:
    """Return deterministic random numbers for each input.

    Inputs differ from one another; integers are 0 or 1, which are valid indices everywhere.
    """
    return {
        name: _draw(
            type_, distribution.scale(scales.get(name, 1.0)), len(type_.shape) <= distribution.max_positive_rank, number
        )
        for number, (name, type_) in enumerate(types.items())
    }


def _draw(type_: TensorType, scale: float, positive: bool, seed: int) -> Array:
    generator, count = np.random.default_rng(seed), min(type_.size, PERIOD)
    if not type_.dtype.is_float:
        return np.resize(generator.integers(0, 2, count).astype(type_.dtype.numpy), type_.shape)
    values = generator.standard_normal(count, np.float32)
    values = np.abs(values) + np.float32(MIN_MAGNITUDE) if positive else values
    return np.resize((values * np.float32(scale)).astype(type_.dtype.numpy), type_.shape)


def input_scales(graph: Graph, instances: Instances) -> dict[str, float]:
    """Return input factors that keep the first sums of products near one.

    Sums with a constant operand keep their scale: training has normalised them. Factors are powers of two.
    """
    found: dict[str, float] = {}
    origin = {name: name for name in graph.inputs}
    for node in graph.nodes:
        instance = instances.of_node(node, graph)
        given = {f: v for f, v in zip(instance.inputs, node.inputs, strict=False) if f is not None and v is not None}
        for terms, tensors in _products(instance.program, given):
            own = {origin[v] for v in tensors if v in origin} - found.keys()
            if own and not any(v in graph.constants for v in tensors):
                found |= dict.fromkeys(own, product_scale(terms, len(own)))
        if _moves(instance.program) and len(node.operands) == 1 and node.operands[0] in origin:
            origin |= dict.fromkeys(node.outputs, origin[node.operands[0]])
    return found


def _products(program: Program, given: Mapping[str, str]) -> Iterator[tuple[int, set[str]]]:
    """Yield the number of products of each sum, and the values that they are made of."""
    for statement in filter(sums_products, program.statements):
        tensors = {read.tensor for read in reads(statement.body)}
        yield prod(axis.extent for axis in statement.reduce), {given[t] for t in tensors if t in given}


def _moves(program: Program) -> bool:
    """Return whether a program only moves data: its results are elements of its inputs."""
    return all(s.is_pointwise and isinstance(s.body, Read) for s in program.statements)


def permute_inputs(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return inputs with the same numbers in other places.

    Unwritten results of a run on them are then not right by accident.
    """
    return {name: np.roll(array.reshape(-1), 1).reshape(array.shape) for name, array in inputs.items()}


def perturb_arrays(arrays: Mapping[str, Array], by: float, seed: int) -> dict[str, Array]:
    """Return arrays whose floats are randomly perturbed by some share."""
    generator, found = np.random.default_rng(seed), dict(arrays)
    for name, array in arrays.items():
        if array.dtype.kind not in "biu" and array.size:
            kind = np.result_type(array.dtype, np.float32)
            factors = 1.0 + by * (generator.integers(0, 2, min(array.size, PERIOD)) * 2.0 - 1.0)
            with np.errstate(all="ignore"):
                found[name] = (array * np.resize(factors.astype(kind), array.shape)).astype(array.dtype)
    return found
