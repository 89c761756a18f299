"""PyTorch's autograd: a captured module becomes graphs of core operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode

from ..decompositions import decompose_layers, trace_eager_views, training_decompositions
from ..partial import RepeatableModule
from .attention import whole_attention
from .call_traces import trace_calls
from .joint_graph import partition_joint_graph
from .parameters import parameter_inputs
from .updates import with_updates


def apply_autograd(
    module: Any, arguments: Sequence[Any], compile_part: Callable[[Any, Sequence[Any]], Any]
) -> Callable[..., Any]:
    """Return a captured module as a function of compiled autograd graphs.

    `compile_part` compiles each graph, which is functional: its last results are the new elements of updated inputs
    (`updated_inputs`). The forward graph saves the tensors of a minimum cut of the joint graph: cheap operations are
    computed again where that saves memory.
    """
    trained = wants_gradients(arguments)
    with whole_attention(trained), _resizing_whole(), trace_eager_views():
        traced = None if trained else trace_calls(module, arguments)
        if traced is not None:
            function = with_updates(compile_part)(traced, arguments)
            return lambda *given: function(list(given))
        again = RepeatableModule(module, parameter_inputs(module, arguments)) if trained else None

        def partition(joint: Any, examples: Any, **options: Any) -> tuple[Any, Any]:
            if again is not None:
                again.joint = joint.graph
            return partition_joint_graph(joint, examples, **options)

        backend = aot_autograd(
            fw_compiler=with_updates(compile_part),
            partition_fn=partition,
            decompositions=training_decompositions(trained),
            keep_inference_input_mutations=not trained,  # PyTorch checks that a backward graph reads no updated input
        )
        compiled: Callable[..., Any] = backend(module, arguments)
        return compiled if again is None else again.wrap(compiled)


class LazyGraph:
    """Lazy autograd graph of a captured module without gradients.

    It keeps the metadata of the arguments, and none of them.
    """

    def __init__(self, module: Any, arguments: Sequence[Any]) -> None:
        self._module = module
        self._metadata = [
            (value.shape, value.stride(), value.dtype, value.device) if isinstance(value, torch.Tensor) else value
            for value in arguments
        ]
        self._graph: torch.fx.Graph | None = None

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph."""
        if self._graph is None:
            graphs: list[torch.fx.Graph] = []
            mode = FakeTensorMode()
            with mode:
                examples = [self._empty_like(like) for like in self._metadata]

            def note(part: Any, inputs: Sequence[Any]) -> Any:
                graphs.append(part.graph)
                return make_boxed_func(part.forward)

            with tracing(TracingContext(mode)), torch.no_grad(), decompose_layers():
                apply_autograd(self._module, examples, note)
            (self._graph,) = graphs
        return self._graph

    @staticmethod
    def _empty_like(like: Any) -> Any:
        if not isinstance(like, tuple):
            return like
        shape, strides, dtype, device = like
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)


@contextmanager
def _resizing_whole() -> Iterator[None]:
    """Keep resizing undecomposed while PyTorch traces.

    PyTorch's decomposition is indexing, whose gradient would be a scatter.
    """
    aten = torch.ops.aten
    packets = (
        aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d, aten.upsample_bicubic2d,
        aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d, aten._upsample_nearest_exact1d,
        aten._upsample_nearest_exact2d, aten._upsample_nearest_exact3d,
    )  # fmt: skip
    overloads = [o for packet in packets for o in (packet.vec, packet.default)]
    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
    taken = [(o, key, o.py_kernels.pop(key)) for o in overloads for key in keys if key in o.py_kernels]
    for overload in overloads:
        overload._dispatch_cache.clear()
    try:
        yield
    finally:
        for overload, key, kernel in taken:
            overload.py_kernels[key] = kernel
            overload._dispatch_cache.clear()


def wants_gradients(arguments: Sequence[Any]) -> bool:
    """Return whether autograd makes a backward graph for arguments."""
    return torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments)
