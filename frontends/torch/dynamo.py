"""A backend for `torch.compile`: graphs that Dynamo captures become ours, forward and backward.

Where gradients are wanted, PyTorch's autograd makes two graphs of core operations. Both are read alike: backward
operations decompose, or are the derived adjoints of what their forward operations mean here (`operators.gradients`). A
graph that we cannot read runs in PyTorch, with a warning.

What was made of a module that needs nothing of autograd is kept by what is told of the module (`told`). A later process
finds it by the same words: neither autograd nor our passes see the module again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ...ir import CutsError, UsageError
from .autograd import TracedLater, through_autograd
from .captured import Captured, Ends, UncompiledWarning
from .devices import check_devices, device_of
from .dynamic import by_shape, is_dynamic
from .frozen import FrozenFunction
from .held import frozen_places, held_inputs, is_direct, own_numbers
from .load import graph_of_nodes
from .program import ArrayFunction, Choice, CompileGraph, Found, Kept
from .recurrent import ForeignLayerError, compile_layers, layers_apart
from .results import checked_results, is_view_of_input
from .tensors import TensorFunction, function_of_ends, function_of_tensors
from .told import told
from .walk import results


def dynamo_backend(
    module: Any,
    examples: Sequence[Any],
    compile_graph: CompileGraph,
    freeze: bool = False,
    kept: Kept | None = None,
    max_shapes: int | None = None,
) -> Any:
    """Compile a captured module: the entry that `torch.compile` calls. Gradients, where wanted, are PyTorch's graphs,
    compiled alike. With `freeze`, parameters and buffers become constants. What other processes made is in `kept`. Of a
    module of dynamic shape, plans are kept for `max_shapes` shapes.

    Raises `UsageError` where gradients of what is frozen are wanted.
    """

    def compile_static(module: Any, arguments: Sequence[Any]) -> Callable[..., Any]:
        held = held_inputs(module, arguments)
        frozen = {n: arguments[n] for n in sorted(held)} if freeze else {}
        _check_frozen(frozen)
        if kept is None:
            return _made(module, arguments, compile_graph, held, frozen)[0]
        with unset_fake_temporarily():  # constants are numbers here
            words = told(module, arguments, held, frozen)
            known = words and _found(module, arguments, compile_graph, held, frozen, partial(kept.find, words))
        if known:
            return known
        function, made = _made(module, arguments, compile_graph, held, frozen)
        if words and made:
            kept.keep(words, made)
        return function

    if any(map(is_dynamic, examples)):
        return by_shape(module, compile_static, max_shapes)
    return compile_static(module, examples)


def _made(
    module: Any,
    arguments: Sequence[Any],
    compile_graph: CompileGraph,
    held: frozenset[int],
    frozen: Mapping[int, torch.Tensor],
) -> tuple[Callable[..., Any], Found | None]:
    """Compile a captured module; return its function, and what was made of its graph where that is all there is to
    it.
    """
    made: list[tuple[Ends, ArrayFunction | Choice]] = []
    direct: list[tuple[TensorFunction, Found]] = []
    unread: list[CutsError] = []

    def compile_noted(captured: Captured, device: Any) -> ArrayFunction | Choice:
        made[:] = [(captured.ends, compile_graph(captured, device))]
        return made[0][1]

    def compile_part(part: Any, inputs: Sequence[Any]) -> Any:
        if not _computes(part.graph) or (unread and met.layers):
            return make_boxed_func(part.forward)
        try:
            with unset_fake_temporarily():
                found = _compiled(part.graph, device_of(inputs), compile_noted, held, frozen)
                checked = checked_results(part.graph, results(part.graph), found)
                if is_direct(part.graph, arguments):
                    (ends, compiled), constants = made[0], tuple(frozen_places(part.graph, frozen))
                    direct.append((checked, Found(ends, constants, compiled)))
                return make_boxed_func(checked)
        except CutsError as error:
            unread.append(error)
            _warn(part.graph, error)
            return make_boxed_func(part.forward)

    compile_layers(compile_graph)
    with layers_apart() as met:
        try:
            whole = through_autograd(module, arguments, compile_part)
        except ForeignLayerError as error:
            unread.append(error)
            _warn(module.graph, error)
    if unread and met.layers:  # PyTorch has routines for recurrent layers, and none for the parts that they are here
        return module.forward, None
    return direct[0] if direct else (whole, None)


def _warn(graph: torch.fx.Graph, error: CutsError) -> None:
    warnings.warn(f"a graph of {len(graph.nodes)} nodes runs in PyTorch: {error}", UncompiledWarning, stacklevel=3)


def _found(
    module: Any,
    arguments: Sequence[Any],
    compile_graph: CompileGraph,
    held: frozenset[int],
    frozen: Mapping[int, torch.Tensor],
    find: Callable[[torch.device, Callable[[Sequence[int]], Captured]], Found | None],
) -> TensorFunction | None:
    """Return the function of a captured module that an earlier process compiled, or nothing. Where more must be made
    of it (a parameter that is a constant changed, PyTorch's precision did), autograd sees it after all.
    """
    device, later = device_of(arguments), TracedLater(module, arguments)

    def captured(constants: Mapping[int, torch.Tensor]) -> Captured:
        return graph_of_nodes(later.graph, constants, True)

    found = find(device, lambda numbers: captured({n: frozen[n] for n in numbers}))
    if found is None:
        return None
    known = [function_of_ends(found.ends, device, found.compiled, held)]

    def compile_with(constants: Mapping[int, torch.Tensor]) -> TensorFunction:
        return known.pop() if known else function_of_tensors(captured(constants), device, compile_graph, held)

    constants = {n: frozen[n] for n in found.frozen}
    return FrozenFunction(compile_with, constants) if constants else compile_with({})


def _check_frozen(frozen: Mapping[int, Any]) -> None:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in frozen.values()):
        raise UsageError(
            "option 'freeze': gradients of the parameters are wanted",
            hint="call the model under torch.no_grad(), or leave 'freeze' out to train it",
        )


def _computes(graph: torch.fx.Graph) -> bool:
    """Whether a graph has results that are more than views of its inputs; of a batch of no elements Dynamo asks for
    none.
    """
    nodes = [node for node in results(graph) if isinstance(node, torch.fx.Node)]
    return not all(is_view_of_input(node) for node in nodes)


def _compiled(
    graph: torch.fx.Graph,
    device: torch.device,
    compile_graph: CompileGraph,
    held: frozenset[int],
    frozen: Mapping[int, torch.Tensor],
) -> TensorFunction:
    """Compile a graph that autograd made; `held` and `frozen` are inputs of the captured module, by number."""
    check_devices(graph, device)
    places = {place for place, number in own_numbers(graph).items() if number in held}

    def compile_with(constants: Mapping[int, torch.Tensor]) -> TensorFunction:
        return function_of_tensors(graph_of_nodes(graph, constants, True), device, compile_graph, places)

    constants = frozen_places(graph, frozen)
    return FrozenFunction(compile_with, constants) if constants else compile_with({})
