"""Captured graphs of dynamic shape, compiled for ranges of sizes.

A bucket serves all sizes up to a power of two (or to Dynamo's own bound). Its arguments are copied to the front of
tensors with room for the greatest sizes, and its results are the elements that are there. Inputs that the graph updates
are written in place where their sizes do not vary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import torch
from attrs import evolve, field, frozen
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ....ir import CutsError, Dim, size_samples
from ....ops.symbolic import BoundedGraph, bounded_graph
from ..calls import updated_inputs
from ..captured_graph import CapturedGraph
from ..decompositions import decompose_layers
from ..loading import graph_of_nodes
from ..partial import present_elements
from .autograd import apply_autograd
from .parameters import is_direct
from .updates import updating

#: Compiles a captured graph as a function of its inputs.
CompileCaptured = Callable[[CapturedGraph], Callable[..., list[Any]]]
#: Greatest size of a dim that Dynamo does not bound.
MAX_SIZE = 1 << 24


class BucketedModule:
    """Module of dynamic shape, compiled for each bucket of sizes."""

    def __init__(self, module: Any) -> None:
        self.module = module
        examples = [n.meta.get("example_value") for n in module.graph.nodes if n.op == "placeholder"]
        self.shapes = [_expressions(example) for example in examples]
        self.symbols = list(dict.fromkeys(s for shape in self.shapes for e in shape for s in _free_symbols(e)))
        self.ranges = {s: _range(s, examples) for s in self.symbols}
        self.is_refused = not self.symbols
        self._made: dict[tuple[int, ...], _Bucket] = {}
        self._making = Lock()

    def find(self, arguments: Sequence[Any], compile_captured: CompileCaptured) -> Callable[..., list[Any]] | None:
        """Return the function of the bucket that serves arguments, or None.

        There is none where gradients are wanted, and where sizes cannot vary in one graph.
        """
        wants = torch.is_grad_enabled() and any(getattr(a, "requires_grad", False) for a in arguments)
        if self.is_refused or wants:
            return None
        sizes = self._sizes(arguments)
        if sizes is None:
            return None
        highs = tuple(_bucket_end(size, *self.ranges[s]) for s, size in sizes.items())
        with self._making:
            try:
                if highs not in self._made:
                    self._made[highs] = self._compile(highs, arguments, compile_captured)
            except CutsError:
                self.is_refused = True
                return None
            return self._made[highs].function(sizes)

    def _sizes(self, arguments: Sequence[Any]) -> dict[Any, int] | None:
        """Return the size of each symbol, from an argument that is it or has a dim of it."""
        found: dict[Any, int] = {}
        for shape, argument in zip(self.shapes, arguments, strict=True):
            numbers = argument.shape if isinstance(argument, torch.Tensor) else (argument,)
            found |= {e: int(n) for e, n in zip(shape, numbers, strict=False) if getattr(e, "is_Symbol", False)}
        sizes = {s: found[s] for s in self.symbols if s in found}
        inside = all(self.ranges[s][0] <= n <= self.ranges[s][1] for s, n in sizes.items())
        return sizes if len(sizes) == len(self.symbols) and inside else None

    def _compile(self, highs: tuple[int, ...], arguments: Sequence[Any], compile_captured: CompileCaptured) -> _Bucket:
        dims = tuple(Dim(str(s), self.ranges[s][0], high) for s, high in zip(self.symbols, highs, strict=True))
        samples = size_samples(dims, {dim.name: dim.low for dim in dims})
        parts = [self._capture(sizes, arguments) for sizes in samples.samples]
        updated = updated_inputs(parts[0])
        with unset_fake_temporarily():
            captured = [graph_of_nodes(part) for part in parts]
        first = captured[0]
        bounded = bounded_graph([each.graph for each in captured], samples, first.registry.instances)
        if any(each.results != first.results or each.inputs != first.inputs for each in captured) or first.seeds:
            raise CutsError("the results or inputs differ at other sizes")
        scalars = tuple(source.tensor for source in bounded.sizes.values())
        made = evolve(first, graph=bounded.graph, inputs=(*first.inputs, *scalars), reimport=None)
        with unset_fake_temporarily():
            return _Bucket(self.symbols, dims, bounded, first, compile_captured(made), updated)

    def _capture(self, sizes: Mapping[str, int], arguments: Sequence[Any]) -> torch.fx.Graph:
        """Return autograd's graph at sizes of the symbols.

        Raises `CutsError` where PyTorch has work around it, or results have no order of their own.
        """
        graphs: list[torch.fx.Graph] = []
        mode = FakeTensorMode()
        with mode:
            examples = [_example_at(shape, sizes, a) for shape, a in zip(self.shapes, arguments, strict=True)]

        def note(part: Any, inputs: Sequence[Any]) -> Any:
            graphs.extend([part.graph] if is_direct(part.graph, [*map(type, arguments)]) else [])
            return make_boxed_func(part.forward)

        with tracing(TracingContext(mode)), torch.no_grad(), decompose_layers():
            try:
                apply_autograd(self.module, examples, note)
            except Exception as error:  # of any kind: tracing runs the operations, at sizes that a guard may exclude
                raise CutsError(f"PyTorch cannot trace the graph at sizes {dict(sizes)}: {error}") from error
        if len(graphs) != 1 or not all(map(_is_dense, _results(graphs[0]))):
            raise CutsError("the graph has views as results")
        return graphs[0]


@frozen(eq=False)
class _Bucket:
    """Compiled graph of a bucket, and its tensors of sizes."""

    symbols: Sequence[Any]
    dims: Sequence[Dim]
    bounded: BoundedGraph
    captured: CapturedGraph
    run: Callable[..., list[Any]]
    updated: Sequence[int]
    scalars: dict[tuple[int, torch.device], torch.Tensor] = field(factory=dict)

    def function(self, sizes: Mapping[Any, int]) -> Callable[..., list[Any]]:
        """Return the function of arguments of some sizes."""
        named = {dim.name: sizes[symbol] for symbol, dim in zip(self.symbols, self.dims, strict=True)}

        def call(*arguments: Any) -> list[Any]:
            device = next((a.device for a in arguments if isinstance(a, torch.Tensor)), torch.device("cpu"))
            names = zip(self.captured.inputs, arguments, strict=True)
            whole = [a if name is None else self._with_room(name, a) for name, a in names]
            extra = [self._scalar(named[dim] - source.low, device) for dim, source in self.bounded.sizes.items()]
            found = self.run(*whole, *extra)
            pairs = zip(self.captured.results, found, strict=True)
            layouts = self.bounded.layouts
            return [present_elements(r, layouts[name], named) if isinstance(name, str) else r for name, r in pairs]

        return updating(call, self.updated)

    def _with_room(self, name: str, argument: torch.Tensor) -> torch.Tensor:
        shape = tuple(math.prod(f.capacity for f in layout) for layout in self.bounded.layouts[name])
        if tuple(argument.shape) == shape:
            return argument
        made = argument.new_empty(shape) if argument.is_floating_point() else argument.new_zeros(shape)
        made[tuple(slice(0, n) for n in argument.shape)] = argument
        return made

    def _scalar(self, value: int, device: torch.device) -> torch.Tensor:
        key = value, device
        if key not in self.scalars:
            self.scalars[key] = torch.tensor(value, dtype=torch.int32, device=device)
        return self.scalars[key]


def _bucket_end(size: int, low: int, high: int) -> int:
    return max(low, min(high, 1 << max(0, size - 1).bit_length()))


def _expressions(example: Any) -> tuple[Any, ...]:
    """Return the sizes of a captured argument: numbers, and expressions of symbols."""
    if isinstance(example, torch.SymInt):
        return (example.node.expr,)
    shape = example.shape if isinstance(example, torch.Tensor) else ()
    return tuple(extent.node.expr if isinstance(extent, torch.SymInt) else int(extent) for extent in shape)


def _free_symbols(expression: Any) -> Sequence[Any]:
    return sorted(getattr(expression, "free_symbols", ()), key=str)


def _range(symbol: Any, examples: Sequence[Any]) -> tuple[int, int]:
    """Return the bounds that Dynamo knows of a symbol."""
    values = [e for x in examples for e in ([x] if isinstance(x, torch.SymInt) else getattr(x, "shape", ()))]
    numbers = [value for value in values if isinstance(value, torch.SymInt)]
    env = next((value.node.shape_env for value in numbers), None)
    known = env.var_to_range.get(symbol) if env is not None else None
    if known is None:
        return 1, MAX_SIZE
    bounded = known.upper.is_Integer and int(known.upper) < MAX_SIZE
    low = max(1, int(known.lower)) if known.lower.is_Integer else 1
    return low, int(known.upper) if bounded else MAX_SIZE


def _example_at(shape: Sequence[Any], sizes: Mapping[str, int], argument: Any) -> Any:
    """Return a fake argument at sizes of the symbols."""
    numbers = [e if isinstance(e, int) else int(e.subs({s: sizes[str(s)] for s in e.free_symbols})) for e in shape]
    if not isinstance(argument, torch.Tensor):
        return numbers[0] if numbers else argument
    made = torch.empty(numbers, dtype=argument.dtype, device=argument.device)
    return torch.nn.Parameter(made, requires_grad=False) if isinstance(argument, torch.nn.Parameter) else made


def _results(graph: torch.fx.Graph) -> list[Any]:
    (output,) = (node for node in graph.nodes if node.op == "output")
    return [node for node in output.args[0] if isinstance(node, torch.fx.Node)]


def _is_dense(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_contiguous()
