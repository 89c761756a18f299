"""Programs of PyTorch at sizes of their symbolic dims.

A program is exported anew for each size: PyTorch replaces every symbol by its number.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch.utils._pytree import tree_flatten, tree_unflatten

from ....ir import Dim, Graph, GraphError, Infer, SymbolicExtent, quote
from ....ops.symbolic import ComputedSizes
from .load import export_module, graph_of_export

#: Shape of an input: extents that are affine in the dims.
Extents = tuple[SymbolicExtent, ...]


@frozen(eq=False)
class SizedProgram:
    """Module with example inputs and its symbolic dims.

    `inputs` has the extents of those whose shape varies.
    """

    name: str
    program: torch.export.ExportedProgram
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: Mapping[str, Extents]
    dims: tuple[Dim, ...]
    names: tuple[str, ...]

    def graph_at(self, sizes: Mapping[str, int], infer: Infer, computed: ComputedSizes | None = None) -> Graph:
        """Return the graph at sizes of the dims."""
        if not self.inputs:
            return graph_of_export(self.program, infer, self.name, computed)
        leaves, tree = tree_flatten((self.args, dict(self.kwargs)))
        for number, (name, leaf) in enumerate(zip(self.names, leaves, strict=True)):
            if name in self.inputs:
                shape = tuple(extent.at(sizes) for extent in self.inputs[name])
                leaves[number] = torch.zeros(shape, dtype=leaf.dtype, device=leaf.device)
        args, kwargs = tree_unflatten(leaves, tree)
        return graph_of_export(export_module(self.module, args, kwargs), infer, self.name, computed)


def sized_program(model: Any, program: torch.export.ExportedProgram, args: Sequence[Any], name: str) -> SizedProgram:
    """Return an exported program with its symbolic dims.

    A module comes with example inputs `args`. A dim is named after the first axis that has its size, as in `x.0`.

    Raises `GraphError` where an extent is no affine function of the dims.
    """
    names = tuple(program.graph_signature.user_inputs)
    given = program.example_inputs
    if isinstance(model, torch.nn.Module):
        return SizedProgram(name, program, model, tuple(args), {}, {}, (), tuple(map(str, names)))
    if given is None:
        raise GraphError("an exported program without example inputs has one size only", hint="export it again")
    plain = "check_guards" in inspect.signature(program.module).parameters
    module = program.module(check_guards=False) if plain else program.module()
    module._forward_pre_hooks.clear()  # they check the bounds of the sizes, and some samples lie above these
    made = SizedProgram(name, program, module, tuple(given[0]), given[1], {}, (), tuple(map(str, names)))
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    return _with_symbols(made, program, {str(n): values[n] for n in names if isinstance(values.get(n), torch.Tensor)})


def _with_symbols(
    made: SizedProgram, program: torch.export.ExportedProgram, values: Mapping[str, torch.Tensor]
) -> SizedProgram:
    symbols: dict[Any, Dim] = {}
    for name, value in values.items():
        for axis, extent in enumerate(value.shape):
            expr = extent.node.expr if isinstance(extent, torch.SymInt) else None
            if expr is not None and expr.is_Symbol and expr not in symbols:
                symbols[expr] = _dim(f"{name}.{axis}", program.range_constraints.get(expr))
    inputs = {
        name: tuple(
            _extent(f"dim {axis} of input {quote(name)}", extent, symbols) for axis, extent in enumerate(v.shape)
        )
        for name, v in values.items()
        if any(isinstance(extent, torch.SymInt) for extent in v.shape)
    }
    return evolve(made, inputs=inputs, dims=tuple(symbols.values()))


def _dim(name: str, found: Any) -> Dim:
    low = max(1, int(found.lower)) if found is not None else 1
    high = int(found.upper) if found is not None and found.upper.is_Integer else None
    return Dim(name, low, high or low) if high else Dim(name, low, MAX_UNBOUNDED_SIZE)


#: Upper bound of a dim that the model does not bound.
MAX_UNBOUNDED_SIZE = 1 << 30


def _extent(what: str, value: Any, symbols: Mapping[Any, Dim]) -> SymbolicExtent:
    """Return an extent of PyTorch as an affine one of the dims."""
    if not isinstance(value, torch.SymInt):
        return SymbolicExtent(int(value))
    expr = value.node.expr
    terms = {symbol: expr.coeff(symbol) for symbol in expr.free_symbols}
    const = expr - sum(factor * symbol for symbol, factor in terms.items())
    numbers = (const, *terms.values())
    if not all(n.is_Integer for n in numbers) or not set(terms) <= set(symbols):
        raise GraphError(f"{what}: expected an affine function of sizes that are dims of inputs, found {expr}")
    return SymbolicExtent(int(const), tuple(sorted((symbols[s].name, int(n)) for s, n in terms.items())))
